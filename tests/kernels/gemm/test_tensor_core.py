"""GEMMs on tensor cores: specs that cannot work say why, those that can compute the right result, and mistakes are caught."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sampling import ALL

import gemmgen
from gemmgen.core.errors import PlanError
from gemmgen.kernels.math.tensor_accuracy import factors
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import VerificationReport, verify_binary
from kernels.gemm.tensor_core_specs import specs
from kernels.random_batches import try_random_specs

TILE = {"m": 64, "n": 32, "k": 64}
MAINLOOP = {"strategy": "wgmma", "tile": TILE, "stages": 2, "consumers": 1, "persistent_blocks": 2}
SPEC = {
    "kind": "gemm",
    "architecture": "sm_90a",
    "transpose": "nt",
    "alpha": "one",
    "beta": "zero",
    "store": "tma",
    "storage": {"a": "bf16", "b": "bf16", "c": "bf16"},
    "alignment": {"a": 8, "b": 8, "c": 8},
    "multiple_of": {"n": 8},
    "mainloop": MAINLOOP,
}
PING_PONG = {**SPEC, "mainloop": {**MAINLOOP, "consumers": 2, "schedule": "ping_pong"}}
CLUSTER = {**SPEC, "mainloop": {**MAINLOOP, "cluster": {"m": 2}}}
AMAX = {**SPEC, "amax": "stored", "epilogue": [{"op": "bias", "per": "column"}]}
GROUPED = {**SPEC, "batch": "grouped"}
UNEVEN = {**GROUPED, "mainloop": {**MAINLOOP, "tile": {**TILE, "m": 128}, "consumers": 2, "tiles": "dynamic"}}
ROWS = {**SPEC, "mainloop": {**MAINLOOP, "a_from": "registers"}}
STREAMED = {
    **SPEC,
    "epilogue": [{"op": "residual"}],
    "decomposition": {"scheme": "stream_k", "blocks": 5},
    "mainloop": {**MAINLOOP, "tile": {**TILE, "m": 128}, "consumers": 2, "persistent_blocks": 0},
}
COPIED = {**SPEC, "transpose": "nn", "alignment": {"a": 1, "b": 1, "c": 8}, "mainloop": {**MAINLOOP, "copied": "both"}}
RESIDUAL = {**SPEC, "epilogue": [{"op": "bias", "per": "column"}, {"op": "residual"}, {"op": "factor", "per": "row"}]}
INTEGERS = {
    **SPEC,
    "storage": {"a": "s8", "b": "s8", "c": "s32"},
    "alignment": {"a": 16, "b": 16, "c": 4},
    "multiple_of": {},
    "store": "direct",
    "decomposition": {"scheme": "split_k_parallel", "slices": 3},
    "mainloop": {**MAINLOOP, "tile": {"m": 64, "n": 32, "k": 128}},
}
BYTES = {**SPEC, "storage": {"a": "s8", "b": "s8", "c": "s32"}, "alignment": {"a": 16, "b": 16, "c": 4}}


@pytest.mark.parametrize("transpose", ["tn", "tt"])
def test_groups_of_columns_are_not_copied_in_boxes(transpose: str) -> None:
    """A group may begin at any column of a stored A, and boxes of tensor maps begin at multiples of 16 bytes."""
    with pytest.raises(PlanError, match=r"transpose: got t., need nn or nt: a group begins at any row"):
        gemmgen.plan({**GROUPED, "transpose": transpose})


def test_groups_of_columns_are_multiplied_without_boxes() -> None:
    plan = gemmgen.plan("gemm/mma_sync/grouped", overrides=("transpose=tn",))
    assert plan.grouped


def with_loop(spec: dict[str, Any] = SPEC, **changes: Any) -> dict[str, Any]:
    return {**spec, "mainloop": {**spec["mainloop"], **changes}}


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({**SPEC, "storage": {"a": "f32", "b": "f32", "c": "f32"}}, "storage"),
        ({**SPEC, "storage": {"a": "f16", "b": "bf16", "c": "f32"}}, "storage"),
        ({**with_loop(BYTES, tile={"m": 64, "n": 32, "k": 128}), "alpha": "argument"}, "storage"),
        ({**with_loop(BYTES, tile={"m": 64, "n": 32, "k": 128}), "transpose": "nn"}, "major"),
        ({**SPEC, "alignment": {"a": 4, "b": 8, "c": 8}}, "alignment"),
        ({**SPEC, "alignment": {"a": 8, "b": 8, "c": 2}}, "alignment"),
        ({**SPEC, "order": "column_major"}, "store"),
        ({**SPEC, "multiple_of": {"n": 4}}, "multiple_of"),
        ({**SPEC, "decomposition": {"scheme": "split_k_serial", "slices": 4}}, "decomposition"),
        ({**SPEC, "decomposition": {"scheme": "stream_k", "blocks": 4}}, "persistent_blocks"),
        ({**with_loop(STREAMED, cluster={"m": 2})}, "decomposition"),
        (with_loop(tiles="dynamic", persistent_blocks=0), "tiles"),
        (with_loop(COPIED, tiles="dynamic"), "tiles"),
        ({**with_loop(a_from="registers"), "transpose": "tt"}, "a_from"),
        ({**SPEC, "cache": {"streaming_stores": True}}, "cache"),
        (with_loop(schedule="ping_pong"), "consumers"),
        (with_loop(consumers=2), "tile_m"),
        (with_loop(tile={**TILE, "k": 32}), "tile_k"),
        (with_loop(tile={**TILE, "n": 256, "m": 256}), "registers"),
        (with_loop(stages=16, tile={**TILE, "n": 128}), "shared_memory"),
        (with_loop(cluster={"m": 4, "n": 4}), "cluster"),
        (with_loop(cluster={"m": 2}, persistent_blocks=3), "persistent_blocks"),
        (with_loop(cluster={"m": 8}), "tile"),
        (with_loop(instruction_n=16), "instruction_n"),
        ({**SPEC, "amax": "unscaled", "epilogue": [{"op": "factor", "per": "row"}]}, "amax"),
        ({**BYTES, "amax": "stored"}, "amax"),
        ({**SPEC, "storage": {"a": "bf16", "b": "bf16", "c": "s8"}, "store": "direct", "epilogue": [{"op": "multiply"}]}, "storage"),
        ({**GROUPED, "decomposition": {"scheme": "split_k_cluster", "slices": 2}}, "decomposition"),
        ({**COPIED, "store": "direct", "decomposition": {"scheme": "split_k_parallel", "slices": 2}}, "copied"),
        ({**COPIED, "batch": "grouped"}, "copied"),
        ({**with_loop(COPIED, tile={"m": 64, "n": 32, "k": 128}), "storage": {"a": "s8", "b": "u8", "c": "f32"}}, "copied"),
        ({**SPEC, "batch_invariant": True, "decomposition": {"scheme": "stream_k", "blocks": 4}}, "batch_invariant"),
        ({**GROUPED, "mainloop": {"strategy": "naive", "threadblock": {"m": 8, "n": 32}}}, "batch"),
    ],
)
def test_a_spec_that_cannot_work_says_why(spec: dict[str, Any], code: str) -> None:
    with pytest.raises(PlanError) as raised:
        gemmgen.plan(spec)
    assert code in [reason.code for reason in raised.value.reasons]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_older_architectures_are_refused(architecture: str) -> None:
    with pytest.raises(PlanError) as raised:
        gemmgen.plan({**SPEC, "architecture": architecture})
    assert "wgmma" in [reason.code for reason in raised.value.reasons]


@pytest.mark.parametrize("batch", range(2))
def test_a_random_spec_is_rejected_or_verifies(batch: int) -> None:
    outcomes = try_random_specs(specs(), batch + 100, examples=8, every=9 if ALL else 18)
    assert outcomes["verified"] >= 2


def verify_with(spec: dict[str, Any], old: str, new: str) -> VerificationReport:
    plan = gemmgen.plan(spec)
    text = gemmgen.render(plan).text
    assert old in text, f"{old!r} is not in the source any more"
    binary = compile_source(text.replace(old, new), architecture="sm_90a", options=COMPILE_OPTIONS)
    cases = [case for case in oracle_of("gemm").cases(plan) if case.name in ("many steps", "2 x 3 tiles") and case.data == "integers"]
    return verify_binary(plan, binary, EmulatorBackend(), cases=cases)


@pytest.mark.parametrize(
    "spec",
    [SPEC, PING_PONG, CLUSTER, GROUPED, COPIED, INTEGERS, RESIDUAL, UNEVEN, STREAMED, ROWS],
    ids=["cooperative", "ping_pong", "cluster", "grouped", "copied", "integers", "residual", "uneven", "streamed", "rows"],
)
def test_an_unchanged_kernel_passes(spec: dict[str, Any]) -> None:
    assert verify_with(spec, "kStages", "kStages").passed


@pytest.mark.parametrize(
    ("spec", "old", "new"),
    [
        (SPEC, "mbarrier_wait(full + kBarrierBytes * stage, phase);", ""),
        (SPEC, "mbarrier_wait(empty + kBarrierBytes * stage, phase ^ 1);", ""),
        (SPEC, "wgmma_wait<1>();", ""),
        (SPEC, "fence_async_proxy();", ""),
        (SPEC, "^ lane % kPeriodRows", "^ lane % 4"),
        (SPEC, "step_offset<kStepBytesA", "step_offset<16"),
        (SPEC, "work.row + block * kInstructionM", "work.row + 1"),
        (SPEC, "kBytesA + kBytesB);\n", "kBytesA);\n"),
        (SPEC, "store_boxes_wait<0>();", ";"),
        (PING_PONG, "mbarrier_wait(turns + kBarrierBytes * group, turn);", ""),
        (PING_PONG, "phase ^= stage / kStages & 1;", ""),
        (CLUSTER, "constexpr unsigned short kAllBlocks = 3;", "constexpr unsigned short kAllBlocks = 1;"),
        (CLUSTER, "work.column + rank * kOwnPartB", "work.column"),
        (AMAX, "__float_as_uint(fabsf(values[v]))", "__float_as_uint(values[v])"),
        (AMAX, "if (lane == 0)\n            atomicMax", "if (lane == 1 && warp == 0)\n            atomicMax"),
        (RESIDUAL, "mbarrier_wait(residuals + kBarrierBytes * (box % kBuffers), (residual_phase + box / kBuffers) & 1);", ""),
        (RESIDUAL, "residual_phase += kBoxes / kBuffers;", ""),
        (RESIDUAL, "min(work.column + i * kGroupThreads + thread, n - 1)", "work.column + i * 128 + thread"),
        (RESIDUAL, "bias_columns[i * kGroupThreads + thread] =", "bias_columns[(i * kGroupThreads + thread) ^ 1] ="),
        (RESIDUAL, "lane % 4 * kPairBytes)", "lane % 4 * kPairBytes ^ 4)"),
        (COPIED, "if (first + i < k)", "if (first + i < k - 1)"),
        (COPIED, "const int pitch = (k + kRowMultiple - 1) / kRowMultiple * kRowMultiple;", "const int pitch = k;"),
        (COPIED, "square[along][i]", "square[i][along]"),
        (COPIED, "- blocks)", "- blocks + 1)"),
        (INTEGERS, "slice < kSlices", "slice < kSlices - 1"),
        (INTEGERS, "work.first_step = min(work.slice * share, steps)", "work.first_step = 0"),
        (GROUPED, "first + kInstructionM <= work.end", "true"),
        (GROUPED, "first + row < work.end", "true"),
        (GROUPED, "first + kInstructionM > work.end", "first + 64 > m"),
        (GROUPED, "problem.row = problem.end;", "problem.row = problem.end + 1;"),
        (GROUPED, "problem.first += ", "problem.first = "),
        (UNEVEN, "if (group >= work.groups)", "if (group > work.groups)"),
        (UNEVEN, "work.groups * (kBytesA / kGroups)", "kBytesA"),
        (UNEVEN, "atomicExch(workspace, 0);", ";"),
        (UNEVEN, "next = gridDim.x + atomicAdd(workspace, 1);", "next = gridDim.x + atomicAdd(workspace, 2);"),
        (UNEVEN, "count / kTickets & 1) ^ 1", "count / kTickets & 1)"),
        (ROWS, "    __syncwarp();  // all lanes", "    // all lanes"),
        (ROWS, "^ row % kPeriodRows", "^ row % 4"),
        (ROWS, "wgmma_wait<0>();\n                __syncwarp", "__syncwarp"),
        (STREAMED, "work.finishes = end == depth;", "work.finishes = true;"),
        (STREAMED, "flags[slot] = 0;", ""),
        (STREAMED, "wait_for_value(flags + slot, 1);", ""),
        (STREAMED, "if (first_step(other, shared_steps) <= work.tile_begin)", "if (true)"),
        (STREAMED, "thread == 0 && work.finishes", "thread == 0"),
    ],
)
def test_a_planted_mistake_is_caught(spec: dict[str, Any], old: str, new: str) -> None:
    assert not verify_with(spec, old, new).passed


def test_tf32_factors_lose_their_lower_bits() -> None:
    values = np.array([1.0 + 2.0**-10, 1.0 + 2.0**-11, -1.0 - 2.0**-11, np.inf], np.float32)
    assert factors("tf32", values).tolist() == [1.0 + 2.0**-10, 1.0, -1.0, np.inf]
