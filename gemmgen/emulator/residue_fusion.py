"""Groups of fma over the field: the products of many registers at once, in uint64, reduced after the addition."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gemmgen.emulator import native, residue_loops, residues
from gemmgen.emulator.binding import Binder
from gemmgen.emulator.fusion import FloatFlags, GroupPlan, Scratch, runs_of_rows
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction

_MODULUS, _SHIFT = np.uint64(residues.MODULUS), np.uint64(31)


def bind_residue_group(group: Sequence[Instruction], binder: Binder, scratch: Scratch, flags: FloatFlags) -> Operation:
    """One operation for a group of independent fma."""
    plan = GroupPlan(group, binder)
    if binder.arithmetic.name == "tree":
        some = _some(plan, binder)
        everyone = np.arange(binder.geometry.lanes)
        return Operation(lambda: some(everyone), some)
    loops = residue_loops.loops()
    if loops is not None:
        compute = _in_loops(plan, binder, loops)
        return Operation(lambda: compute(None), lambda lanes: compute(np.ascontiguousarray(lanes, np.int64)))
    for name, rows in (("factors", len(plan.factors)), ("sums", plan.count), ("addends", plan.count)):
        scratch.reserve(name, rows, "u8")
    return Operation(_full(plan, binder, scratch), _some(plan, binder))


def _in_loops(plan: GroupPlan, binder: Binder, loops: native.Loops) -> Callable[[Lanes | None], None]:
    """The group for some lanes; None: all."""
    array = binder.registers.arrays["b32"]
    constants: list[np.uint32] = []

    def place(row: int, value: np.float64 | None) -> int:
        if value is None:
            return row
        constants.append(np.uint32(residues.without_code(residues.of_float(float(value)))))
        return -len(constants)

    factors = np.array([place(row, plan.constants.get(index)) for index, row in enumerate(plan.factor_rows)], np.int32)
    addends = [place(row, plan.addend_constants.get(index)) for index, row in enumerate(plan.addend_rows)]
    each = np.array(list(zip(plan.target_rows, plan.left, plan.right, addends, strict=True)), np.int32)
    scratch, numbers = np.empty(len(factors) * residue_loops.LANES_AT_ONCE, np.uint32), np.array(constants, np.uint32)
    registers = (array.ctypes.data, array.shape[1], plan.count, each.ctypes.data, len(factors))
    places = (*registers, factors.ctypes.data, numbers.ctypes.data, scratch.ctypes.data)

    def compute(lanes: Lanes | None, kept: object = (factors, each, scratch, numbers)) -> None:
        chosen = (array.shape[1], None) if lanes is None else (len(lanes), lanes.ctypes.data)
        loops.multiply_add_rows(residues.codes_in_loops(), *places, *chosen)
        residues.settle()

    return compute


def _full(plan: GroupPlan, binder: Binder, scratch: Scratch) -> Callable[[], None]:
    array = binder.registers.arrays["b32"]
    factors = scratch.get("factors", len(plan.factors), "u8")
    sums = scratch.get("sums", plan.count, "u8")
    addends = scratch.get("addends", plan.count, "u8")
    loads = [(factors[at : at + length], array[row : row + length]) for at, row, length in runs_of_rows(plan.factor_rows)]
    fills = [(factors[index], residues.of_float(float(value))) for index, value in plan.constants.items()]
    products = plan.products(factors, sums)
    addend_runs = [(addends[at : at + length], array[row : row + length]) for at, row, length in runs_of_rows(plan.addend_rows)]
    addend_fills = [(addends[index], residues.of_float(float(value))) for index, value in plan.addend_constants.items()]
    gather = len(addend_runs) > 4 and not addend_fills
    addend_rows = np.array(plan.addend_rows)
    targets = [(array[row : row + length], sums[at : at + length]) for at, row, length in runs_of_rows(plan.target_rows)]
    copyto, multiply, add, shift, cut = np.copyto, np.multiply, np.add, np.right_shift, np.bitwise_and

    def full() -> None:
        interned = residues.interned.get()
        for into, values in loads:
            copyto(into, values if interned is None else interned.read(values))
        for into, value in fills:
            into.fill(value)
        for first, second, into in products:
            multiply(first, second, into)
        if gather:
            values = array.take(addend_rows, 0)
            copyto(addends, values if interned is None else interned.read(values))
        else:
            for into, values in addend_runs:
                copyto(into, values if interned is None else interned.read(values))
            for into, value in addend_fills:
                into.fill(value)
        # Factors and addends are below 2^32, so sums stay below 2^64; the first fold leaves less than 2^34.
        add(sums, addends, sums)
        shift(sums, _SHIFT, addends)
        cut(sums, _MODULUS, sums)
        add(sums, addends, sums)
        shift(sums, _SHIFT, addends)
        cut(sums, _MODULUS, sums)
        add(sums, addends, sums)
        for into, values in targets:
            copyto(into, values if interned is None else residues.without_code(residues.words(values)), casting="same_kind")

    return full


def _some(plan: GroupPlan, binder: Binder) -> Callable[[Lanes], None]:
    array = binder.registers.arrays["b32"]
    tree = binder.arithmetic.name == "tree"
    target_rows = np.array(plan.target_rows)[:, None]

    def some(lanes: Lanes) -> None:
        factors = np.empty((len(plan.factors), len(lanes)), np.uint64)
        for index, row in enumerate(plan.factor_rows):
            factors[index] = residues.read(array[row, lanes]) if row >= 0 else residues.of_float(float(plan.constants[index]))
        addends = np.empty((plan.count, len(lanes)), np.uint64)
        for index, row in enumerate(plan.addend_rows):
            addends[index] = residues.read(array[row, lanes]) if row >= 0 else residues.of_float(float(plan.addend_constants[index]))
        products = residues.multiplied(factors[plan.left], factors[plan.right])
        sums = residues.tree_sum(products, addends) if tree else residues.written(residues.words(residues.folded(products + addends)))
        array[target_rows, lanes[None, :]] = sums

    return some
