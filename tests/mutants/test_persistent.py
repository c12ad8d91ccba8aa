"""Kernels whose blocks share out tiles among them, launched with few blocks: stages come back in later tiles, so that an omission
in one tile affects the next."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sampling import planned, sampled

import gemmgen
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.verification.extra_cases import few_block_cases, shares_out_tiles, with_few_blocks
from gemmgen.verification.runner import verify_binary, verify_case

from .operators import Mutant, all_mutants
from .trials import Subject, try_mutant

DEEP = "conv2d/wgmma/int8/64x64_deep"


PLANS = {name: plan for name in shipped_specs() if shares_out_tiles(plan := planned(name))}
"""All kernels whose blocks share out tiles."""


def form(name: str) -> object:
    """Of each form a test stands for the others."""
    loop = PLANS[name].spec.mainloop
    return name.rpartition("/")[0], getattr(loop, "schedule", None), getattr(loop, "cluster", None)


@pytest.mark.parametrize("name", sorted(PLANS))
def test_few_blocks_run_the_same_code(name: str) -> None:
    assert with_few_blocks(PLANS[name]) is not None


@pytest.mark.parametrize("name", sampled(PLANS, 20, str, form))
def test_several_tiles_of_a_block_are_right(name: str) -> None:
    cases = few_block_cases(PLANS[name])
    assert cases
    for few, case in cases:
        assert verify_case(few, compile_plan(PLANS[name]), EmulatorBackend(), case).failure == "", case.name


def test_few_blocks_are_of_no_use_elsewhere() -> None:
    plan = gemmgen.plan(shipped_specs()["gemm/v0_naive"])
    assert few_block_cases(plan) == []


def test_only_the_number_of_blocks_is_another() -> None:
    plan = PLANS[DEEP]
    blocks = {launched.spec.mainloop.persistent_blocks for launched in (plan, with_few_blocks(plan))}  # type: ignore[attr-defined]
    assert blocks == {264, 2}


def test_a_stage_that_a_tile_never_frees_is_caught() -> None:
    subject = Subject.of(DEEP)
    wanted = ("a condition never holds", "wgmma_wait<0>();", "if (work.steps > 0) {")
    (mutant,) = [m for m in all_mutants(subject.source) if (m.kind, m.previous, m.before) == wanted]
    broken = replace(subject.binary, ptx=subject.ptx(mutant.text))
    report = verify_binary(subject.plan, broken, EmulatorBackend(step_limit=60_000), extra=True)
    assert {result.case.name.endswith(", few blocks") for result in report.failures} == {True}
    assert caught_by(subject, mutant, "tiles of many steps, few blocks")


def caught_by(subject: Subject, mutant: Mutant, name: str) -> bool:
    """True if this case alone shows the mutant."""
    cases = tuple(pair for pair in subject.cases if pair[1].name == name)
    return bool(cases) and try_mutant(Subject(subject.name, subject.plan, subject.source, cases), mutant).outcome == "caught"


MISSED: dict[str, tuple[str, tuple[str, str, str]]] = {
    "conv2d/wgmma/int8/64x64": (
        "tiles of whole turns, few blocks",
        ("a stage too few", "if (work.steps > 0) {", "const int previous = stage == 0 ? kStages - 1 : stage - 1;"),
    ),
    "conv2d/direct/depthwise/groups_of_4": (
        "not-a-numbers and infinities",
        ("a condition never holds", "float& sum = sums[i][j / 2][half * 2 + j % 2];", "if (sum != sum)"),
    ),
}
"""Mutants that only this case shows."""


@pytest.mark.parametrize("name", MISSED)
def test_a_mistake_that_one_case_alone_shows(name: str) -> None:
    case, wanted = MISSED[name]
    subject = Subject.of(name)
    (mutant,) = [m for m in all_mutants(subject.source) if (m.kind, m.previous, m.before) == wanted]
    assert caught_by(subject, mutant, case)
