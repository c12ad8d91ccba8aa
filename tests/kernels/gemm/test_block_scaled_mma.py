"""Products whose instructions take block scales (sm_120a): MXFP8, MXFP4 and NVFP4 against their reference, on the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import gemmgen
from gemmgen.core.errors import PlanError
from gemmgen.kernels.gemm.mma_sync.plan import MmaSyncPlan
from gemmgen.kernels.gemm.scaling import as_tiles
from kernels.random_batches import try_random_specs
from tests.kernels.verifying import verified

TILES = {"layout": "tiles_128x4"}
MX, NV = {"k": 32, "type": "ue8m0", **TILES}, {"k": 16, "type": "e4m3", **TILES}
MAINLOOP = {"strategy": "mma_sync", "tile": {"threadblock": {"m": 32, "n": 32, "k": 128}, "warp": {"m": 16, "n": 16}}, "stages": 2}
MXFP8: dict[str, Any] = {
    "kind": "gemm",
    "architecture": "sm_120a",
    "transpose": "nt",
    "beta": "zero",
    "storage": {"a": "e4m3", "b": "e5m2", "c": "f32"},
    "scales": {"a": MX, "b": MX},
    "alignment": {"a": 16, "b": 16, "c": 1},
    "mainloop": MAINLOOP,
}
PACKED = {"storage": {"a": "u8", "b": "u8", "c": "f32"}, "mainloop": {**MAINLOOP, "multiplied": "e2m1"}, "multiple_of": {"k": 2}}
MXFP4 = {**MXFP8, **PACKED}
NVFP4 = {**MXFP4, "scales": {"a": NV, "b": NV}}
SPECS = {"mxfp8": MXFP8, "mxfp4": MXFP4, "nvfp4": NVFP4}
CASES = ("primes", "padded leading dimensions", "not-a-numbers and infinities")


@pytest.mark.parametrize("name", SPECS)
def test_scaled_products_are_those_of_the_reference(name: str) -> None:
    assert verified(SPECS[name], CASES if name == "mxfp8" else CASES[:2]).passed


def test_slices_of_k_begin_with_their_own_scales() -> None:
    split = {**NVFP4, "decomposition": {"scheme": "split_k_parallel", "slices": 2}}
    assert verified(split, ("primes",)).passed


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("scales_of_b[j], part", "scales_of_b[j], 0"),
        ("lane % 2 * 8", "lane / 2 % 2 * 8"),
        ("line % kTileLines / 32 * kTileBlocks", "line % 32 / 32 * kTileBlocks"),
        ("read & ((1u << 8 * left) - 1)", "read"),
        ("line / kTileLines) * tiles", "line / kTileLines) * 1"),
    ],
    ids=["byte", "row", "place", "unused blocks", "tile"],
)
def test_wrong_scales_are_found(right: str, wrong: str) -> None:
    several = ("primes", "2 x 3 tiles")
    spec = {**MXFP8, "mainloop": {**MAINLOOP, "tile": {"threadblock": {"m": 128, "n": 64, "k": 128}, "warp": {"m": 32, "n": 32}}}}
    assert not verified(spec, several, (right, wrong)).passed


def test_bytes_hold_the_first_value_of_k_in_their_lower_half() -> None:
    plan = gemmgen.plan(NVFP4)
    assert isinstance(plan, MmaSyncPlan)
    a, b = np.zeros((1, 8)), np.zeros((8, 1))
    a[0, 0], b[0, 0] = 0x72, 0x92  # 1 and 6 by 1 and -0.5
    scales = {name: as_tiles(np.full((1, 1), scale)) for name, scale in (("scales_a", 2.0), ("scales_b", 0.25))}
    product, _ = plan.product({"A": a, "B": b, **scales}, 1, True)
    assert product.tolist() == [[0.5 * (1.0 - 3.0)]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architecture": "sm_90"}, "sm_120a"),
        ({"scales": {"a": MX}}, "scales of one kind for both"),
        ({"scales": {"a": NV, "b": NV}}, "32 values of k with ue8m0"),
        ({"scales": {"a": {**MX, "layout": "k_major"}, "b": {**MX, "layout": "k_major"}}}, "tiles_128x4"),
        ({"batch": "strided"}, "none with block scales"),
        ({"storage": {"a": "f16", "b": "f16", "c": "f16"}, "alignment": {"a": 8, "b": 8}}, "e4m3 or e5m2"),
        ({"mainloop": {**MAINLOOP, "multiplied": "e2m1"}}, "u8 for both"),
        ({"mainloop": {**MAINLOOP, "fragment_buffers": 2}}, "fragment_buffers: 1"),
        ({**PACKED, "multiple_of": {"k": 1}}, "an even number"),
        ({**PACKED, "transpose": "nn"}, "along k"),
        ({**PACKED, "scales": {}}, "block scales for A and B"),
    ],
    ids=str,
)
def test_specs_that_cannot_work_say_why(change: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        gemmgen.plan({**MXFP8, **change})


def test_sums_of_4_bit_floats_may_err_by_their_scales_alone() -> None:
    """A block of zeros with large scales hides small numbers: the bound says so."""
    plan = gemmgen.plan(NVFP4)
    assert isinstance(plan, MmaSyncPlan)
    a, b = np.zeros((1, 16)), np.zeros((16, 1))
    small = {name: as_tiles(np.full((1, 2), 2.0**-6)) for name in ("scales_a", "scales_b")}
    large = {name: as_tiles(np.full((1, 2), 256.0)) for name in ("scales_a", "scales_b")}
    (_, little), (_, much) = (plan.product({"A": a, "B": b, **scales}, 1, False) for scales in (small, large))
    assert much[0, 0] > 2.0**-17 > 2.0**-30 > little[0, 0] > 0


def test_sm_121a_has_the_same_instructions() -> None:
    assert verified({**NVFP4, "architecture": "sm_121a"}, ("primes",)).passed


def test_variants_of_the_spec_file_have_plans() -> None:
    file = "specs/gemm/mma_sync/block_scales.yaml"
    assert len({gemmgen.plan(f"{file}/{variant}").name for variant in ("mxfp8", "mxfp4", "nvfp4", "nvfp4_64x64")}) == 4


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Specs with block scales, of small tiles."""
    fields = draw(st.sampled_from((MXFP8, MXFP4, NVFP4)))
    packed, types = "multiplied" in fields["mainloop"], st.sampled_from(("e4m3", "e5m2"))
    warp = draw(st.sampled_from(({"m": 16, "n": 16}, {"m": 16, "n": 32}, {"m": 32, "n": 16})))
    threadblock = {"m": draw(st.sampled_from((32, 64))), "n": draw(st.sampled_from((32, 64))), "k": draw(st.sampled_from((128, 256)))}
    c = draw(st.sampled_from(("f32", "f16", "bf16")))
    decompositions = ({"scheme": "data_parallel"},) * 2 + ({"scheme": "split_k_parallel", "slices": 2}, {"scheme": "stream_k", "blocks": 3})
    operations = st.sampled_from(({"op": "bias", "per": "column"}, {"op": "relu"}))
    return {
        **fields,
        "alpha": draw(st.sampled_from(("one", "argument"))),
        "beta": draw(st.sampled_from(("zero", "argument"))),
        "storage": {"a": "u8", "b": "u8", "c": c} if packed else {"a": draw(types), "b": draw(types), "c": c},
        "alignment": {"a": 16, "b": 16, "c": draw(st.sampled_from((1, 2)))},
        "multiple_of": {"k": draw(st.sampled_from((2, 32)))} if packed else {},
        "epilogue": draw(st.lists(operations, max_size=2, unique_by=lambda each: each["op"])),
        "decomposition": draw(st.sampled_from(decompositions)),
        "mainloop": {
            **fields["mainloop"],
            "tile": {"threadblock": threadblock, "warp": warp},
            "stages": draw(st.integers(2, 3)),
            "copies": draw(st.sampled_from(("cp_async", "tma"))),
        },
    }


def test_a_random_spec_is_rejected_or_verifies() -> None:
    assert try_random_specs(specs(), 3, examples=6, every=18)["verified"] >= 3
