"""Products whose warps read fragments from global memory: every form, and the refused ones."""

from __future__ import annotations

from typing import Any

import pytest

import gemmgen
from gemmgen.core.errors import PlanError
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose
from gemmgen.hardware.target import device

SPEC: dict[str, Any] = {
    "kind": "gemm",
    "architecture": "sm_80",
    "storage": {"a": "bf16", "b": "bf16", "c": "bf16"},
    "mainloop": {
        "strategy": "mma_sync",
        "copies": "none",
        "tile": {"threadblock": {"m": 64, "n": 16, "k": 16}, "warp": {"m": 16, "n": 16}},
    },
}


def tiled(block: tuple[int, int, int], warp: tuple[int, int], **fields: Any) -> dict[str, Any]:
    """The spec with another tile."""
    tile = {"threadblock": dict(zip("mnk", block, strict=True)), "warp": dict(zip("mn", warp, strict=True))}
    return {**SPEC, "mainloop": {**SPEC["mainloop"], "tile": tile, **fields}}


FORMS: dict[str, dict[str, Any]] = {
    "each element by itself": SPEC,
    "words along k": {**SPEC, "transpose": "nt", "alignment": {"a": 2, "b": 2, "c": 2}},
    "whole words along k": {**SPEC, "transpose": "nt", "alignment": {"a": 8, "b": 8, "c": 8}, "multiple_of": {"k": 2}},
    "rows that run along m and n": {**SPEC, "transpose": "tn", "storage": {"a": "f16", "b": "f16", "c": "f32"}},
    "several products to a block": {**SPEC, "batch": "strided", "transpose": "tt", "alpha": "argument", "beta": "argument"},
    "tiles side by side": {**tiled((96, 64, 48), (48, 32)), "order": "column_major"},
    "results through shared memory": {**tiled((64, 32, 32), (32, 16)), "store": "through_shared", "amax": "stored"},
    "an epilogue": {**SPEC, "epilogue": [{"op": "bias", "per": "column"}, {"op": "gelu"}, {"op": "residual"}]},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_verifies(form: str) -> None:
    assert gemmgen.verify(FORMS[form], backend="emulator").passed


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({**SPEC, "storage": {"a": "s8", "b": "s8", "c": "s32"}}, "copies"),
        ({**SPEC, "decomposition": {"scheme": "split_k_parallel", "slices": 4}}, "copies"),
        ({**SPEC, "batch": "grouped"}, "copies"),
        (tiled((64, 16, 16), (16, 16), stages=4), "copies"),
        (tiled((64, 16, 16), (16, 16), persistent_blocks=2), "copies"),
        (tiled((64, 16, 24), (16, 16)), "tile_k"),
        (tiled((64, 16, 16), (24, 16)), "warp_tile"),
    ],
)
def test_a_spec_that_cannot_work_says_why(spec: dict[str, Any], code: str) -> None:
    with pytest.raises(PlanError) as raised:
        gemmgen.plan(spec)
    assert code in {reason.code for reason in raised.value.reasons}


@pytest.mark.parametrize("problem", ["gemm:14,14,14,bf16,batch=2961", "gemm:18,18,18,nt,f16,batch=796"])
def test_batches_of_small_products_are_packed_into_blocks(problem: str) -> None:
    chosen = choose(parse_problem(problem), device("H100")).chosen
    assert chosen.candidate.label.startswith("gemm/mma_sync/bf16_direct")
