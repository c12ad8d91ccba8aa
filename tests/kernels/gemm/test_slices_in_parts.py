"""Clusters that divide k, each block of which finishes a part of a tile's columns."""

import random
import re

import pytest

from gemmgen.api import plan, render, verify
from gemmgen.core.errors import PlanError
from gemmgen.kernels.gemm import oracle

BASE = {
    "kind": "gemm",
    "architecture": "sm_90a",
    "transpose": "nt",
    "alpha": "one",
    "beta": "zero",
    "storage": {"a": "bf16", "b": "bf16", "c": "bf16"},
    "alignment": {"a": 8, "b": 8, "c": 8},
    "multiple_of": {"n": 8},
    "store": "tma",
}
BYTES = {"storage": {"a": "s8", "b": "s8", "c": "s32"}, "alignment": {"a": 16, "b": 16, "c": 4}, "multiple_of": {"n": 4}}
ACROSS = {"order": "column_major", "transpose": "tn", "multiple_of": {"m": 8}}


def spec(columns, slices, rows=64, depth=64, finish="all", **fields):
    mainloop = {"strategy": "wgmma", "tile": {"m": rows, "n": columns, "k": depth}, "stages": 2, "consumers": rows // 64}
    division = {"scheme": "split_k_cluster", "slices": slices, "finish": finish}
    return BASE | {"decomposition": division, "mainloop": mainloop} | fields


def verified(fields):
    """True if two cases of the spec are right on the emulator."""
    cases = random.Random(5).sample(list(oracle.cases(plan(fields))), 2)
    return verify(fields, backend="emulator", cases=cases).passed


@pytest.mark.parametrize(("columns", "slices", "rows"), [(48, 2, 64), (96, 3, 128), (64, 4, 64)])
def test_each_block_finishes_as_many_columns(columns, slices, rows):
    assert verified(spec(columns, slices, rows))


def test_column_major_results_are_finished_in_parts():
    assert verified(spec(48, 2, 128, **ACROSS))


def test_integers_and_bias_are_finished_in_parts():
    assert verified(spec(64, 2, depth=128, **BYTES))
    assert verified(spec(48, 2, epilogue=[{"op": "bias", "per": "column"}, {"op": "gelu", "form": "tanh"}]))


def test_parts_need_less_shared_memory():
    parts, whole = plan(spec(96, 3)), plan(spec(96, 3, finish="first"))
    assert parts.loop.sums_bytes * 3 == whole.loop.sums_bytes
    assert parts.shared_bytes < whole.shared_bytes


def test_sums_are_added_in_the_order_of_k():
    text = render(spec(96, 3)).text
    assert re.search(r"other == 0 \? sum\.x : total\[0\] \+ sum\.x", text)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"store": "direct", "multiple_of": {}}, "decomposition.finish"),
        ({"epilogue": [{"op": "residual"}]}, "decomposition.finish"),
        ({"mainloop": {"strategy": "wgmma", "tile": {"m": 64, "n": 40, "k": 64}, "stages": 2, "consumers": 1}}, "mainloop.tile.n"),
    ],
)
def test_parts_that_cannot_be_finished_are_refused(fields, field):
    with pytest.raises(PlanError) as caught:
        plan(spec(48, 2) | fields)
    assert field in [reason.field for reason in caught.value.reasons]
