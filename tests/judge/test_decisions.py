"""Decisions by data, by sizes and by alignment: what a kernel has never been seen to decide."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemmgen.judge.candidates import KernelCandidate
from gemmgen.judge.task import Task
from gemmgen.judge.text import takes_alignment
from gemmgen.sanitizer.front_end import CompileOptions
from gemmgen.sanitizer.source import load_kernel

from .corpus import MAP, map_source


def kernel_of(body: str) -> KernelCandidate:
    task = Task.model_validate(MAP)
    return KernelCandidate(load_kernel(map_source(body), "map.cu", Path(), CompileOptions(task.architecture)), task)


def arrays(x: float) -> dict[str, np.ndarray]:
    return {"x": np.full(40, x, np.float32), "z": np.ones(40, np.float32)}


def test_an_answer_that_no_data_brought_is_named():
    candidate = kernel_of("if (i < n) { float v = VALUE; if (x[0] == 3.0f) v = 0.0f; y[i] = v; }")
    assert candidate.noted is not None
    answers = candidate.noted.answers()
    assert candidate.note_answers(candidate.noted, {"n": 40}, arrays(1.0), answers)
    assert [inst.opcode for inst, answer in candidate.noted.one_sided(answers)] == ["setp"]
    assert not candidate.note_answers(candidate.noted, {"n": 40}, arrays(2.0), answers)
    assert candidate.note_answers(candidate.noted, {"n": 40}, arrays(3.0), answers)
    assert not list(candidate.noted.one_sided(answers))


@pytest.mark.parametrize(
    ("statement", "watched", "unwatched"),
    [
        ('asm("{ .reg .pred p; setp.eq.f32 p, %1, 0f40400000; @p mov.f32 %0, 0f00000000; }" : "+f"(v) : "f"(x[0]));', 0, 1),
        ('unsigned s; asm("set.eq.u32.f32 %0, %1, 0f40400000;" : "=r"(s) : "f"(x[0])); v = s ? 0.0f : v;', 2, 0),
        ('unsigned s; asm("min.u32 %0, %1, 1;" : "=r"(s) : "r"(__float_as_uint(x[0]) >> 9)); v *= (float)s;', 2, 0),
        ("if (x[0] * 0.0f != 0.0f) __trap();", 1, 0),
        ('asm("slct.f32.s32 %0, %0, 0f00000000, %1;" : "+f"(v) : "r"(__float_as_int(x[0]) - 5));', 0, 1),
        ('asm("{ .reg .pred p; setp.eq.u32 p, %1, 40; @p mov.f32 %0, 0f00000000; }" : "+f"(v) : "r"(n));', 0, 0),
        ("if (__any_sync(~0u, x[0] == 3.0f)) v = 0.0f;", 1, 0),
    ],
)
def test_decisions_that_cannot_be_noted_are_known(statement, watched, unwatched):
    noted = kernel_of(f"if (i < n) {{ float v = VALUE; {statement} y[i] = v; }}").noted
    assert (len(noted.decisions), len(noted.unwatched)) == (watched, unwatched) if noted is not None else watched + unwatched == 0


@pytest.mark.parametrize(
    ("statement", "asserts"),
    [
        ("if (v < x[0]) __trap();", 1),
        ("if (v < x[0] && v < z[0]) __trap();", 1),
        ("if (v < x[0]) { y[0] = v; __trap(); }", 0),
        ("if (v < x[0]) v = 0.0f;", 0),
    ],
)
def test_decisions_about_a_trap_alone_need_no_second_answer(statement, asserts):
    noted = kernel_of(f"if (i < n) {{ float v = VALUE; {statement} y[i] = v; }}").noted
    assert noted is not None
    assert len(noted.asserts) >= asserts if asserts else not noted.asserts


def test_kernels_without_decisions_by_data_have_no_notes():
    assert kernel_of("if (i < n) y[i] = VALUE;").noted is None
    assert kernel_of("if (i < n) y[i] = VALUE;").noted_by_sizes is not None


def test_answers_by_sizes_are_noted_by_one_block():
    candidate = kernel_of("if (i < n) y[i] = n % 7 == 3 ? 0.0f : VALUE;")
    noted = candidate.noted_by_sizes
    assert noted is not None
    answers = noted.answers()
    candidate.note_answers(noted, {"n": 40}, arrays(1.0), answers, one_block=True)
    assert candidate.note_answers(noted, {"n": 38}, arrays(1.0), answers, one_block=True)


@pytest.mark.parametrize(
    ("body", "tests"),
    [
        ("if (i < n) y[i] = ((unsigned long long)x & 15) ? 0.0f : VALUE;", True),
        ("if (i < (n & 15)) y[i] = VALUE;", False),
        ("if (i < n) y[i] = VALUE;", False),
    ],
)
def test_tests_of_an_address_are_noticed(body, tests):
    (program,) = kernel_of(body).programs()
    assert takes_alignment(program) == tests
