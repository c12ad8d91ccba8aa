"""Whole programs of many kinds: right ones are clean and give their reference's results, mistakes in them are found by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sampling import ALL, sampled

import gemmgen
from gemmgen.emulator import TensorMap

from . import more_programs  # noqa: F401
from .programs import PROGRAMS, Mistake, Program

HEAVY = ("#include <coop", "#include <cub/", "#include <cuda/")
"""Headers that take the compiler seconds; the mistakes in such programs wait for GEMMGEN_ALL_CASES."""
MISTAKES = [(program, mistake) for program in PROGRAMS for mistake in program.mistakes]


def _name(pair: tuple[Program, Mistake]) -> str:
    return f"{pair[0].name}-{pair[1].name}"


LIGHT = [pair for pair in MISTAKES if ALL or not any(header in pair[0].source for header in HEAVY)]
SAMPLE = sampled(LIGHT, 2, _name, lambda pair: (pair[1].codes, pair[0].name))


def emulate(program: Program, source: str, block: int | None = None, grid: int | None = None) -> tuple[list[Any], Any]:
    arguments = program.given(np.random.default_rng(7))
    result = gemmgen.emulate(
        source,
        grid=grid or program.grid,
        block=block or program.block,
        args=arguments,
        shared_bytes=program.shared,
        architecture=program.architecture,
        cluster=program.cluster,
    )
    return arguments, result


def differing(program: Program, arguments: list[Any], result: Any) -> list[str]:
    """The arrays that are not as expected."""
    found = []
    for name, wanted in program.expected(*arguments).items():
        got = result[name].ravel()
        expected = np.asarray(wanted).ravel().astype(got.dtype)
        if got.shape != expected.shape or not np.allclose(got, expected, rtol=program.tolerance, atol=program.tolerance):
            found.append(f"{name}: {got[:8]}, expected {expected[:8]}")
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_right_program_is_clean_and_right(program):
    arguments, result = emulate(program, program.source)
    assert [finding.text for finding in result.findings] == []
    assert differing(program, arguments, result) == []
    assert program.output in (None, result.output)


@pytest.mark.parametrize(("program", "mistake"), SAMPLE, ids=map(_name, SAMPLE))
def test_a_mistake_in_a_program_is_found(program, mistake):
    assert mistake.old in program.source
    arguments, result = emulate(program, program.source.replace(mistake.old, mistake.new), mistake.block, mistake.grid)
    codes = {finding.code for finding in result.findings}
    if not codes and differing(program, arguments, result):
        codes = {"wrong-result"}
    assert codes & set(mistake.codes)


def test_there_are_many_programs_and_mistakes():
    assert len(PROGRAMS) >= 80 and len(MISTAKES) >= 150
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS)
    assert any(isinstance(argument, TensorMap) for program in PROGRAMS for argument in program.given(np.random.default_rng(1)))
