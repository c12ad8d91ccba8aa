"""The elementwise problems on which instances are timed to know which is best where."""

from __future__ import annotations

FLAT = tuple(1 << exponent for exponent in (12, 16, 20, 22, 24, 26, 28))
ROWS = ((1 << 20, 32), (1 << 16, 512), (1 << 14, 4096), (4096, 768), (64, 1 << 20))


def problem_grid(fine: bool) -> list[str]:
    """Flat arrays of all sizes, rows with gaps, other types and broadcasts at some."""
    flat = [f"1,1,1,{size}" for size in FLAT]
    rows = [f"1,1,{rows},{columns},padded" for rows, columns in ROWS]
    found = [*flat, *rows]
    found += [f"{text},{word}" for word in ("f16", "unaligned") for text in (flat[3], flat[5], rows[2])]
    if fine:
        found += [f"{text},{word}" for word in ("bf16", "f64", "s8", "strided") for text in (*flat[2::2], *rows[1::2])]
    return list(dict.fromkeys(found))
