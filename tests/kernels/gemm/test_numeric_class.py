"""Numeric classes agree with the summation trees of kernels."""

from __future__ import annotations

from collections import defaultdict

import pytest
from sampling import sampled

import gemmgen
from gemmgen.kernels.gemm.numeric_class import numeric_class, without_tree
from gemmgen.kernels.gemm.oracle import promised
from gemmgen.kernels.gemm.plan import GemmPlan, packed
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.kernels.spec_files import load_spec
from gemmgen.verification.summation_tree import summation_tree

DEPTHS = (256, 272)
"""A multiple of all tiles along k, and one that is a multiple of few."""


def plain(name: str) -> GemmPlan | None:
    """An instance without an epilogue and scalars, which stand behind the sum; None for specs without a class or without such a form."""
    spec = load_spec(name)
    if spec.kind != "gemm" or spec.batch == "grouped":
        return None
    if spec.mainloop.strategy == "narrow_weights":  # weights are made by arithmetic on pairs, which no tree has a node for
        return None
    if getattr(spec.mainloop, "sparse", "none") != "none":  # metadata of a sparse A, which random codes are not
        return None
    fields = spec.model_dump(mode="json", exclude_unset=True)
    fields.pop("amax", None)
    plan = gemmgen.plan(fields | {"alpha": "one", "beta": "zero", "epilogue": [], "batch": "none"})
    assert isinstance(plan, GemmPlan)
    return plan


def classified(k: int) -> list[tuple[str, GemmPlan, str]]:
    found = []
    names = [name for name in shipped_specs() if name.startswith("gemm/")]
    for name in sampled(names, 60, str, lambda name: 0):
        plan = plain(name)
        if plan is None or (plan.matrix_a.type in ("s8", "u8") and not plan.packed_factors) or promised(plan, (3, 16, k))[2] != k:
            continue
        own = numeric_class(plan, k)
        if not isinstance(own, str) and not without_tree(plan):
            found.append((name, plan, own.text))
    return found


@pytest.mark.parametrize("k", DEPTHS)
def test_instances_of_one_class_add_up_in_one_order(k):
    chosen = classified(k)
    trees: dict[str, set[str]] = defaultdict(set)
    for _, plan, text in chosen:
        # Types of one size share their codes, so trees of different types may be alike.
        trees[text].add(
            f"{plan.matrix_a.type} {plan.matrix_b.type} " + summation_tree(plan, packed(plan, promised(plan, (3, 16, k)), batch=1))
        )
    assert {text: len(found) for text, found in trees.items() if len(found) > 1} == {}
    names = {tree: {text for text, found in trees.items() if tree in found} for tree in set.union(*trees.values())}
    merged = [found for texts in names.values() if len(found := {text for text in texts if not any(word in text for word in FINER)}) > 1]
    assert merged == []


FINER = ("chains", "groups", "slices", "scale", "block", "tcgen05", "sm_75")
"""Words of classes that a tree need not tell apart: chains, groups and slices may coincide at one k, scales change no order, and tensor
cores that add up in one order may round differently."""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"decomposition": {"scheme": "stream_k", "blocks": 4}}, "stream-K"),
        ({"decomposition": {"scheme": "split_k_parallel", "slices": "launch"}}, "launch"),
    ],
)
def test_an_order_that_depends_on_the_problem_has_no_class(changes, reason):
    spec = {
        "kind": "gemm",
        "architecture": "sm_80",
        "mainloop": {"strategy": "mma_sync", "tile": {"threadblock": {"m": 64, "n": 64, "k": 32}, "warp": {"m": 32, "n": 32}}},
        "storage": {"a": "bf16", "b": "bf16"},
        "alignment": {"a": 8, "b": 8},
        **changes,
    }
    plan = gemmgen.plan(spec)
    assert isinstance(plan, GemmPlan)
    assert reason in str(numeric_class(plan, 1024))


def test_floats_of_four_bits_are_no_integers():
    small, large = (plain(f"gemm/mma_sync/block_scales/{name}") for name in ("nvfp4_64x64", "nvfp4"))
    other = plain("gemm/mma_sync/block_scales/mxfp4")
    assert small is not None and large is not None and other is not None
    found = numeric_class(small, 256)
    assert not isinstance(found, str)
    assert found == numeric_class(large, 256) != numeric_class(other, 256)
    assert found.types == ("e2m1", "e2m1")
    assert found.steps != "exact"


def test_functions_in_another_form_are_another_class():
    spec = load_spec("gemm/wgmma/bf16/128x128_ping_pong")
    fields = spec.model_dump(mode="json", exclude_unset=True) | {"epilogue": [{"op": "gelu"}]}
    texts = [numeric_class(gemmgen.plan(fields | {"batch_invariant": promise}), 4096).text for promise in (False, True)]
    assert texts == ["bf16, k16, functions in turn", "bf16, k16"]
