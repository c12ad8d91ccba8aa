"""From a decoded instruction to two closures over register rows: one for all lanes, one for some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from gemmgen.emulator import residues
from gemmgen.emulator.arithmetic import REAL, Arithmetic
from gemmgen.emulator.call_graph import function_address
from gemmgen.emulator.data_flow import DataFlow
from gemmgen.emulator.errors import EmulatorError, NoFieldMeaning, UnknownInstruction
from gemmgen.emulator.geometry import Geometry, Lanes
from gemmgen.emulator.memory import GLOBAL_BASE, Spaces
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import (
    TYPE_BYTES,
    Address,
    Float,
    Instruction,
    Integer,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
)
from gemmgen.emulator.registers import DTYPES, RegisterFile
from gemmgen.emulator.special_registers import SpecialRegisters
from gemmgen.emulator.textures import PlacedTexture

if TYPE_CHECKING:
    from gemmgen.emulator.engines import Engines
    from gemmgen.emulator.engines.tensor_loads import TensorLoads
    from gemmgen.emulator.engines.warpgroups import Warpgroups
    from gemmgen.emulator.in_flight import InFlight

Source = Any
"""Value that an operand reads: a row of lanes (ndarray), or a NumPy scalar that all lanes share."""

Compute = Callable[..., Any]
"""`compute(*sources, out)`: writes to `out` if it is an array, returns the result either way (the ufunc convention)."""


class Stack(Protocol):
    """The calls of functions that call themselves."""

    def clear(self, lanes: Lanes | None) -> None:
        """Fresh lanes (None: all) have called nothing."""


class Binder:
    """Context of handlers: operands as rows, memory, geometry."""

    def __init__(
        self,
        program: Program,
        geometry: Geometry,
        registers: RegisterFile,
        spaces: Spaces,
        specials: SpecialRegisters,
        arithmetic: Arithmetic = REAL,
    ) -> None:
        self.program = program
        self.arithmetic = arithmetic
        self.geometry = geometry
        self.registers = registers
        self.spaces = spaces
        self.specials = specials
        self.frames: dict[str, Stack] = {}
        """The stacks of functions that call themselves."""
        self.in_flight: InFlight | None = None
        """Writes of asynchronous copies that are still to come; made by the first such instruction."""
        self.textures: Sequence[PlacedTexture] = ()
        """The textures of the launch, by handle."""
        self.warpgroups: Warpgroups | None = None
        """The wgmma operations in flight; made with a machine whose program has any."""
        self.tensor_loads: TensorLoads | None = None
        """The registers that loads of tensor memory are about to write; made with a machine whose program has any."""
        self.make_engines: Callable[[], Engines] | None = None
        self.started_engines: Engines | None = None
        """The engines, once an instruction that needs them has been bound."""

    @cached_property
    def data_flow(self) -> DataFlow:
        """The writers of registers, made when first asked for."""
        return DataFlow(self.program)

    @property
    def engines(self) -> Engines:
        """The machine's engines, started with the first use."""
        if self.started_engines is None:
            assert self.make_engines is not None
            self.started_engines = self.make_engines()
        return self.started_engines

    # -- operands ----------------------------------------------------------------------------------------------

    def source(self, inst: Instruction, operand: Operand, type_name: str) -> Source:
        """An operand read as a type."""
        dtype = DTYPES[type_name]
        match operand:
            case Register():
                try:
                    return self.registers.row(operand, type_name)
                except ValueError as error:
                    raise UnknownInstruction(str(error), instruction=inst) from None
            case Integer(value):
                if type_name == "pred":
                    return np.bool_(value)
                if np.issubdtype(dtype, np.floating):
                    return dtype(value)
                return _integer_scalar(value, dtype)
            case Float(bits, width):
                return self._float_scalar(inst, bits, width, type_name)
            case Special(name):
                row = self.specials.row(name)
                if row is None:
                    raise UnknownInstruction(f"special register {name}", instruction=inst)
                return row if row.dtype == dtype else row.astype(dtype) if row.dtype.kind == "b" else row.view(dtype)
            case Symbol():
                address = self.address_of(inst, operand)
                if self._in_clusters(operand) and dtype().itemsize >= 4:
                    return self.specials.shared_addresses(address, dtype().itemsize).view(dtype)
                return _integer_scalar(address, dtype)
            case _:
                raise UnknownInstruction(f"operand {operand} where a value is expected", instruction=inst)

    def _float_scalar(self, inst: Instruction, bits: int, width: int, type_name: str) -> np.generic:
        dtype = np.dtype(DTYPES[type_name])
        if not self.arithmetic.is_real:
            value = np.uint32(bits).view(np.float32) if width == 32 else np.uint64(bits).view(np.float64)
            if type_name in ("f32", "b32"):
                residue: np.generic = residues.without_code(residues.of_float(float(value)))
                if self.arithmetic.comparators and value != self.arithmetic.neutral:
                    residue = residues.opaque("literal", [residue])[0]
                return residue.view(dtype)
        if width == 64 and type_name == "f32":
            return np.float32(np.uint64(bits).view(np.float64))
        if width != dtype.itemsize * 8:
            raise UnknownInstruction(f"a {width}-bit literal where .{type_name} is expected", instruction=inst)
        scalar: np.generic = (np.uint32(bits) if width == 32 else np.uint64(bits)).view(dtype)
        return scalar

    def address_of(self, inst: Instruction, symbol: Symbol) -> int:
        """The address of a variable in its own space (global, const and param variables: a generic address)."""
        placed = self.program.symbols.get(symbol.name)
        if placed is None:
            address = function_address(self.program.module, symbol.name)
            if address is not None:
                return address
            raise UnknownInstruction(f"{symbol.name} is no variable of this kernel", instruction=inst)
        base = placed.offset
        if placed.variable.space in ("global", "const", "param"):
            base += GLOBAL_BASE
        return base + symbol.offset

    def _in_clusters(self, symbol: Symbol) -> bool:
        """True for shared variables of programs whose addresses of them hold the block's rank."""
        placed = self.program.symbols.get(symbol.name)
        return self.program.names_clusters and placed is not None and placed.variable.space == "shared"

    def target(self, inst: Instruction, operand: Operand, type_name: str) -> np.ndarray | None:
        """The row an operand writes, seen as a type of the register's own width; None for `_`."""
        if isinstance(operand, Sink):
            return None
        if not isinstance(operand, Register):
            raise UnknownInstruction(f"{operand} as a destination", instruction=inst)
        width = 1 if type_name == "pred" else TYPE_BYTES[type_name]
        if self.registers.width(operand) != width:
            raise UnknownInstruction(f"the width of {operand.name} does not match .{type_name}", instruction=inst)
        return self.registers.row(operand, type_name)

    def addresses(self, inst: Instruction, address: Operand) -> tuple[Callable[[], np.ndarray], Callable[[Lanes], np.ndarray]]:
        """The addresses of `[base + offset]`, for all lanes and for some."""
        if not isinstance(address, Address):
            raise UnknownInstruction("a memory operand is expected", instruction=inst)
        base = address.base
        if isinstance(base, Register):
            width = self.registers.width(base)
            if width not in (4, 8):
                raise UnknownInstruction(f"{base.name} is no address register", instruction=inst)
            row = self.registers.row(base, "u64" if width == 8 else "u32")
            if address.offset == 0:
                return (lambda: row), (lambda lanes: row[lanes])
            offset = _integer_scalar(address.offset, row.dtype.type)
            return (lambda: row + offset), (lambda lanes: row[lanes] + offset)
        if isinstance(base, Symbol) and self._in_clusters(base):
            own = self.specials.shared_addresses(self.address_of(inst, base) + address.offset, 8)
            return (lambda: own), (lambda lanes: own[lanes])
        if isinstance(base, Symbol):
            value = self.address_of(inst, Symbol(base.name, base.offset + address.offset))
        elif isinstance(base, Integer):
            value = base.value + address.offset
        else:
            raise UnknownInstruction("an address must be a register or a variable", instruction=inst)
        constant = np.full(self.geometry.lanes, value & (2**64 - 1), np.uint64)
        return (lambda: constant), (lambda lanes: constant[: len(lanes)])

    # -- building operations -----------------------------------------------------------------------------------

    def elementwise(self, target: np.ndarray | None, compute: Compute, sources: Sequence[Source]) -> Operation:
        """An operation that computes each lane's result from the same lane's sources."""
        if target is None:
            return Operation(_nothing, _nothing_for)
        row = target
        rows = [isinstance(source, np.ndarray) for source in sources]
        if rows == [True, True]:
            first, second = sources
            return Operation(
                lambda: compute(first, second, row),
                lambda lanes: row.__setitem__(lanes, compute(first[lanes], second[lanes], None)),
            )
        if rows == [True]:
            (only,) = sources
            return Operation(
                lambda: compute(only, row),
                lambda lanes: row.__setitem__(lanes, compute(only[lanes], None)),
            )
        everything = (*sources, row)

        def full() -> None:
            compute(*everything)

        def some(lanes: Lanes) -> None:
            row[lanes] = compute(*[s[lanes] if r else s for s, r in zip(sources, rows, strict=True)], None)

        return Operation(full, some)

    def gathered(self, targets: Sequence[np.ndarray | None], compute: Compute, sources: Sequence[Source]) -> Operation:
        """Like `elementwise`, for `compute(*sources)` that returns one new array a target (or one array, if there is one)."""
        rows = [isinstance(source, np.ndarray) for source in sources]
        if len(targets) == 1:
            target = targets[0]
            if target is None:
                return Operation(_nothing, _nothing_for)
            return Operation(
                lambda: target.__setitem__(..., compute(*sources)),
                lambda lanes: target.__setitem__(lanes, compute(*[s[lanes] if r else s for s, r in zip(sources, rows, strict=True)])),
            )

        def full() -> None:
            for target, result in zip(targets, compute(*sources), strict=True):
                if target is not None:
                    target[...] = result

        def some(lanes: Lanes) -> None:
            results = compute(*[s[lanes] if r else s for s, r in zip(sources, rows, strict=True)])
            for target, result in zip(targets, results, strict=True):
                if target is not None:
                    target[lanes] = result

        return Operation(full, some)

    def computed(self, inst: Instruction, compute: Compute, result: str, *types: str) -> Operation:
        """The first operand, of type ``result``, becomes ``compute`` of the others: all of one type, or of as many types."""
        operands = inst.operands[1:]
        kinds = types * len(operands) if len(types) == 1 else types
        sources = [self.source(inst, operand, kind) for operand, kind in zip(operands, kinds, strict=True)]
        return self.gathered([self.target(inst, inst.operands[0], result)], compute, sources)

    def guarded(self, inst: Instruction, operation: Operation) -> Operation:
        """The operation for those lanes only whose guard holds."""
        if inst.guard is None:
            return operation
        row = self.registers.row(inst.guard, "pred")
        negated, lanes_total = inst.guard_negated, self.geometry.lanes
        full_operation, some_operation = operation

        def full() -> None:
            holds = ~row if negated else row
            lanes = holds.nonzero()[0]
            if len(lanes) == lanes_total:
                full_operation()
            elif len(lanes):
                some_operation(lanes)

        def some(lanes: Lanes) -> None:
            holds = row[lanes]
            chosen = lanes[~holds if negated else holds]
            if len(chosen):
                some_operation(chosen)

        return Operation(full, some)

    def require_real(self, inst: Instruction, needed: bool) -> None:
        """Raises UnknownInstruction if the instruction needs real arithmetic, but the machine computes with something else."""
        if needed and not self.arithmetic.is_real:
            name = ".".join((inst.opcode, *inst.modifiers))
            raise NoFieldMeaning(f"{name} has no meaning over a finite field", instruction=inst)

    def fail(self, kind: type[EmulatorError], message: str, inst: Instruction, lanes: Lanes) -> NoReturn:
        """Raises an error that happened to these lanes."""
        raise kind(message, instruction=inst, threads=self.geometry.describe(lanes))


def _nothing() -> None:
    return None


def _nothing_for(lanes: Lanes) -> None:
    return None


def _integer_scalar(value: int, dtype: type[np.generic]) -> np.generic:
    """An integer cut to a type's width, as C would."""
    size = np.dtype(dtype).itemsize
    unsigned = np.dtype(f"u{size}").type
    scalar: np.generic = unsigned(value & ((1 << 8 * size) - 1)).view(dtype)
    return scalar
