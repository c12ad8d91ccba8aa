"""Triangular matrices: kernels against their reference, planted mistakes, refusals, calls and problems."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

import gemmgen
from gemmgen import ops
from gemmgen.core.errors import LaunchError, PlanError, SpecError
from gemmgen.kernels.gemm.cost_model import work
from gemmgen.kernels.gemm.field import excluded
from gemmgen.kernels.gemm.matcher import parse_request
from gemmgen.kernels.gemm.triangles import Triangles
from tests.kernels.verifying import passes

CASES = (
    "one element",
    "2 x 3 tiles",
    "primes",
    "padded leading dimensions",
    "not-a-numbers and infinities",
    "n of 0",
    "k of 0",
    "alpha of 0",
)
TILES: dict[str, Any] = {
    "kind": "gemm",
    "architecture": "sm_80",
    "alignment": {"a": 4, "b": 4, "c": 4},
    "mainloop": {
        "strategy": "tiled",
        "tile": {"threadblock": {"m": 32, "n": 32, "k": 8}, "warp": {"m": 32, "n": 32}, "thread": {"m": 8, "n": 4}},
    },
}


def fragments(type: str, result: str, aligned: tuple[int, int, int], k: int = 32, **others: Any) -> dict[str, Any]:
    tile = {"threadblock": {"m": 32, "n": 16, "k": k}, "warp": {"m": 16, "n": 16}}
    fields = {"storage": {"a": type, "b": type, "c": result}, "alignment": dict(zip("abc", aligned, strict=True))}
    return {"kind": "gemm", "architecture": "sm_80", **fields, "mainloop": {"strategy": "mma_sync", "tile": tile, "stages": 2}, **others}


HALVES = fragments("bf16", "bf16", (8, 8, 2))
GROUPS: dict[str, Any] = {
    "kind": "gemm",
    "architecture": "sm_90a",
    "transpose": "nt",
    "storage": {"a": "f16", "b": "f16", "c": "f16"},
    "alignment": {"a": 8, "b": 8, "c": 8},
    "mainloop": {
        "strategy": "wgmma",
        "tile": {"m": 64, "n": 24, "k": 128},
        "stages": 2,
        "consumers": 2,
        "schedule": "ping_pong",
        "persistent_blocks": 2,
    },
}
SPECS = {
    "lower": {**HALVES, "triangles": {"c": "lower"}},
    "upper-batch": {**HALVES, "triangles": {"c": "upper"}, "batch": "strided"},
    "mirrored": {**HALVES, "triangles": {"c": "mirrored"}},
    "mirrored-int8": fragments("s8", "s32", (16, 16, 1), transpose="nt", alpha="one", beta="zero", triangles={"c": "mirrored"}),
    "f64": fragments("f64", "f64", (2, 2, 2), k=16, triangles={"c": "upper", "a": "lower"}),
    "factors": {**HALVES, "triangles": {"a": "upper", "b": "lower"}},
    "other-factors": {**HALVES, "triangles": {"a": "lower", "b": "upper"}, "order": "column_major"},
    "f32-mirrored": {**TILES, "triangles": {"c": "mirrored"}, "store": "through_shared"},
    "f32-upper": {**TILES, "triangles": {"c": "upper"}, "epilogue": [{"op": "bias", "per": "column"}]},
    "warpgroups": {**GROUPS, "triangles": {"c": "lower", "a": "upper"}},
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_triangular_matrices_give_the_reference(spec: dict[str, Any]) -> None:
    """Elements beyond the triangle of C keep what they held; zeros of factors meet no NaN that would count."""
    assert passes(spec, CASES)


@pytest.mark.parametrize(
    ("spec", "right", "wrong"),
    [
        ("lower", "column <= row", "column < row"),
        ("lower", "min(tile_m * kTileM + kTileM, m)", "min(tile_m * kTileM, m)"),
        ("upper-batch", "column >= row", "true"),
        ("upper-batch", "tile_m * kTileM / kTileN", "(tile_m * kTileM / kTileN + 1)"),
        ("mirrored", "(column + v) * ldc + row", "(column + v) * ldc + row + 1"),
        ("factors", "max(work.row, work.column) / kTileK", "(max(work.row, work.column) / kTileK + 1)"),
        ("other-factors", "min(work.row + kTileM, ", "min(work.row, "),
        ("f32-upper", "block_n + kTileN <= block_m", "block_n <= block_m"),
        ("f32-mirrored", "block_m + kTileM <= block_n", "block_m <= block_n"),
    ],
    ids=["diagonal", "tiles", "all", "skipped", "image", "begin", "end", "blocks", "blocks-of-rows"],
)
def test_mistakes_of_triangles_are_found(spec: str, right: str, wrong: str) -> None:
    assert not passes(SPECS[spec], ("2 x 3 tiles", "primes", "padded leading dimensions"), (right, wrong))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"mainloop": {"strategy": "gemv"}, "storage": {"a": "bf16", "b": "bf16", "c": "bf16"}}, "mainloop.strategy"),
        ({"decomposition": {"scheme": "split_k_parallel", "slices": 2}}, "decomposition.scheme"),
        ({"order": "column_major"}, "triangles.c"),
        ({"triangles": {"c": "mirrored"}, "epilogue": [{"op": "bias", "per": "row"}]}, "epilogue"),
        ({"batch": "grouped"}, "batch"),
        ({"amax": "stored"}, "triangles.c"),
    ],
    ids=["strategy", "slices", "order", "bias", "groups", "amax"],
)
def test_specs_that_exclude_triangles_say_why(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(PlanError) as error:
        gemmgen.plan({**SPECS["lower"], **changes})
    assert field in {reason.field for reason in error.value.reasons}


def test_no_proof_over_the_field_is_claimed_for_triangles() -> None:
    assert "computes all of C" in excluded(gemmgen.plan(SPECS["lower"]))


@pytest.mark.parametrize("part", ["lower", "upper", "mirrored"])
@pytest.mark.parametrize("shape", [(70, 130), (130, 70), (64, 64), (1, 1), (97, 97)])
def test_tiles_and_elements_of_a_triangle_are_counted(part: Literal["lower", "upper", "mirrored"], shape: tuple[int, int]) -> None:
    triangles = Triangles(c=part)
    held = triangles.holds("c", shape)
    tiles = sum(held[row : row + 32, column : column + 16].any() for row in range(0, shape[0], 32) for column in range(0, shape[1], 16))
    assert triangles.tiles_of_result(shape, (32, 16)) == tiles
    assert triangles.elements_of_result(*shape) == held.sum()


def test_the_model_knows_that_half_of_the_tiles_are_computed() -> None:
    problem = {"m": 1024, "n": 1024, "k": 64, "lda": 64, "ldb": 1024, "ldc": 1024}
    whole, half = (work(gemmgen.plan(spec), problem)[0].blocks for spec in (HALVES, SPECS["lower"]))
    assert 0.5 < half / whole < 0.55


RNG = np.random.default_rng(5)
X = RNG.standard_normal((50, 20)).astype(np.float16)
SYMMETRIC = X.astype(np.float64) @ X.T.astype(np.float64)


def test_a_mirrored_product_is_symmetric() -> None:
    result = ops.matmul(X, X.T, triangles={"c": "mirrored"})
    assert np.array_equal(result, result.T)
    assert abs(result - SYMMETRIC).max() < 0.05


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("part", ["lower", "upper"])
def test_the_rest_of_out_stays_as_it_is(part: str, order: Literal["C", "F"]) -> None:
    out = np.full((50, 50), 7, np.float16, order=order)
    assert ops.matmul(X, X.T, out=out, alpha=2.0, beta=1.0, triangles={"c": part}) is out
    kept, other = (np.tril, np.triu) if part == "lower" else (np.triu, np.tril)
    assert abs(kept(out) - kept(2 * SYMMETRIC + 7)).max() < 0.1
    assert (other(out, 1 if part == "lower" else -1) == other(np.full((50, 50), 7), 1 if part == "lower" else -1)).all()


def test_triangular_factors_give_the_product() -> None:
    factor, other = np.tril(RNG.standard_normal((50, 50))).astype(np.float16), X
    expected = factor.astype(np.float64) @ other
    assert abs(ops.matmul(factor, other, triangles={"a": "lower"}) - expected).max() < 0.05
    assert abs(ops.matmul(other.T, factor.T, triangles={"b": "upper"}) - expected.T).max() < 0.05


@pytest.mark.parametrize(
    ("triangles", "message"),
    [({"c": "left"}, "need a mapping"), ({"d": "lower"}, "need a mapping"), ("lower", "need a mapping"), ({"c": "lower"}, "without out")],
)
def test_calls_with_other_triangles_say_why(triangles: Any, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        ops.matmul(X, X.T, triangles=triangles)


def test_calls_that_triangles_exclude_say_why() -> None:
    with pytest.raises(LaunchError, match="as many rows as columns"):
        ops.matmul(X, X[:30].T, triangles={"c": "mirrored"})
    with pytest.raises(LaunchError, match="plain factors"):
        ops.matmul(X.astype(np.complex64), X.T, triangles={"c": "mirrored"})
    with pytest.raises(LaunchError, match="with residual, need numbers"):
        ops.matmul(X, X.T, residual=np.zeros((50, 50), np.float16), triangles={"c": "mirrored"})


def test_problems_name_triangles() -> None:
    request = parse_request((64, 64, 32), ("bf16", "nt", "mirrored", "lower_a"))
    assert request.triangles == Triangles(a="lower", c="mirrored")
    assert "lower_a,mirrored" in request.text
    assert request.transposed.triangles == Triangles(b="upper", c="mirrored")
    with pytest.raises(SpecError, match="square"):
        parse_request((64, 65, 32), ("bf16", "mirrored"))
    with pytest.raises(SpecError, match="triangle of c"):
        parse_request((64, 64, 32), ("bf16", "mirrored", "lower_c"))
