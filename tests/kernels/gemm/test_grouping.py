"""Groups of a fixed number of rows, gathered and scattered rows: kernels against their reference, planted mistakes, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gemmgen
from gemmgen import ops
from gemmgen.core.errors import LaunchError, PlanError, SpecError
from gemmgen.dispatch.problems import read_problem
from gemmgen.kernels.gemm.grouping import Grouping, gathered_rows, group_rows
from tests.kernels.verifying import verified

HALVES = {
    "kind": "gemm",
    "transpose": "nt",
    "alpha": "one",
    "beta": "zero",
    "storage": {"a": "bf16", "b": "bf16", "c": "bf16"},
    "batch": "grouped",
}
WGMMA: dict[str, Any] = {
    **HALVES,
    "architecture": "sm_90a",
    "alignment": {"a": 8, "b": 8, "c": 8},
    "multiple_of": {"n": 8},
    "store": "tma",
    "mainloop": {"strategy": "wgmma", "tile": {"m": 64, "n": 32, "k": 64}, "stages": 3, "consumers": 1, "persistent_blocks": 3},
}
MMA: dict[str, Any] = {
    **HALVES,
    "architecture": "sm_80",
    "alignment": {"a": 8, "b": 8, "c": 2},
    "mainloop": {
        "strategy": "mma_sync",
        "tile": {"threadblock": {"m": 32, "n": 32, "k": 32}, "warp": {"m": 16, "n": 32}},
        "stages": 3,
        "copies": "cp_async",
    },
}
INSIDE_C, INSIDE_A = (
    f"static_cast<unsigned>({row}) {sign} static_cast<unsigned>({rows})"
    for row, sign, rows in (
        ("target_row", ">=", "rows_c"),
        ("gathered", "<", "matrix_rows"),
    )
)
"""The checks that rows of C and of A exist."""
MASKED, MOVED = {"rows": "masked"}, {"gathered": True, "scattered": True}


@pytest.mark.parametrize("spec", [WGMMA, MMA], ids=["wgmma", "mma_sync"])
@pytest.mark.parametrize(
    "grouping", [MASKED, {"gathered": True}, {"scattered": True}, MOVED], ids=["masked", "gathered", "scattered", "both"]
)
def test_rows_of_groups_give_the_references_results(spec: dict[str, Any], grouping: dict[str, Any]) -> None:
    more = () if "rows" in grouping else ("more rows than those of groups", "fewer rows than those of groups")
    report = verified({**spec, "grouping": grouping}, ("empty groups", "offsets that fall and lie outside", "primes", *more))
    assert report.passed, [result.failure for result in report.results if not result.passed]


@pytest.mark.parametrize("spec", [WGMMA, MMA], ids=["wgmma", "mma_sync"])
def test_rows_that_go_nowhere_count_in_no_largest_value(spec: dict[str, Any]) -> None:
    report = verified({**spec, "grouping": MOVED, "amax": "stored"}, ("one element", "fewer rows than those of groups"))
    assert report.passed, [result.failure for result in report.results if not result.passed]


@pytest.mark.parametrize(
    ("spec", "grouping", "case", "planted"),
    [
        (MMA, MASKED, "empty groups", ("min(max(counts[problem.index], 0), rows)", "rows")),
        (MMA, MASKED, "offsets that fall and lie outside", ("min(max(counts[problem.index], 0), rows)", "max(counts[problem.index], 0)")),
        (
            MMA,
            MOVED,
            "fewer rows than those of groups",
            (INSIDE_C, "target_row < 0"),
        ),
        (
            MMA,
            MOVED,
            "fewer rows than those of groups",
            (INSIDE_A, "gathered >= 0"),
        ),
        (WGMMA, MOVED, "primes", ("row < work.end ? gather[row] : -1", "row < work.end ? row : -1")),
        (WGMMA, MOVED, "primes", ("mbarrier_arrive_with_copies(full", "mbarrier_arrive(full")),
        (WGMMA, MOVED, "primes", ("fence_async_proxy();  // threads have copied", "// threads have copied")),
        (WGMMA, MOVED, "fewer rows than those of groups", ("static_cast<unsigned>(target) < static_cast<unsigned>(rows_c)", "target >= 0")),
    ],
    ids=["no-counts", "counts-beyond", "stores-beyond", "reads-beyond", "not-gathered", "announced-early", "not-seen", "stores-anywhere"],
)
def test_planted_mistakes_are_found(spec: dict[str, Any], grouping: dict[str, Any], case: str, planted: tuple[str, str]) -> None:
    assert not verified({**spec, "grouping": grouping}, (case,), planted).passed


@pytest.mark.parametrize(
    ("spec", "changes", "reason"),
    [
        (MMA, {"batch": "none", "grouping": MASKED}, "batch: grouped"),
        (MMA, {"transpose": "tt", "grouping": {"gathered": True}}, "row-major and without block scales"),
        (MMA, {"beta": "argument", "grouping": {"scattered": True}}, "beta: zero"),
        (MMA, {"alignment": {"a": 8, "b": 8, "c": 1}, "grouping": {"scattered": True}}, "alignment.c of 2 or more"),
        (MMA, {"alignment": {"a": 1, "b": 8, "c": 2}, "grouping": {"gathered": True}}, "asynchronous copies of 4 bytes"),
        (WGMMA, {"mainloop": {**WGMMA["mainloop"], "tiles": "dynamic"}, "grouping": {"gathered": True}}, "tiles: static"),
    ],
)
def test_specs_that_cannot_work_say_why(spec: dict[str, Any], changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        gemmgen.plan({**spec, **changes})


DEPTHS: dict[str, Any] = {**MMA, "batch": "strided", "transpose": "tn", "grouping": {"depth": "offsets"}}


def test_products_of_a_batch_have_their_own_values_of_k() -> None:
    names = (
        "empty groups",
        "groups of whole tiles",
        "rows behind the last group",
        "offsets that fall and lie outside",
        "primes",
        "batch of 0",
    )
    report = verified(DEPTHS, names)
    assert report.passed, [result.failure for result in report.results if not result.passed]


@pytest.mark.parametrize(
    "planted",
    [("const int end_k = work.end_k;", "const int end_k = k;"), ("min(max(offsets[work.product - 1], 0), k)", "0")],
    ids=["all-that-follow", "all-before"],
)
def test_values_of_k_of_other_products_are_found(planted: tuple[str, str]) -> None:
    assert not verified(DEPTHS, ("empty groups", "primes"), planted).passed


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"batch": "none"}, "batch: strided and strategy: mma_sync"), ({"transpose": "nt"}, "rows of A and B in memory run across them")],
)
def test_specs_of_other_values_of_k_that_cannot_work_say_why(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        gemmgen.plan({**DEPTHS, **changes})


def test_impossible_counts_and_offsets_become_the_nearest() -> None:
    assert group_rows(Grouping(rows="masked"), np.array([-3, 2, 9]), 12) == [slice(0, 0), slice(4, 6), slice(8, 12)]
    assert group_rows(Grouping.SORTED, np.array([3, 1, 99]), 12) == [slice(0, 3), slice(3, 3), slice(3, 12)]
    assert gathered_rows(np.array([[1.0], [2.0]]), np.array([1, -1, 2, 0])).ravel().tolist() == [2.0, 0.0, 0.0, 1.0]


def integers(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float16)


def test_an_operation_multiplies_masked_groups() -> None:
    a, b, counts = integers(3, 24, 40), integers(3, 40, 24), np.array([5, 0, 99], np.int32)
    out = np.full((3, 24, 24), 7, np.float16)
    ops.grouped_matmul(a, b, counts=counts, out=out)
    for group, count in enumerate((5, 0, 24)):
        np.testing.assert_array_equal(out[group, :count], a[group, :count].astype(float) @ b[group])
        assert (out[group, count:] == 7).all()


def test_an_operation_gathers_and_scatters_rows() -> None:
    tokens, b, offsets = integers(6, 40), integers(2, 40, 24), np.array([4, 7], np.int32)
    gather, scatter = np.array([5, 0, -1, 5, 2, 6, 1], np.int32), np.array([8, 0, 1, -1, 3, 4, 9], np.int32)
    out = np.full((9, 24), 7, np.float16)
    ops.grouped_matmul(tokens, b, offsets, gather=gather, scatter=scatter, out=out)
    want = np.full((9, 24), 7.0)
    for row, (source, target) in enumerate(zip(gather, scatter, strict=True)):
        if 0 <= target < 9:
            want[target] = tokens[source].astype(float) @ b[int(row >= 4)] if 0 <= source < 6 else 0
    np.testing.assert_array_equal(out, want)


def test_an_operation_multiplies_groups_of_values_of_k() -> None:
    a, b, offsets = integers(50, 24), integers(50, 40), np.array([7, 7, 31, 44], np.int32)
    got = ops.grouped_matmul(a.T, b, offsets, alpha=0.5)
    for group, own in enumerate((slice(0, 7), slice(0, 0), slice(7, 31), slice(31, 44))):
        np.testing.assert_array_equal(got[group], a[own].T.astype(float) @ b[own] / 2)
    with pytest.raises(LaunchError, match="columns of a and rows of b must be contiguous"):
        ops.grouped_matmul(np.ascontiguousarray(a.T), b, offsets)
    with pytest.raises(LaunchError, match="groups of values of k with bias"):
        ops.grouped_matmul(a.T, b, offsets, bias=np.zeros((4, 40), np.float16))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "need offsets, where groups end, or counts"),
        ({"offsets": np.zeros(2, np.int32), "counts": np.zeros(2, np.int32)}, "one of them"),
        ({"counts": np.zeros(2, np.int32)}, r"need \(groups, rows, k\)"),
        ({"offsets": np.zeros(2, np.int32), "gather": np.zeros((2, 2), np.int32)}, "gather has shape"),
        ({"offsets": np.zeros(2, np.int32), "gather": np.zeros(4, np.int64)}, "gather has elements int64"),
        ({"offsets": np.zeros(2, np.int32), "scatter": np.zeros(5, np.int32)}, "a row of out for each of the 6 rows"),
    ],
)
def test_calls_that_do_not_go_together_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(LaunchError, match=reason):
        ops.grouped_matmul(integers(6, 40), integers(2, 40, 24), **given)


def test_groups_with_gaps_between_them_are_refused() -> None:
    with pytest.raises(LaunchError, match="a group behind the other"):
        ops.grouped_matmul(integers(2, 8, 40)[:, :4], integers(2, 40, 24), counts=np.zeros(2, np.int32))


def test_problems_name_the_rows_of_groups() -> None:
    request = read_problem("grouped:64,48,40,bf16,groups=4,masked").request
    assert "masked" in request.text and gemmgen.for_problem("grouped:64,48,40,nt,bf16,groups=4,masked").spec.grouping.rows == "masked"
    moved = gemmgen.for_problem("grouped:64,48,40,nt,bf16,groups=4,gathered,scattered").spec.grouping
    assert (moved.gathered, moved.scattered) == (True, True)
    assert gemmgen.for_problem("gemm:64,48,40,tn,bf16,batch=4,depths").spec.grouping.depth == "offsets"
    with pytest.raises(SpecError, match="depths"):
        read_problem("gemm:64,48,40,nt,bf16,batch=4,depths")
    for text in ("gemm:64,48,40,bf16,masked", "grouped:63,48,40,bf16,groups=4,masked"):
        with pytest.raises(SpecError, match="masked"):
            read_problem(text)
