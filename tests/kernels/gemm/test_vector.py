"""Kernels for few columns: every storage order, type and division of k, what the choice makes of them, and what they refuse."""

import numpy as np
import pytest
from conftest import SPECS
from sampling import ALL

import gemmgen
from gemmgen import ops
from gemmgen.core.errors import PlanError
from gemmgen.dispatch.selection import choose
from gemmgen.dispatch.table import parse_problem
from gemmgen.hardware.target import device
from gemmgen.kernels.gemm.oracle import case_of
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.verification.counters import count_case
from gemmgen.verification.oracle import oracle_of

VECTOR = SPECS / "gemm" / "vector"
HALVES = ["storage.a=bf16", "storage.b=bf16", "storage.c=bf16", "alignment.a=8"]
SHIFTED = ["mainloop.vectors=shifted"]
VARIANTS = {
    "strided vector": ("rows_nt", ["transpose=nn", "alignment.b=1"]),
    "nothing aligned": ("rows_nt", ["alignment.a=1", "alignment.b=1", "mainloop.columns=3"]),
    "column-major C": ("rows4_nt", ["order=column_major", "transpose=tn", "mainloop.threads=64"]),
    "batched halves": (
        "rows_nt",
        [*HALVES, "batch=strided", "mainloop.columns=2", "alignment.b=2", "multiple_of.n=2", "mainloop.threads=64"],
    ),
    "scalars and epilogue": ("rows_nt", ["alpha=argument", "beta=argument", "epilogue=[{op: bias, per: row}, {op: residual}, {op: relu}]"]),
    "rows at the edge in vectors": ("columns_tn", ["mainloop.columns=2", "mainloop.threads=64"]),
    "rows of whole vectors": ("columns_tn", ["multiple_of.m=4", "mainloop.threads=64"]),
    "halves along m": ("columns_tn", [*HALVES, "mainloop.threads=64", "alpha=argument"]),
    "columns of A that begin anywhere": ("columns_tn", ["alignment.a=1", *SHIFTED]),
    "the same, in halves": ("columns_tn", [*HALVES, "alignment.a=2", *SHIFTED, "mainloop.columns=3", "mainloop.unroll=16"]),
    "the same, of batches": ("columns_tn", ["alignment.a=1", *SHIFTED, "batch=strided", "alpha=argument", "mainloop.threads=512"]),
    "the same, B by columns": ("columns_tn", ["alignment.a=1", *SHIFTED, "transpose=tt", "mainloop.lanes=64"]),
    "A contiguous along m, lanes along k": ("deep_nn", ["transpose=tn", "multiple_of.m=4", "mainloop.columns=2"]),
    "launched early": ("deep_nn", ["early_launch=true", "architecture=sm_90", "mainloop.lanes=64", "mainloop.rows=1"]),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_is_verified(name):
    spec, changes = VARIANTS[name]
    plan = gemmgen.plan(VECTOR / f"{spec}.yaml", None, changes)
    every = 1 if ALL else 5
    report = gemmgen.verify(plan, cases=oracle_of("gemm").cases(plan)[int(plan.spec_digest, 16) % every :: every])
    assert report.passed, report


@pytest.mark.parametrize(
    "changes, code",
    [
        (["mainloop.lanes=512"], "lanes"),
        (["mainloop.along=m"], "along"),
        (["storage.a=f16", "storage.b=bf16"], "storage"),
        (["mainloop.vectors=shifted"], "vectors"),
        (["mainloop.threads=1024", "mainloop.lanes=1", "mainloop.rows=16", "mainloop.columns=16"], "shared_memory"),
        (["decomposition={scheme: split_k_serial, slices: 4}"], "decomposition"),
        (["store=through_shared"], "store"),
    ],
)
def test_impossible_kernel_is_refused_with_its_reason(changes, code):
    with pytest.raises(PlanError) as caught:
        gemmgen.plan(VECTOR / "rows_nt.yaml", "sm_90", changes)
    assert code in {reason.code for reason in caught.value.reasons}


def test_too_few_teams_for_shifted_vectors_are_refused():
    with pytest.raises(PlanError, match="a multiple of 4 teams"):
        gemmgen.plan(VECTOR / "columns_tn.yaml", None, [*SHIFTED, "alignment.a=1", "mainloop.lanes=128"])


def test_shifted_rows_of_which_none_would_remain_are_refused():
    for lanes, threads in ((8, 256), (2, 256), (1, 64)):
        changes = [*SHIFTED, "alignment.a=1", f"mainloop.lanes={lanes}", f"mainloop.threads={threads}"]
        with pytest.raises(PlanError, match="by which they may move back"):
            gemmgen.plan(VECTOR / "columns_tn.yaml", None, changes)


@pytest.mark.parametrize("ending", ["last = inside ? end : first_row < m && lda == m ?", "row < 0 || row >= kTileM"])
def test_lost_edge_of_shifted_rows_is_found(monkeypatch, ending):
    planned = gemmgen.plan(VECTOR / "columns_tn.yaml", None, [*SHIFTED, "alignment.a=1"])
    source = gemmgen.render(planned)
    broken = source.text.replace(ending, ending.replace("lda == m", "true").replace("kTileM", "kTileM - 1"))
    assert broken != source.text
    monkeypatch.setattr("gemmgen.toolchain.compilation.render", lambda plan: type(source)(source.name, broken))
    assert not gemmgen.verify(planned).passed


def test_shifted_vectors_move_few_sectors_more():
    moved = {}
    for vectors in ("aligned", "shifted"):
        planned = gemmgen.plan(VECTOR / "columns_tn.yaml", "sm_90", [f"mainloop.vectors={vectors}", "alignment.a=1"])
        case = case_of("odd rows", {"m": 1003, "n": 1, "k": 256, "lda": 1003, "ldb": 1, "ldc": 1, "slices": 2}, {}, "reals")
        counted = count_case(planned, compile_plan(planned), case, hazards=False).to_json()["total"]
        moved[vectors] = counted["global_memory"]["load"]["sectors"] * 32 / (4 * 1003 * 256)
    assert moved["shifted"] < 1.2 < 1.35 < moved["aligned"]


@pytest.mark.parametrize(
    "problem, shifted",
    [("1,3435,4934,tn", False), ("1,3435,4934,tn,bf16", True), ("1519,3,7977,tn,unaligned", True), ("1,3216,5533,bf16", False)],
)
def test_shifted_vectors_serve_what_gains_by_them(problem, shifted):
    chosen = choose(parse_problem(f"gemm:{problem}"), device("H100")).chosen
    assert (chosen.candidate.label == "gemm/vector/columns_shifted_tn") == shifted


def test_lost_slice_is_found(monkeypatch):
    planned = gemmgen.plan(VECTOR / "rows_nt.yaml", "sm_90")
    source = gemmgen.render(planned)
    broken = source.text.replace("first + i * kSummers < slices ?", "first + i * kSummers < slices - 1 ?")
    assert broken != source.text
    monkeypatch.setattr("gemmgen.toolchain.compilation.render", lambda plan: type(source)(source.name, broken))
    assert not gemmgen.verify(planned).passed


@pytest.mark.parametrize(
    "problem",
    ["gemm:4096,1,4096", "gemm:1,4096,4096,nt", "gemm:3,3,1000003", "gemm:16,16,65536,tt", "gemm:65536,16,16"],
)
@pytest.mark.parametrize("name", ["H100", "T4"])
def test_few_columns_are_left_to_these_kernels(problem, name):
    assert choose(parse_problem(problem), device(name)).chosen.candidate.label.startswith("gemm/vector/")


def test_slices_follow_the_number_of_multiprocessors():
    few, many = (choose(parse_problem("gemm:3,3,1000003"), device(name)).chosen.dimensions["slices"] for name in ("T4", "H100"))
    assert few < many


@pytest.mark.parametrize("shapes", [((1, 70), (70, 90)), ((90, 70), (70, 1)), ((3, 4001), (4001, 5))])
def test_operation_agrees_with_numpy(shapes):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes)
    np.testing.assert_array_equal(ops.matmul(a, b, backend="emulator"), a @ b)
