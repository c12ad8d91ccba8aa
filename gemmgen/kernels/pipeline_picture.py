"""The pipeline of a mainloop as a timeline: which stage is filled and which is multiplied, step by step.

Lengths are a sketch, the order is the kernel's: a step of arithmetic takes two units, a copy from global memory three.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from gemmgen.kernels.pictures import Span, Timeline

Copies = Literal["registers", "cp_async", "tma"]

TILES = 8
MATH = 2.0
LATENCY = 3.0
STORE = 0.5
ISSUE = 0.25

_WORDS: dict[Copies, str] = {
    "registers": "loads pass through registers; arrived data is stored when its stage is free, then a barrier",
    "cp_async": "cp.async copies past the registers; a wait and a barrier before a stage is multiplied",
    "tma": "a producer warp has TMA fill stages; one barrier of each tells that it is full, another that it is free",
}


def pipeline(copies: Copies, stages: int) -> Timeline:
    """The first steps of a mainloop with ``stages`` in shared memory."""
    rows = [f"stage {stage}" for stage in range(stages)]
    if copies == "registers":
        rows.append("registers")
    spans: list[Span] = []
    begins: list[float] = []
    """Start of the arithmetic on each tile."""
    for tile in range(TILES):
        issue = _issue(copies, stages, tile, begins)
        arrived = issue + LATENCY
        stage = tile % stages
        if copies == "registers":
            free = begins[tile - 1] + MATH if tile else 0.0
            stored = max(arrived, free)
            spans.append(Span(len(rows) - 1, issue, arrived - issue, f"load {tile}", tile, strong=False))
            spans.append(Span(stage, stored, STORE, "", tile, strong=False))
            begin = stored + STORE
        else:
            spans.append(Span(stage, issue, LATENCY, f"copy {tile}", tile, strong=False))
            begin = max(arrived, begins[-1] + MATH if begins else 0.0)
        spans.append(Span(stage, begin, MATH, f"multiply {tile}", tile))
        begins.append(begin)
    idle = sum(later - sooner - MATH for sooner, later in pairwise(begins))
    notes = (
        f"{stages} stage{'s' if stages > 1 else ''}: {_WORDS[copies]}.",
        "pale: in flight; strong: multiplied. "
        + (
            "Arithmetic never waits here."
            if idle < 1e-6
            else "Where no stage is multiplied, arithmetic waits for memory, if no other block fills the gap."
        ),
    )
    return Timeline(
        "Pipeline of the mainloop", tuple(rows), tuple(spans), "time, a sketch: multiply 2, global memory 3", notes, tuple(begins)
    )


def _issue(copies: Copies, stages: int, tile: int, begins: list[float]) -> float:
    """The moment when the copy of a tile starts."""
    if copies == "registers":
        if tile == 0:
            return 0.0
        return begins[tile - 1] + (0.0 if stages > 1 else MATH)
    ahead = stages if copies == "tma" else max(1, stages - 1)
    if tile < ahead:
        return tile * ISSUE
    if copies == "tma" or stages == 1:
        return begins[tile - ahead] + MATH
    return begins[tile - ahead]
