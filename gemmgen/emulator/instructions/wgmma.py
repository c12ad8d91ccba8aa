"""wgmma: matrix products of a warpgroup (four warps) that run on their own until they are waited for.

PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": D[64, n] = A B + D, with B in shared memory and A there or in
registers. Warp w of a warpgroup holds rows 16w to 16w + 15 of D, and of A. Registers of A are tiles of 8 rows of 16 bytes as in
mma.sync; D has two elements side by side in two tiles of 8 rows for each 8 columns.

Of sparse products (``wgmma.mma_async.sp``), A holds half of the elements along k in as many bytes as a dense one, B is twice as deep, and
metadata come from a register of each lane, as those of mma.sp do (`gemmgen.emulator.instructions.sparse`). Like a register of A, it is read
while the operation runs: results on an H200 were wrong where it was loaded again before the wait. The sum of the kept products is that of
a dense instruction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemmgen.emulator import matrix_descriptor, residue_products, tensor_core
from gemmgen.emulator.arithmetic import FIELD
from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.engines.warpgroups import CHUNK_BYTES, GROUP_LANES, WARPS, Issue, Warpgroups
from gemmgen.emulator.errors import DivergentWarp, InvalidMatrix, UnknownInstruction
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.matrix import aligned, registers_in
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.instructions.sparse import Metadata
from gemmgen.emulator.instructions.warp import by_lanes, value_at
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction, Integer, Negated, Operand, Register, Vector

ROWS = 64
K_BYTES = 32
"""Bytes of a row of A that one instruction takes, for every type; of B, too, unless A is sparse."""
_INTEGERS, _FP8 = ("s8", "u8"), ("e4m3", "e5m2")
_ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
_DTYPES = {"f16": np.uint16, "bf16": np.uint16, "tf32": np.uint32, "e4m3": np.uint8, "e5m2": np.uint8, "s8": np.int8, "u8": np.uint8}
_SUMS = {
    "f16": ("f16", "f32"),
    "bf16": ("f32",),
    "tf32": ("f32",),
    **dict.fromkeys(_FP8, ("f16", "f32")),
    **dict.fromkeys(_INTEGERS, ("s32",)),
}
_MIXES = (_INTEGERS, _FP8)


def _warpgroups(binder: Binder) -> Warpgroups:
    warpgroups = binder.warpgroups
    assert warpgroups is not None
    return warpgroups


@instruction("wgmma", when=lambda inst: inst.modifiers == ("fence", "sync", "aligned"))
def fence(inst: Instruction, binder: Binder) -> Operation:
    """Orders register accesses before the next operations."""
    warpgroups = _warpgroups(binder)

    def run(lanes: Lanes) -> None:
        _whole_warpgroups(inst, binder, lanes)
        warpgroups.fence(lanes)

    return by_lanes(binder, run)


@instruction("wgmma", when=lambda inst: inst.modifiers == ("commit_group", "sync", "aligned"))
def commit_group(inst: Instruction, binder: Binder) -> Operation:
    """Closes the open group; later operations belong to the next group."""
    return by_lanes(binder, _warpgroups(binder).commit)


@instruction("wgmma", when=lambda inst: inst.modifiers == ("wait_group", "sync", "aligned"))
def wait_group(inst: Instruction, binder: Binder) -> Operation:
    """Ends all groups but the N latest."""
    warpgroups = _warpgroups(binder)
    (count,) = inst.operands
    if not isinstance(count, Integer) or count.value < 0:
        raise UnknownInstruction("wgmma.wait_group needs a constant", instruction=inst)
    newest = count.value
    return by_lanes(binder, lambda lanes: warpgroups.wait(inst, lanes, newest))


@instruction("wgmma", when=lambda inst: inst.has("mma_async"))
def mma_async(inst: Instruction, binder: Binder) -> Operation:
    """Starts D = A B + D."""
    product = _Product(inst, binder)
    return by_lanes(binder, product.start)


def _whole_warpgroups(inst: Instruction, binder: Binder, lanes: Lanes) -> np.ndarray:
    """The first lane of each warpgroup; raises DivergentWarp unless all its lanes are there."""
    geometry = binder.geometry
    inside = lanes % geometry.stride
    firsts: np.ndarray = lanes[inside % GROUP_LANES == 0]
    if len(firsts) * GROUP_LANES == len(lanes) and (firsts % geometry.stride + GROUP_LANES <= geometry.stride).all():
        return firsts
    groups, counts = np.unique(lanes - inside % GROUP_LANES, return_counts=True)
    partial = groups[counts < GROUP_LANES]
    missing = GROUP_LANES - int(counts[counts < GROUP_LANES][0])
    binder.fail(
        DivergentWarp,
        f"{'.'.join((inst.opcode, *inst.modifiers[:1]))} needs all 128 lanes of a warpgroup; {missing} have exited, are "
        "elsewhere or do not exist",
        inst,
        lanes[np.isin(lanes - inside % GROUP_LANES, partial)],
    )


class _Product:
    """One wgmma instruction: its operands and its arithmetic."""

    def __init__(self, inst: Instruction, binder: Binder) -> None:
        aligned(inst)
        self.inst, self.binder = inst, binder
        self.registers = binder.registers.arrays["b32"]
        self.sum_type, self.a_type, self.b_type = [each for each in inst.modifiers if each != "satfinite"][-3:]
        shape = next((m for m in inst.modifiers if m.startswith("m64n")), "m64n0k0")
        self.columns, k = (int(part) for part in shape[4:].split("k"))
        self.sparse = inst.has("sp")
        self._check(k)
        binder.require_real(inst, self.sum_type == "f16")
        self.depths = (k // 2 if self.sparse else k, k)
        d, a, b, *others = inst.operands
        self.metadata = self._metadata(others[:2]) if self.sparse else None
        scale_d, *immediates = others[2:] if self.sparse else others
        self.accumulators = self._rows(d, self.columns // (4 if self.sum_type == "f16" else 2))
        if len(set(self.accumulators)) < len(self.accumulators):
            raise UnknownInstruction("the accumulators of a wgmma must be different registers", instruction=inst)
        self.a_registers = self._rows(a, 4) if isinstance(a, Vector) else ()
        metadata_registers = self._rows(others[0], 1) if self.sparse else ()
        self.input_registers = (*self.a_registers, *metadata_registers)
        self.descriptors = [None if self.a_registers else self._descriptor(a), self._descriptor(b)]
        self.scale_d = self._scale(scale_d)
        flags = [operand.value for operand in immediates if isinstance(operand, Integer)]
        self.negated, self.transposed = self._flags(flags, len(immediates))
        if self.sum_type == "f16":
            self.zero: np.generic = np.uint16(0)
        else:
            self.zero = np.int32(0) if self.sum_type == "s32" else np.uint32(0)
        self.proxy = binder.engines.proxy

    # -- decoding ------------------------------------------------------------------------------------------------

    def _check(self, k: int) -> None:
        inst, a_type, b_type = self.inst, self.a_type, self.b_type
        integers = a_type in _INTEGERS
        partners = next((mix for mix in _MIXES if a_type in mix), (a_type,))
        columns = self.columns
        if (
            a_type not in _SUMS
            or b_type not in partners
            or self.sum_type not in _SUMS[a_type]
            or k * _ELEMENT_BYTES[a_type] != K_BYTES * (2 if self.sparse else 1)
            or not 8 <= columns <= 256
            or columns % 8
            or (integers and columns > 32 and columns % 16)
            or (inst.has("satfinite") and not integers)
        ):
            raise UnknownInstruction(f"{'.'.join((inst.opcode, *inst.modifiers))} is no form of wgmma", instruction=inst)

    def _rows(self, operand: Operand, wanted: int) -> tuple[int, ...]:
        rows = []
        for register in registers_in(operand):
            if not isinstance(register, Register) or self.binder.registers.width(register) != 4:
                raise UnknownInstruction("a fragment of wgmma is made of 32-bit registers", instruction=self.inst)
            rows.append(self.binder.registers.place(register)[1])
        if len(rows) != wanted:
            raise UnknownInstruction("the number of registers does not fit the shape", instruction=self.inst)
        return tuple(rows)

    def _descriptor(self, operand: Operand) -> Source:
        return self.binder.source(self.inst, operand, "u64")

    def _metadata(self, operands: Sequence[Operand]) -> Metadata:
        """The metadata of a sparse A."""
        if len(operands) != 2 or not isinstance(operands[0], Register) or not isinstance(operands[1], Integer):
            raise UnknownInstruction("a sparse wgmma has a register of metadata and a constant selector behind B", instruction=self.inst)
        return Metadata(self.inst, 8 * _ELEMENT_BYTES[self.a_type], self.depths[1], operands[1].value)

    def _scale(self, operand: Operand) -> tuple[Source, bool]:
        """The predicate scale-d, and whether it is negated."""
        register = operand.register if isinstance(operand, Negated) else operand
        return self.binder.source(self.inst, register, "pred"), isinstance(operand, Negated)

    def _flags(self, flags: list[int], given: int) -> tuple[tuple[bool, bool], tuple[bool, bool]]:
        """Flags of A and of B: negated, and not K-major."""
        halves = self.a_type in ("f16", "bf16")
        wanted = 0 if self.a_type in _INTEGERS else 2 + (2 - bool(self.a_registers) if halves else 0)
        scales, majors = flags[:2], flags[2:]
        if len(flags) != given or given != wanted or any(f not in (1, -1) for f in scales) or any(f not in (0, 1) for f in majors):
            raise UnknownInstruction(
                f"wgmma on {self.a_type} takes {wanted} constants after scale-d (1 or -1 to scale, 0 or 1 for the major order)",
                instruction=self.inst,
            )
        negated = (scales[0] < 0, scales[1] < 0) if scales else (False, False)
        majors = [0] * (2 - len(majors)) + majors
        return negated, (majors[0] == 1, majors[1] == 1)

    # -- issuing -------------------------------------------------------------------------------------------------

    def start(self, lanes: Lanes) -> None:
        """Issues the instruction for the warpgroups of these lanes."""
        groups = _whole_warpgroups(self.inst, self.binder, lanes)
        if not len(groups):
            return
        predicate, negated = self.scale_d
        accumulate = self._uniform(lanes, value_at(predicate, lanes), "scale-d")[:, 0] != negated
        reads = []
        addresses = []
        for which, source in enumerate(self.descriptors):
            if source is None:
                continue
            bits = self._uniform(lanes, value_at(source, lanes), "a matrix descriptor")[:, 0]
            chunks = self._chunks(groups, bits, which)
            addresses.append(chunks)
            reads.append(chunks.reshape(len(groups), -1))
        operands = (accumulate, *addresses)
        _warpgroups(self.binder).issue(self.inst, self, groups, operands, reads, self.input_registers, self.proxy)

    def _uniform(self, lanes: Lanes, values: np.ndarray, what: str) -> np.ndarray:
        """Values [groups, 1], which must be the same in all lanes of a warpgroup."""
        by_group = values.reshape(-1, GROUP_LANES)
        different = (by_group != by_group[:, :1]).any(axis=1)
        if different.any():
            self.binder.fail(
                InvalidMatrix,
                f"{what} differs between the threads of a warpgroup",
                self.inst,
                lanes.reshape(-1, GROUP_LANES)[different].ravel(),
            )
        return by_group[:, :1]

    def _chunks(self, groups: np.ndarray, bits: np.ndarray, which: int) -> np.ndarray:
        """Addresses of an operand's chunks in shared memory, one matrix of them a warpgroup."""
        extent = (ROWS, self.columns)[which]
        if self.transposed[which]:
            rows, row_chunks = self.depths[which], extent * 2 // CHUNK_BYTES
        else:
            rows, row_chunks = extent, self._k_bytes(which) // CHUNK_BYTES
        distinct, inverse = np.unique(bits, return_inverse=True)
        chunks = []
        for position, value in enumerate(distinct.tolist()):
            descriptor = matrix_descriptor.decode(value)
            addresses = matrix_descriptor.chunks(descriptor, rows, row_chunks, not self.transposed[which])
            self._check_place(groups[inverse == position], descriptor, addresses, "AB"[which])
            chunks.append(addresses)
        return np.stack(chunks)[inverse]

    def _k_bytes(self, which: int) -> int:
        """Bytes along k of a row of A or B."""
        return self.depths[which] * _ELEMENT_BYTES[self.a_type]

    def _check_place(self, groups: np.ndarray, descriptor: matrix_descriptor.MatrixDescriptor, addresses: np.ndarray, name: str) -> None:
        shared = self.binder.spaces.shared
        lanes = (groups[:, None] + np.arange(GROUP_LANES)).ravel()
        end = int(addresses.max()) + CHUNK_BYTES
        where = f"operand {name} begins at shared address 0x{descriptor.start - shared.first:x}"
        if int(addresses.min()) < shared.first or end > shared.size:
            reached = f"reaches to 0x{end - shared.first:x}"
            offsets = f"a leading offset of {descriptor.leading} and a stride of {descriptor.stride} bytes"
            message = f"{where} and {reached} with {offsets}; shared memory has {shared.size - shared.first} bytes"
            self.binder.fail(InvalidMatrix, message, self.inst, lanes)
        which = "AB".index(name)
        along_k = self._k_bytes(which)
        if descriptor.mode and not self.transposed[which] and descriptor.start % descriptor.span + along_k > descriptor.span:
            row = f"rows of {descriptor.span} bytes, as its swizzle has them"
            message = f"{where}, {descriptor.start % descriptor.span} bytes into {row}: {along_k} bytes along k reach beyond their end"
            self.binder.fail(InvalidMatrix, message, self.inst, lanes)
        # Without a base offset, chunks are found by bits of their addresses, whichever row of a pattern is the first (measured on an H200).
        missed = descriptor.misplacement() if descriptor.base_offset else 0
        if missed:
            pattern = f"its {descriptor.span}-byte swizzle, which repeats every {8 * descriptor.span} bytes"
            message = f"{where}, {missed} bytes into the pattern of {pattern} (base offset {descriptor.base_offset})"
            self.binder.fail(InvalidMatrix, message, self.inst, lanes)

    # -- arithmetic ----------------------------------------------------------------------------------------------

    def load(self, groups: np.ndarray) -> np.ndarray:
        """The accumulators as matrices [groups, 64, columns]."""
        words = self._take(self.accumulators, groups)
        eights = self.columns // 8
        if self.sum_type == "f16":
            parts = words.view(np.uint16).reshape(eights, 2, -1, WARPS, 8, 4, 2).transpose(2, 3, 1, 4, 0, 5, 6)
        else:
            parts = words.reshape(eights, 2, 2, -1, WARPS, 8, 4).transpose(3, 4, 1, 5, 0, 6, 2)
        matrices = np.ascontiguousarray(parts).reshape(len(groups), ROWS, self.columns)
        return matrices.view(np.int32) if self.sum_type == "s32" else matrices

    def store(self, groups: np.ndarray, sums: np.ndarray) -> None:
        """Matrices [groups, 64, columns] back to the accumulators."""
        parts = sums.reshape(len(groups), WARPS, 2, 8, self.columns // 8, 4, 2)
        if self.sum_type == "f16":
            words = np.ascontiguousarray(parts.transpose(4, 2, 0, 1, 3, 5, 6)).view(np.uint32)
        else:
            words = np.ascontiguousarray(parts.transpose(4, 2, 6, 0, 1, 3, 5)).view(np.uint32)
        lanes = (groups[:, None] + np.arange(GROUP_LANES)).ravel()
        for row, values in zip(self.accumulators, words.reshape(len(self.accumulators), -1), strict=True):
            self.registers[row][lanes] = values

    def _take(self, rows: tuple[int, ...], groups: np.ndarray) -> np.ndarray:
        """Registers of these warpgroups, one row of lanes each."""
        lanes = (groups[:, None] + np.arange(GROUP_LANES)).ravel()
        return np.stack([self.registers[row][lanes] for row in rows])

    def step(self, sums: np.ndarray, issue: Issue, chosen: np.ndarray) -> np.ndarray:
        """D = A B + D; operands are read now."""
        accumulate, *addresses = (operand[chosen] for operand in issue.operands)
        groups = issue.groups[chosen]
        if not accumulate.all():
            sums = np.where(accumulate[:, None, None], sums, self.zero)
        b = self._from_shared(groups, addresses[-1], 1)
        a = self._from_registers(groups) if self.a_registers else self._from_shared(groups, addresses[0], 0)
        if self.metadata is not None:
            # Values of k that elements of A belong to, [groups, 64, elements of a row].
            places = self.metadata.read(self._take(self.input_registers[-1:], groups), a).reshape(len(groups), ROWS, -1)
            if self._has_special(b):
                return self._sums_by_row(a, b, sums, places)
            # Zeros of A add nothing to finite sums.
            dense = np.zeros((*a.shape[:-1], self.depths[1]), a.dtype)
            np.put_along_axis(dense, places, a, axis=-1)
            a = dense
        return self._sums(a, b, sums)

    def _has_special(self, b: np.ndarray) -> bool:
        """True if a matrix has infinities or NaN."""
        if self.sum_type == "s32" or not self.binder.arithmetic.is_real:
            return False
        return tensor_core.factor(b, self.b_type).special is not None

    def _sums_by_row(self, a: np.ndarray, b: np.ndarray, sums: np.ndarray, places: np.ndarray) -> np.ndarray:
        """The sums of a sparse A, whose rows select different rows of B each, so that those that are left out take no part."""
        selected = np.take_along_axis(b[:, None], places[:, :, None], axis=3)
        rows = self._sums(a.reshape(-1, 1, a.shape[2]), selected.reshape(-1, *selected.shape[2:]), sums.reshape(-1, 1, self.columns))
        return rows.reshape(sums.shape)

    def _sums(self, a: np.ndarray, b: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """A B + D of stacks of matrices."""
        types = self.a_type, self.b_type
        if self.sum_type == "s32" and residue_products.adds_residues(types):
            return residue_products.multiply_add(FIELD, a, b, types, sums.view(np.uint32)).view(np.int32)
        if self.sum_type == "s32":
            products = tensor_core.multiply_integers(a, b)
            return tensor_core.accumulate_integers(sums, products, saturate=self.inst.has("satfinite"))
        arithmetic = self.binder.arithmetic
        if not arithmetic.is_real:
            negated = self.negated[0] != self.negated[1]
            return residue_products.multiply_add(arithmetic, a, b, types, sums, negated=negated, warpgroup=True)
        left, right = tensor_core.factor(a, self.a_type), tensor_core.factor(b, self.b_type)
        if self.negated[0] != self.negated[1]:
            left = tensor_core.negated(left)
        step = tensor_core.FP8_STEP if self.a_type in _FP8 else tensor_core.FLOAT_STEP
        return (tensor_core.multiply_half if self.sum_type == "f16" else tensor_core.multiply_float)(left, right, sums, step)

    def _from_shared(self, groups: np.ndarray, addresses: np.ndarray, which: int) -> np.ndarray:
        """An operand as matrices [groups, rows, k]."""
        shape = addresses.shape
        data = _warpgroups(self.binder).gather(groups, addresses.reshape(len(groups), -1))
        elements = data.view(_DTYPES[(self.a_type, self.b_type)[which]]).reshape(*shape[:-1], -1)
        return np.ascontiguousarray(elements.swapaxes(1, 2)) if self.transposed[which] else elements

    def _from_registers(self, groups: np.ndarray) -> np.ndarray:
        """A as matrices [groups, 64, k]: tiles of 8 rows of 16 bytes, down the 16 rows of a warp first, then along k."""
        words = self._take(self.a_registers, groups).reshape(2, 2, -1, WARPS, 8, 4)
        tiles = np.ascontiguousarray(words.transpose(2, 3, 1, 4, 0, 5))
        return tiles.view(_DTYPES[self.a_type]).reshape(len(groups), ROWS, self.depths[0])
