"""mma.sync on doubles: places of elements in fragments, and chains of fused multiply-adds in the order of k."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator import ieee

from .helpers import run_cuda, wrap_ptx

SOURCE = """
extern "C" __global__ void kernel(const double* a, const double* b, const double* c, double* d)
{{
    const int lane = threadIdx.x;
    double A[{a}], B[{b}], D[{d}];
    for (int i = 0; i < {a}; ++i) A[i] = a[i * 32 + lane];
    for (int i = 0; i < {b}; ++i) B[i] = b[i * 32 + lane];
    for (int i = 0; i < {d}; ++i) D[i] = c[i * 32 + lane];
    asm volatile("mma.sync.aligned.{shape}.row.col.f64.f64.f64.f64 {text};" : {outputs} : {inputs});
    for (int i = 0; i < {d}; ++i) d[i * 32 + lane] = D[i];
}}
"""
SHAPES = {"m8n8k4": (8, 4), "m16n8k4": (16, 4), "m16n8k8": (16, 8), "m16n8k16": (16, 16)}


def source(shape: str) -> str:
    rows, depth = SHAPES[shape]
    a, b, d = rows * depth // 32, depth // 4, rows // 4

    def registers(first: int, count: int) -> str:
        return "{" + ", ".join(f"%{first + i}" for i in range(count)) + "}"

    return SOURCE.format(
        a=a,
        b=b,
        d=d,
        shape=shape,
        text=", ".join((registers(0, d), registers(d, a), registers(d + a, b), registers(0, d))),
        outputs=", ".join(f'"+d"(D[{i}])' for i in range(d)),
        inputs=", ".join([*(f'"d"(A[{i}])' for i in range(a)), *(f'"d"(B[{i}])' for i in range(b))]),
    )


def product(shape: str, a: Any, b: Any, c: Any) -> Any:
    """D of matrices A (rows, depth), B (depth, 8) and C (rows, 8)."""
    rows, depth = SHAPES[shape]
    left = np.ascontiguousarray(a.reshape(rows // 8, 8, depth // 4, 4).transpose(2, 0, 1, 3))
    right = np.ascontiguousarray(b.T.reshape(8, depth // 4, 4).transpose(1, 0, 2))
    addend = np.ascontiguousarray(c.reshape(rows // 8, 8, 4, 2).transpose(0, 3, 1, 2))
    result = np.zeros_like(addend)
    run_cuda(source(shape), "kernel", 1, 32, [left, right, addend, result], "compute_80" if shape == "m8n8k4" else "compute_90")
    return result.transpose(0, 2, 3, 1).reshape(rows, 8)


def chain(a: Any, b: Any, c: Any) -> Any:
    """The same by fused multiply-adds one after the other."""
    total = c
    for k in range(a.shape[1]):
        left, right = np.broadcast_arrays(a[:, k, None], b[k])
        total = ieee.fma_f64(left.ravel(), right.ravel(), total.ravel()).reshape(total.shape)
    return total


@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_chains_of_fused_multiply_adds(shape: str) -> None:
    rng = np.random.default_rng(1)
    rows, depth = SHAPES[shape]
    a, b, c = (rng.standard_normal(extents) * 2.0 ** rng.integers(-40, 40, extents) for extents in ((rows, depth), (depth, 8), (rows, 8)))
    result = product(shape, a, b, c)
    assert np.array_equal(result, chain(a, b, c))
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble) + c
    assert (np.abs(result - exact) <= 1e-13 * (np.abs(a) @ np.abs(b) + np.abs(c))).all()


def test_infinities_and_nan_stay_in_their_lines() -> None:
    a, b, c = np.ones((16, 16)), np.ones((16, 8)), np.ones((16, 8))
    a[3, 5], b[7, 2], c[9, 4] = np.inf, np.nan, -np.inf
    result = product("m16n8k16", a, b, c)
    assert np.isposinf(np.delete(result[3], 2)).all()
    assert np.isnan(result[:, 2]).all()
    assert np.isneginf(result[9, 4])
    assert (np.delete(np.delete(result, [3, 9], 0), 2, 1) == 17).all()


@pytest.mark.parametrize(
    "form",
    [
        "m16n8k32.row.col.f64.f64.f64.f64",
        "m8n8k4.col.row.f64.f64.f64.f64",
        "m8n8k4.row.col.f64.f32.f64.f64",
        "m16n8k4.row.col.f64.f64.f64.f64",
    ],
)
def test_other_forms_are_refused(form: str) -> None:
    """The last one has a register too few for A."""
    body = f".reg .f64 %d<8>; mma.sync.aligned.{form} {{%d0, %d1}}, {{%d2}}, {{%d3}}, {{%d4, %d5}}; ret;"
    with pytest.raises(emulator.UnknownInstruction):
        emulator.launch(wrap_ptx(body), grid=1, block=32)


def test_larger_shapes_need_hopper() -> None:
    sums = "{%d0, %d1, %d2, %d3}"
    body = f".reg .f64 %d<8>; mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {sums}, {{%d4, %d5}}, {{%d6}}, {sums}; ret;"
    emulator.launch(wrap_ptx(body), grid=1, block=32)
    with pytest.raises(emulator.UnknownInstruction):
        emulator.launch(wrap_ptx(body).replace("sm_90", "sm_80"), grid=1, block=32)
