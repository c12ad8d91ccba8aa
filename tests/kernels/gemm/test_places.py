"""Batches of matrices that lie anywhere, each of its own size: kernels against their reference, planted mistakes, refusals."""

from __future__ import annotations

from typing import Any

import pytest

import gemmgen
from gemmgen.core.errors import PlanError
from gemmgen.kernels.gemm.field import excluded
from gemmgen.kernels.gemm.oracle import OUTSIDE_SIZES
from tests.kernels.verifying import passes

CASES = ("primes", "padded leading dimensions", "sizes", OUTSIDE_SIZES, "batch of 0", "k of 0", "alpha of 0")
COMMON: dict[str, Any] = {"kind": "gemm", "architecture": "sm_80", "batch": "strided", "grouping": {"places": "addresses"}}
TILES: dict[str, Any] = {
    **COMMON,
    "alignment": {"a": 4, "b": 4, "c": 4},
    "mainloop": {
        "strategy": "tiled",
        "tile": {"threadblock": {"m": 32, "n": 32, "k": 8}, "warp": {"m": 16, "n": 32}, "thread": {"m": 4, "n": 4}},
        "copies": "cp_async",
        "stages": 3,
    },
}


def fragments(type: str, result: str, aligned: tuple[int, int, int], k: int = 32, **others: Any) -> dict[str, Any]:
    tile = {"threadblock": {"m": 32, "n": 32, "k": k}, "warp": {"m": 16, "n": 16}}
    fields = {"storage": {"a": type, "b": type, "c": result}, "alignment": dict(zip("abc", aligned, strict=True))}
    return {**COMMON, **fields, "mainloop": {"strategy": "mma_sync", "tile": tile, "stages": 3}, **others}


HALVES = fragments("bf16", "bf16", (8, 8, 2))
SPECS = {
    "f32": TILES,
    "f32-columns": {**TILES, "order": "column_major", "transpose": "tn", "alignment": {"a": 1, "b": 1, "c": 1}},
    "f32-halves": {
        **TILES,
        "mainloop": {**TILES["mainloop"], "copies": "registers", "stages": 2},
        "storage": {"a": "f16", "b": "f16", "c": "f32"},
    },
    "bf16": HALVES,
    "f16-unaligned": fragments("f16", "f32", (1, 1, 1), transpose="tt"),
    "int8": fragments("s8", "s32", (16, 16, 1), transpose="nt", alpha="one", beta="zero"),
    "f64": fragments("f64", "f64", (2, 2, 2), k=16),
    "factors": {**HALVES, "scalars": "products"},
    "f32-factors": {**TILES, "scalars": "products"},
    "bias": fragments("bf16", "f32", (8, 8, 2), order="column_major", epilogue=[{"op": "bias", "per": "column"}, {"op": "relu"}]),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_matrices_anywhere_give_the_reference(spec: dict[str, Any]) -> None:
    """Sizes up to those of the launch, and beyond; parts of the memory in any order; misaligned results are left as they are."""
    assert passes(spec, CASES)


STRIDED = {**HALVES, "grouping": {}, "scalars": "products"}
STRIDED_TILES = {**TILES, "grouping": {}, "scalars": "products"}
STRIDED_DOUBLES = {**SPECS["f64"], "grouping": {}, "scalars": "products"}
STRIDED_CASES = ("primes", "one B for the whole batch", "batch of 0", "k of 0", "not-a-numbers and infinities")


@pytest.mark.parametrize("spec", [STRIDED, STRIDED_TILES, STRIDED_DOUBLES], ids=["bf16", "f32", "f64"])
def test_batches_have_alpha_and_beta_for_each_product(spec: dict[str, Any]) -> None:
    """Factors of 0 among them, beside NaN that is not read."""
    assert passes(spec, STRIDED_CASES)


@pytest.mark.parametrize(
    ("spec", "right", "wrong"),
    [
        (STRIDED, "betas[work.product]", "betas[0]"),
        (STRIDED, "work.steps = 0;", "work.steps = work.steps;"),
        (STRIDED_TILES, "alphas[blockIdx.y]", "alphas[0]"),
    ],
    ids=["another-factor", "a-product-of-0", "one-factor-for-all"],
)
def test_mistakes_of_factors_are_found(spec: dict[str, Any], right: str, wrong: str) -> None:
    assert not passes(spec, ("primes", "not-a-numbers and infinities"), (right, wrong))


@pytest.mark.parametrize("spec", [HALVES, TILES, STRIDED], ids=["addresses", "f32-addresses", "factors"])
def test_no_proof_over_the_field_is_claimed(spec: dict[str, Any]) -> None:
    """The kernel that others are held against has neither addresses nor factors of each product."""
    assert "one alpha, one beta, and matrices at strides" in excluded(gemmgen.plan(spec))


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": "none"},
        {"alpha": "one", "beta": "zero"},
        {"mainloop": {"strategy": "wgmma", "tile": {"m": 128, "n": 128, "k": 64}}, "architecture": "sm_90a"},
        {"decomposition": {"scheme": "split_k_parallel", "slices": 2}},
    ],
    ids=["one-product", "no-factors", "wgmma", "slices"],
)
def test_specs_without_factors_of_products_say_why(changes: dict[str, Any]) -> None:
    with pytest.raises(PlanError) as error:
        gemmgen.plan({**STRIDED, **changes})
    assert {"scalars", "alpha"} & {reason.field for reason in error.value.reasons}


@pytest.mark.parametrize(
    ("spec", "right", "wrong"),
    [
        (HALVES, "at_c[work.product]", "at_c[0]"),
        (HALVES, "ldb = own_sizes[4]", "ldb = own_sizes[3]"),
        (HALVES, "min(own_sizes[0], m)", "own_sizes[0]"),
        (HALVES, " && address_c % 4 == 0", ""),
        (TILES, "at_b[blockIdx.y]", "at_b[0]"),
        (TILES, "k = own_k;", "k = k;"),
        (TILES, "min(max(own_sizes[2], 0), k)", "own_sizes[2]"),
    ],
    ids=["a-result", "a-dimension", "a-size", "an-alignment", "a-factor", "a-depth", "a-negative-depth"],
)
def test_mistakes_are_found(spec: dict[str, Any], right: str, wrong: str) -> None:
    assert not passes(spec, ("sizes", OUTSIDE_SIZES), (right, wrong))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"batch": "none"}, "grouping.places"),
        ({"mainloop": {**HALVES["mainloop"], "copies": "tma"}}, "mainloop.copies"),
        ({"mainloop": {"strategy": "wgmma", "tile": {"m": 128, "n": 128, "k": 64}}, "architecture": "sm_90a"}, "grouping.places"),
        ({"decomposition": {"scheme": "split_k_parallel", "slices": 2}}, "decomposition.scheme"),
        ({"multiple_of": {"m": 32}}, "multiple_of"),
        ({"epilogue": [{"op": "residual"}]}, "epilogue"),
        ({"amax": "stored"}, "grouping.places"),
        ({"mainloop": {**HALVES["mainloop"], "sparse": "a"}}, "mainloop"),
    ],
    ids=["one-product", "tensor-maps", "wgmma", "slices", "promises", "residual", "amax", "sparse"],
)
def test_specs_that_need_strides_say_why(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(PlanError) as error:
        gemmgen.plan({**HALVES, **changes})
    assert field in [reason.field for reason in error.value.reasons]
