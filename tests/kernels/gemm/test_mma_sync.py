"""GEMMs by mma.sync: every storage order and alignment computes the right result, mistakes are caught, and the others say why not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from sampling import ALL

import gemmgen
from gemmgen.core.errors import PlanError
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose
from gemmgen.hardware.target import device
from gemmgen.kernels.gemm import matcher
from gemmgen.kernels.requests import Fit
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS, compile_plan
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.verification.counters import count_case
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import VerificationReport, verify_binary
from kernels.gemm.tensor_core_specs import OTHERS
from kernels.random_batches import try_random_specs

MAINLOOP = {"strategy": "mma_sync", "tile": {"threadblock": {"m": 64, "n": 64, "k": 32}, "warp": {"m": 32, "n": 32}}, "stages": 3}
SPEC = {
    "kind": "gemm",
    "architecture": "sm_80",
    "transpose": "nn",
    "alpha": "one",
    "beta": "zero",
    "mainloop": MAINLOOP,
    "storage": {"a": "bf16", "b": "bf16", "c": "bf16"},
    "alignment": {"a": 8, "b": 8, "c": 2},
}
ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8": 1, "e4m3": 1, "e5m2": 1}
RESULTS = {"s8": ("s32", "s8", "f32"), "e4m3": ("bf16", "e4m3")}


def tiled(threadblock: tuple[int, int, int], warp: tuple[int, int], **changes: Any) -> dict[str, Any]:
    tile = {"threadblock": dict(zip("mnk", threadblock, strict=True)), "warp": dict(zip("mn", warp, strict=True))}
    return {**SPEC, "mainloop": {**MAINLOOP, "tile": tile, **changes}}


BOXED = {
    **SPEC,
    "architecture": "sm_90",
    "mainloop": {**MAINLOOP, "copies": "tma", "fragment_buffers": 2, "persistent_blocks": 2},
}
AHEAD = {**SPEC, "mainloop": {**MAINLOOP, "fragment_buffers": 2}}
STREAMED = {**SPEC, "decomposition": {"scheme": "stream_k", "blocks": 5}}
SLICED = {**SPEC, "decomposition": {"scheme": "split_k_parallel", "slices": "launch"}}


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Small tiles of every type, order and alignment."""
    a = draw(st.sampled_from(("f16", "bf16", "tf32", "s8", "u8", "e4m3", "e5m2")))
    b = draw(st.sampled_from((a, a, OTHERS.get(a, a))))
    c = draw(st.sampled_from(RESULTS.get(a, RESULTS.get(OTHERS.get(a, ""), ("f32", "bf16")))))
    size, plain = ELEMENT_BYTES[a], c == "s32"
    column_major = draw(st.integers(0, 3)) == 0
    streamed, sliced = draw(st.sampled_from(((True, False), (False, True), (False, False), (False, False))))
    batches = ["none", "none", "strided"] + ([] if column_major or streamed or sliced else ["grouped"])
    warp_m, warp_n = draw(st.sampled_from(((16, 32), (32, 16), (32, 32))))
    return {
        "kind": "gemm",
        "architecture": "sm_90",
        "order": "column_major" if column_major else "row_major",
        "transpose": draw(st.sampled_from(("nn", "nt", "tn", "tt"))),
        "alpha": "one" if plain else draw(st.sampled_from(("one", "argument"))),
        "beta": draw(st.sampled_from(("zero", "argument"))) if c in ("f32", "bf16") else "zero",
        "storage": {"a": a, "b": b, "c": c},
        "batch": draw(st.sampled_from(batches)),
        "alignment": {name: min(draw(st.sampled_from((1, 2, 4, 8, 16))), 16 // size) for name in ("a", "b")} | {"c": 1},
        "epilogue": [] if plain else draw(st.sampled_from(([], [{"op": "factor", "per": "column"}, {"op": "relu"}]))),
        "decomposition": (STREAMED if streamed else SLICED if sliced else {}).get("decomposition", {"scheme": "data_parallel"}),
        "mainloop": {
            "strategy": "mma_sync",
            "tile": {
                "threadblock": {"m": 64, "n": draw(st.sampled_from((32, 64))), "k": draw(st.sampled_from((1, 2, 4))) * 32 // size},
                "warp": {"m": warp_m, "n": warp_n},
            },
            "stages": draw(st.integers(2, 4)),
            "copies": draw(st.sampled_from(("cp_async", "cp_async", "registers", "tma"))),
            "fragment_buffers": (buffers := draw(st.sampled_from((1, 2)))),
            "unroll": draw(st.sampled_from(("full", 1, 2))) if buffers == 1 else "full",
            "persistent_blocks": 0 if streamed else draw(st.sampled_from((0, 3))),
        },
    }


@pytest.mark.parametrize("batch", range(2))
def test_a_random_spec_is_rejected_or_verifies(batch: int) -> None:
    outcomes = try_random_specs(specs(), batch + 200, examples=8, every=9 if ALL else 18)
    assert outcomes["verified"] >= 4


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({**SPEC, "architecture": "sm_75"}, "mma_sync"),
        ({**SPEC, "storage": {"a": "f32", "b": "f32", "c": "f32"}, "alignment": {}}, "storage"),
        ({**SPEC, "storage": {"a": "e4m3", "b": "e4m3", "c": "f32"}, "alignment": {}}, "storage"),
        ({**SPEC, "decomposition": {"scheme": "split_k_serial", "slices": 4}}, "decomposition"),
        ({**tiled((64, 64, 32), (32, 32), persistent_blocks=2), "decomposition": {"scheme": "stream_k", "blocks": 4}}, "persistent_blocks"),
        (tiled((64, 64, 16), (32, 32), fragment_buffers=2), "fragment_buffers"),
        (tiled((64, 64, 32), (32, 32), copies="tma"), "copies"),
        ({**BOXED, "alignment": {"a": 4, "b": 8, "c": 2}}, "alignment"),
        ({**BOXED, "storage": {"a": "tf32", "b": "tf32", "c": "f32"}, "alignment": {"a": 4, "b": 4, "c": 2}}, "major"),
        ({**SPEC, "store": "tma"}, "store"),
        ({**SPEC, "store": "through_shared", "decomposition": {"scheme": "stream_k", "blocks": 4}}, "store"),
        ({**SPEC, "store": "through_shared", "decomposition": {"scheme": "split_k_parallel", "slices": 4}}, "store"),
        ({**SPEC, "store": "through_shared", "order": "column_major"}, "order"),
        ({**BOXED, "store": "through_shared"}, "store"),
        ({**SPEC, "cache": {"l2_prefetch_a": 128}}, "cache"),
        (tiled((64, 64, 32), (24, 32)), "warp_tile"),
        (tiled((64, 64, 24), (32, 32)), "tile_k"),
        (tiled((64, 96, 32), (32, 32)), "tile"),
        (tiled((1024, 64, 32), (16, 32)), "threads_per_block"),
        (tiled((256, 256, 64), (64, 64), stages=4), "shared_memory"),
        (tiled((128, 256, 32), (128, 128)), "registers"),
    ],
)
def test_a_spec_that_cannot_work_says_why(spec: dict[str, Any], code: str) -> None:
    with pytest.raises(PlanError) as raised:
        gemmgen.plan(spec)
    assert code in [reason.code for reason in raised.value.reasons]


def verify_with(spec: dict[str, Any], old: str, new: str) -> VerificationReport:
    plan = gemmgen.plan(spec)
    text = gemmgen.render(plan).text
    assert old in text, f"{old!r} is not in the source any more"
    binary = compile_source(text.replace(old, new), architecture=spec["architecture"], options=COMPILE_OPTIONS)
    cases = [case for case in oracle_of("gemm").cases(plan) if case.name in ("many steps", "primes") and case.data == "integers"]
    return verify_binary(plan, binary, EmulatorBackend(), cases=cases)


UNALIGNED = {**SPEC, "transpose": "tn", "alignment": {"a": 1, "b": 1, "c": 1}}
TURNED = {**SPEC, "transpose": "tn", "storage": {"a": "tf32", "b": "tf32", "c": "f32"}, "alignment": {"a": 4, "b": 4, "c": 1}}


@pytest.mark.parametrize(
    "spec",
    [SPEC, UNALIGNED, TURNED, AHEAD, BOXED, STREAMED, SLICED],
    ids=["cp_async", "unaligned", "turned", "ahead", "boxed", "streamed", "sliced"],
)
def test_an_unchanged_kernel_passes(spec: dict[str, Any]) -> None:
    assert verify_with(spec, "kStages", "kStages").passed


@pytest.mark.parametrize(
    ("spec", "old", "new"),
    [
        (SPEC, "copy_async_wait<kStages - 2>();", "copy_async_wait<kStages - 1>();"),
        (SPEC, "__syncthreads();\n\n            // The stage", "\n            // The stage"),
        (SPEC, "min(max(available, 0), kVector) * (kBytes / kVector)", "16"),
        (SPEC, "load_matrices_transposed(words", "load_matrices(words"),
        (SPEC, "warp % kWarpsN * kWarpN,", "0,"),
        (SPEC, "const int filled = stage == 0 ? kStages - 1 : stage - 1;", "const int filled = stage;"),
        (AHEAD, "fragments_a[(part + 1) % 2]", "fragments_a[part % 2]"),
        (AHEAD, "if (step + 1 < work.steps) {", "if (step + 2 < work.steps) {"),
        (BOXED, "mbarrier_wait(full + kBarrierBytes * stage, phase);", ""),
        (BOXED, "__syncthreads();\n                        load", "load"),
        (BOXED, "kBytesA + kBytesB);", "kBytesA);"),
        (STREAMED, "store_release(flags + slot, 1);", "flags[slot] = 1;"),
        (STREAMED, "sum[(block * (kWarpN / 2) + i) * kThreads] =", "sum[(block * (kWarpN / 2) + i)] ="),
        (SLICED, "count_works(m, n, slices)", "count_works(m, n, slices - 1)"),
        (UNALIGNED, "available > 0 ? *source", "true ? *source"),
        (UNALIGNED, "if (fills)\n                get_tile_a", "if (step == 0)\n                get_tile_a"),
        (TURNED, "tile_offset<TileA>(m + i, k)", "tile_offset<TileA>(m, k)"),
    ],
)
def test_a_planted_mistake_is_caught(spec: dict[str, Any], old: str, new: str) -> None:
    assert not verify_with(spec, old, new).passed


@pytest.mark.parametrize("transpose", ["nn", "tt"])
@pytest.mark.parametrize("depth", [16, 32, 64])
def test_reads_of_fragments_meet_no_bank_conflicts(transpose: str, depth: int) -> None:
    plan = gemmgen.plan({**tiled((64, 64, depth), (32, 32)), "transpose": transpose})
    lines = count_case(plan, compile_plan(plan)).to_json()["lines"]
    reads = [line["shared_memory"]["ldmatrix"] for line in lines if "ldmatrix" in line["shared_memory"]]
    assert reads and not any(read["conflicts"] for read in reads)


def test_rows_of_an_odd_length_go_to_tensor_cores() -> None:
    request = matcher.parse_request([1023, 1023, 1023], ["bf16", "unaligned"])
    fit = matcher.fit(gemmgen.plan(SPEC).spec, request)
    assert isinstance(fit, Fit)
    assert (fit.spec.alignment.a, fit.spec.alignment.b) == (1, 1)  # type: ignore[attr-defined]
    assert not gemmgen.plan(fit.spec).loop.any_async


def test_slices_of_k_follow_the_multiprocessors() -> None:
    few, many = (choose(parse_problem("gemm:29,29,1002931,bf16,tn"), device(name)).chosen for name in ("A100", "H100"))
    assert few.candidate.label == many.candidate.label == "gemm/mma_sync/bf16/32x32_deep"
    assert few.dimensions["slices"] < many.dimensions["slices"]
