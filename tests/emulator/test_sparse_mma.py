"""mma.sp: products of a sparse A are those of the dense A that its metadata stand for, and left-out elements of B take no part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemmgen.emulator.errors import EmulatorError

from .helpers import run_cuda

SOURCE = """
extern "C" __global__ void kernel(const unsigned* a, const unsigned* b, const unsigned* c, const unsigned* e, unsigned* d)
{{
    const int lane = threadIdx.x;
    unsigned A[{a}], B[{b}], D[4];
    for (int i = 0; i < {a}; ++i) A[i] = a[i * 32 + lane];
    for (int i = 0; i < {b}; ++i) B[i] = b[i * 32 + lane];
    for (int i = 0; i < 4; ++i) D[i] = c[i * 32 + lane];
    asm volatile("mma.{variant}.sync.aligned.{shape}.row.col.{types} "
        "{{%0,%1,%2,%3}}, {{{left}}}, {{{right}}}, {{%0,%1,%2,%3}}, %{e}, {selector};"
        : "+r"(D[0]), "+r"(D[1]), "+r"(D[2]), "+r"(D[3]) : {inputs}, "r"(e[lane]));
    for (int i = 0; i < 4; ++i) d[i * 32 + lane] = D[i];
}}
"""
FORMS = {
    "f16 k16": ("m16n8k16", "f32.f16.f16.f32", 2, 3),
    "f16 k32": ("m16n8k32", "f32.f16.f16.f32", 2, 1),
    "tf32 k8": ("m16n8k8", "f32.tf32.tf32.f32", 4, 2),
    "tf32 k16": ("m16n8k16", "f32.tf32.tf32.f32", 4, 0),
    "s8 k32": ("m16n8k32", "s32.s8.s8.s32", 1, 1),
    "s8 k64": ("m16n8k64", "s32.s8.s8.s32", 1, 0),
}


def fragments(matrix: Any, size: int) -> Any:
    """A matrix (rows, k) as registers of lanes: tiles of 8 rows of 16 bytes, down the rows first."""
    wide = 16 // size
    rows, k = matrix.shape
    tiles = matrix.reshape(rows // 8, 8, k // wide, wide).transpose(2, 0, 1, 3)
    return np.ascontiguousarray(tiles).view(np.uint32).reshape(-1, 32)


def metadata(nibbles: Any, size: int, selector: int) -> Any:
    """Registers of metadata for the nibbles of 16 rows; lanes that the selector leaves out have others."""
    found = np.full((8, 4), 0x12345678, np.uint32)
    each = 8 if size == 1 else 4
    parts = nibbles.shape[1] // each
    for quad in range(8):
        for part in range(parts):
            own = [nibbles[row, part * each : (part + 1) * each] for row in (quad, quad + 8)]
            halves = [sum(int(value) << 4 * place for place, value in enumerate(row)) for row in own]
            if size == 1:
                lane = selector * 2 * parts + 2 * part
                found[quad, lane : lane + 2] = halves
            else:
                found[quad, selector * parts + part] = halves[0] | halves[1] << 16
    return found.reshape(-1)


def run(form: str, variant: str = "sp::ordered_metadata", change: Any = None) -> tuple[Any, Any]:
    """Registers of the results, and those that are expected."""
    shape, types, size, selector = FORMS[form]
    k, rng = int(shape.rpartition("k")[2]), np.random.default_rng(len(form) + size)
    chunk = 2 if size == 4 else 4
    kind = {1: np.int8, 2: np.float16, 4: np.float32}[size]
    held = rng.integers(-4, 5, (16, k // 2)).astype(kind)
    right = rng.integers(-4, 5, (8, k)).astype(kind)
    chunks = k // chunk
    if chunk == 2:
        place = rng.integers(0, 2, (16, chunks, 1))
        nibbles = np.where(place[..., 0] == 0, 0b0100, 0b1110)
    else:
        place = np.sort(np.argsort(rng.random((16, chunks, 4)), axis=2)[..., :2], axis=2)
        nibbles = place[..., 0] | place[..., 1] << 2
    left = np.zeros((16, chunks, chunk))
    np.put_along_axis(left, place, held.reshape(16, chunks, -1).astype(float), axis=2)
    sums = (left.reshape(16, k) @ right.T.astype(float) + 3).astype(np.int32 if size == 1 else np.float32)
    if change is not None:
        nibbles, right = change(nibbles, right)
    a, b, e = fragments(held, size), fragments(right, size), metadata(nibbles, size, selector)
    words = np.ascontiguousarray(sums.reshape(2, 8, 4, 2).transpose(0, 3, 1, 2)).view(np.uint32).reshape(4, 32)
    c = np.full((4, 32), np.float32(3).view(np.uint32) if size > 1 else 3, np.uint32)
    first = 4 + len(a)
    inputs = [f'"r"(A[{i}])' for i in range(len(a))] + [f'"r"(B[{i}])' for i in range(len(b))]
    source = SOURCE.format(
        a=len(a),
        b=len(b),
        variant=variant,
        shape=shape,
        types=types,
        left=",".join(f"%{4 + i}" for i in range(len(a))),
        right=",".join(f"%{first + i}" for i in range(len(b))),
        e=first + len(b),
        selector=selector,
        inputs=", ".join(inputs),
    )
    d = np.zeros((4, 32), np.uint32)
    run_cuda(source, "kernel", 1, 32, [a.reshape(-1).copy(), b.reshape(-1).copy(), c.reshape(-1), e, d.reshape(-1)])
    return d, words


@pytest.mark.parametrize("form", FORMS)
def test_sparse_products_are_those_of_the_dense_matrix(form: str) -> None:
    got, want = run(form)
    np.testing.assert_array_equal(got, want)


def test_elements_that_are_left_out_may_be_infinite() -> None:
    def change(nibbles: Any, right: Any) -> tuple[Any, Any]:
        nibbles[:] = 0b0100  # the first two of every four
        right[:, 2::4] = np.inf
        right[:, 3::4] = np.nan
        return nibbles, right

    got, _ = run("f16 k32", change=change)
    assert np.isfinite(got.view(np.float32)).all()


def test_metadata_that_name_an_element_twice_are_an_error() -> None:
    with pytest.raises(EmulatorError, match="metadata name elements twice"):
        run("f16 k16", change=lambda nibbles, right: (np.full_like(nibbles, 0b0101), right))


KIND_SOURCE = """
extern "C" __global__ void kernel(
    const unsigned* a, const unsigned* b, const unsigned* e, const unsigned* scales_a, const unsigned* scales_b, float* d)
{{
    const int lane = threadIdx.x;
    unsigned A[4], B[4];
    float D[4] = {{3.0f, 3.0f, 3.0f, 3.0f}};
    for (int i = 0; i < 4; ++i) A[i] = a[i * 32 + lane];
    for (int i = 0; i < 4; ++i) B[i] = b[i * 32 + lane];
    const unsigned short id = 0;
    asm volatile("mma.sync.aligned.{form} {{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9,%10,%11}}, {{%0,%1,%2,%3}}, %12, 0x0{scales};"
        : "+f"(D[0]), "+f"(D[1]), "+f"(D[2]), "+f"(D[3])
        : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]), "r"(B[2]), "r"(B[3]), "r"(e[lane]),
          "r"(scales_a[lane]), "r"(scales_b[lane]), "h"(id));
    for (int i = 0; i < 4; ++i) d[i * 32 + lane] = D[i];
}}
"""
KIND_FORMS = {
    "f8f6f4": ("kind::f8f6f4.sp::ordered_metadata.m16n8k64.row.col.f32.e4m3.e4m3.f32", 0),
    "mxf8f6f4": ("kind::mxf8f6f4.sp::ordered_metadata.block_scale.scale_vec::1X.m16n8k64.row.col.f32.e4m3.e4m3.f32.ue8m0", 1),
    "mxf4": ("kind::mxf4.sp::ordered_metadata.block_scale.scale_vec::2X.m16n8k128.row.col.f32.e2m1.e2m1.f32.ue8m0", 2),
    "mxf4nvf4": ("kind::mxf4nvf4.sp::ordered_metadata.block_scale.scale_vec::4X.m16n8k128.row.col.f32.e2m1.e2m1.f32.ue4m3", 4),
}


@pytest.mark.parametrize("name", KIND_FORMS)
def test_sparse_products_with_a_kind_are_dense_ones(name: str) -> None:
    form, count = KIND_FORMS[name]
    rng, packed = np.random.default_rng(len(name)), "m16n8k128" in form
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6] if packed else [0, 1, 2, 0.5, -1, -2, -0.5, 4])
    codes = np.arange(8) if packed else np.array([0, 0x38, 0x40, 0x30, 0xB8, 0xC0, 0xB0, 0x48])
    each = 2 if packed else 1  # numbers of a byte
    held, right = rng.integers(0, 8, (16, 32, each)), rng.integers(0, 8, (8, 64, each))
    place = np.sort(np.argsort(rng.random((16, 16, 4)), axis=2)[..., :2], axis=2)
    left = np.zeros((16, 16, 4, each))
    np.put_along_axis(left, place[..., None].repeat(each, axis=3), values[held].reshape(16, 16, 2, each), axis=2)
    bytes_a, bytes_b = ((codes[part] << 4 * np.arange(each)).sum(axis=-1).astype(np.uint8) for part in (held, right))
    of_a, of_b = rng.integers(-2, 3, (16, max(count, 1))), rng.integers(-2, 3, (8, max(count, 1)))
    code = (lambda power: (power + 7) << 3) if "ue4m3" in form else (lambda power: power + 127)
    words_a, words_b = np.zeros((8, 4), np.uint32), np.zeros((8, 4), np.uint32)
    for number in range(count):
        words_a[:, :2] |= (code(of_a[:, number]).reshape(2, 8).T << 8 * number).astype(np.uint32)
        words_b[:, 0] |= (code(of_b[:, number]) << 8 * number).astype(np.uint32)
    tail = ", {%13}, {%15, %15}, {%14}, {%15, %15}" if count else ""
    d = np.zeros(128, np.float32)
    source = KIND_SOURCE.format(form=form, scales=tail)
    inputs = (fragments(bytes_a, 1), fragments(bytes_b, 1), metadata(place[..., 0] | place[..., 1] << 2, 1, 0), words_a, words_b)
    arrays = [np.ascontiguousarray(part).reshape(-1) for part in inputs]
    run_cuda(source, "kernel", 1, 32, [*arrays, d], architecture="sm_120a")
    depth = 64 * each
    powers_a, powers_b = (2.0 ** np.repeat(part, depth // part.shape[1], axis=1) if count else 1.0 for part in (of_a, of_b))
    expected = (left.reshape(16, depth) * powers_a) @ (values[right].reshape(8, depth) * powers_b).T + 3
    assert (np.ascontiguousarray(d.reshape(2, 2, 8, 4).transpose(0, 2, 3, 1)).reshape(16, 8) == expected).all()
