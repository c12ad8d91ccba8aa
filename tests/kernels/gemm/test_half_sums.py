"""Products of float16 that tensor cores sum up in float16: the reference, its bound, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gemmgen
from gemmgen.core.errors import GemmgenError
from gemmgen.dispatch.problems import parse_problem
from gemmgen.kernels.gemm.matcher import fit
from gemmgen.kernels.gemm.mma_sync.half_sums import half_product
from gemmgen.kernels.gemm.mma_sync.plan import MmaSyncPlan
from gemmgen.kernels.gemm.spec import GemmSpec
from tests.kernels.verifying import passes

SPEC: dict[str, Any] = {
    "kind": "gemm",
    "architecture": "sm_80",
    "storage": {"a": "f16", "b": "f16", "c": "f16"},
    "alignment": {"a": 2, "b": 8, "c": 2},
    "mainloop": {
        "strategy": "mma_sync",
        "accumulators": "f16",
        "tile": {"threadblock": {"m": 32, "n": 32, "k": 32}, "warp": {"m": 32, "n": 16}},
        "stages": 2,
    },
}
NAMES = ("primes", "not-a-numbers and infinities", "k of 0")


def changed(loop: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {**SPEC, **others, "mainloop": {**SPEC["mainloop"], **loop}}


SLICES = changed({"fragment_buffers": 2}, decomposition={"scheme": "split_k_parallel", "slices": 3}, multiple_of={"n": 2})


@pytest.mark.parametrize("spec", [SPEC, SLICES], ids=["whole", "slices"])
def test_products_are_those_of_the_reference(spec: dict[str, Any]) -> None:
    assert passes(spec, NAMES)


def test_a_mistake_shows() -> None:
    assert not passes(SPEC, NAMES, ("half_sums[i][pair] >> 16", "half_sums[i][pair] & 0xffff"))


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (changed({}, storage={"a": "bf16", "b": "bf16", "c": "bf16"}), "mainloop.accumulators"),
        (changed({"sparse": "a"}, multiple_of={"k": 64}), "mainloop.accumulators"),
        (changed({}, decomposition={"scheme": "stream_k", "blocks": 40}), "mainloop.accumulators"),
        (changed({"copies": "none", "stages": 3}), "mainloop.accumulators"),
    ],
)
def test_specs_that_cannot_work_are_refused(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(GemmgenError) as caught:
        gemmgen.plan(spec, "sm_80")
    assert field in str(caught.value)


def test_sums_that_may_overflow_have_no_bound() -> None:
    plan = gemmgen.plan(SPEC, "sm_80")
    assert isinstance(plan, MmaSyncPlan)
    a = np.array([[1.0] * 64, [40.0] * 64, [2.0**-4] * 64])
    bound = half_product(plan.loop, a, np.full((64, 1), 40.0), 1, exact=False)[1]
    assert np.isinf(bound[1, 0])
    assert 0 < bound[0, 0] < 0.01 * 64 * 40
    exact = half_product(plan.loop, a, np.full((64, 1), 2.0), 1, exact=True)[1]
    assert exact[0, 0] == exact[2, 0] == 0 < exact[1, 0]


def test_kernels_with_such_sums_serve_no_request() -> None:
    assert fit(GemmSpec.model_validate(SPEC), parse_problem("gemm:64,64,64,f16")) == "its sums are float16"
