"""The referee refuses every exploit with its kind, and accepts honest kernels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from sampling import ALL

from gemmgen.cli import cli
from gemmgen.core.errors import GemmgenError, SpecError
from gemmgen.judge.candidates import CandidateFailed, Conditions, KernelCandidate
from gemmgen.judge.page import verdict_page
from gemmgen.judge.referee import KINDS, Failure, Referee, Verdict
from gemmgen.judge.reference import PythonReference, Question, answers
from gemmgen.judge.task import Task, parse_shapes, read_task
from gemmgen.sanitizer.front_end import CompileOptions
from gemmgen.sanitizer.source import load_kernel

from . import (
    asynchronous,
    branchless,
    chance,
    circumstances,
    extreme,
    gaming,
    held_out,
    more_held_out,
    rare,
    sizes,
    styles,
    triggers,
    unseen,
)
from .corpus import GEMM, GEMM_SHAPE, LOOP, MAP_SHAPE, ONE, ROWS, ROWS_SHAPE, Candidate, exploits, gemm_source, honest, map_source

REFERENCES = Path(__file__).with_name("references.py")
MAX_SECONDS = 60


def verdict_of(candidate: Candidate, seed: int | None = 1) -> Verdict:
    task = Task.model_validate(candidate.task)
    code = load_kernel(candidate.source, f"{candidate.name}.cu", Path(), CompileOptions(task.architecture))
    reference = PythonReference(REFERENCES, candidate.function)
    return Referee(KernelCandidate(code, task), task, reference, parse_shapes((candidate.shape,)), seed=seed).judge()


def kernel_of(source: str) -> KernelCandidate:
    task = Task.model_validate(ROWS)
    return KernelCandidate(load_kernel(source, "waiting.cu", Path(), CompileOptions(task.architecture)), task)


@pytest.mark.parametrize("candidate", exploits() if ALL else exploits()[1::12], ids=lambda candidate: candidate.name)
def test_an_exploit_is_refused_with_its_kind(candidate):
    verdict = verdict_of(candidate)
    assert candidate.kind in verdict.kinds, verdict.failures
    assert verdict.seconds < MAX_SECONDS


@pytest.mark.parametrize("candidate", honest() if ALL else honest()[2::13], ids=lambda candidate: candidate.name)
def test_an_honest_kernel_is_accepted(candidate):
    verdict = verdict_of(candidate)
    assert verdict.accepted, verdict.failures
    assert verdict.seconds < MAX_SECONDS


HELD_OUT = [
    each
    for file in (
        held_out,
        more_held_out,
        gaming,
        chance,
        rare,
        unseen,
        triggers,
        branchless,
        styles,
        circumstances,
        asynchronous,
        extreme,
        sizes,
    )
    for each in (*file.exploits(), *file.honest())
]


@pytest.mark.parametrize("candidate", HELD_OUT if ALL else HELD_OUT[1::7], ids=lambda candidate: candidate.name)
def test_kernels_that_the_referee_was_not_written_for(candidate):
    verdict = verdict_of(candidate)
    assert candidate.kind in verdict.kinds if candidate.kind else verdict.accepted, verdict.failures


@pytest.mark.parametrize("seed", [2, 11])
def test_a_number_of_the_code_that_is_tiny_as_a_float(seed):
    candidate = next(each for each in triggers.exploits() if each.name == "knows-eight-bits")
    assert not verdict_of(candidate, seed).accepted


@pytest.mark.parametrize("name", ["functions-in-a-table", "virtual-functions", "calls-another-function-for-its-number"])
def test_calls_by_addresses_come_to_every_function(name):
    candidate = next(each for each in (*styles.exploits(), *styles.honest()) if each.name == name)
    verdict = verdict_of(candidate)
    assert candidate.kind in verdict.kinds if candidate.kind else verdict.accepted, verdict.failures


@pytest.mark.parametrize("name", ["halves-all-for-one-undefined", "is-even-beside-a-tiny-number", "softmax-with-undefined-lines"])
def test_results_beside_extreme_numbers(name):
    candidate = next(each for each in (*extreme.exploits(), *extreme.honest()) if each.name == name)
    verdict = verdict_of(candidate)
    assert candidate.kind in verdict.kinds if candidate.kind else verdict.accepted, verdict.failures


@pytest.mark.parametrize("wait", unseen.WAITS if ALL else list(unseen.WAITS)[1:3])
def test_waits_that_give_up_run_on_without_the_data(wait):
    candidate, inputs = kernel_of(unseen.waiting(unseen.WAITS[wait])), {"x": np.ones((6, 128), np.float32)}
    assert candidate.impatient is not None
    with pytest.raises(CandidateFailed) as failed:
        candidate.call({"m": 6, "n": 128}, inputs, Conditions(starves="later", gives_up=True))
    assert failed.value.kind == "race"


@pytest.mark.parametrize("name", ["bits-of-a-state", "mapped-address", "waits-for-a-state"])
def test_bits_that_mean_something_to_one_device_alone(name):
    candidate = next(each for each in (*asynchronous.exploits(), *asynchronous.honest()) if each.name == name)
    verdict = verdict_of(candidate)
    assert candidate.kind in verdict.kinds if candidate.kind else verdict.accepted, verdict.failures


def test_questions_to_barriers_are_answered_at_once():
    ptx = kernel_of(asynchronous.honest()[0].source).code.ptx
    hasty = kernel_of(asynchronous.honest()[0].source).impatient
    assert "mbarrier.try_wait.parity.shared.b64 p, [" in ptx and "0, 100;" in ptx
    assert hasty is not None and "try_wait" not in hasty and "0, 100;" not in hasty


WAITS_FOR = """__device__ int ready[4096];
extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    int row = blockIdx.x, other = row OTHER 1; if (threadIdx.x) return;
    float sum = 0.0f; for (int j = 0; j < n; ++j) sum += x[(long long)row * n + j];
    __threadfence(); atomicExch(ready + row, 1);
    if (other >= 0 && other < m) while (!*(volatile int*)(ready + other)) ;
    y[row] = sum;
}"""


@pytest.mark.parametrize(("direction", "needs"), [("+", True), ("-", False)])
def test_blocks_that_wait_for_later_ones_are_told(direction, needs):
    verdict = verdict_of(Candidate("waits", WAITS_FOR.replace("OTHER", direction), ROWS, "row_sum", ROWS_SHAPE))
    assert verdict.accepted, verdict.failures
    assert any("must hold all blocks of a launch at once, 6 of the first shape" in check for check in verdict.notes) == needs


def test_waits_without_end_do_not_give_up():
    assert kernel_of(unseen.waiting(unseen.FOR_EVER)).impatient is None


def test_data_are_new_each_time_and_again_by_their_seed():
    candidate = honest()[0]
    first, other = verdict_of(candidate, seed=None), verdict_of(candidate, seed=None)
    assert first.seed != other.seed
    assert first.worst_ratio != other.worst_ratio
    assert verdict_of(candidate, seed=first.seed).worst_ratio == first.worst_ratio


@pytest.mark.parametrize(("multiples", "accepted"), [({"k": 8}, True), ({"k": 4}, False)])
def test_sizes_are_multiples_of_what_the_task_promises(multiples, accepted):
    source = gemm_source("for (int x = 0; x < k / 8 * 8; ++x) sum = fmaf(A[row * k + x], B[x * n + column], sum);")
    task = {**GEMM, "multiples": multiples}
    verdict = verdict_of(Candidate("whole-steps", source, task, "gemm", GEMM_SHAPE))
    assert verdict.accepted == accepted
    assert all(shape["k"] % multiples["k"] == 0 for shape in verdict.shapes)


def test_a_shape_that_breaks_a_promise_is_told():
    with pytest.raises(SpecError, match="k is promised to be a multiple of 5"):
        verdict_of(Candidate("any", gemm_source(LOOP), {**GEMM, "multiples": {"k": 5}}, "gemm", GEMM_SHAPE))


def test_a_reference_with_differences_needs_a_bound():
    stencil = next(one for one in HELD_OUT if one.name == "stencil")
    with pytest.raises(GemmgenError, match="y_bound"):
        verdict_of(replace(stencil, function="stencil_without_bound"))


def test_the_corpus_has_sixty_exploits_and_sixty_kernels():
    kinds = [candidate.kind for candidate in exploits()]
    assert len(kinds) == len(honest()) == 60
    assert len(set(kinds)) == 20
    assert set(kinds) <= KINDS.keys()
    assert len({candidate.name for candidate in honest()}) == 60


@pytest.fixture
def files(tmp_path):
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(GEMM))
    (tmp_path / "good.cu").write_text(gemm_source(LOOP))
    (tmp_path / "bad.cu").write_text(gemm_source(LOOP, "C[i] = -sum;"))
    return tmp_path


@pytest.mark.parametrize(("name", "code"), [("good.cu", 0), ("bad.cu", 1)])
def test_the_command_says_so_by_its_exit_code(files, name, code):
    options = ["--task", str(files / "task.yaml"), "--reference", f"{REFERENCES}:gemm", "--shapes", GEMM_SHAPE]
    result = CliRunner().invoke(cli, ["judge", str(files / name), *options, "--json"])
    assert result.exit_code == code, result.output
    found = json.loads(result.output)
    assert found["accepted"] == (code == 0)
    assert ("wrong-function" in found["kinds"]) == (code == 1)
    assert found["clean"] and found["findings"] == []


def test_findings_of_the_emulator_are_reported_with_their_places(files):
    (files / "race.cu").write_text(gemm_source(LOOP, "C[i] = sum; C[i ^ 1] = sum;"))
    options = ["--task", str(files / "task.yaml"), "--reference", f"{REFERENCES}:gemm", "--shapes", GEMM_SHAPE]
    found = json.loads(CliRunner().invoke(cli, ["judge", str(files / "race.cu"), *options, "--json"]).output)
    assert not found["clean"] and found["source_line"] and found["findings"][0]["code"]
    assert found["problem"] == found["findings"][0]["text"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("while True: pass", "more than|ended without|CPU"),
        ("raise ValueError('no')", "no"),
        ("return {'C': 'text'}", ""),
        ("import os; os._exit(3)", "without results"),
    ],
)
def test_a_reference_that_fails_is_told_in_one_line(tmp_path, body, told):
    file = tmp_path / "reference.py"
    file.write_text(f"def f(sizes, arrays):\n    {body}\n")
    try:
        found = answers(file, "f", [Question({"m": 1}, {})], seconds=2)
    except SpecError as error:
        assert "\n" not in str(error)
    else:
        assert found[0]["C"].dtype.kind == "U"
        assert not told


@pytest.mark.parametrize(
    ("fields", "shape", "told"),
    [
        ({"block": [2000]}, GEMM_SHAPE, "has 2000 threads; the limits are"),
        ({"block": []}, GEMM_SHAPE, "block must be one to three integers"),
        ({"arguments": GEMM["arguments"][:3]}, "m=16,n=24,k=32", "m=16, n=24, k=32: bad launch: candidate takes 6 arguments, got 3"),
        ({"shared_bytes": 10**9}, GEMM_SHAPE, "bytes of shared memory"),
        ({"grid": [-4]}, GEMM_SHAPE, "the launch has a negative extent, -4"),
        ({"tile": {"q": 8}}, GEMM_SHAPE, "q is no size of the task; it has k, m, n"),
        ({}, f"{GEMM_SHAPE},q=3", "q is no size of the task"),
        ({}, f"{GEMM_SHAPE},k=3", "k has two values"),
    ],
)
def test_a_task_that_does_not_fit_is_told(files, fields, shape, told):
    (files / "task.yaml").write_text(yaml.safe_dump(GEMM | fields))
    options = ["--task", str(files / "task.yaml"), "--reference", f"{REFERENCES}:gemm", "--shapes", shape]
    result = CliRunner().invoke(cli, ["judge", str(files / "good.cu"), *options])
    assert (result.exit_code, told in result.output) == (2, True), result.output


def test_a_task_that_is_no_mapping_is_told(tmp_path):
    (tmp_path / "task.yaml").write_text("")
    with pytest.raises(SpecError, match=r"task.yaml: expected fields such as grid, block and arguments"):
        read_task(tmp_path / "task.yaml")


def test_results_may_be_undefined_where_the_reference_has_them(tmp_path):
    reference = "import numpy as np\ndef f(sizes, arrays):\n    y = np.sqrt(arrays['x'])\n"
    (tmp_path / "reference.py").write_text(f"{reference}    return {{'y': y, 'y_bound': np.nan_to_num(np.abs(y)) * 2.0**-22}}\n")
    for source, accepted in (("sqrtf(x[i])", True), ("sqrtf(fabsf(x[i]))", False)):
        code = load_kernel(
            map_source(f"if (i < n) y[i] = {source};").replace("const float* z, ", ""), "a.cu", Path(), CompileOptions("sm_80")
        )
        task, source_of_results = Task.model_validate(ONE), PythonReference(tmp_path / "reference.py", "f")
        verdict = Referee(KernelCandidate(code, task), task, source_of_results, parse_shapes((MAP_SHAPE,)), seed=1).judge()
        assert verdict.accepted == accepted, verdict.failures


@pytest.mark.parametrize("text", ["m", "m=", "m=1,n=x", "m=-1", "=3", "m=99999999"])
def test_shapes_that_are_none_are_refused(text):
    with pytest.raises(SpecError):
        parse_shapes((text,))


def test_the_page_escapes_what_a_kernel_says():
    verdict = Verdict("<script>.cu", [Failure("traps", {"m": 1}, "<b>no</b>")])
    page = verdict_page(verdict)
    assert "<script>.cu" not in page
    assert "<b>no</b>" not in page


HALF_GEMM = """
#include <cuda_%(header)s.h>
extern "C" __global__ void gemm(const %(type)s* A, const %(type)s* B, %(type)s* C, int m, int n, int k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m * n) return;
    float sum = 0;
    for (int j = 0; j < k%(less)s; ++j) sum = fmaf(%(to)s(A[i / n * k + j]), %(to)s(B[j * n + i %% n]), sum);
    C[i] = %(from)s(sum);
}
"""
_BF16 = {"header": "bf16", "type": "__nv_bfloat16", "to": "__bfloat162float", "from": "__float2bfloat16"}
_F16 = {"header": "fp16", "type": "__half", "to": "__half2float", "from": "__float2half"}


def typed_task(kind: str) -> dict[str, object]:
    arguments = [{**argument, "type": kind} if argument["name"] in "ABC" else argument for argument in GEMM["arguments"]]
    return {**GEMM, "arguments": arguments}


@pytest.mark.parametrize(
    ("kind", "words", "less", "accepted"), [("bf16", _BF16, "", True), ("bf16", _BF16, " - 1", False), ("f16", _F16, "", True)]
)
def test_elements_of_16_bits_are_judged(kind, words, less, accepted):
    code = load_kernel(HALF_GEMM % {**words, "less": less}, "half.cu", Path(), CompileOptions("sm_80"))
    reference = PythonReference(REFERENCES, "gemm")
    task = Task.model_validate(typed_task(kind))
    verdict = Referee(KernelCandidate(code, task), task, reference, parse_shapes((GEMM_SHAPE,))).judge()
    assert verdict.accepted == accepted, verdict.failures
    assert "one run over a finite field" in verdict.checks
    assert accepted or "another-polynomial" in verdict.kinds


BYTES = """
extern "C" __global__ void gemm(const signed char* A, const unsigned char* B, int* C, int m, int n, int k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m * n) return;
    int sum = 0;
    for (int j = 0; j < k; ++j) sum += A[i / n * k + j] * B[j * n + i % n];
    C[i] = sum;
}
"""


def test_integers_of_8_bits_are_judged():
    types = {"A": "s8", "B": "u8", "C": "s32"}
    arguments = [{**one, "type": types[one["name"]]} if one["name"] in types else one for one in GEMM["arguments"]]
    task = Task.model_validate({**GEMM, "arguments": arguments})
    for text, accepted in ((BYTES, True), (BYTES.replace("signed char* A", "unsigned char* A"), False)):
        code = load_kernel(text, "bytes.cu", Path(), CompileOptions("sm_80"))
        reference = PythonReference(REFERENCES, "gemm")
        assert Referee(KernelCandidate(code, task), task, reference, parse_shapes((GEMM_SHAPE,))).judge().accepted == accepted


SPEC = """
kind: gemm
alpha: one
beta: zero
alignment: {a: 1, b: 1, c: 1}
mainloop: {strategy: naive, threadblock: {m: 8, n: 32}}
"""


@pytest.mark.parametrize(("name", "code"), [("good.cu", 0), ("bad.cu", 1)])
def test_a_spec_is_a_reference(files, name, code):
    (files / "spec.yaml").write_text(SPEC)
    options = ["--task", str(files / "task.yaml"), "--reference", str(files / "spec.yaml"), "--shapes", GEMM_SHAPE]
    result = CliRunner().invoke(cli, ["judge", str(files / name), *options, "--json"])
    assert result.exit_code == code, result.output
    assert "one run over a finite field" in json.loads(result.output)["checks"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (SPEC.replace("alpha: one", "alpha: argument"), "alpha"),
        (SPEC + "storage: {a: bf16, b: bf16, c: f32}", "A is an input of type bf16"),
        (SPEC + "epilogue: [{op: bias, per: column}]", "its arrays are"),
    ],
)
def test_a_spec_that_does_not_fit_the_task_is_told(files, fields, told):
    (files / "spec.yaml").write_text(fields)
    options = ["--task", str(files / "task.yaml"), "--reference", str(files / "spec.yaml"), "--shapes", GEMM_SHAPE]
    result = CliRunner().invoke(cli, ["judge", str(files / "good.cu"), *options])
    assert result.exit_code == 2
    assert told in result.output
