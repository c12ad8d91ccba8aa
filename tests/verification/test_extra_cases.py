"""Cases that ``gemmgen verify`` adds to those of a family, for mistakes that no other case shows."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import gemmgen
from gemmgen.api import choose
from gemmgen.cli import cli
from gemmgen.codegen.rendering import Source
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.gemm import oracle
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.verification import extra_cases as module
from gemmgen.verification.extra_cases import extra_cases, with_few_blocks
from gemmgen.verification.runner import verify_binary

SLICED = "gemm/gemv/rows/four_by_eight"
TILES = "conv2d/wgmma/int8/64x64_deep"


def plan_of(name: str) -> KernelPlan:
    plan = gemmgen.plan(shipped_specs()[name])
    assert isinstance(plan, KernelPlan)
    return plan


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        ("gemm/v0_naive", []),
        ("cpu/c0_naive", []),
        ("reduction/rows/32", []),
        ("gemm/gemv/rows/four_by_eight", ["70 whole slices"]),
        ("gemm/simt/stream_k", ["more steps than blocks"]),
        (TILES, ["tiles of many steps, few blocks", "tiles of whole turns, few blocks"]),
        ("conv2d/wgmma/quantised/to_int32", ["tiles of many steps, few blocks", "tiles of whole turns, few blocks"]),
        ("gemm/mma_sync/swiglu", ["more tiles than a band", "padded leading dimensions, many steps"]),
        ("conv2d/direct/depthwise/groups_of_4", ["not-a-numbers and infinities"]),
        ("conv2d/direct/depthwise/int8", []),
    ],
)
def test_kernels_have_the_further_cases_that_concern_them(name: str, cases: list[str]) -> None:
    assert sorted(case.name for _, case in extra_cases(gemmgen.plan(shipped_specs()[name]))) == cases


def test_few_blocks_are_launched_by_the_same_entries() -> None:
    plan = plan_of(TILES)
    for launched, case in extra_cases(plan):
        (few,), (own,) = launched.sequence.resolve(case.dimensions), plan.sequence.resolve(case.dimensions)
        assert (launched.name, few.entry) == (plan.name, own.entry)
        assert few.grid[0] == 2 < own.grid[0]


def test_code_that_depends_on_their_number_keeps_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(TILES)
    sources = iter(("one", "another"))
    monkeypatch.setattr(module, "render", lambda plan: Source(plan.name, next(sources)))
    assert extra_cases(plan) == []


def test_a_case_too_large_for_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CASE_BYTES", 1)
    assert extra_cases(plan_of(TILES)) == []


def test_a_verification_runs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "cases", lambda plan, all_of=oracle.cases: all_of(plan)[:2])
    report = gemmgen.verify(plan_of(SLICED), "emulator")
    assert report.passed and [result.case.name for result in report.results[2:]] == ["70 whole slices"]
    done = CliRunner().invoke(cli, ["verify", "--backend", "emulator", SLICED], prog_name="gemmgen")
    assert done.exit_code == 0 and "3/3" in done.output


def test_a_mistake_that_only_a_further_case_shows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(SLICED)
    text = gemmgen.render(plan).text
    whole = "for (int group = 0; group < kSummers; ++group)"
    assert text.count(whole) == 1
    broken = compile_source(
        text.replace(whole, whole.replace("kSummers", "kSummers - 1")), architecture=plan.architecture.name, options=COMPILE_OPTIONS
    )
    few = [case for case in oracle.cases(plan) if case.name == "k in 3 slices"]
    assert verify_binary(plan, broken, EmulatorBackend(), cases=few).passed
    report = verify_binary(plan, broken, EmulatorBackend(), cases=few, extra=True)
    assert [result.case.name for result in report.failures] == ["70 whole slices"]


def test_a_chosen_convolution_has_cases_of_few_blocks() -> None:
    """The spec of a choice has an activation that nobody set."""
    plan = choose("conv2d:2,128,14,14,128,3,3,2,1", "H200").plan
    assert isinstance(plan, KernelPlan) and with_few_blocks(plan) is not None
