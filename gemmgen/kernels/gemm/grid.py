"""The products on which instances are timed to know which is best where."""

from __future__ import annotations

SQUARES = (128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
SKINNY = (1, 4, 16, 32, 64, 128, 256)
"""Rows of a product whose other extents are those of a layer of a network: batches, from inference to training."""
LAYERS = ((1024, 1024), (4096, 1024), (1024, 4096), (4096, 4096), (11008, 4096), (4096, 11008), (50257, 768))
"""(n, k) of such layers."""
DEEP = ((64, 64, 65536), (128, 128, 16384), (128, 128, 65536), (256, 256, 8192), (512, 512, 4096), (512, 512, 16384), (1024, 1024, 8192))
FLAT = ((4096, 4096, 16), (4096, 4096, 64), (4096, 4096, 256), (8192, 8192, 64), (2048, 2048, 128), (16384, 1024, 64))
TALL = ((8192, 128, 1024), (16384, 64, 512), (4096, 64, 4096), (65536, 64, 64), (50257, 1024, 768), (32768, 128, 128), (16384, 512, 256))
RECTANGLES = (
    (512, 2048, 1024), (1024, 4096, 512), (2048, 512, 2048), (768, 3072, 768), (3072, 768, 768), (1536, 384, 1536), (2048, 8192, 1024),
)  # fmt: skip
UNALIGNED = (
    (127, 127, 127), (255, 257, 129), (513, 511, 515), (1000, 1000, 1000), (1023, 1023, 1023), (2047, 2047, 2047),
    (4095, 4095, 4095), (17, 4095, 4095), (4095, 63, 4095), (50257, 1023, 767), (777, 3001, 333),
)  # fmt: skip
LAYOUTS = (
    (256, 256, 256), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (16, 4096, 4096), (128, 4096, 1024), (128, 128, 16384),
)  # fmt: skip
BATCHES = (
    (64, 64, 64, 256), (128, 128, 64, 96), (128, 64, 128, 96), (256, 256, 64, 64), (512, 512, 64, 48), (512, 64, 512, 48),
    (1024, 1024, 128, 16),
)  # fmt: skip
HALVES = ((256, 256, 256), (1024, 1024, 1024), (4096, 4096, 4096), (16, 4096, 4096), (4096, 4096, 64))


def problem_grid(fine: bool) -> list[str]:
    """Squares, layers with few and many rows, deep, flat and tall products, edges, layouts, batches and halves."""
    found = [_text(size, size, size) for size in SQUARES]
    found += [_text(m, n, k) for n, k in LAYERS for m in SKINNY if fine or m in (1, 16, 64, 128)]
    found += [_text(*size) for size in (*DEEP, *FLAT, *TALL, *RECTANGLES)]
    found += [_text(*size, "unaligned") for size in UNALIGNED]
    found += [_text(*size, letters) for letters in ("nt", "tn", "tt") for size in (LAYOUTS if fine else LAYOUTS[1::2])]
    found += [_text(*size[:3], f"batch={size[3]}") for size in BATCHES]
    found += [_text(*size, kind) for kind in ("f16", "bf16") for size in HALVES]
    if fine:
        found += [_text(size, size, size, "nt") for size in SQUARES]
        found += [_text(size - 1, size - 1, size - 1, "unaligned") for size in SQUARES]
        found += [_text(m, n, k) for m in (192, 320, 640, 896, 1280) for n in (512, 1280, 2560) for k in (640, 2048)]
    return list(dict.fromkeys(found))


def _text(*parts: int | str) -> str:
    return ",".join(map(str, parts))
