"""Runs of independent float32 fma become one operation over many registers at once.

A matrix kernel's inner loop is hundreds of fma per iteration; one by one, each would cost ten NumPy calls. As a group, the
products are one broadcast multiplication in float64 (exact), the sums another operation, and the conversion to float32 a third.
Converting the float64 sum rounds a second time. That is wrong only where the sum lies exactly midway between two float32,
which shows in its low 29 bits, or where the result is subnormal and inexact, which raises the underflow flag; those
few lanes are computed again exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gemmgen.emulator import ieee
from gemmgen.emulator.binding import Binder
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Float, Instruction, Operand, Register, registers_of

_MIDPOINT_SHIFT = 35
_MIDPOINT = np.iinfo(np.int64).min
_MAX_ROWS_TIMES_LANES = 1 << 19


class FloatFlags:
    """Collects NumPy's floating point flags; `np.errstate(call=...)` calls it."""

    def __init__(self) -> None:
        self.underflow = False

    def __call__(self, kind: str, flags: int) -> None:
        self.underflow = True


@dataclass(slots=True)
class _Group:
    instructions: list[Instruction] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)


def is_fusible(inst: Instruction) -> bool:
    """True if an instruction may join a group: fma.rn.f32 without flushing, saturation or guard."""
    return (
        inst.opcode == "fma"
        and inst.modifiers == ("rn", "f32")
        and inst.guard is None
        and len(inst.operands) == 4
        and isinstance(inst.operands[0], Register)
        and all(isinstance(operand, Register) or (isinstance(operand, Float) and operand.width == 32) for operand in inst.operands)
    )


def partition(body: Sequence[Instruction], lanes: int) -> list[Instruction | list[Instruction]]:
    """A basic block as single instructions and groups of fma.

    An instruction between two fma is moved before the group if it neither reads the group's results nor writes its operands; so loads for
    the next step do not cut a group."""
    result: list[Instruction | list[Instruction]] = []
    group = _Group()
    limit = max(_MAX_ROWS_TIMES_LANES // lanes, 1)

    def close() -> None:
        nonlocal group
        if group.instructions:
            result.append(group.instructions)
        group = _Group()

    for inst in body:
        if is_fusible(inst):
            reads = {operand.name for operand in inst.operands[1:] if isinstance(operand, Register)}
            writes = {operand.name for operand in inst.operands[:1] if isinstance(operand, Register)}
            if reads & group.writes or writes & group.writes or len(group.instructions) >= limit:
                close()
            group.instructions.append(inst)
            group.reads |= reads
            group.writes |= writes
            continue
        if group.instructions:
            touched = {register.name for operand in inst.operands for register in registers_of(operand)}
            if inst.guard is not None:
                touched.add(inst.guard.name)
            written = {register.name for operand in inst.operands[:1] for register in registers_of(operand)}
            if touched & group.writes or written & group.reads:
                close()
        result.append(inst)
    close()
    return result


def _runs(numbers: Sequence[int]) -> list[tuple[int, int, int]]:
    """Maximal runs of consecutive numbers as (position, first number, length)."""
    runs: list[tuple[int, int, int]] = []
    for position, number in enumerate(numbers):
        if runs and number > 0 and runs[-1][1] >= 0 and runs[-1][1] + runs[-1][2] == number:
            runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((position, number, 1))
    return runs


class Scratch:
    """Working arrays shared by all groups of a machine, grown to the largest."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self._arrays: dict[tuple[str, str], np.ndarray] = {}

    def reserve(self, name: str, rows: int, dtype: str) -> None:
        """Makes an array at least so large."""
        known = self._arrays.get((name, dtype))
        if known is None or len(known) < rows:
            self._arrays[name, dtype] = np.empty((rows, self.lanes), dtype)

    def get(self, name: str, rows: int, dtype: str) -> np.ndarray:
        """The first rows of an array."""
        return self._arrays[name, dtype][:rows]


def bind_group(group: Sequence[Instruction], binder: Binder, scratch: Scratch, flags: FloatFlags) -> Operation:
    """One operation for a group of independent fma."""
    return _FusedMultiplyAdd(group, binder, scratch, flags).operation()


class GroupPlan:
    """The registers of a group of fma as rows of one array, and its products as few multiplications of rows."""

    def __init__(self, group: Sequence[Instruction], binder: Binder) -> None:
        self.count = len(group)
        order: dict[Operand, int] = {}
        for position in (1, 2):
            for inst in group:
                order.setdefault(inst.operands[position], len(order))
        self.factors = list(order)
        self.left = [order[inst.operands[1]] for inst in group]
        self.right = [order[inst.operands[2]] for inst in group]
        place = binder.registers.place
        self.factor_rows = [place(factor)[1] if isinstance(factor, Register) else -1 for factor in self.factors]
        self.constants = {
            index: np.float64(np.uint32(factor.bits).view(np.float32))
            for index, factor in enumerate(self.factors)
            if isinstance(factor, Float)
        }
        self.addend_rows: list[int] = []
        self.addend_constants: dict[int, np.float64] = {}
        for index, inst in enumerate(group):
            addend = inst.operands[3]
            if isinstance(addend, Float):
                self.addend_constants[index] = np.float64(np.uint32(addend.bits).view(np.float32))
                self.addend_rows.append(-1)
            else:
                assert isinstance(addend, Register)
                self.addend_rows.append(place(addend)[1])
        self.target_rows = [place(inst.operands[0])[1] for inst in group if isinstance(inst.operands[0], Register)]

    def products(self, factors: np.ndarray, into: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """The multiplications (left, right, result) that give all products."""
        outer = self._outer()
        if outer is None:
            return [(factors[left], factors[right], into[rows]) for left, right, rows in self._multiplications()]
        rows, columns, left_is_outer = outer
        first, second = (self.left[0], self.right[0]) if left_is_outer else (self.right[0], self.left[0])
        return [(factors[first : first + rows, None, :], factors[None, second : second + columns, :], into.reshape(rows, columns, -1))]

    def _multiplications(self) -> list[tuple[slice | int, slice | int, slice]]:
        """The products as few multiplications of rows: one factor fixed and the other running, or both running."""
        steps: list[tuple[int, int, int, int, int]] = []
        for index, (left, right) in enumerate(zip(self.left, self.right, strict=True)):
            if steps:
                start, length, first_left, first_right, kind = steps[-1]
                offset = length
                kinds = [
                    candidate
                    for candidate, (step_left, step_right) in enumerate(((0, 1), (1, 0), (1, 1)))
                    if left == first_left + step_left * offset
                    and right == first_right + step_right * offset
                    and (length == 1 or kind == candidate)
                ]
                if kinds:
                    steps[-1] = (start, length + 1, first_left, first_right, kinds[0])
                    continue
            steps.append((index, 1, left, right, 0))
        result: list[tuple[slice | int, slice | int, slice]] = []
        for start, length, left, right, kind in steps:
            rows = slice(start, start + length)
            if length == 1:
                result.append((slice(left, left + 1), slice(right, right + 1), rows))
            else:
                result.append(
                    (
                        left if kind == 0 else slice(left, left + length),
                        right if kind == 1 else slice(right, right + length),
                        rows,
                    )
                )
        return result

    def _outer(self) -> tuple[int, int, bool] | None:
        """(rows, columns, left is outer) if the products are the outer product of two runs of factors."""
        for outer, inner, left_is_outer in ((self.left, self.right, True), (self.right, self.left, False)):
            columns = next((i for i in range(1, self.count) if outer[i] != outer[0]), self.count)
            rows, rest = divmod(self.count, columns)
            if rest or rows == 1 or columns == 1:
                continue
            wanted_outer = [outer[0] + i // columns for i in range(self.count)]
            wanted_inner = [inner[0] + i % columns for i in range(self.count)]
            if outer == wanted_outer and inner == wanted_inner:
                return rows, columns, left_is_outer
        return None


class _FusedMultiplyAdd(GroupPlan):
    def __init__(self, group: Sequence[Instruction], binder: Binder, scratch: Scratch, flags: FloatFlags) -> None:
        super().__init__(group, binder)
        self.array = binder.registers.arrays["b32"].view(np.float32)
        self.scratch, self.flags = scratch, flags
        scratch.reserve("factors", len(self.factors), "f8")
        scratch.reserve("sums", self.count, "f8")
        scratch.reserve("addends", self.count, "f8")
        scratch.reserve("low bits", self.count, "i8")

    def operation(self) -> Operation:
        return Operation(self._full(), self._some)

    def _full(self) -> Callable[[], None]:
        array, count, flags = self.array, self.count, self.flags
        factors = self.scratch.get("factors", len(self.factors), "f8")
        sums = self.scratch.get("sums", count, "f8")
        addends = self.scratch.get("addends", count, "f8")
        low_bits = self.scratch.get("low bits", count, "i8")
        sum_bits = sums.view(np.int64)
        loads = [
            (factors[position : position + length], array[row : row + length]) for position, row, length in runs_of_rows(self.factor_rows)
        ]
        fills = [(factors[index], value) for index, value in self.constants.items()]
        products = self.products(factors, sums)
        addend_runs = [
            (addends[position : position + length], array[row : row + length]) for position, row, length in runs_of_rows(self.addend_rows)
        ]
        gather_addends = len(addend_runs) > 4 and not self.addend_constants
        addend_rows = np.array(self.addend_rows)
        addend_fills = [(addends[index], value) for index, value in self.addend_constants.items()]
        target_runs = [
            (array[row : row + length], sums[position : position + length]) for position, row, length in runs_of_rows(self.target_rows)
        ]
        copyto, multiply, add, left_shift = np.copyto, np.multiply, np.add, np.left_shift
        low_minimum = low_bits.min
        targets = [target for target, _ in target_runs]

        def full() -> None:
            for into, values in loads:
                copyto(into, values)
            for into, value in fills:
                into.fill(value)
            for first, second, into in products:
                multiply(first, second, into)
            if gather_addends:
                copyto(addends, array.take(addend_rows, 0))
            else:
                for into, values in addend_runs:
                    copyto(into, values)
                for into, value in addend_fills:
                    into.fill(value)
            add(sums, addends, sums)
            left_shift(sum_bits, _MIDPOINT_SHIFT, low_bits)
            fixes = None
            if low_minimum() == _MIDPOINT:
                fixes = self._recompute(low_bits == _MIDPOINT, factors, addends)
            flags.underflow = False
            for into, values in target_runs:
                copyto(into, values, casting="same_kind")
            if flags.underflow:
                # The addends are still in scratch, so nothing is lost if a target overwrote one.
                tiny = (np.abs(sums) < 2.0**-125) & (sums != 0)
                self._apply(self._recompute(tiny, factors, addends))
            if fixes is not None:
                self._apply(fixes)
            for target in targets:
                largest = target.max()
                if largest != largest:
                    target[np.isnan(target)] = ieee.F32_NAN

        return full

    def _recompute(self, where: np.ndarray, factors: np.ndarray, addends: np.ndarray) -> tuple[np.ndarray, ...]:
        """Exact results at the marked (row, lane) positions."""
        rows, lanes = np.nonzero(where)
        left, right = np.array(self.left)[rows], np.array(self.right)[rows]
        values = ieee.fma_f32(factors[left, lanes], factors[right, lanes], addends[rows, lanes])
        return rows, lanes, values

    def _apply(self, fixes: tuple[np.ndarray, ...]) -> None:
        rows, lanes, values = fixes
        self.array[np.array(self.target_rows)[rows], lanes] = values

    def _some(self, lanes: Lanes) -> None:
        array = self.array
        factors = np.empty((len(self.factors), len(lanes)))
        for index, row in enumerate(self.factor_rows):
            factors[index] = array[row, lanes] if row >= 0 else self.constants[index]
        addends = np.empty((self.count, len(lanes)))
        for index, row in enumerate(self.addend_rows):
            addends[index] = array[row, lanes] if row >= 0 else self.addend_constants[index]
        results = ieee.fma_f32(factors[self.left], factors[self.right], addends)
        array[np.array(self.target_rows)[:, None], lanes[None, :]] = results


def runs_of_rows(rows: Sequence[int]) -> list[tuple[int, int, int]]:
    """`_runs` without the places of constants (row -1)."""
    return [run for run in _runs(rows) if run[1] >= 0]
