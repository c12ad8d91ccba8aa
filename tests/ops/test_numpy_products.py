"""Products of NumPy's matrices by the function in C that looks at nothing but their layouts."""

from __future__ import annotations

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gemmgen import ops
from gemmgen.ops.numpy_products import numpy_products
from gemmgen.ops.plain_products import PLAIN
from gemmgen.toolchain.host import find_compiler

RNG = np.random.default_rng(41)


class Other(np.ndarray):
    """Arrays of another class."""


def integers(*shape: int) -> np.ndarray:
    return RNG.integers(-9, 10, shape).astype(np.float32)


def known(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """The product by the function, after a call that made it known."""
    find_compiler()
    ops.matmul(a, b)
    assert PLAIN.first is not None
    PLAIN.first.wait()
    ops.matmul(a, b)
    result: np.ndarray | None = PLAIN.at_once(a, b)
    return result


@pytest.mark.parametrize(("sizes", "order"), [((1, 1, 1), "C"), ((4, 6, 5), "C"), ((3, 70, 1), "C"), ((65, 33, 17), "F")], ids=str)
def test_known_products_are_right(sizes: tuple[int, int, int], order: str) -> None:
    m, k, n = sizes
    a, b = integers(m, k), np.asarray(integers(k, n), order=order)  # type: ignore[call-overload]
    result = known(a, b)
    assert result is not None and result.dtype == np.float32 and result.flags.c_contiguous
    np.testing.assert_array_equal(result, a @ b)
    other = integers(m, k)
    np.testing.assert_array_equal(PLAIN.at_once(other, b), other @ b)


def test_views_of_the_same_layout_are_multiplied_where_they_lie() -> None:
    whole, b = integers(12, 40), integers(9, 7)
    one, other = whole[::2, 3:12], whole[1::2, 20:29]
    assert known(one, b) is not None
    np.testing.assert_array_equal(PLAIN.at_once(other, b), other @ b)


def test_other_arrays_are_left_to_the_caller() -> None:
    a, b = integers(6, 11), integers(11, 6)
    assert known(a, b) is not None
    memory = np.zeros(a.nbytes + 1, np.uint8)
    odd = memory[1:].view(np.float32).reshape(a.shape)
    others = [
        a.astype(np.float64), a.astype(">f4"), a.view(np.int32), a[:5], a[0], a[None], np.asfortranarray(a), a.view(Other), odd,
        a.tolist(), None, 1.0, np.float32(1),
    ]  # fmt: skip
    for other in others:
        assert PLAIN.at_once(other, b) is None, type(other)
        assert PLAIN.at_once(b, other) is None, type(other)
    odd[...] = a
    np.testing.assert_array_equal(ops.matmul(odd.copy(), b), a @ b)


def test_objects_are_neither_kept_nor_lost() -> None:
    a, b = integers(3, 4), integers(4, 5)
    result = known(a, b)
    assert result is not None and sys.getrefcount(result) == 2
    before = [sys.getrefcount(one) for one in (a, b, None, np.dtype(np.float32))]
    for _ in range(1000):
        PLAIN.at_once(a, b)
    after = [sys.getrefcount(one) for one in (a, b, None, np.dtype(np.float32))]
    assert all(abs(one - other) < 100 for one, other in zip(before, after, strict=True))


def test_more_layouts_than_the_table_has_are_right() -> None:
    products = numpy_products()
    assert products is not None
    b = integers(2, 3)
    assert known(integers(1, 2), b) is not None
    for rows in range(1, 1500, 7):
        a = integers(rows, 2)
        np.testing.assert_array_equal(ops.matmul(a, b), a @ b)
        np.testing.assert_array_equal(ops.matmul(a, b), a @ b)


def test_threads_multiply_at_the_same_time() -> None:
    a, b = integers(64, 80), integers(80, 48)
    assert known(a, b) is not None
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda _: PLAIN.at_once(a, b), range(200)))
    assert all(np.array_equal(result, a @ b) for result in results)


def test_kernel_that_is_exchanged_serves_from_then_on() -> None:
    a, b = integers(5, 6), integers(6, 4)
    assert known(a, b) is not None
    products = numpy_products()
    assert products is not None
    layout = (*a.shape, b.shape[1], *a.strides, *b.strides)
    serving, _ = products._kept[layout]
    kernel = serving.value
    called: list[tuple[object, ...]] = []

    def refuse(*arguments: object) -> int:
        called.append(arguments)
        return 12

    integer, pointer = ctypes.c_int, ctypes.c_void_p
    kinds = (integer, integer, integer, ctypes.c_float, pointer, integer, pointer, integer, ctypes.c_float, pointer, integer)
    refusing = ctypes.CFUNCTYPE(integer, *kinds)(refuse)
    try:
        serving.value = ctypes.cast(refusing, ctypes.c_void_p).value
        assert PLAIN.at_once(a, b) is None and len(called) == 1
        assert called[0][:3] == (5, 4, 6) and (called[0][3], called[0][8]) == (1.0, 0.0)
    finally:
        serving.value = kernel
    np.testing.assert_array_equal(PLAIN.at_once(a, b), a @ b)
