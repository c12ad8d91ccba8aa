"""The convolutions on which instances are timed to know which is best where: the layers of ResNet-50."""

from __future__ import annotations

LAYERS = (
    # c, h = w, k, r = s, stride, padding
    (64, 56, 64, 1, 1, 0), (64, 56, 64, 3, 1, 1), (64, 56, 256, 1, 1, 0), (256, 56, 64, 1, 1, 0), (256, 56, 128, 1, 1, 0),
    (128, 56, 128, 3, 2, 1), (128, 28, 512, 1, 1, 0), (256, 56, 512, 1, 2, 0), (512, 28, 128, 1, 1, 0), (128, 28, 128, 3, 1, 1),
    (512, 28, 256, 1, 1, 0), (256, 28, 256, 3, 2, 1), (256, 14, 1024, 1, 1, 0), (512, 28, 1024, 1, 2, 0), (1024, 14, 256, 1, 1, 0),
    (256, 14, 256, 3, 1, 1), (1024, 14, 512, 1, 1, 0), (512, 14, 512, 3, 2, 1), (512, 7, 2048, 1, 1, 0), (1024, 14, 2048, 1, 2, 0),
    (2048, 7, 512, 1, 1, 0), (512, 7, 512, 3, 1, 1),
)  # fmt: skip


def problem_grid(fine: bool) -> list[str]:
    """Every distinct layer after the first, for batches from one image to many."""
    batches = (16, 128, 1, 8, 64, 256) if fine else (16, 128)
    layers = {n: LAYERS if fine or n == batches[0] else LAYERS[1::3] for n in batches}
    return [f"{n},{c},{h},{h},{k},{r},{r},{stride},{padding}" for n in batches for c, h, k, r, stride, padding in layers[n]]
