"""Kernels whose blocks share out tiles among them, launched with few blocks: stages come back in later tiles, so that what a tile
leaves undone is met by the next."""

from __future__ import annotations

import pytest

import gemmgen
from gemmgen.kernels.conv2d.warpgroup import WarpgroupPlan
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.verification.runner import verify_case

from .operators import all_mutants
from .trials import Subject, cases_of_few_blocks, code_of, try_mutant, with_few_blocks

DEEP = "conv2d/hopper/int8_64x64_deep"


def persistent() -> dict[str, WarpgroupPlan]:
    """The plans of all convolutions by the copy engine whose blocks share out tiles."""
    plans = {name: gemmgen.plan(path) for name, path in shipped_specs().items() if name.startswith("conv2d/hopper/")}
    return {name: plan for name, plan in plans.items() if isinstance(plan, WarpgroupPlan) and plan.loop.persistent_blocks}


def code(plan: WarpgroupPlan) -> str:
    """The code of a plan, without its name."""
    return code_of(gemmgen.render(plan).text).replace(plan.name, "kernel")


@pytest.mark.parametrize("name", sorted(persistent()))
def test_tiles_of_many_steps_are_right(name: str) -> None:
    plan = persistent()[name]
    ((few, case),) = cases_of_few_blocks(plan)
    assert isinstance(few, WarpgroupPlan)
    assert code(few) == code(plan)
    assert verify_case(few, compile_plan(few), EmulatorBackend(), case).failure == ""


def test_few_blocks_are_of_no_use_elsewhere() -> None:
    plan = gemmgen.plan(shipped_specs()["gemm/v0_naive"])
    assert cases_of_few_blocks(plan) == []


def test_only_the_number_of_blocks_is_another() -> None:
    plan = persistent()[DEEP]
    assert with_few_blocks(plan).spec.mainloop.persistent_blocks == 2
    assert plan.spec.mainloop.persistent_blocks == 264


def test_a_stage_that_a_tile_never_frees_is_caught() -> None:
    subject = Subject.of(DEEP)
    wanted = ("a condition never holds", "wgmma_wait<0>();", "if (work.steps > 0) {")
    (mutant,) = [m for m in all_mutants(subject.source) if (m.kind, m.previous, m.before) == wanted]
    last = Subject(subject.name, subject.plan, subject.source, subject.cases[-1:])
    verdict = try_mutant(last, mutant)
    assert (verdict.outcome, subject.cases[-1][1].name) == ("caught", "tiles of many steps")
