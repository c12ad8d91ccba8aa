"""Sums of ``wgmma`` in a kernel with a ring: which elements their products multiply, and where they are stored.

``gemmgen.proof.rings`` runs the roles of a block side by side. This module follows the fragments that they multiply:

- A copy fills a use of the ring with boxes of A and B, whose coordinates are forms: numbers times contents that all threads share, plus a
  number. Filler and readers use the ring equally often between two decisions, so that use i of the filler is use i of every reader.
- The chunks of shared memory that a product's descriptors name lie in these boxes: row e of an operand is row F + e of its array, and index
  x is index K + x of k. The sum must hold K products already, and then holds K + D.
- A sum keeps its rows and columns until its registers are written by other statements. Its count as a form follows the counter of the
  loop: where the counter gets a name, n products at its value v are ``n / v`` times the counter, and every iteration must keep that.
- Registers of sums are copied, rounded, paired, and stored to shared memory, byte by byte. Each element of a box that leaves must be the
  sum of its row and column, and that sum must have k products by the decisions that led there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from gemmgen.core.graphs import live_at_entry
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Float, Function, Instruction, Integer, Operand, Register, Vector, registers_of, written
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.hardware.tensor_map import ELEMENT_BYTES
from gemmgen.kernels.launch import TensorMapArgument
from gemmgen.proof.control import control_flow
from gemmgen.proof.layouts import CHUNK_BYTES, box_places, operand_chunks
from gemmgen.proof.roles import renamed
from gemmgen.proof.symbols import Content, Expression, signed

Terms: TypeAlias = "frozenset[tuple[Expression, int]]"
Results: TypeAlias = "tuple[str, ...]"

ROWS = 64
GROUP_THREADS = 128
WORD = 1 << 32
OPERANDS = {"bf16": ("bf16",), "f16": ("f16",), "tf32": ("f32", "tf32"), "e4m3": ("e4m3",), "e5m2": ("e5m2",), "s8": ("s8",), "u8": ("u8",)}
"""Types of arrays by the type that a product reads them as."""
ROUNDED = ("bf16", "f16")


class NotFollowed(Exception):
    """A step that is not proved; the text says which."""


@dataclass(frozen=True)
class Form:
    """A sum of contents times numbers, and a number."""

    terms: Terms = frozenset()
    number: int = 0

    def plus(self, number: int) -> Form:
        """The form with a number added."""
        return Form(self.terms, self.number + number)

    def congruent(self, other: Form) -> bool:
        """True if both are equal modulo 2^32, as 32-bit registers are."""
        left = dict(self.terms)
        for content, times in other.terms:
            left[content] = left.get(content, 0) - times
        return not (self.number - other.number) % WORD and not any(times % WORD for times in left.values())


NO_PRODUCTS = Form()


@lru_cache(maxsize=4096)
def form_of(content: Content) -> Form:
    """A content of 32 bits as a form; modulo 2^32."""
    if isinstance(content, int):
        return Form(frozenset(), signed(content, 32))
    if isinstance(content, tuple):
        raise NotFollowed("a coordinate that differs between threads")
    opcode, *words = content.operation.split(".")
    if words in (["s32"], ["u32"], ["b32"]) and len(content.arguments) >= 2:
        parts = [form_of(part) for part in content.arguments if not isinstance(part, tuple)]
        numbers = [part.number if not part.terms else None for part in parts]
        if len(parts) == len(content.arguments):
            match opcode, numbers:
                case "add", _:
                    return _sum((parts[0], 1), (parts[1], 1))
                case "sub", _:
                    return _sum((parts[0], 1), (parts[1], -1))
                case "shl", [_, int(number)] if 0 <= number < 32:
                    return _sum((parts[0], 1 << number))
                case "mul", [_, int(number)]:
                    return _sum((parts[0], number))
                case "mul", [int(number), _]:
                    return _sum((parts[1], number))
                case "mad", [_, int(number), _]:
                    return _sum((parts[0], number), (parts[2], 1))
                case "or", [_, int(number)] if number >= 0 and number < 1 << _zeros(parts[0]):
                    return parts[0].plus(number)
    return Form(frozenset(((content, 1),)))


def _sum(*parts: tuple[Form, int]) -> Form:
    terms: dict[Expression, int] = {}
    number = 0
    for form, times in parts:
        number += form.number * times
        for content, each in form.terms:
            terms[content] = terms.get(content, 0) + each * times
    return Form(frozenset((content, times) for content, times in terms.items() if times), number)


def _zeros(form: Form) -> int:
    """Low bits that are 0 in every value of a form."""
    numbers = [form.number, *[times for _, times in form.terms]]
    return min(((number & -number).bit_length() - 1 if number else 32) for number in numbers)


@dataclass(frozen=True)
class Part:
    """A register, or half of one, that holds a sum, a rounded sum or 0."""

    results: Results = ()
    """The registers of the product that the sum belongs to; empty for 0."""
    place: int = 0
    size: int = 4
    kind: str = ""
    """The type of the number; empty for 0."""
    total: str = ""
    """For a total that sums are added to: "before" without, "after" with the sum that the product's registers hold."""


@dataclass(frozen=True)
class Sum:
    """Registers that a product adds to.

    They hold the products from index ``first`` up to, not including, ``count``.
    """

    count: Form | None
    places: tuple[tuple[tuple[str, Form], ...], ...] = ()
    """For each group of warps the first row and column, by dimension."""
    first: Form = NO_PRODUCTS
    begins: bool = True
    """False where a total holds the products before ``first``."""


@dataclass(frozen=True)
class Box:
    """A box that fills a part of a use of the ring."""

    use: int
    map_: str
    start: int
    coordinates: tuple[Form | None, ...]


@dataclass(frozen=True)
class Multiplied:
    """A product of one use of the ring, by its statement, and its descriptors for each group of warps."""

    use: int
    line: int
    fresh: bool
    begins: bool
    descriptors: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Left:
    """A box of a result that leaves shared memory."""

    line: int
    map_: str
    start: int
    coordinates: tuple[Form | None, ...]
    image: int
    groups: tuple[int, ...]


@dataclass(frozen=True)
class Tracked:
    """Sums that one role's registers and shared memory hold."""

    registers: frozenset[tuple[str, tuple[Part, ...]]] = frozenset()
    sums: frozenset[tuple[Results, Sum]] = frozenset()
    image: int = 0
    """Shared memory, by number."""
    log: tuple[Box | Multiplied | Left, ...] = ()
    """Uses of the ring and boxes that left, since all roles decided together."""


NOTHING = Tracked()


@dataclass(frozen=True)
class Obligation:
    """A count of products that must reach k, or stay below 2^31, wherever some decisions were made."""

    count: Form
    whole: bool
    facts: frozenset[tuple[Expression, bool]]


class Fragments:
    """Follows the sums of one kernel."""

    def __init__(
        self,
        function: Function,
        maps: Mapping[str, TensorMapArgument],
        axes: Mapping[str, tuple[str, ...]],
        types: Mapping[str, str],
        dimension: str,
        shared: tuple[int, int],
        threads: int,
    ) -> None:
        """``axes``: the dimensions of each map's axes. ``types``: those of the arrays. ``shared``: the first address and the size."""
        self._maps, self._axes, self._types, self._k = maps, axes, types, dimension
        self._base, self._bytes = shared
        self._threads = threads
        self.reasons: dict[str, Instruction | None] = {}
        self.obligations: set[Obligation] = set()
        self.checked: set[object] = set()
        self._products = {each.line: each for each in function.body if each.opcode == "wgmma" and each.has("mma_async")}
        if len(self._products) < sum(each.opcode == "wgmma" and each.has("mma_async") for each in function.body):
            self._fail("two products in one line")
        self._lines = {each.line: each for each in function.body}
        self._wanted = _data_registers(function)
        self._writes = {
            id(each): any(register.name in self._wanted for register in written(each)) for each in function.body if each.opcode != "wgmma"
        }
        self._live = _live_after(function, self._wanted, self._products)
        self._images: list[np.ndarray] = [np.zeros(self._bytes, np.int64)]
        self._numbers: dict[bytes, int] = {self._images[0].tobytes(): 0}
        self._changes: dict[object, int] = {}
        self._codes: dict[tuple[Part, int], int] = {}
        self._parts: list[tuple[Part, int]] = [(Part(), 0)]
        self._tables: dict[object, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._operands: dict[object, tuple[str, Form, Form]] = {}
        self._sent: dict[object, tuple[tuple[Results, str], ...]] = {}

    def _fail(self, reason: str, at: Instruction | None = None) -> None:
        self.reasons.setdefault(reason, at)

    # -- registers ----------------------------------------------------------------------------------------------

    def computed(self, tracked: Tracked, instruction: Instruction, certain: bool) -> Tracked:
        """The registers after a statement other than a product; ``certain``: all threads of the role carry it out."""
        if self.reasons or not self._writes.get(id(instruction), True):
            return tracked
        registers = dict(tracked.registers)
        targets = [register.name for register in written(instruction)]
        contents = self._contents(instruction, registers, dict(tracked.sums)) if certain else None
        lost = {name for name in targets if name in self._accumulators(tracked)}
        for name in targets:
            registers.pop(name, None)
        if contents is not None:
            registers |= contents
        if not lost:
            return replace(tracked, registers=frozenset(registers.items()))
        gone = {results for results, _ in tracked.sums if lost & set(results)}
        return self._without(replace(tracked, registers=frozenset(registers.items())), gone)

    def _accumulators(self, tracked: Tracked) -> frozenset[str]:
        return frozenset(name for results, _ in tracked.sums for name in results)

    def _without(self, tracked: Tracked, gone: Iterable[Results]) -> Tracked:
        """The state without some sums."""
        lost = set(gone)
        registers = frozenset((name, parts) for name, parts in tracked.registers if not any(part.results in lost for part in parts))
        sums = frozenset((results, each) for results, each in tracked.sums if results not in lost)
        return replace(tracked, registers=registers, sums=sums, image=0)

    def _contents(
        self, instruction: Instruction, registers: Mapping[str, tuple[Part, ...]], sums: Mapping[Results, Sum]
    ) -> dict[str, tuple[Part, ...]] | None:
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "mov" and len(operands) == 2:
            return self._moved(instruction, operands[0], operands[1], registers)
        if opcode == "add" and len(operands) == 3 and isinstance(operands[0], Register):
            total = self._added(instruction, [self._of(operand, registers) for operand in operands[1:]], sums)
            return None if total is None else {operands[0].name: (total,)}
        if opcode == "cvt" and instruction.modifiers[0] == "rn" and len(operands) == 2 and isinstance(operands[0], Register):
            to, source = instruction.modifiers[1:] if len(instruction.modifiers) == 3 else ("", "")
            parts = self._of(operands[1], registers)
            single = parts[0] if parts is not None and len(parts) == 1 else Part(size=0)
            if to in ROUNDED and source == "f32" and single.size == 4 and single.kind in ("f32", ""):
                return {operands[0].name: (replace(single, size=2, kind=to if single.kind else ""),)}
        return None

    def _added(self, instruction: Instruction, operands: Sequence[tuple[Part, ...] | None], sums: Mapping[Results, Sum]) -> Part | None:
        """The total after a sum was added to it."""
        parts = [each[0] for each in operands if each is not None and len(each) == 1]
        if len(parts) != 2 or instruction.modifiers not in (("f32",), ("rn", "f32")) or any(part.size != 4 for part in parts):
            return None
        one, other = sorted(parts, key=lambda part: bool(part.results) and not part.total)
        if not other.results or other.total or other.kind != "f32":
            return None
        after = replace(other, total="after")
        if one == Part():
            return after if other.results in sums and sums[other.results].begins else None
        return after if one == replace(other, total="before") else None

    def _moved(
        self, instruction: Instruction, target: Operand, source: Operand, registers: Mapping[str, tuple[Part, ...]]
    ) -> dict[str, tuple[Part, ...]] | None:
        size = TYPE_BYTES.get(instruction.type, 0)
        if isinstance(source, Vector):
            halves = [self._of(element, registers) for element in source.elements]
            together = tuple(part for half in halves if half is not None for part in half)
            whole = all(half is not None and len(half) == 1 and half[0].size == 2 for half in halves)
            if not whole or size != 4 or len(halves) != 2 or not isinstance(target, Register):
                return None
            return {target.name: together}
        if not isinstance(target, Register):
            return None
        if isinstance(source, Integer | Float):
            zero = source.value == 0 if isinstance(source, Integer) else source.bits == 0
            return {target.name: (Part(size=size),)} if zero and size in (2, 4) else None
        parts = self._of(source, registers)
        return {target.name: parts} if parts is not None and sum(part.size for part in parts) == size else None

    def _of(self, operand: Operand, registers: Mapping[str, tuple[Part, ...]]) -> tuple[Part, ...] | None:
        return registers.get(operand.name) if isinstance(operand, Register) else None

    # -- shared memory ------------------------------------------------------------------------------------------

    def stored(
        self, tracked: Tracked, instruction: Instruction, address: int | tuple[int, ...], threads: tuple[bool, ...], size: int
    ) -> Tracked:
        """Shared memory after a store by some threads, of ``size`` bytes at each address."""
        if self.reasons:
            return tracked
        data = instruction.operands[1]
        registers = dict(tracked.registers)
        elements = data.elements if isinstance(data, Vector) else (data,)
        contents = tuple(self._of(element, registers) for element in elements)
        key = (tracked.image, id(instruction), address, threads, contents)
        if key not in self._changes:
            image = self._images[tracked.image].copy()
            numbers = np.nonzero(np.array(threads))[0]
            starts = np.full(len(threads), address) if isinstance(address, int) else np.array(address)
            if instruction.opcode == "stmatrix":
                self._store_matrices(image, instruction, contents, starts, numbers)
            else:
                each = size // len(elements)
                for place, parts in enumerate(contents):
                    codes = self._bytes_of(parts, each)
                    for byte, code in enumerate(codes):
                        image[starts[numbers] - self._base + place * each + byte] = code * len(threads) + numbers if code else 0
            self._changes[key] = self._number(image)
        return replace(tracked, image=self._changes[key])

    def _bytes_of(self, parts: tuple[Part, ...] | None, size: int) -> list[int]:
        if parts is None or sum(part.size for part in parts) != size:
            return [0] * size
        return [self._code(part, byte) for part in parts for byte in range(part.size)]

    def _code(self, part: Part, byte: int) -> int:
        key = part, byte
        if key not in self._codes:
            self._codes[key] = len(self._parts)
            self._parts.append(key)
        return self._codes[key]

    def _store_matrices(
        self,
        image: np.ndarray,
        instruction: Instruction,
        contents: Sequence[tuple[Part, ...] | None],
        starts: np.ndarray,
        numbers: np.ndarray,
    ) -> None:
        """Matrices of 8 x 8 elements of two bytes: lanes 8 j to 8 j + 7 name the rows of matrix j, which register j of all lanes holds."""
        plain = instruction.has("b16") and instruction.has("m8n8")
        for first in sorted({int(number) // WARP_THREADS * WARP_THREADS for number in numbers}):
            for matrix, parts in enumerate(contents):
                codes = self._bytes_of(parts, 4) if plain else [0] * 4
                for row in range(8):
                    at = int(starts[first + 8 * matrix + row]) - self._base
                    for column in range(8):
                        one, other = (column, row) if instruction.has("trans") else (row, column)
                        lane, half = first + 4 * one + other // 2, other % 2
                        for byte in range(2):
                            code = codes[2 * half + byte]
                            image[at + 2 * column + byte] = code * len(starts) + lane if code else 0

    def _number(self, image: np.ndarray) -> int:
        key = image.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self._images)
            self._images.append(image)
        return self._numbers[key]

    # -- the ring -----------------------------------------------------------------------------------------------

    def filled(self, tracked: Tracked, use: int, map_: str, start: int, coordinates: Sequence[Content | None]) -> Tracked:
        """A copy of a box to a use of the ring."""
        if self.reasons:
            return tracked
        return replace(tracked, log=(*tracked.log, Box(use, map_, start, _forms(coordinates))))

    def multiplied(
        self,
        tracked: Tracked,
        instruction: Instruction,
        use: int | None,
        scale: Content | None,
        descriptors: Sequence[Sequence[Content | None]],
    ) -> Tracked:
        """A product of operands in one use of the ring, with a pair of descriptors for each group of warps."""
        if self.reasons:
            return tracked
        try:
            return self._product(tracked, instruction, use, scale, descriptors)
        except NotFollowed as error:
            self._fail(str(error), instruction)
            return tracked

    def _product(
        self,
        tracked: Tracked,
        instruction: Instruction,
        use: int | None,
        scale: Content | None,
        descriptors: Sequence[Sequence[Content | None]],
    ) -> Tracked:
        columns, _, _, _ = _shape(instruction)
        total = instruction.modifiers[-3]
        target = instruction.operands[0]
        results = tuple(register.name for register in registers_of(target))
        if len(set(results)) != columns * ROWS // GROUP_THREADS or use is None or use < 0:
            raise NotFollowed("a product whose operands or results are not known")
        signs = [operand.value for operand in instruction.operands[4:6] if isinstance(operand, Integer)]
        if any(sign != 1 for sign in signs) or len(instruction.operands) not in (4, 6, 8):
            raise NotFollowed("a product that is subtracted")
        pairs = tuple(tuple(each) for each in descriptors)
        if any(not isinstance(each, int) for pair in pairs for each in pair):
            raise NotFollowed("a matrix descriptor that is not known")
        registers = dict(tracked.registers)
        held = [registers.get(name) for name in results]
        zero = all(parts is not None and len(parts) == 1 and not parts[0].results and parts[0].size == 4 for parts in held)
        same = all(parts == (Part(results, place, 4, total),) for place, parts in enumerate(held)) and results in dict(tracked.sums)
        if scale not in (0, 1) or not (scale == 0 or zero or same):
            raise NotFollowed("a product is added to registers that are neither 0 nor its sum")
        others = {other for other, _ in tracked.sums if other != results and set(other) & set(results)}
        tracked = self._without(tracked, others)
        fresh = scale == 0 or not same
        now: dict[str, tuple[Part, ...]] = {name: (Part(results, place, 4, total),) for place, name in enumerate(results)}
        totals = False
        for name, parts in tracked.registers:
            if name not in self._live[instruction.line]:
                continue
            after = _kept(parts, results, fresh)
            totals = totals or any(part.results == results and part.total for part in parts)
            if after is not None and name not in now:
                now[name] = after
        sums = dict(tracked.sums)
        begins = not totals
        known = sums.get(results, Sum(None))
        sums[results] = replace(known, begins=begins if fresh else known.begins)
        used = tuple((int(a), int(b)) for a, b in pairs)  # type: ignore[arg-type]
        item = Multiplied(use, instruction.line, fresh, begins, used)
        return replace(tracked, registers=frozenset(now.items()), sums=frozenset(sums.items()), image=0, log=(*tracked.log, item))

    def left(
        self,
        tracked: Tracked,
        instruction: Instruction,
        map_: str,
        start: int,
        coordinates: Sequence[Content | None],
        groups: tuple[int, ...],
    ) -> Tracked:
        """A box of a result that one thread has TMA store."""
        if self.reasons:
            return tracked
        item = Left(instruction.line, map_, start, _forms(coordinates), tracked.image, groups)
        return replace(tracked, log=(*tracked.log, item))

    def renamed(self, tracked: Tracked, old: Expression, name: Expression) -> Tracked:
        """The state after a sum ``old`` got the name of a counter."""
        return self._changed(tracked, lambda form: _renamed(form, old, name))

    def counted(self, tracked: Tracked, number: int, name: Expression) -> Tracked:
        """The state after a counter that is ``number`` now got a name: counts of products are multiples of it from now on."""

        def change(form: Form) -> Form | None:
            return None if any(content.mentions(name) for content, _ in form.terms) else form

        changed = self._changed(tracked, change)
        sums = set()
        for results, each in changed.sums:
            count, first = each.count, each.first
            if count is not None and not count.terms and count.number and not count.number % number:
                times = count.number // number
                count = Form(frozenset(((name, times),)))
                if first != NO_PRODUCTS and not first.terms:
                    first = Form(count.terms, first.number - times * number)
            sums.add((results, replace(each, count=count, first=first)))
        return replace(changed, sums=frozenset(sums))

    def _changed(self, tracked: Tracked, change: Callable[[Form], Form | None]) -> Tracked:
        if not tracked.sums and not tracked.log:
            return tracked
        sums = set()
        for results, each in tracked.sums:
            count, first = None if each.count is None else change(each.count), change(each.first)
            places = []
            for group in each.places:
                place = tuple((dimension, new) for dimension, form in group if (new := change(form)) is not None)
                places.append(place)
            whole = all(len(new) == len(group) for new, group in zip(places, each.places, strict=True))
            known = whole and first is not None
            continued = replace(each, count=count, places=tuple(places), first=first or NO_PRODUCTS)
            sums.add((results, continued if known else Sum(None, begins=each.begins)))
        log: list[Box | Multiplied | Left] = []
        for item in tracked.log:
            if isinstance(item, Multiplied):
                log.append(item)
            else:
                log.append(replace(item, coordinates=tuple(None if form is None else change(form) for form in item.coordinates)))
        return replace(tracked, sums=frozenset(sums), log=tuple(log))

    # -- decisions ----------------------------------------------------------------------------------------------

    def together(self, states: Sequence[Tracked], facts: Mapping[Expression, bool]) -> list[Tracked]:
        """The states after all roles have used the ring equally often; checks the products and the stored fragments."""
        if self.reasons:
            return [NOTHING for _ in states]
        try:
            return self._settled(states, facts)
        except NotFollowed as error:
            self._fail(str(error))
            return [NOTHING for _ in states]

    def _settled(self, states: Sequence[Tracked], facts: Mapping[Expression, bool]) -> list[Tracked]:
        boxes: dict[int, list[Box]] = {}
        fillers = [state for state in states if any(isinstance(item, Box) for item in state.log)]
        if len(fillers) > 1:
            raise NotFollowed("several roles fill the ring")
        for state in fillers:
            for item in state.log:
                if isinstance(item, Box):
                    boxes.setdefault(item.use, []).append(item)
        settled = []
        for state in states:
            sums = dict(state.sums)
            for item in state.log:
                try:
                    if isinstance(item, Multiplied):
                        self._multiply(item, boxes.get(item.use, []), sums, facts)
                    elif isinstance(item, Left):
                        self._leave(item, sums, facts)
                except NotFollowed as error:
                    self._fail(str(error), self._lines[item.line] if not isinstance(item, Box) else None)
                    return [NOTHING for _ in states]
            settled.append(replace(state, sums=frozenset(sums.items()), log=()))
        return settled

    def _multiply(self, item: Multiplied, boxes: Sequence[Box], sums: dict[Results, Sum], facts: Mapping[Expression, bool]) -> None:
        instruction = self._products[item.line]
        _, depth, _, _ = _shape(instruction)
        results = tuple(register.name for register in registers_of(instruction.operands[0]))
        before = sums.get(results, Sum(None))
        count, places = (NO_PRODUCTS, ()) if item.fresh and item.begins else (before.count, before.places)
        first = count if item.fresh else before.first
        multiplied: list[tuple[tuple[str, Form], ...]] = []
        for pair in item.descriptors:
            operands = [self._operand(instruction, bits, which, boxes) for which, bits in enumerate(pair)]
            if len({array for array, _, _ in operands}) != 2:
                raise NotFollowed("both operands of a product come from one array")
            for _, _, along in operands:
                if count is None or not along.congruent(count):
                    raise NotFollowed(f"the {self._k} of a product does not follow from how many were added before")
            multiplied.append(tuple((self._free(array), form) for array, form, _ in operands))
        assert count is not None and first is not None
        if places and not _same_places(places, multiplied):
            raise NotFollowed("a sum holds products of different rows or columns")
        if count.terms:
            self.obligations.add(Obligation(count, False, _relevant(facts, count)))
        self.checked.add(item.line)
        sums[results] = Sum(count.plus(depth), places or tuple(multiplied), first, before.begins)

    def _free(self, array: str) -> str:
        """The dimension of an operand that is not summed over."""
        axes = next(axes for name, axes in self._axes.items() if self._maps[name].array == array)
        return next(dimension for dimension in axes if dimension != self._k)

    def _operand(self, instruction: Instruction, bits: int, which: int, boxes: Sequence[Box]) -> tuple[str, Form, Form]:
        """The array of an operand, its first row, and its first index of k."""
        key = (id(instruction), bits, which, tuple(replace(box, use=0) for box in boxes))
        if key not in self._operands:
            self._operands[key] = self._uncached_operand(instruction, bits, which, boxes)
        return self._operands[key]

    def _uncached_operand(self, instruction: Instruction, bits: int, which: int, boxes: Sequence[Box]) -> tuple[str, Form, Form]:
        _, depth, size, kind = _shape(instruction)
        addresses, transposed = operand_chunks(instruction, bits, which)
        owner, row, column = self._table(boxes)
        chunks = (addresses - self._base) // CHUNK_BYTES
        if (addresses % CHUNK_BYTES).any() or (owner[chunks] < 0).any():
            raise NotFollowed("a product reads bytes that its use of the ring does not fill")
        owners = owner[chunks]
        used = [boxes[number] for number in np.unique(owners).tolist()]
        names = {box.map_ for box in used}
        if len(names) != 1:
            raise NotFollowed("an operand of a product lies in boxes of several arrays")
        map_ = self._maps[names.pop()]
        axes = self._axes.get(map_.name)
        if axes is None or len(axes) != 2 or self._k not in axes or self._types[map_.array] not in OPERANDS.get(kind, ()):
            raise NotFollowed(f"{map_.name} is no operand of this type")
        if map_.fill != "zeros":
            raise NotFollowed(f"{map_.name} does not fill with zeros")
        inner, outer = (self._axis(boxes, owners, axis, positions[chunks]) for axis, positions in ((0, column), (1, row)))
        wanted = 0 if not transposed else 1
        if axes.index(self._k) != wanted:
            raise NotFollowed("an operand of a product is transposed")
        along = np.arange(chunks.shape[1])[None, :] * (CHUNK_BYTES // size)
        across = np.arange(chunks.shape[0])[:, None]
        if chunks.shape[0 if transposed else 1] * (1 if transposed else CHUNK_BYTES // size) != depth:
            raise NotFollowed("a product of another depth")
        for (_, numbers), offsets in ((inner, along), (outer, across)):
            if ((numbers - offsets - numbers[0, 0]) % WORD).any():
                raise NotFollowed("rows or indices of an operand do not follow each other")
        forms = [Form(terms, int(numbers[0, 0])) for terms, numbers in (inner, outer)]
        return map_.array, forms[1 - wanted], forms[wanted]

    def _axis(self, boxes: Sequence[Box], owners: np.ndarray, axis: int, positions: np.ndarray) -> tuple[Terms, np.ndarray]:
        """The terms that all chunks of an operand share along an axis of its array, and the number of each chunk."""
        numbers = positions.copy()
        terms: Terms | None = None
        for owner in np.unique(owners).tolist():
            coordinate = boxes[owner].coordinates[axis]
            if coordinate is None or terms not in (None, coordinate.terms):
                raise NotFollowed("coordinates of boxes that differ by more than numbers")
            terms = coordinate.terms
            numbers[owners == owner] += coordinate.number
        assert terms is not None
        return terms, numbers

    def _table(self, boxes: Sequence[Box]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """By chunk of shared memory: the box that fills it, its row there, and its first element of that row."""
        key = tuple((box.map_, box.start) for box in boxes)
        if key not in self._tables:
            owner = np.full(self._bytes // CHUNK_BYTES + 1, -1, np.int64)
            row, column = np.zeros_like(owner), np.zeros_like(owner)
            for number, box in enumerate(boxes):
                map_ = self._maps[box.map_]
                places, size = box_places(map_, box.start), ELEMENT_BYTES[map_.element]
                starts = places[:, ::CHUNK_BYTES]
                whole = not places.shape[1] % CHUNK_BYTES
                if not whole or (places.reshape(*starts.shape, -1) != starts[..., None] + np.arange(CHUNK_BYTES)).any():
                    raise NotFollowed("a box whose chunks are torn apart")
                chunks = (starts - self._base) // CHUNK_BYTES
                if (starts % CHUNK_BYTES).any() or (owner[chunks] >= 0).any():
                    raise NotFollowed("boxes of a use of the ring overlap")
                owner[chunks] = number
                row[chunks] = np.arange(starts.shape[0])[:, None]
                column[chunks] = np.arange(starts.shape[1])[None, :] * (CHUNK_BYTES // size)
            self._tables[key] = owner, row, column
        return self._tables[key]

    # -- results ------------------------------------------------------------------------------------------------

    def _leave(self, item: Left, sums: Mapping[Results, Sum], facts: Mapping[Expression, bool]) -> None:
        """Each element of the box is the whole sum of its row and column."""
        used = self._images[item.image]
        places = frozenset((results, each.places) for results, each in sums.items())
        key = (item, places)
        if key not in self._sent:
            self._sent[key] = self._sums_of(item, used, sums)
        for results, total in self._sent[key]:
            mine = sums.get(results, Sum(None))
            count = NO_PRODUCTS if not results else mine.first if total == "before" else mine.count
            if count is not None and results and not total and mine.first != NO_PRODUCTS:
                raise NotFollowed("a stored sum does not begin at the first product")
            if count is None:
                raise NotFollowed("how many products a stored sum has is not known")
            self.obligations.add(Obligation(count, True, _relevant(facts, count)))
        self.checked.add(item.line)

    def _sums_of(self, item: Left, image: np.ndarray, sums: Mapping[Results, Sum]) -> tuple[tuple[Results, str], ...]:
        map_ = self._maps[item.map_]
        axes = self._axes.get(item.map_)
        bytes_, size = box_places(map_, item.start), ELEMENT_BYTES[map_.element]
        if axes is None or len(axes) != 2 or self._k in axes or any(form is None for form in item.coordinates):
            raise NotFollowed(f"{item.map_} is no map of a result, or where the box goes is not known")
        held = image[bytes_ - self._base].reshape(bytes_.shape[0], -1, size)
        codes, owners = held // self._threads, held % self._threads
        whole = (codes > 0).all() and (owners == owners[..., :1]).all()
        if not whole:
            raise NotFollowed("a stored element is no sum of products")
        pairs: set[tuple[Results, str]] = set()
        row, column = np.indices(codes.shape[:2])
        for first in np.unique(codes[..., 0]).tolist():
            part, byte = self._parts[first]
            mask = codes[..., 0] == first
            following = [self._codes.get((part, number), -1) for number in range(size)]
            if byte != 0 or part.size != size or (codes[mask] != np.array(following)).any():
                raise NotFollowed("a stored element is made from parts of several sums")
            pairs.add((part.results, part.total))
            if not part.results:
                continue
            if self._types[map_.array] != part.kind:
                raise NotFollowed("a sum is stored as a number of another type")
            owner = owners[..., 0][mask]
            local = {
                0: 16 * (owner % GROUP_THREADS // WARP_THREADS) + owner % WARP_THREADS // 4 + 8 * (part.place // 2 % 2),
                1: 8 * (part.place // 4) + 2 * (owner % 4) + part.place % 2,
            }
            for group in np.unique(owner // GROUP_THREADS).tolist():
                if part.results not in sums or group not in item.groups or len(sums[part.results].places) != len(item.groups):
                    raise NotFollowed("a sum of threads that do not multiply")
                here = owner // GROUP_THREADS == group
                mine = sums[part.results].places[item.groups.index(group)]
                for which, (dimension, form) in enumerate(mine):
                    axis = axes.index(dimension)
                    coordinate = item.coordinates[axis]
                    assert coordinate is not None
                    position = (column, row)[axis][mask][here]
                    distance = local[which][here] + form.number - position - coordinate.number
                    if coordinate.terms != form.terms or (distance % WORD).any():
                        raise NotFollowed(f"the sum that is stored belongs to another element of {map_.array}")
        return tuple(sorted(pairs))


def _forms(coordinates: Sequence[Content | None]) -> tuple[Form | None, ...]:
    forms: list[Form | None] = []
    for each in coordinates:
        try:
            forms.append(None if each is None else form_of(each))
        except NotFollowed:
            forms.append(None)
    return tuple(forms)


def _renamed(form: Form, old: Expression, name: Expression) -> Form | None:
    """A form after a sum got a counter's name; None if it depends on the earlier value of this name."""
    base, step = (old.arguments if old.operation.startswith("add.") and len(old.arguments) == 2 else (None, None))[:2]
    if not isinstance(base, Expression):
        base, step = step, base
    total = Form(frozenset(), form.number)
    for content, times in form.terms:
        if content == base and isinstance(step, int):
            total = _sum((total, 1), (Form(frozenset(((name, 1),)), -signed(step, 32)), times))
            continue
        new = renamed(content, old, name)
        if not isinstance(new, Expression):
            return None
        total = _sum((total, 1), (Form(frozenset(((new, 1),))), times))
    return total


def _kept(parts: tuple[Part, ...], results: Results, fresh: bool) -> tuple[Part, ...] | None:
    """The content of a register once a product was added to a sum, or a sum began anew; None if that is not known."""
    if not any(part.results == results for part in parts):
        return parts
    (part,) = parts if len(parts) == 1 else (Part(),)
    if part.size != 4 or part.total != ("after" if fresh else "before"):
        return None
    return (replace(part, total="before"),)


def _same_places(one: Sequence[Sequence[tuple[str, Form]]], two: Sequence[Sequence[tuple[str, Form]]]) -> bool:
    if len(one) != len(two) or any(len(a) != len(b) for a, b in zip(one, two, strict=True)):
        return False
    return all(x == y and f.congruent(g) for a, b in zip(one, two, strict=True) for (x, f), (y, g) in zip(a, b, strict=True))


def _relevant(facts: Mapping[Expression, bool], count: Form) -> frozenset[tuple[Expression, bool]]:
    """The decisions that may bound a count: those on its counters and those on the problem alone."""
    counters = [content for content, _ in count.terms]

    def matters(fact: Expression) -> bool:
        of_problem = not any(_depends(part) for part in fact.arguments)
        return fact.operation == "lt.s32" and (of_problem or any(fact.mentions(each) for each in counters))

    return frozenset((fact, outcome) for fact, outcome in facts.items() if matters(fact))


def _depends(content: Content) -> bool:
    """True if a content depends on the block or on an iteration."""
    if not isinstance(content, Expression):
        return isinstance(content, tuple)
    return content.operation == "counter" or content.operation.startswith("%") or any(_depends(part) for part in content.arguments)


def _shape(instruction: Instruction) -> tuple[int, int, int, str]:
    """Columns, depth, bytes of an operand's element and its type, of a dense product that adds plainly."""
    shape = next((word for word in instruction.modifiers if word.startswith("m64n")), "m64n0k0")
    columns, depth = (int(part) for part in shape[4:].split("k"))
    total, one, other = instruction.modifiers[-3:]
    if instruction.has("sp") or "satfinite" in instruction.modifiers or one != other or total not in ("f32", "s32") or not depth:
        raise NotFollowed("this product is not followed")
    return columns, depth, 32 // depth, one


def _data_registers(function: Function) -> frozenset[str]:
    """Registers that sums and stored results may pass through."""
    wanted = {register.name for each in function.body if each.opcode == "wgmma" for register in _of_results(each)}
    for each in function.body:
        if each.opcode in ("st", "stmatrix"):
            wanted |= {register.name for register in registers_of(each.operands[1])}
    while True:
        more = {
            register.name
            for each in function.body
            if each.opcode in ("mov", "cvt", "add") and any(target.name in wanted for target in written(each))
            for operand in each.operands[1:]
            for register in registers_of(operand)
        }
        if more <= wanted:
            return frozenset(wanted)
        wanted |= more


def _live_after(function: Function, wanted: frozenset[str], lines: Collection[int]) -> dict[int, frozenset[str]]:
    """The wanted registers that may be read after some statements."""
    flow = control_flow(function)
    reads = {id(each): _read(each) & wanted for each in function.body}
    kills = {
        id(each): frozenset(register.name for register in written(each)) if each.guard is None else frozenset[str]()
        for each in function.body
    }
    before, overwritten = [], []
    for block in (*flow.blocks, ()):
        needed = frozenset[str]()
        for each in reversed(block):
            needed = (needed - kills[id(each)]) | reads[id(each)]
        before.append(needed)
        overwritten.append(frozenset[str]().union(*(kills[id(each)] for each in block)))
    starts = live_at_entry(flow.successors, before, overwritten)
    live_after: dict[int, frozenset[str]] = {}
    for number, block in enumerate(flow.blocks):
        now = frozenset[str]().union(*(starts[other] for other in flow.successors[number]))
        for each in reversed(block):
            if each.line in lines:
                live_after[each.line] = now
            now = (now - kills[id(each)]) | reads[id(each)]
    return live_after


def _read(instruction: Instruction) -> frozenset[str]:
    """The registers that a statement may read: its operands but for results, which a product and a guarded statement may keep."""
    operands = instruction.operands
    if written(instruction) and instruction.opcode != "wgmma" and instruction.guard is None:
        operands = operands[1:]
    return frozenset(register.name for operand in operands for register in registers_of(operand))


def _of_results(instruction: Instruction) -> Iterator[Register]:
    if instruction.has("mma_async"):
        yield from registers_of(instruction.operands[0])
