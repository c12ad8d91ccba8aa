"""The reductions on which instances are timed to know which is best where."""

from __future__ import annotations

WHOLE = tuple(1 << exponent for exponent in (10, 12, 14, 16, 18, 20, 22, 24, 26, 28))
ROWS = (
    (1 << 20, 32), (1 << 18, 128), (1 << 16, 512), (1 << 14, 1024), (1 << 14, 4096), (1 << 12, 1 << 14), (1 << 10, 1 << 16),
    (64, 1 << 20), (8, 1 << 22), (128, 1024), (4096, 768), (1024, 50257),
)  # fmt: skip
COLUMNS = (
    (1 << 20, 32), (1 << 18, 128), (1 << 16, 512), (1 << 14, 1024), (4096, 4096), (1024, 1 << 14), (128, 1 << 17), (32, 1 << 20),
    (1024, 128), (4096, 768),
)  # fmt: skip
MIDDLE = ((8, 1024, 1024), (64, 256, 1024), (256, 64, 512), (1024, 49, 256))


def problem_grid(fine: bool) -> list[str]:
    """Everything to one value, rows, columns and the middle of three axes; the costlier operations and other types at some."""
    whole = [f"1,{size},1" for size in WHOLE]
    rows = [f"{outer},{reduced},1" for outer, reduced in ROWS]
    columns = [f"1,{reduced},{inner}" for reduced, inner in COLUMNS]
    middle = [f"{outer},{reduced},{inner}" for outer, reduced, inner in MIDDLE]
    found = [*whole, *rows, *columns, *middle]
    found += [f"{text},unaligned" for text in (*whole[3:8:2], *rows[2:8:2], *columns[2:8:2])]
    found += [f"{text},{word}" for word in ("max", "f16", "argmax") for text in (whole[5], rows[3], columns[3])]
    if fine:
        some = (*whole[2::2], *rows[1::2], *columns[1::2])
        found += [f"{text},{word}" for word in ("f16", "bf16", "f64", "argmax", "logsumexp") for text in some]
    return list(dict.fromkeys(found))
