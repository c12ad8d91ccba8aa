"""Products by mma.sync of sm_75: the reference, refusals, and the choice for a T4."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gemmgen
from gemmgen.core.errors import GemmgenError
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose
from gemmgen.hardware.target import device
from gemmgen.kernels.gemm.mma_sync.plan import MmaSyncPlan
from gemmgen.kernels.math.tensor_accuracy import product_bound
from tests.kernels.verifying import passes

SPEC: dict[str, Any] = {
    "kind": "gemm",
    "architecture": "sm_75",
    "storage": {"a": "f16", "b": "f16", "c": "f16"},
    "alignment": {"a": 2, "b": 8, "c": 2},
    "mainloop": {
        "strategy": "mma_sync",
        "copies": "registers",
        "tile": {"threadblock": {"m": 32, "n": 32, "k": 32}, "warp": {"m": 32, "n": 16}},
        "stages": 2,
    },
}
NAMES = ("primes", "not-a-numbers and infinities", "k of 0")


def changed(loop: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {**SPEC, **others, "mainloop": {**SPEC["mainloop"], **loop}}


BYTES = changed({}, storage={"a": "s8", "b": "u8", "c": "s32"}, alpha="one", beta="zero", transpose="tt")


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        changed({"fragment_buffers": 2}, decomposition={"scheme": "split_k_parallel", "slices": 3}, transpose="nt", multiple_of={"n": 2}),
        BYTES,
    ],
    ids=["halves", "slices", "bytes"],
)
def test_products_are_those_of_the_reference(spec: dict[str, Any]) -> None:
    assert passes(spec, NAMES)


@pytest.mark.parametrize(
    ("spec", "planted"),
    [
        (SPEC, ('"r"(a[2]), "r"(a[3]), "r"(b[1])', '"r"(a[0]), "r"(a[1]), "r"(b[1])')),
        (BYTES, ('"r"(a[3]), "r"(b[1])', '"r"(a[2]), "r"(b[1])')),
    ],
    ids=["halves", "bytes"],
)
def test_mistakes_show(spec: dict[str, Any], planted: tuple[str, str]) -> None:
    assert not passes(spec, NAMES, planted)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (changed({}, storage={"a": "bf16", "b": "bf16", "c": "bf16"}), "storage"),
        (changed({"copies": "cp_async"}), "mainloop.copies"),
        (changed({}, decomposition={"scheme": "stream_k", "blocks": 40}), "decomposition"),
        (changed({"stages": 8, "tile": {"threadblock": {"m": 128, "n": 128, "k": 32}, "warp": {"m": 32, "n": 32}}}), "mainloop.stages"),
    ],
)
def test_specs_that_cannot_work_are_refused(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(GemmgenError) as caught:
        gemmgen.plan(spec, "sm_75")
    assert field in str(caught.value)


def test_the_bound_covers_sums_of_four_products() -> None:
    plan, later = gemmgen.plan(SPEC, "sm_75"), gemmgen.plan(SPEC, "sm_80")
    assert isinstance(plan, MmaSyncPlan)
    assert isinstance(later, MmaSyncPlan)
    a, b = np.ones((1, 64)), np.ones((64, 1))
    steps = (64 + 32) // 4
    assert plan.product_bound(a, b, 1)[0, 0] >= 64 * 64 / (64 + 32) * steps * 6 * 2.0**-23
    assert plan.product_bound(a, b, 1)[0, 0] > product_bound(later.loop, 1, a, b)[0, 0]


@pytest.mark.parametrize("types", ["f16", "s8"])
def test_a_t4_multiplies_on_tensor_cores(types: str) -> None:
    plan = choose(parse_problem(f"gemm:4096,4096,4096,nt,{types}"), device("T4")).chosen.plan
    assert plan.architecture.name == "sm_75"
    assert plan.spec.model_dump()["mainloop"]["strategy"] == "mma_sync"
