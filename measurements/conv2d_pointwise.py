"""Times changed convolution instances beside the shipped ones, on layers of one tap at batch 128: their possible gains.

    python -m measurements.conv2d_pointwise            on a machine with an H100 or H200, and torch: under two minutes
    python -m measurements.conv2d_pointwise --check    verifies the changed instances on the emulator

Prints microseconds of device time for every layer and instance, timed as conv2d_hopper.py does, the share of 4.30 TB/s that each reaches,
and the fastest. conv2d_pointwise.md describes the limits of these layers.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import cast

from gemmgen import api
from gemmgen.kernels.conv2d.warpgroup import WarpgroupPlan
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_case
from measurements.conv2d_hopper_report import COPY_BYTES, SPECS, Layer

SHIPPED = (
    "int8_k64_64x512",
    "int8_k64_64x512_pair",
    "int8_64x64",
    "int8_64x128",
    "int8_128x128",
    "int8_128x128_pair",
    "int8_128x192",
    "int8_128x256",
)
FOUR = "mainloop.consumers=4"  # groups: as many results a block in flight as two hold, by twice the warps
TWO_BUFFERS = "mainloop.store_buffers=2"
CHANGED: dict[str, tuple[str, tuple[str, ...]]] = {
    "64x512, 4 groups": ("int8_k64_64x512", (FOUR,)),
    "64x384, 3 groups, 6 stages": ("int8_k64_64x512", ("mainloop.tile.pixels=384", "mainloop.consumers=3", "mainloop.stages=6")),
    "256x128 of 64, 4 groups": (
        "int8_k64_64x512",
        ("mainloop.tile={channels: 256, pixels: 128, k: 64}", "mainloop.division=channels", FOUR, "mainloop.stages=6"),
    ),
    "256x128 of 64, 4 groups, one buffer": (
        "int8_k64_64x512",
        ("mainloop.tile={channels: 256, pixels: 128, k: 64}", "mainloop.division=channels", FOUR, "mainloop.store_buffers=1"),
    ),
    "128x256, two buffers": ("int8_128x256", (TWO_BUFFERS, "mainloop.stages=3")),
    "128x256, two buffers, pair": ("int8_128x256", (TWO_BUFFERS, "mainloop.stages=3", "mainloop.cluster={blocks: 2, share: pixels}")),
    "128x192, two buffers": ("int8_128x192", (TWO_BUFFERS, "mainloop.stages=4")),
    "256x128, 4 groups, two buffers": (
        "int8_128x256",
        ("mainloop.tile={channels: 256, pixels: 128, k: 128}", FOUR, TWO_BUFFERS, "mainloop.stages=3"),
    ),
    "256x128, 4 groups, pair of filters": (
        "int8_128x256",
        (
            "mainloop.tile={channels: 256, pixels: 128, k: 128}",
            FOUR,
            TWO_BUFFERS,
            "mainloop.stages=3",
            "mainloop.cluster={blocks: 2, share: filter}",
        ),
    ),
    "128x256 by pixels, 4 groups": (
        "int8_k64_64x512",
        ("mainloop.tile={channels: 64, pixels: 256, k: 128}", FOUR, "mainloop.stages=4"),
    ),
}
"""Names, the shipped specs that they come from, and the differences."""
FEW_BLOCKS = "mainloop.persistent_blocks=4"
"""So that a block has several tiles in a small case; kernels are the same with any number."""
LAYERS = tuple(
    Layer(c, h, h, k, 1, 1)
    for c, h, k in (
        (64, 56, 64),
        (64, 56, 256),
        (256, 56, 64),
        (256, 56, 128),
        (128, 28, 512),
        (512, 28, 128),
        (512, 28, 256),
        (256, 14, 1024),
        (1024, 14, 256),
    )
)
IMAGES = 128


def planned(base: str, overrides: Sequence[str] = ()) -> WarpgroupPlan:
    """A changed instance."""
    return cast("WarpgroupPlan", api.plan(SPECS / f"{base}.yaml", "sm_90a", overrides))


def check() -> int:
    """Verifies the changed instances; the number of cases that failed."""
    failed = 0
    for name, (base, overrides) in CHANGED.items():
        started = time.monotonic()
        plan = planned(base, (*overrides, FEW_BLOCKS))
        binary = compile_plan(plan)
        results = [verify_case(plan, binary, EmulatorBackend(), case) for case in oracle_of("conv2d").cases(plan)]
        wrong = [f"{result.case.name}: {result.failure}" for result in results if not result.passed]
        failed += len(wrong)
        spilled = any(used.spill_loads or used.spill_stores for used in binary.resources.values())
        print(f"{name}: {len(results)} cases{', spills' if spilled else ''}, {time.monotonic() - started:.0f} s", *wrong, flush=True)
    return failed


def measure() -> None:
    """Times all layers, those with the largest images last."""
    import torch

    from measurements.conv2d_hopper import Contest

    torch.cuda.init()
    wanted = {name: planned(name) for name in SHIPPED} | {name: planned(*changed) for name, changed in CHANGED.items()}
    contest = Contest(torch.cuda.Stream(), wanted)
    for layer in sorted(LAYERS, key=lambda layer: layer.h):
        result = contest.measure("s8", IMAGES, layer)
        least = IMAGES * layer.h * layer.w * (layer.c + layer.k) / COPY_BYTES * 1e6
        print(f"{layer.c} -> {layer.k} at {layer.h}: at least {least:.2f} us, cuDNN {result.peer_us:.2f}", *result.notes)
        for name in sorted(result.times, key=lambda name: result.times[name]):
            print(
                f"  {result.times[name]:7.2f} us {least / result.times[name]:5.0%}  {'* ' if name in CHANGED else '  '}{name}", flush=True
            )


def main() -> None:
    """Measures, or verifies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="verify the changed instances on the emulator")
    if parser.parse_args().check:
        sys.exit(check() > 0)
    measure()


if __name__ == "__main__":
    main()
