"""ops.compress_2_4 and products by its results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemmgen import ops
from gemmgen.core.elements import to_elements, to_numbers
from gemmgen.core.errors import LaunchError
from gemmgen.hardware.target import architecture as find_architecture
from gemmgen.kernels.gemm.family import plan_gemm
from gemmgen.kernels.gemm.sparsity import places, random_metadata
from gemmgen.ops.sparse import Call, form_of, kernel_of, spec_of
from gemmgen.runtime.kernel import Kernel
from gemmgen.toolchain.compilation import compile_plan


def weight_of(k: int, n: int, kind: str, seed: int = 1) -> Any:
    """A matrix (k, n) that is 2:4 sparse along k, of small integers, as its elements are held."""
    rng = np.random.default_rng(seed)
    dense = np.zeros((n, k))
    at = places(random_metadata((n, k // 16), rng))
    np.put_along_axis(dense, at, rng.integers(-4, 5, at.shape).astype(float), axis=1)
    return np.ascontiguousarray(to_elements(kind, dense.astype(np.float32)).T)


def activations_of(rows: int, k: int, kind: str) -> Any:
    return to_elements(kind, np.random.default_rng(2).integers(-4, 5, (rows, k)).astype(np.float32))


@pytest.mark.parametrize(("rows", "n", "kind"), [(3, 40, "bf16"), (70, 24, "f16"), (20, 136, "s8")])
def test_products_are_those_of_the_dense_matrix(rows: int, n: int, kind: str) -> None:
    k = 192
    b, a = weight_of(k, n, kind), activations_of(rows, k, kind)
    out = None if kind == "s8" else np.zeros((rows, n), np.float32)
    got = ops.matmul(a, ops.compress_2_4(b), out=out, **({} if kind == "s8" else {"output": "float32"}))
    assert np.array_equal(got, to_numbers(kind, a).astype(float) @ to_numbers(kind, b).astype(float))


@pytest.mark.parametrize(("rows", "n"), [(3, 40), (70, 24)])
def test_8_bit_floats_need_a_hopper_gpu(rows: int, n: int) -> None:
    """The emulator's is one; ``ml_dtypes`` has the type."""
    kind = pytest.importorskip("ml_dtypes").float8_e4m3fn
    b, a = weight_of(128, n, "e4m3").view(kind), activations_of(rows, 128, "e4m3").view(kind)
    weight = ops.compress_2_4(b)
    got = ops.matmul(a, weight, output="float32")
    assert np.array_equal(got, a.astype(float) @ b.astype(float))
    older = Call(form_of(rows, n, "e4m3", 108), "e4m3", 16, 4, "f32", False, None, find_architecture("sm_89"))
    with pytest.raises(LaunchError, match="a SparseWeight of e4m3 needs sm_90a, this is sm_89"):
        kernel_of(older)


def test_a_bias_and_an_activation_follow() -> None:
    b, a = weight_of(64, 16, "f16"), activations_of(5, 64, "f16")
    bias = np.arange(-8.0, 8.0).astype(np.float16)
    got = ops.matmul(a, ops.compress_2_4(b), bias=bias, activation="relu")
    want = np.maximum(a.astype(float) @ b.astype(float) + bias, 0)
    assert got.dtype == np.float16
    assert np.array_equal(got, want.astype(np.float16))


def test_pruning_keeps_the_largest() -> None:
    b = np.zeros((64, 8), np.float16)
    b[:4, 2] = (1, -3, 2, 0.5)
    with pytest.raises(LaunchError, match="column 2 has more than two values other than 0 in rows 0 to 3, need zeros, or prune=True"):
        ops.compress_2_4(b)
    got = ops.matmul(np.ones((2, 64), np.float16), ops.compress_2_4(b, prune=True))
    assert got[:, 2].tolist() == [-1.0, -1.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: ops.compress_2_4(np.zeros((64, 8), np.float32)), "need float16, bfloat16, int8 or float8"),
        (lambda w: ops.compress_2_4(np.zeros((96, 8), np.float16)), "k = 96 and n = 8, need a positive multiple of 64"),
        (lambda w: ops.compress_2_4(np.zeros((64, 0), np.float16)), "k = 64 and n = 0"),
        (lambda w: ops.compress_2_4(np.zeros((0, 8), np.float16)), "k = 0 and n = 8"),
        (lambda w: ops.compress_2_4([[1.0]]), "compress_2_4: b has elements list"),
        (lambda w: ops.matmul(np.zeros((2, 128), np.float16), w), "need (rows, 64)"),
        (lambda w: ops.matmul(np.zeros((2, 64), np.int8), w), "need the SparseWeight's type, f16"),
        (lambda w: ops.matmul(np.zeros((2, 64), np.float16), w, alpha=2.0), "a SparseWeight goes with out"),
        (lambda w: ops.matmul(np.zeros((2, 64), np.float16), w, output="int8"), "output is 'int8'"),
        (lambda w: ops.matmul(np.zeros((2, 64), np.float16), w, bias=np.zeros(3, np.float16)), "bias has shape (3,)"),
        (lambda w: ops.matmul(np.zeros((2, 64), np.float16), w, out=np.zeros((3, 8), np.float16)), "out has shape (3, 8)"),
        (lambda w: ops.matmul(np.zeros((64, 2), np.float16).T, w), "need rows side by side"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(call: Any, message: str) -> None:
    weight = ops.compress_2_4(np.zeros((64, 8), np.float16))
    with pytest.raises(LaunchError) as caught:
        call(weight)
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", ["bf16", "s8"])
def test_warpgroups_multiply_many_rows(kind: str) -> None:
    """The forms of a Hopper GPU, on the emulator."""
    architecture = find_architecture("sm_90a")
    k, n, rows = 128, 200, 70
    b, a = weight_of(k, n, kind), activations_of(rows, k, kind)
    weight: Any = ops.compress_2_4(b)
    result = "s32" if kind == "s8" else "f32"
    for form in {form_of(*sizes, kind, 132, True) for sizes in ((rows, n), (4096, 4096), (2048, 11008))}:
        call = Call(form, kind, 16 if kind == "s8" else 8, 4, result, False, None, architecture, True)
        plan = plan_gemm(spec_of(call), architecture)
        c = np.zeros((rows, n), np.int32 if kind == "s8" else np.float32)
        Kernel(plan.sequence, compile_plan(plan))(A=weight.kept, B=a.T, metadata=weight.lanes, C=c.T)
        assert np.array_equal(c, to_numbers(kind, a).astype(float) @ to_numbers(kind, b).astype(float))


def test_nothing_is_launched_for_no_rows() -> None:
    assert ops.matmul(np.zeros((0, 64), np.float16), ops.compress_2_4(np.zeros((64, 8), np.float16))).shape == (0, 8)


@pytest.mark.parametrize("kind", ["bf16", "s8"])
@pytest.mark.parametrize("name", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_120"])
def test_every_form_suits_every_architecture(name: str, kind: str) -> None:
    """Shared memory of a block is 99 KiB on some."""
    architecture = find_architecture(name)
    aligned = 16 if kind == "s8" else 8
    for form in {form_of(rows, 4096, kind, 132, architecture.supports("wgmma")) for rows in (1, 40, 100, 1100, 4096)}:
        call = Call(form, kind, aligned, 4, "f32", True, None, architecture, True)
        assert plan_gemm(spec_of(call), architecture).architecture == architecture
