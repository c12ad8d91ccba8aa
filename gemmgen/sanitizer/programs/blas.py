"""The calls of cuBLAS that programs make, computed with NumPy on device memory. `blas.cpp` has their C side.

Results are those of some correct order of additions, not cuBLAS's own bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from gemmgen.emulator.memory import GLOBAL_BASE, Region
from gemmgen.sanitizer.programs.messages import BadMessage

MAX_NUMBERS = 1 << 16
_MAX_OPERATIONS = 1 << 36
_MAX_ELEMENTS = 1 << 28
"""Limit of an array of a call, which is copied in a wider type; a step of 0 makes a long one of few bytes."""
_BF16 = 14
_TYPES: dict[int, np.dtype] = {
    number: np.dtype(name) for number, name in {0: "f4", 1: "f8", 2: "f2", 3: "i1", 4: "c8", 5: "c16", 10: "i4", _BF16: "u2"}.items()
}
"""NumPy's types by the numbers of cudaDataType; bfloat16 is kept as its bits."""


class Refusal(Exception):
    """A call that cannot be done: a type or a shape that is not implemented, or arguments that cuBLAS refuses."""


class Operation(IntEnum):
    """Kinds of calls; blas.cpp has the same numbers."""

    GEMM = 0
    GEMV = 1
    GEAM = 2
    GER = 3
    AXPY = 4
    SCALE = 5
    COPY = 6
    SWAP = 7
    DOT = 8
    DOTC = 9
    NORM = 10
    SUM = 11
    LARGEST = 12
    SMALLEST = 13
    FACTORIZE = 14


@dataclass(frozen=True)
class Range:
    """Bytes of device memory that a call touches. `gaps`: not all of them."""

    address: int
    count: int
    writes: bool
    gaps: bool


class Memory:
    """Arrays of a call as views of device memory. Raises OutsideOfAllocation for addresses in no allocation."""

    def __init__(self, memory: np.ndarray, region_of: Callable[[int], Region | None]) -> None:
        self._memory, self._region_of = memory, region_of
        self.ranges: list[Range] = []

    def matrix(self, what: str, address: int, rows: int, columns: int, step: int, kind: int, *, writes: bool) -> np.ndarray:
        """A matrix whose columns are `step` elements apart."""
        if step < max(rows, 1):
            raise Refusal(f"the leading dimension of {what} is {step}, less than its {rows} rows")
        return self._view(what, address, (rows, columns), (1, step), kind, writes)

    def vector(self, what: str, address: int, count: int, step: int, kind: int, *, writes: bool) -> np.ndarray:
        """A vector; with a negative step it begins at its end, as in BLAS."""
        view = self._view(what, address, (count,), (abs(step),), kind, writes)
        return view[::-1] if step < 0 else view

    def _view(self, what: str, address: int, shape: tuple[int, ...], steps: tuple[int, ...], kind: int, writes: bool) -> np.ndarray:
        dtype = _TYPES.get(kind)
        if dtype is None:
            raise Refusal(f"the data type {kind} of {what} is not implemented")
        if min(shape) < 0 or min(shape) > 1 << 32 or max(steps) > 1 << 32:
            raise Refusal(f"{what} has the shape {shape} and the strides {steps}")
        if min(shape) == 0:
            return np.zeros(shape, dtype)
        if math.prod(shape) > _MAX_ELEMENTS:
            raise Refusal(f"{what} has the shape {shape}, more than {_MAX_ELEMENTS:,} elements")
        count = (sum((extent - 1) * step for extent, step in zip(shape, steps, strict=True)) + 1) * dtype.itemsize
        region = self._region_of(address)
        start = address - GLOBAL_BASE
        if region is None or start + count > region.stop:
            raise OutsideOfAllocation(what, address, count, region)
        if address % dtype.itemsize:
            raise Refusal(f"{what} at 0x{address:x} is not aligned to {dtype.itemsize} bytes")
        self.ranges.append(Range(address, count, writes, math.prod(shape) * dtype.itemsize != count))
        strides = tuple(step * dtype.itemsize for step in steps)
        return np.ndarray(shape, dtype, self._memory[start : start + count], 0, strides)


class OutsideOfAllocation(Exception):
    """An array that does not fit into an allocation."""

    def __init__(self, what: str, address: int, count: int, region: Region | None) -> None:
        super().__init__(what)
        self.what, self.address, self.count, self.region = what, address, count, region


def compute(memory: Memory, numbers: Sequence[int], scalars: Sequence[float]) -> bytes:
    """Does a call; the bytes of its result, if it has one. Raises Refusal, OutsideOfAllocation or BadMessage."""
    kind, *rest = numbers if numbers else (-1,)
    if kind not in set(Operation):
        raise BadMessage(f"no operation {kind} of cuBLAS")
    parts = [complex(*scalars[index : index + 2]) for index in range(0, len(scalars), 2)]
    operation = Operation(kind)
    needed, factors = {
        Operation.GEMM: (15, 2),
        Operation.GEMV: (10, 2),
        Operation.GEAM: (11, 2),
        Operation.GER: (9, 1),
        Operation.FACTORIZE: (6, 0),
    }.get(operation, (7, 1))
    lists = operation in (Operation.GEMM, Operation.FACTORIZE)
    if len(rest) < needed or len(parts) != factors or len(scalars) % 2 or (not lists and len(rest) != needed):
        raise BadMessage(f"{len(rest)} numbers of {operation.name}")
    match operation:
        case Operation.GEMM:
            _gemm(memory, rest, parts)
        case Operation.GEMV:
            _gemv(memory, rest, parts)
        case Operation.GEAM:
            _geam(memory, rest, parts)
        case Operation.FACTORIZE:
            _factorize(memory, rest)
        case Operation.GER:
            m, n, element, x, step_x, y, step_y, a, lda = rest
            left, right = memory.vector("x", x, m, step_x, element, writes=False), memory.vector("y", y, n, step_y, element, writes=False)
            _add(memory.matrix("A", a, m, n, lda, element, writes=True), np.outer(left, right), parts[0], 1, element)
        case _:
            return _vectors(memory, operation, rest, parts[0])
    return b""


def _wide(array: np.ndarray, kind: int) -> np.ndarray:
    """Numbers to compute with: float32 for narrower floats, int64 for integers."""
    if kind == _BF16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype({"f2": np.float32, "i1": np.int64, "i4": np.int64}.get(array.dtype.str[1:], array.dtype), copy=False)


def _narrow(values: np.ndarray, kind: int) -> np.ndarray:
    """Numbers as they are stored, rounded to nearest even."""
    if kind == _BF16:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
    narrowed: np.ndarray = values.astype(_TYPES[kind])
    return narrowed


def _factor(value: complex, like: np.ndarray) -> complex | float | int:
    if like.dtype.kind == "c":
        return value
    if like.dtype.kind not in "iu":
        return float(value.real)
    if not abs(value.real) < 1 << 63:
        raise Refusal(f"the factor {value.real} of integers is no integer of 64 bits")
    return int(value.real)


def _add(target: np.ndarray, product: np.ndarray, alpha: complex, beta: complex, kind: int) -> None:
    """target = alpha * product + beta * target; with beta = 0 the target is not read."""
    values = product * _factor(alpha, product)
    if beta:
        old = _wide(target, kind)
        values = values + old * _factor(beta, old)
    target[...] = _narrow(values, kind)


def _transposed(matrix: np.ndarray, operation: int) -> np.ndarray:
    if operation not in (0, 1, 2):
        raise Refusal(f"the operation {operation} on a matrix is none")
    return matrix if operation == 0 else matrix.T if operation == 1 else matrix.T.conj()


def _gemm(memory: Memory, numbers: Sequence[int], parts: Sequence[complex]) -> None:
    turn_a, turn_b, m, n, k, kind_a, kind_b, kind_c, lda, ldb, ldc, *strides = numbers[:14]
    batch, pointers = numbers[14], numbers[15:]
    if min(m, n, k, batch) < 0:
        raise Refusal(f"m = {m}, n = {n}, k = {k}, batch = {batch}")
    if m * n * max(k, 1) * batch > _MAX_OPERATIONS:
        raise Refusal(f"a product of {m} x {n} x {k}, {batch} times, is too large")
    lists = strides[0] < 0
    if len(pointers) != (3 * batch if lists else 3):
        raise BadMessage("a product without its matrices")
    shape_a, shape_b = (m, k) if turn_a == 0 else (k, m), (k, n) if turn_b == 0 else (n, k)
    sizes = [_TYPES[kind].itemsize if kind in _TYPES else 1 for kind in (kind_a, kind_b, kind_c)]
    for index in range(batch):
        if lists:
            a, b, c = pointers[index], pointers[batch + index], pointers[2 * batch + index]
        else:
            a, b, c = (base + index * stride * size for base, stride, size in zip(pointers, strides, sizes, strict=True))
        left = memory.matrix("A", a, *shape_a, lda, kind_a, writes=False)
        right = memory.matrix("B", b, *shape_b, ldb, kind_b, writes=False)
        if parts[1] and index == 0:
            memory.matrix("C", c, m, n, ldc, kind_c, writes=False)
        target = memory.matrix("C", c, m, n, ldc, kind_c, writes=True)
        if target.size:
            product = _transposed(_wide(left, kind_a), turn_a) @ _transposed(_wide(right, kind_b), turn_b)
            _add(target, product, parts[0], parts[1], kind_c)


def _gemv(memory: Memory, numbers: Sequence[int], parts: Sequence[complex]) -> None:
    turn, m, n, kind, a, lda, x, step_x, y, step_y = numbers
    rows, columns = (m, n) if turn == 0 else (n, m)
    matrix = memory.matrix("A", a, m, n, lda, kind, writes=False)
    vector = memory.vector("x", x, columns, step_x, kind, writes=False)
    target = memory.vector("y", y, rows, step_y, kind, writes=True)
    _add(target, _transposed(_wide(matrix, kind), turn) @ _wide(vector, kind), parts[0], parts[1], kind)


def _geam(memory: Memory, numbers: Sequence[int], parts: Sequence[complex]) -> None:
    turn_a, turn_b, m, n, kind, a, lda, b, ldb, c, ldc = numbers
    terms = []
    for what, base, step, turn, factor in (("A", a, lda, turn_a, parts[0]), ("B", b, ldb, turn_b, parts[1])):
        if factor:
            shape = (m, n) if turn == 0 else (n, m)
            matrix = _wide(memory.matrix(what, base, *shape, step, kind, writes=False), kind)
            terms.append(_transposed(matrix, turn) * _factor(factor, matrix))
    target = memory.matrix("C", c, m, n, ldc, kind, writes=True)
    target[...] = _narrow(sum(terms, np.zeros((m, n), _wide(target, kind).dtype)), kind)


def _factorize(memory: Memory, numbers: Sequence[int]) -> None:
    """A = P L U for a batch of square matrices, in place; without an array of pivots, without exchanges of rows."""
    n, kind, lda, pivots, statuses, batch, *matrices = numbers
    if len(matrices) != max(batch, 0):
        raise BadMessage("a factorization without its matrices")
    if n < 0 or n**3 * batch > _MAX_OPERATIONS or kind not in (0, 1, 4, 5):
        raise Refusal(f"a factorization of {batch} matrices of {n} rows, of the data type {kind}")
    status = memory.vector("the array of statuses", statuses, batch, 1, 10, writes=True)
    pivot = memory.vector("the array of pivots", pivots, n * batch, 1, 10, writes=True).reshape(batch, n) if pivots else None
    for index, address in enumerate(matrices):
        memory.matrix("A", address, n, n, lda, kind, writes=False)
        target = memory.matrix("A", address, n, n, lda, kind, writes=True)
        status[index] = _lower_and_upper(target, None if pivot is None else pivot[index])


def _lower_and_upper(a: np.ndarray, pivots: np.ndarray | None) -> int:
    """Factorizes a matrix in place; the number of the first zero on the diagonal of U, from 1 on, or 0."""
    first_zero = 0
    for k in range(len(a)):
        if pivots is not None:
            best = k + int(np.argmax(np.abs(a[k:, k])))
            pivots[k] = best + 1
            if best != k:
                a[[k, best]] = a[[best, k]]
        if a[k, k] == 0:
            first_zero = first_zero or k + 1
            continue
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return first_zero


def _vectors(memory: Memory, operation: Operation, numbers: Sequence[int], alpha: complex) -> bytes:
    count, kind, x, step_x, y, step_y, result = numbers
    if result not in _TYPES:
        raise Refusal(f"the data type {result} of the result is not implemented")
    if count <= 0:
        return bytes(_TYPES[result].itemsize) if operation >= Operation.DOT else b""
    if operation == Operation.SCALE:
        target = memory.vector("x", x, count, step_x, kind, writes=True)
        _add(target, _wide(target, kind), alpha, 0, kind)
        return b""
    left = memory.vector("x", x, count, step_x, kind, writes=operation == Operation.SWAP)
    if operation in (Operation.AXPY, Operation.COPY, Operation.SWAP):
        right = memory.vector("y", y, count, step_y, kind, writes=True)
        if operation == Operation.AXPY:
            _add(right, _wide(left, kind), alpha, 1, kind)
        else:
            old = right.copy()
            right[...] = left
            if operation == Operation.SWAP:
                left[...] = old
        return b""
    values = _wide(left, kind)
    size = np.abs(values.real) + np.abs(values.imag) if values.dtype.kind == "c" else np.abs(values)
    match operation:
        case Operation.DOT | Operation.DOTC:
            other = _wide(memory.vector("y", y, count, step_y, kind, writes=False), kind)
            dot = np.dot(values.conj() if operation == Operation.DOTC else values, other)
        case Operation.NORM:
            dot = np.linalg.norm(values)
        case Operation.SUM:
            dot = size.sum()
        case Operation.LARGEST:
            dot = np.argmax(size) + 1
        case _:
            dot = np.argmin(size) + 1
    return _narrow(np.asarray(dot).reshape(1), result).tobytes()
