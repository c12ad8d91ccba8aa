from __future__ import annotations

from typing import Any

import pytest

import gemmgen
from gemmgen.core.errors import PlanError, SpecError
from kernels.cpu_gemm.specs import blocked


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"micro_kernel": {"rows": 6, "columns": 12}, "blocks": {"m": 24, "n": 48, "k": 8}}, "micro_kernel", "loops.micro_kernel.columns"),
        ({"blocks": {"m": 25, "n": 48, "k": 8}}, "blocks", "loops.blocks.m"),
        ({"blocks": {"m": 24, "n": 40, "k": 8}}, "blocks", "loops.blocks.n"),
        ({"micro_kernel": {"rows": 8, "columns": 16}}, "registers", "loops.micro_kernel"),
        ({"transpose": "nt", "pack": "a"}, "pack", "loops.pack"),
        ({"edges": "padded", "pack": "b"}, "edges", "loops.edges"),
        ({"pack": "a", "prefetch": {"b": 4}}, "prefetch", "loops.prefetch.b"),
        ({"pack": "none", "prefetch": {"packing": True}}, "prefetch", "loops.prefetch.packing"),
        ({"edges": "fitted", "pack": "both"}, "edges", "loops.edges"),
        ({"edges": "fitted", "pack": "b", "prefetch": {"b": 4}}, "edges", "loops.edges"),
        ({"unroll": 3, "prefetch": {"packing": True}}, "prefetch", "loops.unroll"),
        ({"blocks": {"m": 24, "n": 480_000, "k": 1000}}, "workspace", "loops.blocks"),
    ],
)
def test_what_cannot_work_is_rejected_with_its_reason(changes: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(PlanError) as caught:
        gemmgen.plan(blocked(**changes))
    assert [(reason.code, reason.field) for reason in caught.value.reasons] == [(code, field)]


def test_fitted_tiles_are_high_where_narrow_and_wide_where_low() -> None:
    plan = gemmgen.plan(blocked(edges="fitted", pack="b", micro_kernel={"rows": 4, "columns": 24}))
    assert plan.blocked.row_limits == (12, 6, 4, 2, 2, 1, 1, 1)


def test_neon_has_no_masks() -> None:
    with pytest.raises(PlanError, match=r"padded: aarch64 has no masked loads"):
        gemmgen.plan(blocked("aarch64"))


def test_all_reasons_are_given_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        gemmgen.plan(blocked(blocks={"m": 25, "n": 40, "k": 8}, edges="padded", pack="none"))
    assert {reason.code for reason in caught.value.reasons} == {"blocks", "edges"}


def test_a_kernel_is_not_planned_for_another_processor() -> None:
    with pytest.raises(PlanError, match="set the spec's architecture"):
        gemmgen.plan(blocked("x86_64_v3"), "x86_64_v4")


def test_a_processor_that_nobody_knows_is_named() -> None:
    with pytest.raises(SpecError, match="no CPU architecture"):
        gemmgen.plan(blocked(), "sm_80")


@pytest.mark.parametrize(
    ("formula", "got"),
    [
        ({"value": "float32(float64(acc))"}, "a value of type float64"),
        ({"outputs": {"C": "acc", "narrow": {"value": "acc", "type": "e4m3"}}}, "narrow of type float8_e4m3fn"),
    ],
)
def test_doubles_and_8_bit_floats_on_processors_are_refused(formula: dict[str, object], got: str) -> None:
    with pytest.raises(PlanError) as caught:
        gemmgen.plan({**blocked(), "epilogue": formula})
    assert [(reason.code, reason.got) for reason in caught.value.reasons] == [("elementwise", got)]


@pytest.mark.parametrize("formula", ["bfloat16(acc)", "float32(int32(acc))", "acc if row >= column else 0"])
def test_formulas_on_processors_round_and_know_their_place(formula: str) -> None:
    assert gemmgen.plan({**blocked(), "epilogue": {"value": formula}}).epilogue


def test_column_major_swaps_the_operands() -> None:
    plan = gemmgen.plan(blocked(order="column_major", micro_kernel={"rows": 16, "columns": 6}, blocks={"m": 48, "n": 24, "k": 32}))
    assert (plan.left.name, plan.right.name, plan.blocked.tile_rows, plan.blocked.tile_columns) == ("B", "A", 6, 16)


def test_only_what_is_needed_is_rendered() -> None:
    text = gemmgen.render(blocked(transpose="tn")).text
    assert "pack_copied" in text
    assert "pack_transposed" not in text and "pthread_create" not in text


def test_the_source_says_how_it_is_compiled() -> None:
    source = gemmgen.render(blocked())
    assert source.file_name.endswith(".c")
    assert "// Compile: cc -std=c11 -O2" in source.text
