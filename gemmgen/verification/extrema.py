"""Extrema for all data: kernels whose comparators are read off their text, and one run that shows which elements they compare.

The 0-1 principle says that a network of comparators which is right for zeros and ones is right for all numbers. Here it takes three steps.
All that data decide must be comparators of one total order, for every order of two values with NaN (`gemmgen.emulator.comparators`). The
kernel then gives the best of a fixed set of elements, for all data. A run in which sums over a finite field stand for the better of two,
whose laws of association and order they share, gives the sum of exactly those elements, and shows with a probability which they are.
Runs with ties, NaN and infinities come before, so that a wrong kernel is shown by a wrong result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.core.elements import numpy_type
from gemmgen.emulator import residues
from gemmgen.emulator.arithmetic import Arithmetic, joined
from gemmgen.emulator.comparators import Refused, Traffic, comparators
from gemmgen.emulator.data_loads import DataLoads
from gemmgen.kernels.family import Case, Extremum, KernelPlan
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.nvrtc import Binary
from gemmgen.verification.case_arrays import CaseMemory
from gemmgen.verification.observed import programs_of

_WANTED_BITS = 28
_BITS_OF_RUN = {2: 15.0, 4: 30.0}
"""Bits of confidence of a run by the bytes of an element: another number of 16 bits, or a hash of the sum, may be right by chance in one of
65,535 each. Bytes of numbers move together (`gemmgen.emulator.comparators`)."""
_DRAWS = 3
_numbers = itertools.count()


@dataclass(frozen=True)
class Outcome:
    """The result of the runs, as `gemmgen.verification.field.FieldReport` states it."""

    outcome: str
    reason: str = ""
    runs: int = 0
    miss_bits: float = 0.0
    elements: int = 0


_last_analysed: dict[tuple[object, ...], Arithmetic] = {}
"""The meaning of the comparators of the last problem that was analysed, by its programs, data and sizes: its program is analysed once."""
_last_programs: list[object] = []
"""Its programs, so that no others have their identities."""


def verify_extremum(plan: KernelPlan, binary: Binary, case: Case, extremum: Extremum) -> Outcome:
    """The claim about a kernel that gives the best of each line of X, or its place, as Y."""
    programs = programs_of(plan, binary)
    rng = np.random.default_rng([case.seed, 43])
    problem = (*map(id, programs), extremum, case.seed, *case.dimensions.items())
    arithmetic = _last_analysed.get(problem)
    traffic = Traffic()
    for number, values in enumerate(_adverse(plan, case, extremum, rng)):
        loads = DataLoads({"X"}, bytes_too=True)
        got, given = _run(plan, binary, case, values, None, (loads,) if number == 0 and arithmetic is None else ())
        if number == 0:
            traffic = Traffic(loads.bytes_of, set(loads.instructions))
        wrong = _difference(got, _best(values, extremum), _type_of(plan, "Y"), extremum)
        if wrong:
            return Outcome("wrong", wrong, number + 1)
    if arithmetic is None:
        try:
            compared = comparators(programs, traffic, extremum.order)
        except Refused as refusal:
            return Outcome("not claimed", str(refusal))
        arithmetic = joined(compared, next(_numbers), -math.inf if extremum.order.largest else math.inf)
        _last_analysed.clear()
        _last_analysed[problem] = arithmetic
        _last_programs[:] = programs
    size = numpy_type(_type_of(plan, "X")).itemsize
    bits = _BITS_OF_RUN[size]
    elements, runs = 0, math.ceil(_WANTED_BITS / bits)
    for number in range(runs):
        codes = rng.integers(1, residues.MODULUS if size == 4 else 1 << 16, _shape(plan, case), dtype=np.uint64)
        words = codes.astype(np.uint32 if size == 4 else np.uint16)
        got, given = _run(plan, binary, case, words, arithmetic, ())
        wanted = _sums(given.view(words.dtype), extremum)
        if not extremum.order.indexed and got.itemsize == 2:
            wanted = residues.narrowed(wanted, 16).reshape(wanted.shape)
        actual = residues.canonical(_words(got)).reshape(got.shape)
        elements += actual.size
        different = np.argwhere(actual != wanted.reshape(actual.shape))
        if len(different):
            place = ", ".join(str(int(index)) for index in different[0])
            return Outcome("wrong", f"Y[{place}] is the best of other elements; {len(different)} of {actual.size} are wrong", number + 1)
    return Outcome("passed", "", runs, bits * runs, elements)


def _type_of(plan: KernelPlan, name: str) -> str:
    return next(array.type for array in plan.sequence.arrays if array.name == name)


def _shape(plan: KernelPlan, case: Case) -> tuple[int, ...]:
    return CaseMemory.of(next(array for array in plan.sequence.arrays if array.name == "X"), case).view.shape


def _run(
    plan: KernelPlan,
    binary: Binary,
    case: Case,
    values: npt.NDArray[Any],
    arithmetic: Arithmetic | None,
    observers: tuple[DataLoads, ...],
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Y, and X as the kernel read it."""
    memory = {array.name: CaseMemory.of(array, case) for array in plan.sequence.arrays if array.role != "workspace"}
    if values.dtype.kind == "u":
        memory["X"].view.view(values.dtype)[...] = values
    else:
        memory["X"].fill(values)
    backend = EmulatorBackend(observers, hazards=False, arithmetic=arithmetic)
    backend.run(binary, plan.sequence, case.dimensions, {}, {name: piece.buffer for name, piece in memory.items()})
    return np.ascontiguousarray(memory["Y"].view), np.ascontiguousarray(memory["X"].view)


def _adverse(plan: KernelPlan, case: Case, extremum: Extremum, rng: np.random.Generator) -> Iterator[npt.NDArray[Any]]:
    """Few values, so that the best one comes often; the same with NaN here and there, and with the number that loses: in turn in the lines
    of one run. Few lines get the latter two, in a run each."""
    shape = _shape(plan, case)
    length = math.prod(shape[axis] for axis in extremum.axes)
    worst = -np.inf if extremum.order.largest else np.inf
    few = rng.choice(np.array([-2.0, -1.0, -0.0, 0.0, 1.0]), shape)
    draws = [few, np.where(rng.random(shape) < 1.5 / length, np.nan, few), np.where(rng.random(shape) < 0.7, worst, few - 2)]
    if few.size < _DRAWS * length:
        yield from draws[1:]
        return
    turns = _lines(np.zeros(shape, np.int64), extremum).shape[:-1]
    extents = [size if axis not in extremum.axes else 1 for axis, size in enumerate(shape)]
    turn = (np.arange(math.prod(turns)) % _DRAWS).reshape(extents)
    yield np.choose(turn, draws)


def _lines(values: npt.NDArray[Any], extremum: Extremum) -> npt.NDArray[Any]:
    """The lines of X, each along the last axis."""
    other_axes = [axis for axis in range(values.ndim) if axis not in extremum.axes]
    ordered = values.transpose(*other_axes, *extremum.axes)
    return ordered.reshape(*ordered.shape[: len(other_axes)], -1)


def _best(values: npt.NDArray[Any], extremum: Extremum) -> npt.NDArray[Any]:
    """The best of each line, or its place."""
    lines = _lines(values, extremum)
    if extremum.order.indexed:
        # NumPy takes the first NaN as well, and the first of equal values.
        return np.asarray(lines.argmax(-1) if extremum.order.largest else lines.argmin(-1))
    return np.asarray(lines.max(-1) if extremum.order.largest else lines.min(-1))


def _difference(got: npt.NDArray[Any], wanted: npt.NDArray[Any], type_name: str, extremum: Extremum) -> str:
    if type_name == "bf16":
        got = (got.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    actual = got.reshape(wanted.shape)
    same = actual == wanted if extremum.order.indexed else (actual == wanted) | (np.isnan(actual) & np.isnan(wanted))
    different = np.argwhere(~same)
    if not len(different):
        return ""
    at = tuple(int(index) for index in different[0])
    place = ", ".join(map(str, at))
    return f"Y[{place}] is {actual[at]} instead of {wanted[at]}, with ties, NaN or infinities in X"


def _sums(codes: npt.NDArray[Any], extremum: Extremum) -> npt.NDArray[Any]:
    """The sums of each line's elements, or of hashes of elements with their places, as canonical residues."""
    lines = _lines(codes, extremum).astype(np.uint64)
    if codes.itemsize == 2:
        lines = lines << np.uint64(16)
    if extremum.order.indexed:
        places = np.broadcast_to(np.arange(lines.shape[-1], dtype=np.uint64), lines.shape)
        lines = residues.opaque("element", [lines.reshape(-1), places.reshape(-1)]).reshape(lines.shape).astype(np.uint64)
    summed = residues.canonical(lines).reshape(lines.shape).sum(-1, dtype=np.uint64)
    return residues.canonical(summed).reshape(lines.shape[:-1])


def _words(got: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The lower 32 bits of each element, which hold a residue; those of 16 are a hash."""
    if got.itemsize == 8:
        return np.asarray(got.view(np.uint64) & np.uint64(0xFFFFFFFF))
    return got.view({2: np.uint16, 4: np.uint32}[got.itemsize])
