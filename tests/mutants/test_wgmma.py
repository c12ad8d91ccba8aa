"""Breaks a GEMM on wgmma one way at a time: fences, groups, descriptors and the ring of stages. Every kind has to be caught, by
an error of the emulator or by results that differ from the H200's bits."""

from __future__ import annotations

import numpy as np
import pytest
from emulator.test_wgmma_gemm import SOURCE, launch

from gemmgen import emulator

from .operators import Operator

OPERATORS = (
    Operator("drop the fence of wgmma", r"wgmma_fence\(\);", ";", where="^        wgmma"),
    Operator("drop the end of a group", r"wgmma_commit\(\);", ";", where="^        wgmma"),
    Operator("wait for one group too few", r"wgmma_wait<1>", "wgmma_wait<2>", where="^        wgmma"),
    Operator("drop the wait in the loop", r"wgmma_wait<1>\(\);", ";", where="^        wgmma"),
    Operator("drop the last wait", r"wgmma_wait<0>\(\);", ";", where="^    wgmma"),
    Operator("the last wait leaves a group", r"wgmma_wait<0>", "wgmma_wait<1>", where="^    wgmma"),
    Operator("release the stage that is being read", r"\(step - 1\) % kStages", "step % kStages"),
    Operator("release before the wait", r"if \(step > 0 && threadIdx.x % 128 == 0\)", "if (threadIdx.x % 128 == 0)", where="empty"),
    Operator("half the stride of a descriptor", r"16, 1024, 1\)", "16, 512, 1)"),
    Operator("another swizzle in a descriptor", r"1024, 1\)", "1024, 2)"),
    Operator("no swizzle in a descriptor", r"1024, 1\)", "1024, 0)"),
    Operator("half a step along k", r"i \* 32, 16", "i * 16, 16"),
    Operator("twice the step along k", r"i \* 32, 16", "i * 64, 16"),
    Operator("a descriptor that begins within a pattern", r"i \* 32, 16", "i * 32 + 256, 16"),
    Operator("both groups read the same rows", r"\+ row_of_group \* 128", ""),
    Operator("the rows of the next group", r"\(group - 1\) \* 64", "group * 64"),
    Operator("accumulate nothing", r"at_a, at_b, 1\)", "at_a, at_b, 0)"),
    Operator("operands exchanged", r"mma\(d, at_a, at_b", "mma(d, at_b, at_a"),
    Operator("B in the other major order", r"1, 1, 0, 0;", "1, 1, 0, 1;"),
    Operator("a negated operand", r"p, 1, 1,", "p, 1, -1,"),
    Operator("a warp leaves its group", r"if \(group == 0\)", "if (group == 0 || threadIdx.x >= 352)"),
    Operator("accumulators that begin with one", r"d\[i\] = 0\.0f", "d[i] = 1.0f"),
    Operator("an element of the fragment too far", r"i / 4 \* 8", "i / 2 * 8"),
    Operator("drop the wait for a tile", r"barrier_wait\(&full\[stage\], [^)]*\);", ";"),
    Operator("drop the wait for a free stage", r"if \(step >= kStages\) barrier_wait\(&empty\[stage\], [^)]*\);", ";"),
    Operator(
        "the other parity", r"step / kStages % 2( \^ 1)?\)", lambda match: "step / kStages % 2)" if match[1] else "step / kStages % 2 ^ 1)"
    ),
    Operator("expect too few bytes", r"kTileA \+ kTileB\)", "kTileA)"),
    Operator("expect too many bytes", r"kTileA \+ kTileB\)", "kTileA + kTileB + 16)"),
    Operator("one arrival too few", r"(&empty\[stage\], )2", r"\g<1>1"),
    Operator(
        "one arrival too many", r"(&(?:empty|full)\[stage\], )([12])\)", lambda match: f"{match[1]}{int(match[2]) + 1})", where="init"
    ),
)


def verdict(source: str) -> str:
    """Finding about a source; empty if there is none."""
    try:
        got, want = launch(source, 128, 128, 320, step_limit=20_000)
    except emulator.EmulatorError as error:
        return type(error).__name__
    return "" if np.array_equal(got, want) else "wrong results"


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.kind)
def test_every_kind_is_caught(operator: Operator) -> None:
    mutants = list(operator.mutants(SOURCE))
    assert mutants, "no place to break"
    for mutant in mutants:
        how = verdict(mutant.text)
        print(f"{mutant}: {how or 'SURVIVED'}")
        assert how, str(mutant)
