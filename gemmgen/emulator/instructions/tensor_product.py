"""tcgen05.mma: matrix products of single blocks and of pairs, with D, and possibly A and the scales, in tensor memory.

PTX ISA, "TensorCore 5th Generation Family Instructions: tcgen05.mma", with its instruction descriptor; layouts of D as in CuTe's
`mma_traits_sm100_frag.hpp`. A row of A or B has 32 bytes for each instruction. Elements of D take a column each, of A in tensor memory as
many bits as they have. A scale of row i lies in lane i mod 32, column i div 32, in every quarter of the lanes.

With k = 96 (sm_103a, `mxf4` and `mxf4nvf4`), a row has 48 bytes, and three or six scales. They begin at the byte that the scale id
names, and continue in the word of the next four scales: four columns behind, or eight if B has more than 128 columns.

Of sparse products (``.sp``), A holds half of the elements along k in as many bytes as a dense one, B is twice as deep, and nibbles in
tensor memory say which elements A holds (`gemmgen.emulator.instructions.sparse`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

import numpy as np

from gemmgen.emulator import residue_products, residues, tensor_core
from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.engines.async_proxy import CHUNK
from gemmgen.emulator.engines.tensor_memory import LANES, QUARTER, Cells, TensorOperation, pair_of
from gemmgen.emulator.errors import InvalidMatrix, UnknownInstruction
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.matrix import widened
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.instructions.sparse import nibbles_of, sparse_places
from gemmgen.emulator.instructions.tensor_memory import SharedOperand, failing
from gemmgen.emulator.instructions.warp import by_lanes, value_at
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Address, Instruction, Integer, Negated, Operand, Vector
from gemmgen.emulator.residue_words import has_packed_words, require_whole, scales
from gemmgen.emulator.transfers import AsyncAccess

_ROW_BYTES, _DEEP_ROW_BYTES = 32, 48
_WORD_SCALES = 4
_SCALE_TILE = 128
"""Rows whose scales a tile holds; their words take four columns."""
_DEEPEST_SELECTED = 16
"""Depth of a dense instruction up to which the metadata of a sparse one lie in a single column, which a selector names."""
_SPARSE_ROWS_AT_ONCE = 32
_METADATA_COLUMNS = 2
_FLOATS8 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}


_RESERVED_OF_MASK = 0xC000_0070_0000_0000
_MAX_MOVED = (0, 8, 16, 32)
"""Columns of B that a mask of zero columns may pass over, by bits 30 and 31 of the instruction descriptor."""


def _zeros_of_part(mask: int, part: int, columns: int) -> np.ndarray:
    """Zero columns of one part of B: spans of zeros and of columns in use by turns (PTX ISA, "Zero-Column Mask Descriptor")."""
    zeros, used = (mask >> 40 & 0xFF) + 1, (mask >> 48 & 0xFF) + 1
    begins_with_zeros = bool(mask >> 32 + part & 1)
    first = min(mask >> 8 * part & 0xFF, (zeros if begins_with_zeros else used) - 1)
    place = (np.arange(columns) + first) % (zeros + used)
    zero: np.ndarray = place < zeros if begins_with_zeros else place >= used
    return zero


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of tcgen05.mma: the types by their codes in the instruction descriptor."""

    factors: dict[int, str]
    sums: dict[int, str]
    depth: int
    scale_vectors: tuple[int, ...] = ()
    """Numbers of scales that a row may have for each instruction; none without block scales."""

    @property
    def scaled(self) -> bool:
        """True with block scales."""
        return bool(self.scale_vectors)


KINDS = {
    "kind::f16": Kind({0: "f16", 1: "bf16"}, {0: "f16", 1: "f32"}, 16),
    "kind::tf32": Kind({2: "tf32"}, {1: "f32"}, 8),
    "kind::i8": Kind({0: "u8", 1: "s8"}, {2: "s32"}, 32),
    "kind::f8f6f4": Kind(_FLOATS8, {0: "f16", 1: "f32"}, 32),
    "kind::mxf8f6f4": Kind(_FLOATS8, {}, 32, (1,)),
    "kind::mxf4": Kind({1: "e2m1"}, {}, 64, (2,)),
    "kind::mxf4nvf4": Kind({1: "e2m1"}, {}, 64, (2, 4)),
}
_ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4}
_DTYPES = {"f16": np.uint16, "bf16": np.uint16, "tf32": np.uint32, "s8": np.int8}
_SIGNS = {"f16": 1 << 15, "bf16": 1 << 15, "tf32": 1 << 31, "e4m3": 1 << 7, "e5m2": 1 << 7, "e2m3": 1 << 5, "e3m2": 1 << 5, "e2m1": 1 << 3}
"""The sign's bit in a code."""
_NARROW_BITS = {"e2m3": 6, "e3m2": 6, "e2m1": 4}
_WITH_RESIDUES = {*residues.CODE_BITS, "s8", "u8"}
"""Types of factors that have a meaning over a finite field, and integers, whose sums are exact."""


@dataclass(frozen=True, slots=True)
class Form:
    """An instruction descriptor taken apart."""

    m: int
    n: int
    a: str
    b: str
    sums: str
    negated: bool
    major: tuple[bool, bool]
    """A and B: True if not K-major."""
    saturates: bool
    scale_ids: tuple[int, int]
    scale_type: str
    selector: int
    """The column of the metadata of a sparse A that an instruction takes."""
    deep: bool = False
    """True with k = 96."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of A, or a column of B, for each dense instruction."""
        return _DEEP_ROW_BYTES if self.deep else _ROW_BYTES


def decode(bits: int, kind: Kind, pair: bool, stationary: bool = False, sparse: bool = False) -> tuple[Form, str | None]:
    """An instruction descriptor, and the reason that it has no meaning, if it has none: of ``.ws`` (``stationary``), of ``.sp``."""
    a, b = kind.factors.get(bits >> 7 & 7), kind.factors.get(bits >> 10 & 7)
    sums = "f32" if kind.scaled else kind.sums.get(bits >> 4 & 3)
    n, m = (bits >> 17 & 0x3F) << 3, (bits >> 24 & 0x1F) << 4
    if kind.scaled:
        ids, scale_type = (bits >> 29 & 3, bits >> 4 & 3), "ue8m0" if bits >> 23 & 1 else "ue4m3"
    else:
        ids, scale_type = (0, 0), ""
    negated = (bits >> 13 & 1) != (bits >> 14 & 1)
    majors = bool(bits >> 15 & 1), bool(bits >> 16 & 1)
    deep = kind.scaled and bool(bits >> 31)
    form = Form(m, n, a or "", b or "", sums or "", negated, majors, bool(bits >> 3 & 1), ids, scale_type, bits & 3, deep)
    return form, _problem(bits, form, kind, pair, stationary) or _sparsity_problem(bits, form, kind, sparse)


def _sparsity_problem(bits: int, form: Form, kind: Kind, sparse: bool) -> str | None:
    if bool(bits >> 2 & 1) != sparse:
        of_bit, of_name = ("dense", "sparse") if sparse else ("sparse", "dense")
        return f"its bit 2 says that A is {of_bit}, the instruction that it is {of_name}"
    if form.deep and sparse:
        return "k = 96 (its bit 31) is for a dense A"
    choices = 2 if sparse and kind.depth <= _DEEPEST_SELECTED else 1
    if form.selector >= choices:
        return f"the sparsity selector is {form.selector}; it must be below {choices} for this kind"
    return None


def _problem(bits: int, form: Form, kind: Kind, pair: bool, stationary: bool) -> str | None:
    if not form.a or not form.b or not form.sums or (form.sums == "f16" and "bf16" in (form.a, form.b)):
        return "it has no types of this kind"
    integers = form.sums == "s32"
    if (form.saturates and not integers) or (integers and bits >> 13 & 3):
        return "saturation is for integers, negation for the others"
    if any(form.major) and (kind.depth == 64 or (form.major[0] and form.a in _NARROW_BITS) or (form.major[1] and form.b in _NARROW_BITS)):
        return "types below 8 bits are K-major"
    if form.deep and kind.depth != 64:
        return "bit 31 has to be zero"
    if not kind.scaled and (bits >> 6 & 1 or bits >> 23 & 1 or bits >> 29 & (1 if stationary else 7)):
        return "bits that have to be zero are set"
    if stationary:
        good = form.m in (32, 64, 128) and form.n in (64, 128, 256)
        return None if good else f"m = {form.m} and n = {form.n} with .ws; m is 32, 64 or 128, n is 64, 128 or 256"
    rows = (128, 256) if pair else (128,) if kind.scaled else (64, 128)
    step = 16 if pair or form.deep or (form.m == 128 and not kind.scaled) else 8
    good = form.n % step == 0 and step <= form.n <= 256
    if integers and not pair and form.n > 32:
        good = good and form.n % 16 == 0
    if form.m not in rows or not good:
        allowed = " or ".join(map(str, rows))
        return f"m = {form.m} and n = {form.n}; m is {allowed}, n a multiple of {step} up to 256"
    return None


@instruction("tcgen05", when=lambda inst: inst.modifiers[0] == "mma")
def multiply(inst: Instruction, binder: Binder) -> Operation:
    """Starts D = A B + D; hints for the collector have no effect."""
    return by_lanes(binder, _Product(inst, binder).start)


class _Product:
    """One tcgen05.mma: its operands and its arithmetic."""

    def __init__(self, inst: Instruction, binder: Binder) -> None:
        self.inst, self.binder = inst, binder
        self.memory = binder.engines.tensor_memory
        name = inst.first_of(tuple(KINDS))
        if name is None:
            raise UnknownInstruction("this kind of tcgen05.mma is not implemented", instruction=inst)
        self.kind, self.pair, self.sparse = KINDS[name], inst.has("cta_group::2"), inst.has("sp")
        self.stationary = inst.has("ws")
        if self.stationary and (self.pair or self.kind.scaled):
            raise UnknownInstruction("tcgen05.mma.ws is for single blocks, without block scales", instruction=inst)
        self.scales = self._scale_vector(name)
        self.has_deep = binder.program.module.target.startswith("sm_103")
        d, a, b, *rest = inst.operands
        self.metadata = self._metadata(rest.pop(0)) if self.sparse else None
        form = rest.pop(0)
        self.d = binder.addresses(inst, d)[1]
        self.a_in_memory = isinstance(a, Address)
        self.a_address = binder.addresses(inst, a)[1] if self.a_in_memory else None
        self.operands = (
            None if self.a_in_memory else SharedOperand(inst, binder, a, "operand A"),
            SharedOperand(inst, binder, b, "operand B"),
        )
        self.form = binder.source(inst, form, "u32")
        scale_addresses = [rest.pop(0), rest.pop(0)] if self.kind.scaled and len(rest) >= 2 else []
        self.scale_addresses = [binder.addresses(inst, operand)[1] for operand in scale_addresses]
        masks = rest.pop(0) if rest and isinstance(rest[0], Vector) else Vector(())
        self.masks = [binder.source(inst, word, "u32") for word in masks.elements] if isinstance(masks, Vector) else []
        if len(self.masks) not in (0, 8 if self.pair else 4) or not rest or len(rest) > 2:
            raise UnknownInstruction("tcgen05.mma with operands that are not understood", instruction=inst)
        self.accumulates = self._predicate(rest[0])
        self.zero_columns = binder.source(inst, rest.pop(), "u64") if self.stationary and len(rest) == 2 else None
        shift = rest[1] if len(rest) == 2 else Integer(0)
        if not isinstance(shift, Integer) or not 0 <= shift.value <= 15 or (shift.value and name not in ("kind::f16", "kind::tf32")):
            raise UnknownInstruction("scale-input-d is a constant from 0 to 15, for kinds f16 and tf32", instruction=inst)
        self.shift = shift.value
        self.units = binder.spaces.shared.units[CHUNK]
        self._forms: dict[int, tuple[Form, str | None]] = {}

    def _decode(self, bits: int) -> tuple[Form, str | None]:
        """An instruction descriptor, and the reason that it has no meaning; most instructions have one and the same."""
        if bits not in self._forms:
            self._forms[bits] = decode(bits, self.kind, self.pair, self.stationary, self.sparse)
        return self._forms[bits]

    def _scale_vector(self, name: str) -> int:
        """Scales of a row of A, or a column of B, for each instruction."""
        if not self.kind.scaled:
            return 0
        words = {
            "scale_vec::1X": 1,
            "scale_vec::2X": 2,
            "scale_vec::4X": 4,
            "block32": self.kind.depth // 32,
            "block16": self.kind.depth // 16,
        }
        given = self.inst.first_of(tuple(words))
        length = words[given] if given is not None else self.kind.scale_vectors[0] if name != "kind::mxf4nvf4" else 0
        if not self.inst.has("block_scale") or length not in self.kind.scale_vectors:
            raise UnknownInstruction(f"{name} takes .block_scale with a number of scales that goes with it", instruction=self.inst)
        return length

    def _metadata(self, operand: Operand) -> Source:
        if not isinstance(operand, Address):
            raise UnknownInstruction("tcgen05.mma.sp names metadata in tensor memory behind B", instruction=self.inst)
        return self.binder.addresses(self.inst, operand)[1]

    def _predicate(self, operand: Operand) -> tuple[Source, bool]:
        negated = isinstance(operand, Negated)
        register = operand.register if isinstance(operand, Negated) else operand
        return self.binder.source(self.inst, register, "pred"), negated

    def _fail(self, message: str, lane: int) -> NoReturn:
        self.binder.fail(InvalidMatrix, message, self.inst, np.array([lane]))

    # -- issuing -------------------------------------------------------------------------------------------------

    def start(self, lanes: Lanes) -> None:
        """Each lane issues the instruction."""
        for lane in lanes.tolist():
            self._issue(lane)

    def _one(self, source: Source, lane: int) -> int:
        return int(value_at(source, np.array([lane]))[0])

    def _issue(self, lane: int) -> None:
        inst, who, stride = self.inst, np.array([lane]), self.binder.geometry.stride
        places = pair_of(inst, self.binder.geometry, lane // stride, failing(inst, self.binder, who))
        bits = self._one(self.form, lane)
        form, problem = self._decode(bits)
        if problem is None and form.deep and not self.has_deep:
            problem = "k = 96 (its bit 31) is for sm_103a"
        if problem is not None:
            self._fail(f"the instruction descriptor 0x{bits:08x}: {problem}", lane)
        has_residues = {form.a, form.b} <= _WITH_RESIDUES and not (self.kind.scaled and form.negated)
        self.binder.require_real(inst, form.sums == "f16" or bool(self.shift) or self.sparse or not has_residues)
        predicate, negated = self.accumulates
        accumulates = bool(value_at(predicate, who)[0]) != negated
        layout = _sums_of(form, len(places), self.stationary)
        zeros, moved = self._zero_columns(form, bits, lane)
        address = int(self.d(who)[0])
        writes = [self._cells(lane, place, address, layout.extent, layout.bases) for place in places]
        reads: list[Cells] = list(writes) if accumulates else []
        begun: list[AsyncAccess] = []
        a_cells: list[Cells] = []
        if self.a_address is not None:
            if form.major[0]:
                self._fail("A in tensor memory is K-major", lane)
            a_cells = [
                self._cells(lane, place, int(self.a_address(who)[0]), (layout.extent[0], form.row_bytes // 4), layout.bases)
                for place in places
            ]
            reads += a_cells
            load_a = self._from_tensor_memory(a_cells, layout, form)
        else:
            load_a = self._from_shared(lane, places, form.m // len(places), 0, form, begun)
        load_all_of_b = self._from_shared(lane, places, form.n // len(places) + moved, 1, form, begun)

        def load_b() -> np.ndarray:
            matrix = load_all_of_b()[moved:]
            if zeros.any():
                matrix = np.where(zeros[:, None], matrix.dtype.type(0), matrix)
            return matrix

        scale_cells = self._scale_cells(lane, places, form, who)
        reads += [cells for side in scale_cells for cells in side]
        metadata_cells = self._metadata_cells(lane, places, layout, who)
        reads += metadata_cells
        mask = self._output_mask(who, len(places))
        self._check_scales(form, lane)
        operands = ("A", a_cells), ("the metadata of A", metadata_cells)
        of_scales = zip(("the scales of A", "the scales of B"), scale_cells, strict=False)
        for name, operand in (*operands, *of_scales):
            if met := next((cells for cells in operand if any(cells.meets(other) for other in writes)), None):
                self._fail(f"{name} in tensor memory ({met}) overlaps the sums that the product writes", lane)

        def run() -> None:
            for cells in (*a_cells, *(writes if accumulates else ())):
                self.memory.check_written(inst, who, cells, layout.used if cells in writes else layout.used_rows)
            if accumulates:
                sums = layout.gather([self.memory.data[cells.index] for cells in writes])
            else:
                sums = np.zeros((form.m, form.n), np.uint32)
            a = load_a()
            of_blocks = np.split(a, len(places)) if metadata_cells else []
            chosen = [self._chosen(cells, layout, form, part, who) for cells, part in zip(metadata_cells, of_blocks, strict=True)]
            if scale_cells:
                results = self._scaled_step(form, a, load_b(), sums, scale_cells, who, chosen)
            else:
                results = self._by_copies(form, a, load_b(), sums, np.concatenate(chosen, axis=1) if chosen else None)
            for cells, values, lanes in zip(writes, layout.scatter(results), mask, strict=True):
                self._write(cells, values, layout.lanes_used, lanes)

        self.memory.issue(TensorOperation(inst, lane, reads, writes, begun, run))

    def _zero_columns(self, form: Form, bits: int, lane: int) -> tuple[np.ndarray, int]:
        """The columns of B that a stationary product takes for zeros, and the number of columns that it passes over."""
        mask = 0 if self.zero_columns is None else self._one(self.zero_columns, lane)
        moved = mask >> 56 & 0x3F
        if mask & _RESERVED_OF_MASK:
            self._fail(f"the mask of zero columns 0x{mask:016x} has reserved bits set", lane)
        if moved > (most := _MAX_MOVED[bits >> 30]) or moved > (16 if form.m == QUARTER else 32):
            self._fail(f"the mask of zero columns passes over {moved} columns; the instruction descriptor allows {most}", lane)
        zeros = np.zeros(form.n, np.bool_)
        if mask >> 39 & 1:
            parts = LANES // form.m
            zeros = np.concatenate([_zeros_of_part(mask, part, form.n // parts) for part in range(parts)])
        return zeros, moved

    def _cells(self, lane: int, place: int, address: int, extent: tuple[int, int], bases: Sequence[int]) -> Cells:
        return self.memory.cells(self.inst, np.array([lane]), place, address, extent, bases)

    def _output_mask(self, who: Lanes, places: int) -> list[np.ndarray | None]:
        """Lanes of each block that are written; None for all."""
        if not self.masks:
            return [None] * places
        words = np.array([value_at(source, who)[0] for source in self.masks], np.uint32)
        enabled = np.unpackbits(words.view(np.uint8), bitorder="little") == 0
        return list(enabled.reshape(places, LANES))

    def _write(self, cells: Cells, values: np.ndarray, used: np.ndarray, enabled: np.ndarray | None) -> None:
        first, last = cells.lanes
        chosen = used if enabled is None else used & enabled[first:last]
        self.memory.write(cells.index, values, None if chosen.all() else chosen)

    # -- operands ------------------------------------------------------------------------------------------------

    def _from_shared(
        self, lane: int, places: Sequence[int], rows: int, which: int, form: Form, begun: list[AsyncAccess]
    ) -> Callable[[], np.ndarray]:
        """Reads an operand, a part of its rows from each block, when the product happens: [rows of all, depth]."""
        operand, element, transposed = self.operands[which], (form.a, form.b)[which], form.major[which]
        assert operand is not None
        if transposed:
            require_whole(1, 1)
        deep = 2 if self.sparse and which == 1 else 1
        if transposed:
            size = _ELEMENT_BYTES.get(element, 1)
            operand_chunks = operand.chunks(lane, self.kind.depth * deep, -(-rows * size // CHUNK), k_major=False)
        else:
            operand_chunks = operand.chunks(lane, rows, form.row_bytes * deep // CHUNK, k_major=True, may_continue=form.deep)
        chunks = []
        for place in places:
            access, addresses = operand.begin(lane, place, operand_chunks)
            begun.append(access)
            chunks.append(addresses)

        def load() -> np.ndarray:
            parts = [self._elements(self.units[addresses].view(np.uint8).reshape(*addresses.shape, CHUNK), element) for addresses in chunks]
            whole = [np.ascontiguousarray(part.T[:rows]) if transposed else part for part in parts]
            return whole[0] if len(whole) == 1 else np.concatenate(whole)

        return load

    def _elements(self, data: np.ndarray, element: str) -> np.ndarray:
        """Elements [rows, elements] of chunks [rows, chunks, 16 bytes]. Narrow ones lie 16 to a chunk, or two a byte at a depth of 64."""
        rows = len(data)
        if self.kind.depth == 64 and has_packed_words():
            return data.reshape(rows, -1)
        if self.kind.depth == 64:
            packed = np.repeat(data.reshape(rows, -1), 2, axis=1)
            packed[:, 1::2] >>= 4
            halves: np.ndarray = packed & 15
            return halves
        if element in _NARROW_BITS:
            wide: np.ndarray = widened(data, _NARROW_BITS[element]).reshape(rows, -1)
            return wide
        return np.ascontiguousarray(data.reshape(rows, -1)).view(_DTYPES.get(element, np.uint8))

    def _from_tensor_memory(self, cells: Sequence[Cells], layout: _Sums, form: Form) -> Callable[[], np.ndarray]:
        """Reads A from tensor memory, where elements are packed; types below 8 bits are in bytes."""

        def load() -> np.ndarray:
            words = np.concatenate([self.memory.data[part.index][layout.a_lanes] for part in cells])
            data = np.ascontiguousarray(words).view(np.uint8)
            if self.kind.depth == 64:
                return self._elements(data.reshape(len(data), -1, CHUNK), form.a)
            if form.a in _NARROW_BITS:
                # In a byte of tensor memory, a float of 4 bits has two unused bits on either side, one of 6 bits has them above.
                narrow: np.ndarray = data >> 2 & 15 if form.a == "e2m1" else data & 63
                return narrow
            return data.view(_DTYPES.get(form.a, np.uint8))

        return load

    # -- scales --------------------------------------------------------------------------------------------------

    def _scales_of_row(self, form: Form) -> int:
        """Scales of a row of A, or a column of B."""
        return self.scales * 3 // 2 if form.deep else self.scales

    def _check_scales(self, form: Form, lane: int) -> None:
        if not self.kind.scaled:
            return
        scales = self._scales_of_row(form)
        allowed = {1: (0, 1, 2, 3), 2: (0, 2), 3: (0, 1, 2, 3), 4: (0,), 6: (0, 2)}[scales]
        wrong = [number for number in form.scale_ids if number not in allowed]
        if wrong:
            self._fail(f"scale id {wrong[0]} with {scales} scales a row; {' or '.join(map(str, allowed))} are possible", lane)
        if form.scale_type == "ue4m3" and self.scales != 4:
            self._fail("scales of type ue4m3 belong to blocks of 16", lane)

    def _scale_cells(self, lane: int, places: Sequence[int], form: Form, who: Lanes) -> list[list[Cells]]:
        """Cells of the scales of A and of B. Each block has those of its rows of A, and all those of B."""
        cells = []
        for address, rows, number in zip(self.scale_addresses, (form.m // len(places), form.n), form.scale_ids, strict=False):
            start = int(address(who)[0])
            words = -(-(number + self._scales_of_row(form)) // _WORD_SCALES)
            columns = (words - 1) * _columns_of_scales(rows) + -(-rows // QUARTER)
            # Bits 30 and 31 of the address may tell the byte, as the id does.
            cells.append([self._cells(lane, place, start & 0x3FFFFFFF, (LANES, columns), (0,)) for place in places])
        return cells

    def _load_scales(self, cells: Cells, rows: int, number: int, form: Form, who: Lanes) -> np.ndarray:
        """The codes of the scales of some rows, from the byte ``number`` of each word on."""
        used = np.zeros((LANES, cells.columns[1] - cells.columns[0]), np.bool_)
        row, count = np.arange(rows), self._scales_of_row(form)
        word = np.arange(-(-(number + count) // _WORD_SCALES))
        columns = row[:, None] // QUARTER + word * _columns_of_scales(rows)
        for quarter in range(0, LANES, QUARTER):
            used[row[:, None] % QUARTER + quarter, columns] = True
        self.memory.check_written(self.inst, who, cells, used)
        words = self.memory.data[cells.index][row[:, None] % QUARTER, columns]
        codes = scales(np.ascontiguousarray(words).view(np.uint8).reshape(rows, -1))
        return codes[:, number : number + count]

    # -- metadata of a sparse A ----------------------------------------------------------------------------------

    def _metadata_cells(self, lane: int, places: Sequence[int], layout: _Sums, who: Lanes) -> list[Cells]:
        if self.metadata is None:
            return []
        address = int(self.metadata(who)[0])
        if address & 1:
            self._fail(f"the metadata of A begin in column {address & 0xFFFF}, which must be even", lane)
        lanes = LANES if layout.stationary else layout.extent[0]
        return [self._cells(lane, place, address, (lanes, _METADATA_COLUMNS), layout.bases) for place in places]

    def _chosen(self, cells: Cells, layout: _Sums, form: Form, a: np.ndarray, who: Lanes) -> np.ndarray:
        """Values of k of each element that a block's rows of A hold, [copies, rows, elements]."""
        halves = self.kind.depth <= _DEEPEST_SELECTED
        columns = np.array([form.selector]) if halves else np.arange(_METADATA_COLUMNS)
        copies = layout.bands if layout.stationary else 1
        used = np.zeros((cells.lanes[1] - cells.lanes[0], _METADATA_COLUMNS), np.bool_)
        lanes = [layout.a_rows + len(layout.a_rows) * copy for copy in range(copies)]
        for rows in lanes:
            used[np.ix_(rows, columns)] = True
        self.memory.check_written(self.inst, who, cells, used)
        words = self.memory.data[cells.index]
        nibbles = np.stack([nibbles_of(words[np.ix_(rows, columns)], halves) for rows in lanes])
        places, wrong = sparse_places(nibbles, self.kind.depth, a, _SIGNS.get(form.a, 0))
        if wrong is not None:
            self._fail(f"the metadata of row {wrong[1]} of A have the nibble 0b{wrong[0]:04b}, which has no meaning", int(who[0]))
        return places

    def _by_copies(self, form: Form, a: np.ndarray, b: np.ndarray, sums: np.ndarray, chosen: np.ndarray | None) -> np.ndarray:
        """A product by parts of the columns, each of which has its copy of A where A is in tensor memory and stationary."""
        copies = len(a) // form.m
        width = form.n // copies
        results = []
        for copy in range(copies):
            rows, columns = slice(copy * form.m, (copy + 1) * form.m), slice(copy * width, (copy + 1) * width)
            before = np.ascontiguousarray(sums[:, columns])
            if chosen is None:
                results.append(self._step(form, a[rows], b[columns], before, []))
            else:
                results.append(self._sparse_step(form, a[rows], b[columns], before, [], chosen[copy : copy + 1] if copies > 1 else chosen))
        return results[0] if copies == 1 else np.concatenate(results, axis=1)

    def _sparse_step(
        self, form: Form, a: np.ndarray, b: np.ndarray, sums: np.ndarray, scales: list[np.ndarray], chosen: np.ndarray
    ) -> np.ndarray:
        """Products that A leaves out take no part, so each row of A is multiplied by the values of B that it selects. ``chosen``: of each
        copy of the metadata, which belong to equal parts of the columns."""
        result = np.empty((len(a), len(b)), np.uint32)
        width = len(b) // len(chosen)
        for part, places in enumerate(chosen):
            columns = slice(part * width, (part + 1) * width)
            for first in range(0, len(a), _SPARSE_ROWS_AT_ONCE):
                rows = slice(first, first + _SPARSE_ROWS_AT_ONCE)
                right = b[columns][:, places[rows]].transpose(1, 0, 2)
                of_rows = [scales[0][rows, None], np.broadcast_to(scales[1], (len(right), *scales[1].shape))] if scales else []
                before = np.ascontiguousarray(sums[rows, None, columns])
                result[rows, columns] = self._step(form, a[rows, None], np.ascontiguousarray(right), before, of_rows)[:, 0]
        return result

    # -- arithmetic ----------------------------------------------------------------------------------------------

    def _scaled_step(
        self,
        form: Form,
        a: np.ndarray,
        b: np.ndarray,
        sums: np.ndarray,
        cells: Sequence[Sequence[Cells]],
        who: Lanes,
        chosen: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Each block multiplies its rows of A by all of B, with the scales of both that it has."""
        rows, results = form.m // len(cells[0]), []
        for number, (of_a, of_b) in enumerate(zip(*cells, strict=True)):
            own = slice(number * rows, (number + 1) * rows)
            scales = [
                self._load_scales(part, count, byte, form, who)
                for part, count, byte in zip((of_a, of_b), (rows, form.n), form.scale_ids, strict=True)
            ]
            if chosen:
                results.append(self._sparse_step(form, a[own], b, sums[own], scales, chosen[number]))
            else:
                results.append(self._step(form, a[own], b, sums[own], scales))
        return np.concatenate(results)

    def _step(self, form: Form, a: np.ndarray, b: np.ndarray, sums: np.ndarray, scales: list[np.ndarray]) -> np.ndarray:
        if form.sums == "s32" and not residue_products.adds_residues((form.a, form.b)):
            products = tensor_core.multiply_integers(a.astype(np.int16), b.astype(np.int16))
            total = tensor_core.accumulate_integers(sums.view(np.int32), products, saturate=form.saturates)
            return np.ascontiguousarray(total).view(np.uint32)
        arithmetic = self.binder.arithmetic
        if not arithmetic.is_real and scales:
            return residue_products.multiply_add_scaled(arithmetic, a, b, (form.a, form.b), sums, *scales)
        if not arithmetic.is_real:
            return residue_products.multiply_add(arithmetic, a, b, (form.a, form.b), sums, negated=form.negated, warpgroup=True)
        left, right = tensor_core.factor(a, form.a), tensor_core.factor(b, form.b)
        if form.negated:
            left = tensor_core.negated(left)
        if form.sums == "f16":
            addend = (sums & np.uint32(0xFFFF)).astype(np.uint16)
            if self.shift:
                addend = (addend.view(np.float16) * np.float16(2.0**-self.shift)).view(np.uint16)
            return tensor_core.multiply_half(left, right, addend).astype(np.uint32)
        addend = sums if not self.shift else (sums.view(np.float32) * np.float32(2.0**-self.shift)).view(np.uint32)
        if not scales:
            return tensor_core.multiply_float(left, right, addend)
        multiply_scaled = tensor_core.multiply_scaled if self.kind.depth == 32 else tensor_core.multiply_block_scaled
        return multiply_scaled(left, right, addend, *(tensor_core.scales(codes, form.scale_type) for codes in scales))


def _columns_of_scales(rows: int) -> int:
    """Columns from one word of four scales to the next: those of the words of 128 rows, or of 256."""
    return -(-rows // _SCALE_TILE) * _SCALE_TILE // QUARTER


@lru_cache(maxsize=256)
def _sums_of(form: Form, blocks: int, stationary: bool) -> _Sums:
    return _Sums(form, blocks, stationary)


class _Sums:
    """Place of D, as a matrix of all rows and columns, in the cells of each block."""

    def __init__(self, form: Form, blocks: int, stationary: bool) -> None:
        self.form, self.blocks, self.stationary = form, blocks, stationary
        rows = form.m // self.blocks
        self.bands = LANES // rows if self.blocks == 2 or stationary else 1
        """Parts of the columns of D, one below the other: two in lanes 0 to 63 and 64 to 127, or four."""
        self.sparse = self.blocks == 1 and rows == 64 and not stationary
        """True if rows lie in 16 lanes of each quarter."""
        self.bases = (0, 16) if self.sparse else (0,)
        columns = form.n // self.bands
        self.extent = (LANES - 16 if self.sparse else LANES, columns)
        lane = np.arange(self.extent[0])
        self.lanes_used = lane % QUARTER < 16 if self.sparse else np.ones(LANES, np.bool_)
        self.used = np.broadcast_to(self.lanes_used[:, None], self.extent)
        self.a_rows = np.flatnonzero(self.lanes_used) if self.bands == 1 else np.arange(rows)
        self.a_lanes = lane if stationary else self.a_rows
        """Lanes of A in tensor memory: of each row, or of each row of each copy, one for each part of the columns."""
        self.used_rows = np.broadcast_to(np.isin(lane, self.a_lanes)[:, None], (len(lane), form.row_bytes // 4))

    def gather(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The matrix from the cells of each block."""
        if self.bands > 1:
            whole = [np.concatenate(np.split(part, self.bands), axis=1) for part in parts]
        else:
            whole = [part[self.lanes_used] if self.sparse else part for part in parts]
        return np.ascontiguousarray(whole[0]) if len(whole) == 1 else np.concatenate(whole)

    def scatter(self, matrix: np.ndarray) -> list[np.ndarray]:
        """The cells of each block from the matrix."""
        parts = list(matrix.reshape(self.blocks, -1, self.form.n))
        if self.bands > 1:
            return [np.concatenate(np.split(part, self.bands, axis=1)) for part in parts]
        if not self.sparse:
            return parts
        spread = np.zeros(self.extent, np.uint32)
        spread[self.lanes_used] = parts[0]
        return [spread]
