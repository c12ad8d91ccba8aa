"""Kernels that quantise: every bit against the reference, planted mistakes, requests and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gemmgen
from gemmgen.core.elements import to_elements, to_numbers
from gemmgen.core.errors import LaunchError, PlanError, SpecError
from gemmgen.dispatch.problems import read_problem
from gemmgen.kernels.gemm.scaling import BlockScale, scales_of
from gemmgen.kernels.quantise.operator import interpret
from gemmgen.kernels.quantise.oracle import TINY, quantised, scales_of_blocks
from gemmgen.kernels.requests import Layout
from tests.kernels.verifying import verified

SPEC: dict[str, Any] = {"kind": "quantise", "architecture": "sm_89"}
NAMES = ("one column above a block", TINY, "not-a-numbers and infinities", "padded leading dimensions")


@pytest.mark.parametrize("block", ["1x128", "128x128", "row", "tensor"])
@pytest.mark.parametrize(
    "changes", [{}, {"input": "f16", "output": "e5m2", "scales": "ue8m0", "layout": "mn_major", "vector": 1}], ids=["floats", "exponents"]
)
def test_every_bit_is_the_references(block: str, changes: dict[str, Any]) -> None:
    report = verified({**SPEC, "block": block, **changes}, NAMES)
    assert report.passed, [result.failure for result in report.results if not result.passed]


@pytest.mark.parametrize(
    ("changes", "planted"),
    [
        ({}, ("magnitude < __int_as_float(0x7f800000) ? magnitude : 0.0f", "magnitude")),
        ({"scales": "ue8m0"}, ("(bits & 0x7fffffu) > above ? 1u : 0u", "0u")),
        ({"block": "tensor"}, ("workspace[2 * other]", "workspace[0]")),
        ({"block": "128x128"}, ("first_row + i < m ? k - column : 0", "k - column - 1")),
    ],
    ids=["infinities-count", "exponents-rounded-down", "one-block's-largest", "last-column-lost"],
)
def test_planted_mistakes_are_found(changes: dict[str, Any], planted: tuple[str, str]) -> None:
    assert not verified({**SPEC, **changes}, NAMES, planted).passed


def test_the_reference_is_that_of_block_scales() -> None:
    values = np.random.default_rng(3).standard_normal((130, 300)).astype(np.float32)
    for lines, block in ((1, "1x128"), (128, "128x128")):
        for kind in ("f32", "ue8m0"):
            want = scales_of(values, BlockScale.model_validate({"lines": lines, "type": kind}), 448.0)
            np.testing.assert_array_equal(scales_of_blocks(values, block, kind, "e4m3"), want)
    row = scales_of_blocks(values, "row", "f32", "e4m3")
    assert row.shape == (130, 1) and scales_of_blocks(values, "tensor", "f32", "e4m3").tolist() == [[row.max()]]
    restored = to_numbers("e4m3", to_elements("e4m3", quantised(values, row, "row", "e4m3"))) * row
    assert (np.abs(restored - values) <= np.abs(values) * 2**-4 + row * 2**-10).all()


def test_problems_name_types_blocks_and_layouts() -> None:
    request = read_problem("quantise:256,512,f16,e5m2,128x128,ue8m0,mn").request
    assert request.text == "256,512,f16,e5m2,128x128,ue8m0,mn"
    spec = gemmgen.for_problem("quantise:256,512,f16,e5m2,128x128,ue8m0,mn").spec
    assert (spec.input, spec.output, spec.block, spec.scales, spec.layout) == ("f16", "e5m2", "128x128", "ue8m0", "mn_major")
    with pytest.raises(SpecError, match="a problem of quantisation"):
        read_problem("quantise:256,512,1x64")


def test_unreadable_matrices_and_older_architectures_are_refused() -> None:
    columns = Layout((8, 16), (1, 8), "bf16")
    with pytest.raises(LaunchError, match="need rows without gaps within them"):
        interpret({"x": columns}, {"block": "row", "output": "e4m3", "scales": "f32"})
    with pytest.raises(PlanError, match="sm_89"):
        gemmgen.plan({**SPEC, "architecture": "sm_80"})
