"""Kernels for few columns: every storage order, type and division of k, their choice, and refused problems."""

import numpy as np
import pytest
from sampling import ALL

import gemmgen
from gemmgen import ops
from gemmgen.core.errors import PlanError
from gemmgen.dispatch.model import model_seconds
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose
from gemmgen.hardware.target import device
from gemmgen.kernels.gemm.explain import explain
from gemmgen.kernels.gemm.matcher import fit
from gemmgen.kernels.gemm.oracle import case_of
from gemmgen.kernels.spec_files import load_spec
from gemmgen.perf.cost_model import cost_model_of
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.verification.counters import count_case
from gemmgen.verification.oracle import oracle_of

HALVES = ["storage.a=bf16", "storage.b=bf16", "storage.c=bf16", "alignment.a=8"]
SHIFTED = ["mainloop.vectors=shifted"]
VARIANTS = {
    "strided vector": ("rows/two", ["transpose=nn", "alignment.b=1"]),
    "nothing aligned": ("rows/two", ["alignment.a=1", "alignment.b=1", "mainloop.columns=3"]),
    "column-major C": ("rows/four_by_eight", ["order=column_major", "transpose=tn", "mainloop.threads=64"]),
    "batched halves": (
        "rows/two",
        [*HALVES, "batch=strided", "mainloop.columns=2", "alignment.b=2", "multiple_of.n=2", "mainloop.threads=64"],
    ),
    "scalars and epilogue": (
        "rows/two",
        ["alpha=argument", "beta=argument", "epilogue=[{op: bias, per: row}, {op: residual}, {op: relu}]"],
    ),
    "rows at the edge in vectors": ("columns/one", ["mainloop.columns=2", "mainloop.threads=64"]),
    "rows of whole vectors": ("columns/one", ["multiple_of.m=4", "mainloop.threads=64"]),
    "halves along m": ("columns/one", [*HALVES, "mainloop.threads=64", "alpha=argument"]),
    "columns of A that begin anywhere": ("columns/one", ["alignment.a=1", *SHIFTED]),
    "the same, in halves": ("columns/one", [*HALVES, "alignment.a=2", *SHIFTED, "mainloop.columns=3", "mainloop.unroll=16"]),
    "the same, of batches": ("columns/one", ["alignment.a=1", *SHIFTED, "batch=strided", "alpha=argument", "mainloop.threads=512"]),
    "the same, B by columns": ("columns/one", ["alignment.a=1", *SHIFTED, "transpose=tt", "mainloop.lanes=64"]),
    "shared B, by columns": ("columns/few", ["transpose=tt", "mainloop.threads=64"]),
    "shared B, columns at the edge": ("columns/few", ["multiple_of={m: 4}", "mainloop.columns=11", "mainloop.unroll=8"]),
    "shared B, nothing aligned": ("columns/few", ["alignment={}", "multiple_of={}", "mainloop.columns=3", "mainloop.lanes=64"]),
    "shared B, halves in batches": ("columns/few", [*HALVES, "alignment.b=1", "multiple_of.m=8", "batch=strided", "beta=argument"]),
    "results in vectors, after an epilogue": (
        "shallow/one_row",
        ["alpha=argument", "beta=argument", "epilogue=[{op: bias, per: column}, {op: residual}, {op: relu}]", "mainloop.threads=64"],
    ),
    "results in vectors, of batches": ("shallow/two_rows", ["batch=strided", "mainloop.columns=24", "multiple_of={m: 2, n: 24}"]),
    "halves in vectors": ("shallow/four_rows", [*HALVES, "mainloop.columns=8", "multiple_of={m: 4, n: 8}", "transpose=tt"]),
    "A contiguous along m, lanes along k": ("deep/block", ["transpose=tn", "multiple_of.m=4", "mainloop.columns=2"]),
    "launched early": ("deep/block", ["early_launch=true", "architecture=sm_90", "mainloop.lanes=64", "mainloop.rows=1"]),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_is_verified(name):
    spec, changes = VARIANTS[name]
    plan = gemmgen.plan(f"gemm/gemv/{spec}", None, changes)
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
        gemmgen.plan("gemm/gemv/rows/two", "sm_90", changes)
    assert code in {reason.code for reason in caught.value.reasons}


def test_too_few_teams_for_shifted_vectors_are_refused():
    with pytest.raises(PlanError, match="a multiple of 4 teams"):
        gemmgen.plan("gemm/gemv/columns/one", None, [*SHIFTED, "alignment.a=1", "mainloop.lanes=128"])


def test_shifted_rows_of_which_none_would_remain_are_refused():
    for lanes, threads in ((8, 256), (2, 256), (1, 64)):
        changes = [*SHIFTED, "alignment.a=1", f"mainloop.lanes={lanes}", f"mainloop.threads={threads}"]
        with pytest.raises(PlanError, match="by which they may move back"):
            gemmgen.plan("gemm/gemv/columns/one", None, changes)


@pytest.mark.parametrize(
    ("ending", "wrong"),
    [("min(end, k - 1 - max(0, beyond - 1) / lda)", "end"), ("row < 0 || row >= kTileM", "row < 0 || row >= kTileM - 1")],
)
def test_lost_edge_of_shifted_rows_is_found(monkeypatch, ending, wrong):
    planned = gemmgen.plan("gemm/gemv/columns/one", None, [*SHIFTED, "alignment.a=1"])
    source = gemmgen.render(planned)
    broken = source.text.replace(ending, wrong)
    assert broken != source.text
    monkeypatch.setattr("gemmgen.toolchain.compilation.render", lambda plan: type(source)(source.name, broken))
    assert not gemmgen.verify(planned).passed


def test_shifted_vectors_move_few_sectors_more():
    moved = {}
    for vectors in ("aligned", "shifted"):
        planned = gemmgen.plan("gemm/gemv/columns/one", "sm_90", [f"mainloop.vectors={vectors}", "alignment.a=1"])
        case = case_of("odd rows", {"m": 1003, "n": 1, "k": 256, "lda": 1003, "ldb": 1, "ldc": 1, "slices": 2}, {}, "reals")
        counted = count_case(planned, compile_plan(planned), case, hazards=False).to_json()["total"]
        moved[vectors] = counted["global_memory"]["load"]["sectors"] * 32 / (4 * 1003 * 256)
    assert moved["shifted"] < 1.2 < 1.35 < moved["aligned"]


@pytest.mark.parametrize(
    "problem, shifted",
    [("1,3435,4934,tn", False), ("1,3435,4934,tn,bf16", True), ("1519,3,7977,tn,unaligned", True), ("1,3216,5533,bf16", False)],
)
def test_shifted_vectors_serve_what_gains_by_them(problem, shifted):
    chosen = choose(parse_problem(f"gemm:{problem}"), device("H200")).chosen
    assert (chosen.candidate.label == "gemm/gemv/columns/shifted") == shifted


@pytest.mark.parametrize(
    "problem, label",
    [
        ("1,3435,4934,tn", "columns/whole32"),
        ("1,1725,1640", "columns/whole16"),
        ("8011,1,2869,tn", "columns/whole64"),
        ("11184,12,1384,tn", "columns/few"),
        ("11144,12,3968,tn", "columns/few"),
        ("117088,24,8,tn", "shallow/two_rows"),
        ("2153,1,11208,tt", "columns/one"),
    ],
)
def test_choice_between_kernels_for_few_columns(problem, label):
    assert choose(parse_problem(f"gemm:{problem}"), device("H200")).chosen.candidate.label == f"gemm/gemv/{label}"


def _fit(name, problem):
    request = parse_problem(f"gemm:{problem}").on(device("H200"))
    return fit(load_spec(f"gemm/gemv/{name}"), request)


@pytest.mark.parametrize(
    "name, problem, reason",
    [("columns/one", "4096,9,4096,tn", "smaller blocks"), ("columns/few", "4096,1,4096,tn", "for several columns")],
)
def test_columns_that_a_kernel_leaves_to_others(name, problem, reason):
    assert reason in _fit(name, problem)


def test_threads_with_rows_of_their_own_have_all_columns():
    assert _fit("shallow/one_row", "117088,24,8,tn").spec.mainloop.columns == 24
    assert _fit("shallow/one_row", "117088,24,8,tn,bf16").spec.mainloop.columns == 12


@pytest.mark.parametrize(
    "name, row",
    [("columns/few", ("reads of B", "by every warp, a step ahead")), ("shallow/one_row", ("results", "stored 4 at a time"))],
)
def test_explanation_of_what_warps_share_and_store(name, row):
    lines = {label: text for section in explain(gemmgen.plan(f"gemm/gemv/{name}", "sm_90")) for label, text in section.lines}
    assert lines[row[0]].startswith(row[1])


def test_results_are_stored_in_vectors_where_they_are_aligned():
    widths = {}
    for alignment in (1, 4):
        planned = gemmgen.plan("gemm/gemv/shallow/one_row", "sm_90", [f"alignment.c={alignment}"])
        case = case_of("whole rows", {"m": 512, "n": 16, "k": 8, "lda": 8, "ldb": 16, "ldc": 16}, {}, "reals")
        counted = count_case(planned, compile_plan(planned), case, hazards=False).to_json()["total"]
        widths[alignment] = counted["global_memory"]["store"]["requests"]
    assert widths[1] == 4 * widths[4]


def test_what_blocks_have_on_their_way_draws_the_memory():
    seconds = {}
    for threads, lanes in ((256, 32), (1024, 8)):
        changes = ["mainloop.columns=1", f"mainloop.threads={threads}", f"mainloop.lanes={lanes}", "mainloop.unroll=4"]
        planned = gemmgen.plan("gemm/gemv/columns/one", "sm_90", changes)
        problem = {"m": 4096, "n": 1, "k": 4096, "lda": 4096, "ldb": 1, "ldc": 1, "slices": 128 // (4096 // (4 * lanes))}
        work = cost_model_of("gemm").work(planned, problem)
        assert work[0].blocks == 128
        seconds[threads] = model_seconds(work, device("H200"))
    assert seconds[1024] < 0.8 * seconds[256]


def test_lost_slice_is_found(monkeypatch):
    planned = gemmgen.plan("gemm/gemv/rows/two", "sm_90")
    source = gemmgen.render(planned)
    broken = source.text.replace("first + i * kSummers < slices ?", "first + i * kSummers < slices - 1 ?")
    assert broken != source.text
    monkeypatch.setattr("gemmgen.toolchain.compilation.render", lambda plan: type(source)(source.name, broken))
    assert not gemmgen.verify(planned).passed


@pytest.mark.parametrize(
    "problem",
    ["gemm:4096,1,4096", "gemm:1,4096,4096,nt", "gemm:3,3,1000003", "gemm:16,16,65536,tt", "gemm:250928,8,16,tn"],
)
@pytest.mark.parametrize("name", ["H100", "T4"])
def test_few_columns_are_left_to_these_kernels(problem, name):
    assert choose(parse_problem(problem), device(name)).chosen.candidate.label.startswith("gemm/gemv/")


def test_slices_follow_the_number_of_multiprocessors():
    few, many = (choose(parse_problem("gemm:3,3,1000003"), device(name)).chosen.dimensions["slices"] for name in ("T4", "H100"))
    assert few < many


@pytest.mark.parametrize("shapes", [((1, 70), (70, 90)), ((90, 70), (70, 1)), ((3, 4001), (4001, 5))])
def test_operation_agrees_with_numpy(shapes):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes)
    np.testing.assert_array_equal(ops.matmul(a, b, backend="emulator"), a @ b)
