"""Products of a 2:4 sparse A by wgmma.mma_async.sp: metadata in the order of lanes, the reference, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gemmgen
from gemmgen.core.errors import GemmgenError
from gemmgen.kernels.gemm.sparsity import from_lane_words, lane_words, random_metadata
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS, compile_source
from gemmgen.verification.field import verify_field
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_binary
from tests.kernels.verifying import passes

SPEC: dict[str, Any] = {
    "kind": "gemm",
    "architecture": "sm_90a",
    "transpose": "nt",
    "alpha": "one",
    "beta": "zero",
    "storage": {"a": "bf16", "b": "bf16", "c": "f32"},
    "alignment": {"a": 8, "b": 8, "c": 4},
    "multiple_of": {"k": 64},
    "mainloop": {"strategy": "wgmma", "sparse": "a", "tile": {"m": 64, "n": 16, "k": 64}, "stages": 3, "consumers": 1},
}
NAMES = ("primes", "not-a-numbers and infinities", "padded leading dimensions", "k of 0")
BYTES = {"storage": {"a": "s8", "b": "s8", "c": "s32"}, "alignment": {"a": 16, "b": 16, "c": 4}}
FLOATS = {"storage": {"a": "e4m3", "b": "e4m3", "c": "bf16"}, "alignment": {"a": 16, "b": 16, "c": 8}}


def changed(loop: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {**SPEC, **others, "mainloop": {**SPEC["mainloop"], **loop}}


SPECS = {
    "one unit a stage": SPEC,
    "two units a stage": changed({"tile": {"m": 64, "n": 16, "k": 128}, "stages": 2}),
    "two groups, columns of results by TMA": changed(
        {"tile": {"m": 128, "n": 32, "k": 64}, "consumers": 2, "cluster": {"m": 2}},
        order="column_major",
        transpose="tn",
        storage={"a": "f16", "b": "f16", "c": "f16"},
        alignment={"a": 8, "b": 8, "c": 8},
        multiple_of={"k": 64, "m": 8},
        store="tma",
        epilogue=[{"op": "bias", "per": "row"}],
    ),
    "B along n, in turns": changed(
        {"tile": {"m": 64, "n": 64, "k": 64}, "consumers": 2, "schedule": "ping_pong", "persistent_blocks": 4},
        transpose="nn",
        alignment={"a": 8, "b": 8, "c": 2},
    ),
    "slices": changed({}, decomposition={"scheme": "split_k_parallel", "slices": 3}),
    "a cluster along k": changed({}, decomposition={"scheme": "split_k_cluster", "slices": 2}),
    "bytes": changed({"tile": {"m": 64, "n": 16, "k": 128}, "stages": 2}, **BYTES),
    "8-bit floats": changed({"tile": {"m": 64, "n": 16, "k": 128}, "stages": 2}, **FLOATS),
    "8-bit floats, promoted every second stage": changed(
        {"tile": {"m": 64, "n": 16, "k": 128}, "stages": 2, "promote_every": 256}, **FLOATS
    ),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_products_are_those_of_the_reference(spec: dict[str, Any]) -> None:
    """Metadata of every pair; infinities of B beside values of A that are left out do not count."""
    assert passes(spec, NAMES)


@pytest.mark.parametrize(
    "planted",
    [
        ("work.row / kInstructionM", "0"),
        ("wgmma_m64n16k32<1>", "wgmma_m64n16k32<0>"),
        ("step_offset<kStepBytesB>(2 * unit + 1)", "step_offset<kStepBytesB>(2 * unit)"),
        ("kBytesA + kBytesB + kMetadataBytes", "kBytesA + kBytesB"),
    ],
)
def test_mistakes_show(planted: tuple[str, str]) -> None:
    try:
        assert not passes(SPEC, ("2 x 3 tiles",), planted)
    except GemmgenError as error:
        assert "mbarrier" in str(error) or "owns it as metadata" in str(error)


def test_two_stages_have_separate_metadata() -> None:
    """One register for both would be loaded again while instructions read it."""
    plan = gemmgen.plan(SPEC)
    source = gemmgen.render(plan).text
    assert source.count("load_metadata(odd, ") == source.count("multiply_stage(accumulators, odd, ") == 1
    mixed = source.replace("load_metadata(odd, ", "load_metadata(even, ").replace("accumulators, odd, ", "accumulators, even, ")
    binary = compile_source(mixed, architecture=plan.architecture.name, options=COMPILE_OPTIONS)
    cases = [case for case in oracle_of("gemm").cases(plan) if case.name == "2 x 3 tiles"]
    report = verify_binary(plan, binary, EmulatorBackend(), cases=cases)
    assert "in flight owns it as metadata" in str(report.failures[0].failure)


@pytest.mark.parametrize("name", ["one unit a stage", "8-bit floats"])
def test_products_are_right_over_the_field(name: str) -> None:
    plan = gemmgen.plan(SPECS[name])
    assert verify_field(plan).outcome == "passed"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (changed({}, storage={"a": "tf32", "b": "tf32", "c": "f32"}, alignment={"a": 4, "b": 4, "c": 4}), "storage"),
        (changed({}, transpose="tn"), "transpose"),
        (changed({}, multiple_of={"k": 32}), "multiple_of.k"),
        (changed({}, batch="strided"), "mainloop.sparse"),
        (changed({"a_from": "registers"}), "mainloop.sparse"),
        (changed({"copied": "b"}), "mainloop.sparse"),
        (changed({"tile": {"m": 64, "n": 16, "k": 256}}), "mainloop.tile.k"),
        (changed({"tile": {"m": 64, "n": 16, "k": 64}}, **BYTES), "mainloop.tile.k"),
        (changed({}, alignment={"a": 4, "b": 8, "c": 4}), "alignment.a"),
        (changed({}, architecture="sm_80"), "mainloop.strategy"),
    ],
)
def test_specs_that_cannot_work_are_refused(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(GemmgenError) as caught:
        gemmgen.plan(spec)
    assert field in str(caught.value)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("rows", [1, 64, 100])
def test_the_order_of_lanes_can_be_undone(rows: int, size: int) -> None:
    words = random_metadata((rows, 12), np.random.default_rng(rows)).astype(np.uint16)
    lanes = lane_words(words, size)
    assert lanes.shape == ((rows + 63) // 64, 3 * 128)
    assert np.array_equal(from_lane_words(lanes, rows, size), words)
    assert lanes.min() >= 0x44444444
