"""Column-major results of GEMMs by warpgroups that TMA stores: matrices of 8x8 are transposed on their way to shared memory."""

import random
import re

import pytest

from gemmgen.api import plan, render, verify
from gemmgen.core.errors import PlanError
from gemmgen.kernels.gemm import oracle

BASE = {
    "kind": "gemm",
    "architecture": "sm_90a",
    "order": "column_major",
    "transpose": "tn",
    "alpha": "one",
    "beta": "zero",
    "storage": {"a": "bf16", "b": "bf16", "c": "bf16"},
    "alignment": {"a": 8, "b": 8, "c": 8},
    "multiple_of": {"m": 8},
    "store": "tma",
}
MAINLOOP = {"strategy": "wgmma", "tile": {"m": 64, "n": 64, "k": 64}, "stages": 3, "consumers": 1}


def spec(mainloop=None, **fields):
    return BASE | fields | {"mainloop": MAINLOOP | (mainloop or {})}


def verified(fields):
    """True if two cases of the spec are right on the emulator."""
    cases = random.Random(3).sample(list(oracle.cases(plan(fields))), 2)
    return verify(fields, backend="emulator", cases=cases).passed


@pytest.mark.parametrize("columns", [8, 24, 64, 88, 160])
def test_tiles_of_any_width_are_stored(columns):
    assert verified(spec({"tile": {"m": 64, "n": columns, "k": 64}}))


@pytest.mark.parametrize(
    ("types", "depth", "columns"), [(("bf16", "bf16", "f32"), 64, 40), (("s8", "s8", "s32"), 128, 48), (("s8", "s8", "s32"), 128, 8)]
)
def test_elements_of_32_bits_fill_two_boxes(types, depth, columns):
    size = 2 if types[0] == "bf16" else 1
    fields = {
        "storage": dict(zip("abc", types, strict=True)),
        "alignment": {"a": 16 // size, "b": 16 // size, "c": 4},
        "multiple_of": {"m": 4},
    }
    assert verified(spec({"tile": {"m": 64, "n": columns, "k": depth}}, **fields))


@pytest.mark.parametrize(
    "mainloop",
    [
        {"tile": {"m": 128, "n": 40, "k": 64}, "consumers": 2, "persistent_blocks": 4},
        {"tile": {"m": 64, "n": 40, "k": 64}, "consumers": 2, "schedule": "ping_pong", "persistent_blocks": 4},
        {"tile": {"m": 128, "n": 48, "k": 64}, "cluster": {"m": 1, "n": 2}},
    ],
    ids=["two groups", "ping-pong", "cluster"],
)
def test_groups_and_clusters_store_their_own_tiles(mainloop):
    assert verified(spec(mainloop))


def test_slices_of_a_cluster_are_stored_once():
    assert verified(spec({"tile": {"m": 64, "n": 48, "k": 64}}, decomposition={"scheme": "split_k_cluster", "slices": 2}))


def test_an_epilogue_has_its_values_by_row_and_column():
    epilogue = [{"op": "bias", "per": "row"}, {"op": "bias", "per": "column"}, {"op": "gelu", "form": "tanh"}]
    assert verified(spec({"tile": {"m": 64, "n": 24, "k": 64}}, epilogue=epilogue))


def test_a_box_has_64_rows_of_the_tile_along_its_inner_dimension():
    text = render(spec({"tile": {"m": 64, "n": 160, "k": 64}})).text
    assert re.search(r"store_box_2d\(map_c, buffer, work.row \+ .*, work.column \+ chunk \* kChunk\)", text)
    assert "store_two_matrices_transposed(" in text


@pytest.mark.parametrize(
    "fields",
    [
        {"storage": {"a": "e4m3", "b": "e4m3", "c": "e4m3"}, "alignment": {"a": 16, "b": 16, "c": 16}, "multiple_of": {"m": 16}},
        {"beta": "argument"},
        {"epilogue": [{"op": "residual"}]},
        {"batch": "grouped"},
    ],
    ids=["e4m3", "beta", "residual", "groups"],
)
def test_other_column_major_results_are_stored_by_threads(fields):
    with pytest.raises(PlanError, match="tma with order: column_major"):
        plan(spec(**fields))


@pytest.mark.parametrize(("columns", "ahead"), [(64, True), (200, False)])
def test_values_of_rows_are_read_before_the_products(columns, ahead):
    fields = spec(
        {"tile": {"m": 128, "n": columns, "k": 64}, "consumers": 2, "schedule": "ping_pong"}, epilogue=[{"op": "bias", "per": "row"}]
    )
    text = render(fields).text.partition("__global__")[2]
    assert (text.index("_rows[") < text.index("multiply_stage(")) == ahead
