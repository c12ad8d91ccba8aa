"""8-bit floats with block scales: kernels are held against their reference, specs that cannot work say why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gemmgen
from gemmgen.core.elements import to_numbers
from gemmgen.core.errors import LaunchError, PlanError
from gemmgen.dispatch.problems import read_problem
from gemmgen.dispatch.selection import choose
from gemmgen.hardware.target import device
from gemmgen.kernels.family import Case
from gemmgen.kernels.gemm import oracle
from gemmgen.kernels.gemm.matcher import fit
from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.kernels.gemm.wgmma.scaled import scaled_product
from gemmgen.kernels.spec_files import load_spec
from tests.kernels.verifying import verified

MAINLOOP = {"strategy": "wgmma", "tile": {"m": 64, "n": 32, "k": 128}, "stages": 2, "consumers": 1}
SPEC: dict[str, Any] = {
    "kind": "gemm",
    "architecture": "sm_90a",
    "transpose": "nt",
    "alpha": "one",
    "beta": "zero",
    "storage": {"a": "e4m3", "b": "e4m3", "c": "f32"},
    "scales": {"a": {"lines": 1}, "b": {"lines": 128}},
    "alignment": {"a": 16, "b": 16, "c": 1},
    "mainloop": MAINLOOP,
}
LINES = {"a": {"lines": 1, "layout": "mn_major"}, "b": {"lines": 1, "type": "ue8m0"}}


def with_loop(**changes: Any) -> dict[str, Any]:
    return {**SPEC, "mainloop": {**MAINLOOP, **changes}}


TWO_BLOCKS = with_loop(tile={"m": 64, "n": 32, "k": 256}, product_sets=2)
"""Stages of two blocks of k."""
CASES = ("primes", "padded leading dimensions", "not-a-numbers and infinities")


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        {**SPEC, "scales": LINES},
        {**SPEC, "scales": {"b": {"lines": 128, "layout": "mn_major"}}, "epilogue": [{"op": "factor", "per": "memory"}]},
        {**SPEC, "scales": {"a": {"lines": 128, "type": "ue8m0"}}, "storage": {"a": "e5m2", "b": "e4m3", "c": "bf16"}},
        {**SPEC, "decomposition": {"scheme": "split_k_parallel", "slices": 2}},
        {**with_loop(tile={"m": 64, "n": 256, "k": 128}, instruction_n=128, consumers=1), "scales": {"a": {}, "b": {"lines": 128}}},
        with_loop(tile={"m": 64, "n": 48, "k": 128}, product_sets=2),
        {
            **with_loop(tile={"m": 192, "n": 16, "k": 128}, consumers=3, stages=3, product_sets=2),
            "order": "column_major",
            "transpose": "tn",
            "scales": {"a": {"lines": 128}, "b": {"lines": 1}},
        },
        {**with_loop(stages=4, product_sets=2), "decomposition": {"scheme": "split_k_cluster", "slices": 2}},
        with_loop(tile={"m": 64, "n": 64, "k": 128}, instruction_n=32, stages=3, product_sets=2),
        {**TWO_BLOCKS, "scales": LINES},
        {**TWO_BLOCKS, "decomposition": {"scheme": "split_k_parallel", "slices": 2}},
    ],
    ids=[
        "rows-blocks",
        "lines",
        "b-alone",
        "a-alone",
        "split-k",
        "two-columns-of-scales",
        "tiles-across-blocks",
        "transposed",
        "clusters-along-k",
        "halves-of-the-columns",
        "two-blocks-of-a-stage",
        "two-blocks-of-a-stage-split-k",
    ],
)
def test_scaled_products_are_those_of_the_reference(spec: dict[str, Any]) -> None:
    # Two cases for most of them, which differ in a scale's place alone.
    assert verified(spec, CASES if spec is SPEC else CASES[1:]).passed


def test_groups_have_scales_of_their_own() -> None:
    grouped = {**SPEC, "batch": "grouped"}
    assert verified(grouped, ("primes", "empty groups", "offsets that fall and lie outside")).passed


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("row_scale[block][i / 2 % 2] * ", ""),
        ("half * kMatrix + lane / 4]", "lane / 4]"),
        ("scales_of_a[i][ahead]", "scales_of_a[i][0]"),
    ],
    ids=["none", "of-other-rows", "of-the-first-block"],
)
def test_wrong_scales_of_rows_are_found(right: str, wrong: str) -> None:
    assert not verified(SPEC, ("primes",), (right, wrong)).passed


def test_a_wrong_column_of_scales_is_found() -> None:
    """Only products of more than 128 columns have a second one."""
    spec = with_loop(tile={"m": 64, "n": 128, "k": 128})
    planted = ("min(work.column + last * 128, n - 1) / 128", "last")
    assert not verified(spec, ("2 x 3 tiles",), planted).passed


def test_products_that_are_added_too_early_are_found() -> None:
    """With two sets of products, a stage's are added while the next stage's are under way."""
    spec = with_loop(stages=3, product_sets=2)
    assert verified(spec, ("2 x 3 tiles",)).passed
    assert not verified(spec, ("2 x 3 tiles",), ("wgmma_wait<1>();", "wgmma_wait<2>();")).passed


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("wgmma_wait<1>();", "wgmma_wait<2>();"),
        ("(stage * kScaleBlocks + 1)", "(stage * kScaleBlocks + 0)"),
        ("const int block = ahead % kScaleBlocks;", "const int block = 1;"),
        ("(kBlock + 1) * kBlockSteps", "kScaleBlocks * kBlockSteps"),
    ],
    ids=["too-early", "scales-of-the-first-block", "scales-stored-once", "products-of-both-blocks"],
)
def test_mistakes_in_stages_of_two_blocks_are_found(right: str, wrong: str) -> None:
    assert not verified(TWO_BLOCKS, ("2 x 3 tiles",), (right, wrong)).passed


def test_every_code_of_both_factors_is_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    """All 256 codes of e4m3 on both sides, with scales that are exact, infinite, and the smallest power of two."""
    codes = to_numbers("e4m3", np.arange(256, dtype=np.uint8))
    own = oracle.fill

    def fill(plan: GemmPlan, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
        if name in "AB":
            values = np.zeros(shape)
            lines = values if name == "A" else values.T
            lines[:, 5] = np.resize(codes, len(lines))
            return values
        if name.startswith("scales"):
            return rng.choice([0.5, 2.0**-127, np.inf], shape)
        return own(plan, case, name, shape, rng)

    monkeypatch.setattr(oracle, "fill", fill)
    spec = {
        **with_loop(tile={"m": 128, "n": 128, "k": 128}, consumers=2),
        "scales": {"a": {"lines": 1}, "b": {"lines": 1, "type": "ue8m0"}},
    }
    assert verified(spec, ("2 x 3 tiles",)).passed


def test_an_infinite_scale_of_a_sum_of_zero_is_not_a_number() -> None:
    """The reference keeps blocks apart: 1 - 1 is 0, and infinity times it is NaN."""
    plan = gemmgen.plan(SPEC)
    arrays = {"A": np.ones((1, 2)), "B": np.array([[1.0], [-1.0]]), "scales_a": np.array([[np.inf]]), "scales_b": np.array([[1.0]])}
    with np.errstate(invalid="ignore"):
        product, _ = scaled_product(plan, arrays, 1, exact=True)
    assert np.isnan(product).all()


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({**SPEC, "scales": {"a": {"k": 32}}}, "scales.a.k"),
        ({**SPEC, "scales": {"a": {"type": "e4m3"}}}, "scales.a.type"),
        ({**SPEC, "scales": {"b": {"layout": "tiles_128x4"}}}, "scales.b.layout"),
        ({**{key: SPEC[key] for key in SPEC if key != "scales"}, "mainloop": {**MAINLOOP, "product_sets": 2}}, "mainloop.product_sets"),
        (with_loop(instruction_n=8, product_sets=2), "mainloop.product_sets"),
        (with_loop(tile={"m": 64, "n": 32, "k": 256}), "mainloop.tile.k"),
        (with_loop(tile={"m": 64, "n": 32, "k": 512}, product_sets=2), "mainloop"),
        (with_loop(promote_every="never"), "mainloop"),
        ({**SPEC, "storage": {"a": "s8", "b": "s8", "c": "f32"}}, "scales.a"),
        ({**SPEC, "mainloop": {"strategy": "naive", "threadblock": {"m": 8, "n": 32}}}, "scales.a"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_scales_that_no_kernel_has_are_refused(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(PlanError) as error:
        gemmgen.plan(spec)
    assert field in [reason.field for reason in error.value.reasons]


@pytest.mark.parametrize("word", ["scales_a=1x128,scales_b=128x128", "scales_a=1x128_ue8m0_mn", "scales_b=1x128_mn"])
def test_problems_name_block_scales(word: str) -> None:
    """A problem's text gives the request that gives the text."""
    text = f"gemm:256,384,512,nt,e4m3_e4m3_bf16,{word}"
    request = read_problem(text).request
    assert all(part in request.text for part in word.split(","))
    plan = gemmgen.for_problem(text, device="H200")
    given = [part[7] for part in word.split(",")]
    swapped = plan.spec.order == "column_major"  # C is computed as its transpose, B A
    assert [scale.operand for scale in plan.scales] == sorted({"a": "b", "b": "a"}[name] if swapped else name for name in given)


@pytest.mark.parametrize(
    ("name", "sets"),
    [("fp8/128x64", 2), ("fp8/64x64", 1)],
)
def test_listed_kernels_get_two_product_sets_where_they_fit(name: str, sets: int) -> None:
    """Two blocks of 64 x 64 on an SM leave no registers for a second set."""
    spec = load_spec(f"gemm/wgmma/{name}")
    found = fit(spec, read_problem("gemm:512,1024,1024,nt,e4m3_e4m3_bf16,scales_a=1x128,scales_b=128x128").request)
    assert not isinstance(found, str), found
    assert found.spec.mainloop.product_sets == sets


def test_large_products_take_three_groups() -> None:
    """Two groups keep the tensor cores busy while the third scales its products."""
    request = read_problem("gemm:4096,24576,1536,nt,e4m3_e4m3_bf16,scales_a=1x128,scales_b=128x128").request
    chosen = choose(request, device("H200")).chosen.plan.spec
    assert (chosen.mainloop.consumers, chosen.mainloop.tile.n, chosen.mainloop.instruction_n) == (3, 128, None)


@pytest.mark.parametrize(("stages", "buffers"), [(5, 2), (6, 1)])
def test_a_stage_may_take_the_room_of_a_buffer(stages: int, buffers: int) -> None:
    """Results wait for one another where a stage more leaves room for one buffer alone."""
    loop = with_loop(tile={"m": 128, "n": 128, "k": 128}, stages=stages, consumers=2, product_sets=2)
    spec = {**loop, "storage": {"a": "e4m3", "b": "e4m3", "c": "bf16"}, "store": "tma", "alignment": {"a": 16, "b": 16, "c": 8}}
    plan = gemmgen.plan({**spec, "multiple_of": {"n": 8}})
    assert plan.loop.staging.buffers == buffers
    assert verified(plan.spec, CASES[1:2]).passed


def test_products_without_scales_keep_their_kernels() -> None:
    """Instances with block scales serve no other products."""
    assert not gemmgen.for_problem("gemm:512,512,512,nt,e4m3_e4m3_bf16", device="H200").scales


def test_block_scales_for_other_types_are_refused() -> None:
    with pytest.raises(LaunchError):
        gemmgen.for_problem("gemm:256,256,256,nt,bf16,scales_a=1x128", device="H200")


def test_a_transposed_product_has_scales_of_the_other_factor() -> None:
    request = read_problem("gemm:256,384,512,nt,e4m3,scales_a=1x128,scales_b=128x128").request
    turned = request.transposed
    assert turned.scaled_a is not None and turned.scaled_a.block.lines == 128
    assert replace(turned.transposed, named=()) == replace(request, named=())
