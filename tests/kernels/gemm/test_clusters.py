"""Clusters that share tiles of both factors, slices of any number, and policies of the L2, of GEMMs by warpgroups."""

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
MAINLOOP = {"strategy": "wgmma", "tile": {"m": 64, "n": 64, "k": 64}, "stages": 4, "consumers": 1}


def spec(mainloop=None, **fields):
    return BASE | fields | {"mainloop": MAINLOOP | (mainloop or {})}


def verified(fields):
    """True if two cases of the spec are right on the emulator."""
    cases = random.Random(3).sample(list(oracle.cases(plan(fields))), 2)
    return verify(fields, backend="emulator", cases=cases).passed


@pytest.mark.parametrize("cluster", [{"m": 2, "n": 2}, {"m": 4, "n": 2}])
@pytest.mark.parametrize("blocks", [0, 16])
def test_blocks_of_a_cluster_share_tiles_of_both_factors(cluster, blocks):
    assert verified(spec({"cluster": cluster, "persistent_blocks": blocks}))


def test_each_tile_goes_to_the_blocks_of_its_row_or_column():
    text = render(spec({"cluster": {"m": 2, "n": 4}})).text
    masks = {name: int(value) for name, value in re.findall(r"kSharers([AB]) = (\d+)", text)}
    # Blocks are counted along m first: the first block's row has every second block, its column the first two.
    assert masks == {"A": 0b01010101, "B": 0b11}


def test_a_cluster_has_at_most_eight_blocks():
    with pytest.raises(PlanError, match="at most 8 blocks"):
        plan(spec({"cluster": {"m": 4, "n": 4}}))


@pytest.mark.parametrize("slices", [3, 5])
def test_a_cluster_divides_k_into_any_number_of_slices(slices):
    assert verified(spec(decomposition={"scheme": "split_k_cluster", "slices": slices}))


@pytest.mark.parametrize("cluster", [{"m": 1, "n": 1}, {"m": 2, "n": 2}])
def test_tma_reads_by_a_policy_of_the_l2(cluster):
    fields = spec({"cluster": cluster}, cache={"l2_policy_b": "evict_first"})
    text = render(fields).text
    assert len(re.findall(r"_by_policy<kBoxesB", text)) == 1
    assert "_by_policy<kBoxesA" not in text
    assert "createpolicy.fractional.L2::evict_first" in text
    assert verified(fields)


def test_other_hints_are_refused():
    with pytest.raises(PlanError, match="l2_policy_a or l2_policy_b"):
        plan(spec(cache={"l2_prefetch_b": 128}))
    with pytest.raises(PlanError, match="none with groups"):
        plan(spec(cache={"l2_policy_b": "evict_first"}, batch="grouped", store="direct"))
