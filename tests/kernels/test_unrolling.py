"""Unrolling: every way to divide the work has it as a field, compilers follow it, results stay right, and refusals say why."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import gemmgen
from gemmgen.codegen.rendering import render
from gemmgen.core.errors import PlanError, SpecError
from gemmgen.kernels import FAMILIES, family
from gemmgen.kernels.spec_files import load_spec
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.verification.oracle import oracle_of

DIVISIONS = {"gemm": "mainloop", "conv2d": "mainloop", "cpu_gemm": "loops", "reduction": "strategy"}
"""Fields that hold the division of the work, by family; others have one division, whose fields are the spec's own."""


def forms(annotation: Any) -> list[type[BaseModel]]:
    """Models among the forms that a field's value may have."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for form in get_args(annotation) for model in forms(form)]


WITHOUT = ("quantise", "rows")
"""Families whose lanes have one vector, or as many as ``held`` says."""


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind not in WITHOUT])
def test_every_division_of_the_work_has_the_field(kind: str) -> None:
    spec = family(kind).spec
    models = forms(spec.model_fields[DIVISIONS[kind]].annotation) if kind in DIVISIONS else [spec]
    models += [spec] if kind == "conv2d" else []  # products by mma, which have no mainloop
    assert models
    assert [model.__name__ for model in models if "unroll" not in model.model_fields] == []


LOOPS = {
    "naive": ("gemm/v0_naive", "mainloop.unroll", 8, r"fma\.rn\.f32"),
    "tiled": ("gemm/v2_transposed_quads", "mainloop.unroll", 2, r"fma\.rn\.f32"),
    "warpgroups": ("gemm/wgmma/tour/bf16_128x256", "mainloop.unroll", 1, r"wgmma\.mma_async"),
    "promoted sums of warpgroups": ("gemm/wgmma/tour/fp8_128x256", "mainloop.unroll", 2, r"wgmma\.mma_async"),
    "fragments": ("gemm/mma_sync/bf16/128x128", "mainloop.unroll", 1, r"mma\.sync"),
    "integer fragments": ("gemm/mma_sync/int8/64x64_nn", "mainloop.unroll", 1, r"mma\.sync"),
    "a convolution one by one": ("conv2d/direct/int8", "mainloop.unroll", 2, r"ld\.global"),
    "a convolution by warpgroups": ("conv2d/wgmma/int8/64x64", "mainloop.unroll", 1, r"wgmma\.mma_async"),
    "windows of a convolution": ("conv2d/wgmma/f16/windows_64x384", "mainloop.unroll", 1, r"wgmma\.mma_async"),
    "taps of a convolution in groups": ("conv2d/direct/depthwise/groups_of_4", "mainloop.unroll", 1, r"mma\.sync"),
    "a row of taps of few channels": ("conv2d/direct/depthwise/first_layer", "mainloop.unroll", 1, r"mma\.sync"),
    "planes of a convolution": ("conv2d/mma_sync/turing/one_stage", "unroll", 1, r"mma\.sync"),
}
"""Specs with a factor that differs from the loop's default, and the instruction that is written more or less often then."""


@pytest.mark.parametrize("loop", LOOPS)
def test_the_compiler_follows_the_factor(loop: str) -> None:
    name, field, factor, instruction = LOOPS[loop]
    before, after = gemmgen.plan(load_spec(name)), gemmgen.plan(load_spec(name, [f"{field}={factor}"]))
    assert f"#pragma unroll {factor}\n" in render(after).text and f"#pragma unroll {factor}\n" not in render(before).text
    counts = [len(re.findall(instruction, compile_plan(plan).ptx)) for plan in (before, after)]
    assert counts[0] != counts[1]
    assert before.name != after.name


@pytest.mark.parametrize("loop", LOOPS)
def test_results_stay_right(loop: str) -> None:
    name, field, factor, _ = LOOPS[loop]
    plan = gemmgen.plan(load_spec(name, [f"{field}={factor}"]))
    cases = oracle_of(plan.spec.kind).cases(plan)
    start = list(LOOPS).index(loop) % len(cases)
    report = gemmgen.verify(plan, "emulator", cases=[*cases[start:], *cases[:start]][::9])
    assert report.passed, [(result.case.name, result.failure) for result in report.failures]


@pytest.mark.parametrize("loops", ["naive", "reordered"])
def test_loops_on_a_processor_stay_right(loops: str) -> None:
    plan = gemmgen.plan({"kind": "cpu_gemm", "loops": {"strategy": loops, "unroll": 4}})
    assert render(plan).text.count("#pragma GCC unroll 4\n") == 1
    assert gemmgen.verify(plan).passed


NAMED = [
    "gemm/v0_naive",
    "gemm/wgmma/tour/int8_128x128",
    "gemm/mma_sync/bf16/128x128",
    "conv2d/direct/int8",
    "conv2d/wgmma/int8/64x64",
    "cpu/c0_naive",
]


@pytest.mark.parametrize("name", NAMED)
def test_the_default_changes_no_name(name: str) -> None:
    spec = load_spec(name)
    part = spec.identity().get(DIVISIONS[spec.kind])
    assert isinstance(part, dict) and "unroll" not in part


REFUSED = {
    "fragments are read ahead": ("gemm/v3_double_buffer", "mainloop.unroll=2", "mainloop.fragment_buffers=2"),
    "mma": ("gemm/mma_sync/bf16/128x128_ahead", "mainloop.unroll=2"),
    "float32 is computed by planes": ("gemm/split_precision/f16x3/128x128", "mainloop.unroll=2"),
    "mma by planes": ("gemm/split_precision/mma_sync/f16x3", "mainloop.unroll=2"),
    "A comes from registers": ("gemm/wgmma/tour/a_from_registers", "mainloop.unroll=2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_loop_that_must_be_unrolled_says_why(case: str) -> None:
    name, *overrides = REFUSED[case]
    with pytest.raises(PlanError) as caught:
        gemmgen.plan(load_spec(name, overrides))
    (reason,) = caught.value.reasons
    assert (reason.code, reason.field) == ("unroll", "mainloop.unroll") and reason.need.startswith("full where ") and reason.hint


def test_a_convolution_names_the_field_of_its_mainloop() -> None:
    with pytest.raises(PlanError) as caught:
        gemmgen.plan(load_spec("conv2d/direct/int8", ["unroll=4"]))
    assert [(reason.field, reason.hint) for reason in caught.value.reasons] == [("unroll", "mainloop.unroll")]


@pytest.mark.parametrize(
    ("value", "need"),
    [("65", "at most 64"), ("0", "at least 1"), ("half", "a whole number"), ("null", "a whole number")],
)
def test_a_factor_out_of_range_is_told_all_forms(value: str, need: str) -> None:
    with pytest.raises(SpecError, match=f"mainloop.unroll: got .*{value}.*, need 'auto', or {need}"):
        load_spec("gemm/v0_naive", [f"mainloop.unroll={value}"])
