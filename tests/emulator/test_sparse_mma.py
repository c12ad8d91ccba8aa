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
