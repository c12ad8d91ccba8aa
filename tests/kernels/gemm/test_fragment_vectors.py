"""Products whose warps keep B in registers and read and store vectors: every form, the refused ones, and planted mistakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import ALL

import gemmgen
from gemmgen.codegen.rendering import render
from gemmgen.core.errors import PlanError
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose
from gemmgen.hardware.target import device
from gemmgen.kernels.gemm import oracle
from gemmgen.kernels.planning import plan as plan_of

SPEC: dict[str, Any] = {
    "kind": "gemm",
    "architecture": "sm_80",
    "storage": {"a": "bf16", "b": "bf16", "c": "bf16"},
    "alignment": {"a": 8, "b": 8, "c": 8},
    "mainloop": {
        "strategy": "mma_sync",
        "copies": "none",
        "fragment_reads": "vectors",
        "persistent_blocks": 2,
        "tile": {"threadblock": {"m": 64, "n": 32, "k": 32}, "warp": {"m": 32, "n": 32}},
    },
}


def tiled(block: tuple[int, int, int], warp: tuple[int, int], **fields: Any) -> dict[str, Any]:
    """The spec with another tile."""
    tile = {"threadblock": dict(zip("mnk", block, strict=True)), "warp": dict(zip("mn", warp, strict=True))}
    return {**SPEC, "mainloop": {**SPEC["mainloop"], "tile": tile, **fields}}


ONE_CASE_IN = 1 if ALL else 4
FORMS: dict[str, dict[str, Any]] = {
    "rows of both": {**SPEC, "transpose": "nn"},
    "both along k": {**SPEC, "transpose": "nt"},
    "whole vectors": {**SPEC, "transpose": "tn", "multiple_of": {"m": 8, "n": 8, "k": 8}},
    "A along m, B along k": {**SPEC, "transpose": "tt"},
    "pairs": {**SPEC, "transpose": "tn", "alignment": {"a": 2, "b": 2, "c": 2}},
    "widths that differ": {**SPEC, "transpose": "tt", "alignment": {"a": 8, "b": 4, "c": 2}, "storage": dict.fromkeys("abc", "f16")},
    "a tile of one vector along m": {**tiled((64, 48, 64), (64, 48)), "transpose": "tn"},
    "a batch": {**SPEC, "batch": "strided", "transpose": "nt", "alpha": "argument", "beta": "argument"},
    "an epilogue": {**SPEC, "transpose": "tn", "epilogue": [{"op": "bias", "per": "column"}, {"op": "gelu"}, {"op": "residual"}]},
    "the largest value": {**SPEC, "amax": "stored", "epilogue": [{"op": "bias", "per": "row"}]},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_verifies(form: str) -> None:
    plan = gemmgen.plan(FORMS[form])
    cases = oracle.cases(plan)[list(FORMS).index(form) % ONE_CASE_IN :: ONE_CASE_IN]
    assert len(cases) > 5
    assert gemmgen.verify(plan, "emulator", cases=cases).passed


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (tiled((64, 32, 32), (32, 32), persistent_blocks=0), "persistent_blocks"),
        (tiled((64, 32, 32), (32, 32), copies="cp_async"), "fragment_reads"),
        ({**SPEC, "storage": {"a": "bf16", "b": "bf16", "c": "f32"}, "alignment": {"a": 8, "b": 8, "c": 4}}, "fragment_reads"),
        ({**SPEC, "order": "column_major"}, "fragment_reads"),
        ({**SPEC, "store": "through_shared"}, "fragment_reads"),
        ({**SPEC, "rasterization": {"group": 2}}, "fragment_reads"),
        ({**SPEC, "alignment": {"a": 8, "b": 1, "c": 8}}, "alignment"),
    ],
)
def test_a_spec_that_cannot_work_says_why(spec: dict[str, Any], code: str) -> None:
    with pytest.raises(PlanError) as raised:
        gemmgen.plan(spec)
    assert code in {reason.code for reason in raised.value.reasons}


def test_a_deeper_product_is_refused_by_name() -> None:
    plan = plan_of(SPEC)
    problem = {"m": 64, "n": 32, "k": 40, "lda": 40, "ldb": 32, "ldc": 32}
    refused = [one.explanation for one in plan.sequence.constraints if not one.condition.evaluate(problem)]
    assert refused == ["k must be at most 32; a warp holds all of it"]


MISTAKES: dict[str, tuple[str, Callable[[str], str]]] = {
    "halves of A exchanged": ("tn", lambda text: text.replace("0x5410);", "0x7632);", 1)),
    "columns of B in plain order": ("nt", lambda text: text.replace("i % kColumnBlocks * 2", "i % kColumnBlocks")),
    "another k of A than of B": ("nn", lambda text: text.replace("kMatrix + lane % 4 * kAlongK", "kMatrix + lane % 4 * 2", 1)),
    "B kept for other columns": ("nn", lambda text: text.replace("work.column != kept_column", "kept_column < 0")),
    "rows beyond the matrix stored": ("nn", lambda text: text.replace("row >= m || ", "")),
    "columns of C beside their place": ("nn", lambda text: text.replace("lane % 4 * (2 * kColumnBlocks);", "lane % 4 * kColumnBlocks;")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    transpose, change = MISTAKES[mistake]
    spec = {**SPEC, "transpose": transpose}
    source = render(plan_of(spec))
    changed = change(source.text)
    assert changed != source.text
    monkeypatch.setattr("gemmgen.toolchain.compilation.render", lambda plan: replace(source, text=changed))
    assert not gemmgen.verify(spec, backend="emulator").passed


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Specs that work, with small tiles."""
    own = {axis: 16 * draw(st.integers(1, 4)) for axis in ("m", "n")}
    warps = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (4, 1)]))
    spec = tiled(
        (own["m"] * warps[0], own["n"] * warps[1], 16 * draw(st.integers(1, 4))),
        (own["m"], own["n"]),
        persistent_blocks=draw(st.integers(1, 5)),
    )
    types = draw(st.sampled_from(["f16", "bf16"]))
    return {
        **spec,
        "storage": {"a": types, "b": types, "c": draw(st.sampled_from(["f16", "bf16"]))},
        "transpose": draw(st.sampled_from(["nn", "nt", "tn", "tt"])),
        "alignment": {name: draw(st.sampled_from([2, 4, 8])) for name in "abc"},
        "multiple_of": draw(st.sampled_from([{}, {"m": 8, "n": 8, "k": 8}, {"n": 4}, {"k": 2, "m": 2}])),
        "beta": draw(st.sampled_from(["zero", "argument"])),
        "alpha": draw(st.sampled_from(["one", "argument"])),
        "batch": draw(st.sampled_from(["none", "none", "strided"])),
        "epilogue": draw(st.sampled_from([[], [], [{"op": "bias", "per": "column"}], [{"op": "residual"}, {"op": "relu"}]])),
    }


@settings(max_examples=10, deadline=None)
@given(spec=specs())
def test_random_specs_verify(spec: dict[str, Any]) -> None:
    assert gemmgen.verify(spec, backend="emulator").passed


@pytest.mark.parametrize("problem", ["255336,40,16,tn", "180648,48,16", "203600,16,8,nt"])
def test_tall_and_shallow_products_take_them(problem: str) -> None:
    chosen = choose(parse_problem(f"gemm:{problem},bf16"), device("H100")).chosen
    assert chosen.candidate.label.startswith("gemm/mma_sync/bf16_tall")
