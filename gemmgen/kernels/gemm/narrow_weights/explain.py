"""A GEMM with narrow weights in words."""

from __future__ import annotations

from gemmgen.kernels.family import Section
from gemmgen.kernels.gemm.narrow_weights.plan import WeightPlan
from gemmgen.kernels.gemm.packed_weights import PANEL
from gemmgen.kernels.gemm.tensor_cores.explain import Wording, regions, results, work_lines
from gemmgen.kernels.gemm.wording import Lines


def sections(plan: WeightPlan) -> list[Section]:
    """Weights, tiles, the mainloop, shared memory and stores."""
    wording = Wording(filler="by asynchronous copies, ", collects="each adds up all their sums, in order, for some of the results")
    return [
        Section("Weights", _weights(plan)),
        Section("Work", work_lines(plan, wording)),
        Section("Mainloop", _mainloop(plan)),
        Section("Shared memory", regions(plan)),
        Section("Results", results(plan, wording, plan.loop.shown.stored)),
    ]


def _weights(plan: WeightPlan) -> Lines:
    loop = plan.loop
    scale = f"for each {loop.group} values of k of a column" if loop.group else "for each column"
    zero = "an integer beside it" if loop.zeros else str(2 ** (loop.bits - 1))
    value = f"scale (code - zero), with codes of {loop.bits} bits"
    if loop.floats:
        value = f"scale times code, a float of {loop.bits} bits, {'e2m1' if loop.bits == 4 else 'e4m3'}"
    return (
        ("value", value),
        ("scale", scale if loop.floats else f"{scale}; zero: {zero}"),
        ("packed", f"16 bytes of a lane hold its part of {loop.unit_k} values of k of {PANEL} columns"),
    )


def _mainloop(plan: WeightPlan) -> Lines:
    loop = plan.loop
    scaled = f"after every {loop.group} of k" if loop.group else "at the end"
    exact = f"become {'floats' if loop.floats else 'code - zero'}, exactly, in registers; sums are scaled {scaled}, in float32"
    rounded = "become code - zero in registers, are scaled there, and rounded to the type of A"
    return (
        *loop.shown.lines,
        ("instruction", loop.instruction),
        ("weights", rounded if loop.scales_weights else exact),
    )
