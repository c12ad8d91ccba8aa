"""Two products in one launch: right on every strategy that has them, wrong kernels found, specs that cannot work refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gemmgen
from gemmgen import ops
from gemmgen.codegen.rendering import render
from gemmgen.core.errors import GemmgenError, LaunchError, SpecError
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose
from gemmgen.hardware.target import device
from gemmgen.kernels.family import KernelPlan
from gemmgen.perf.cost_model import cost_model_of
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_binary

SWIGLU = {"outputs": {"C": "silu(acc) * acc2"}}
DUAL: dict[str, Any] = {"kind": "gemm", "alpha": "one", "beta": "zero", "dual": True, "epilogue": SWIGLU}
FRAGMENTS = {"strategy": "mma_sync", "tile": {"threadblock": {"m": 32, "n": 32, "k": 32}, "warp": {"m": 32, "n": 16}}, "stages": 2}
WARPGROUPS = {"strategy": "wgmma", "tile": {"m": 64, "n": 32, "k": 64}, "consumers": 1, "stages": 2}
HALVES = {"a": "bf16", "b": "bf16", "c": "bf16"}
BYTES = {"a": "e4m3", "b": "e4m3", "c": "bf16"}
HOPPER = {"architecture": "sm_90a", "transpose": "nt"}
BOXES = {"store": "tma", "multiple_of": {"n": 8}, "alignment": {"a": 8, "b": 8, "c": 8}}
NAIVE = {"mainloop": {"strategy": "naive", "threadblock": {"m": 4, "n": 32}}}
KINDS: dict[str, dict[str, Any]] = {
    "naive, a batch": {**NAIVE, "batch": "strided"},
    "mma_sync": {"mainloop": FRAGMENTS, "storage": HALVES, "architecture": "sm_80", "alignment": {"a": 8, "b": 8, "c": 2}},
    "mma_sync, unaligned": {"mainloop": FRAGMENTS, "storage": HALVES, "architecture": "sm_80"},
    "mma_sync, boxes": {
        "mainloop": {**FRAGMENTS, "copies": "tma"}, "storage": HALVES, "architecture": "sm_90", "alignment": {"a": 8, "b": 8, "c": 2},
    },
    "wgmma": {"mainloop": WARPGROUPS, "storage": HALVES, **HOPPER, **BOXES},
    "wgmma, columns of B": {
        "mainloop": {**WARPGROUPS, "tile": {"m": 64, "n": 64, "k": 64}}, "storage": HALVES, "architecture": "sm_90a", **BOXES,
    },
    "wgmma, ping-pong, a cluster": {
        "mainloop": {**WARPGROUPS, "consumers": 2, "schedule": "ping_pong", "cluster": {"m": 2}, "persistent_blocks": 4},
        "storage": HALVES, **HOPPER, **BOXES,
    },
    "wgmma, 8-bit floats": {
        "mainloop": {**WARPGROUPS, "tile": {"m": 64, "n": 32, "k": 128}}, "storage": BYTES, **HOPPER, **BOXES,
        "alignment": {"a": 16, "b": 16, "c": 8},
    },
    "wgmma, 8-bit floats in parts": {
        "mainloop": {**WARPGROUPS, "tile": {"m": 64, "n": 32, "k": 128}, "instruction_n": 32, "promote_every": 128}, "storage": BYTES,
        **HOPPER, **BOXES, "alignment": {"a": 16, "b": 16, "c": 8},
    },
    "wgmma, groups of rows": {
        "mainloop": {**WARPGROUPS, "tiles": "dynamic", "persistent_blocks": 4}, "storage": HALVES, **HOPPER, **BOXES, "batch": "grouped",
    },
}  # fmt: skip
CASES = ("primes", "padded leading dimensions", "not-a-numbers and infinities", "m of 0")


def failures(plan: KernelPlan, replaced: tuple[str, str] = ("", "")) -> list[str]:
    """Cases that fail, with one text of the source in the place of another."""
    source = render(plan)
    assert replaced[0] in source.text
    binary = compile_source(
        source.text.replace(*replaced) if replaced[0] else source.text,
        architecture=plan.architecture.name,
        options=COMPILE_OPTIONS,
        name=source.file_name,
    )
    cases = [case for case in oracle_of("gemm").cases(plan) if case.name in CASES]
    report = verify_binary(plan, binary, EmulatorBackend(), cases=cases)
    return [str(result.failure) for result in report.results if result.failure]


@pytest.mark.parametrize("kind", KINDS)
def test_both_products_are_right(kind: str) -> None:
    assert failures(gemmgen.plan({**DUAL, **KINDS[kind]})) == []


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("wgmma", "+ kSecondBytes, map_b2", "+ kSecondBytes, map_b"),
        ("wgmma", "accumulators[block][kTileN / 2 + 4 * j", "accumulators[block][4 * j"),
        ("wgmma", "silu(value) * second", "silu(second) * value"),
        ("mma_sync", "base_b2, ldb2", "base_b, ldb"),
        ("mma_sync", "accumulators[i] + kWarpN / 2 + 4 * j", "accumulators[i] + 4 * j"),
        ("naive, a batch", "B2 += static_cast<long long>(blockIdx.y) * stride_b2;", ""),
    ],
)
def test_wrong_kernels_are_found(kind: str, right: str, wrong: str) -> None:
    plan = gemmgen.plan({**DUAL, **KINDS[kind], "accuracy": "full"})
    assert failures(plan, (right, wrong)) != []


@pytest.mark.parametrize(
    ("fields", "need"),
    [
        ({"epilogue": []}, "a formula of the epilogue that uses acc2"),
        ({"dual": False}, "need dual: true"),
        ({"alpha": "argument"}, "one for dual: true"),
        ({"beta": "argument"}, "zero for dual: true"),
        ({"mainloop": {"strategy": "gemv"}}, "naive, mma_sync, wgmma for dual: true"),
        ({**KINDS["wgmma"], "mainloop": {**WARPGROUPS, "tile": {"m": 64, "n": 192, "k": 64}}}, "at most 128 for dual: true"),
        ({**KINDS["wgmma"], "decomposition": {"scheme": "stream_k", "blocks": 4}}, "data_parallel for dual: true"),
        ({**KINDS["mma_sync"], "mainloop": {**FRAGMENTS, "fragment_buffers": 2}}, "1 for dual: true"),
    ],
)
def test_specs_that_cannot_work_say_why(fields: dict[str, Any], need: str) -> None:
    with pytest.raises(GemmgenError, match=need):
        gemmgen.plan({**DUAL, **NAIVE, **fields})


def test_names_of_products_are_taken() -> None:
    with pytest.raises(GemmgenError, match="'acc2', which expressions know already"):
        gemmgen.plan({**DUAL, **NAIVE, "epilogue": {"inputs": {"acc2": {"per": "column"}}, "outputs": {"C": "acc * acc2"}}})


def test_costs_count_both_products() -> None:
    plan = gemmgen.plan({**DUAL, **KINDS["wgmma"]})
    problem = {"m": 256, "n": 512, "k": 128, "lda": 128, "ldb": 128, "ldb2": 128, "ldc": 512}
    cost = cost_model_of("gemm").cost(plan, problem)
    assert cost.operations == 2 * 2.0 * 256 * 512 * 128
    assert cost.bytes == 2 * (256 * 128 + 2 * 512 * 128 + 256 * 512)


@pytest.mark.parametrize("words", ["nt,bf16,swiglu", "nt,e4m3,geglu", "swiglu", "nt,bf16,swiglu,batch=4"])
def test_problems_with_a_gate_have_kernels_of_two_products(words: str) -> None:
    request = parse_problem(f"gemm:4096,11008,4096,{words}")
    plan = choose(request, device("H200")).chosen.plan
    assert plan.spec.model_dump()["dual"] is True
    assert "swiglu" in request.text


def test_a_gate_comes_first() -> None:
    with pytest.raises(SpecError, match="comes before other operations"):
        parse_problem("gemm:64,64,64,nt,bf16,bias,swiglu")


def test_gated_matmul() -> None:
    rng = np.random.default_rng(5)
    a, gate, up = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((2, 3, 9), (9, 7), (9, 7)))
    np.testing.assert_array_equal(ops.gated_matmul(a, gate, up, activation="relu"), np.maximum(a @ gate, 0) * (a @ up))
    scale = np.arange(7, dtype=np.float32)
    formula = {"inputs": {"scale": {"per": "column"}}, "value": "acc2 * scale - acc"}
    got = ops.gated_matmul(a[0], gate, up, epilogue=formula, operands={"scale": scale})
    np.testing.assert_array_equal(got, a[0] @ up * scale - a[0] @ gate)


def test_pairs_of_columns_are_rotated() -> None:
    """Rotary embeddings: the second matrix has the columns of each pair exchanged."""
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 9), (9, 8)))
    angles = np.outer(np.arange(5), 10.0 ** -np.arange(4)).repeat(2, axis=1)
    cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    formula = {
        "inputs": {"cosine": {"per": "element"}, "sine": {"per": "element"}},
        "value": "acc * cosine + (acc2 if column % 2 == 1 else -acc2) * sine",
    }
    exchanged = b.reshape(9, 4, 2)[:, :, ::-1].reshape(9, 8).copy()
    got = ops.gated_matmul(a, b, exchanged, epilogue=formula, operands={"cosine": cosine, "sine": sine})
    pairs = (a @ b).reshape(5, 4, 2)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles[:, ::2])
    np.testing.assert_allclose(got.reshape(5, 4, 2), np.stack([turned.real, turned.imag], axis=-1), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b_up": np.zeros((9, 6), np.float32)}, "two matrices of one type and shape"),
        ({"activation": "gel"}, "need one of silu, gelu"),
        ({"out": np.zeros((3, 7), np.float32, order="F")}, "out is stored in columns"),
        ({"b_up": np.zeros((9, 7), np.float32, order="F")}, "rows or columns that are contiguous in both"),
    ],
)
def test_calls_that_do_not_go_together(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "a": np.zeros((3, 9), np.float32),
        "b_gate": np.zeros((9, 7), np.float32),
        "b_up": np.zeros((9, 7), np.float32),
    }
    with pytest.raises(LaunchError, match=message):
        ops.gated_matmul(**{**given, **change})


def test_a_plan_for_one_product_has_no_second_matrix() -> None:
    plan = gemmgen.plan({"kind": "gemm", **NAIVE})
    assert "B2" not in render(plan).text
