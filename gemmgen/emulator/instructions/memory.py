"""ld and st in every state space, vectors included; prefetches do nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.fused_access import fused
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.memory import LOCAL_WINDOW, SHARED_WINDOW, UNIT_BYTES, Access, Space
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Address, Instruction, Operand, Register, Sink, Symbol, Vector
from gemmgen.emulator.registers import DTYPES, widened

Transfer = Callable[[Lanes | None, np.ndarray], None]
"""`transfer(lanes, addresses)` moves the data of these lanes (None: all)."""

_SPACES = ("global", "shared", "local", "param", "const")


def space_name(inst: Instruction, address: Operand, binder: Binder) -> str:
    """The state space an instruction names; `generic` if none."""
    for modifier in inst.modifiers:
        stem = modifier.split("::")[0]
        if stem in _SPACES:
            if stem == "param" and isinstance(address, Address) and isinstance(address.base, Symbol):
                placed = binder.program.symbols.get(address.base.name)
                if placed is not None and placed.variable.space == "local":
                    return "local"
            return stem
    return "generic"


def through_space(inst: Instruction, binder: Binder, address: Operand, make: Callable[[Space], Transfer]) -> Operation:
    """An operation that moves data through the space an instruction names, or through each lane's own if generic."""
    all_addresses, some_addresses = binder.addresses(inst, address)
    transfer = in_space(inst, binder, address, make)
    return Operation(
        lambda: transfer(None, all_addresses()),
        lambda lanes: transfer(lanes, some_addresses(lanes)),
    )


def in_space(inst: Instruction, binder: Binder, address: Operand, make: Callable[[Space], Transfer]) -> Transfer:
    """The transfer through the space that an instruction names, or through each lane's own if generic."""
    name = space_name(inst, address, binder)
    spaces = binder.spaces
    if name == "shared":
        return make(spaces.shared)
    if name == "local":
        return make(spaces.local)
    if name != "generic":
        return make(spaces.global_)
    return _generic(make(spaces.global_), make(spaces.shared), make(spaces.local))


def _generic(to_global: Transfer, to_shared: Transfer, to_local: Transfer) -> Transfer:
    shared, local, high = SHARED_WINDOW >> 32, LOCAL_WINDOW >> 32, np.uint64(32)

    def transfer(lanes: Lanes | None, addresses: np.ndarray) -> None:
        windows = addresses >> high
        lowest, highest = int(windows.min()), int(windows.max())
        if lowest > local or highest < shared:
            to_global(lanes, addresses)
            return
        if lowest == highest == shared:
            to_shared(lanes, addresses - np.uint64(SHARED_WINDOW))
            return
        if lowest == highest == local:
            to_local(lanes, addresses - np.uint64(LOCAL_WINDOW))
            return
        everyone = np.arange(len(addresses)) if lanes is None else lanes
        in_shared, in_local = windows == np.uint64(shared), windows == np.uint64(local)
        for chosen, base, go in (
            (in_shared, SHARED_WINDOW, to_shared),
            (in_local, LOCAL_WINDOW, to_local),
            (~(in_shared | in_local), 0, to_global),
        ):
            if chosen.any():
                go(everyone[chosen], addresses[chosen] - np.uint64(base))

    return transfer


def _vector_elements(operand: Operand) -> tuple[Operand, ...]:
    return operand.elements if isinstance(operand, Vector) else (operand,)


def _check_width(inst: Instruction, elements: Sequence[Operand]) -> None:
    word = inst.first_of(("v2", "v4", "v8"))
    if len(elements) != (int(word[1]) if word else 1):
        raise UnknownInstruction("the number of registers does not fit the vector", instruction=inst)


@instruction("ld", "ldu")
def load(inst: Instruction, binder: Binder) -> Operation:
    """Reads one to eight elements into registers, extended to their width."""
    elements = _vector_elements(inst.operands[0])
    _check_width(inst, elements)
    type_name = inst.type
    size = TYPE_BYTES[type_name]
    if size > 8:
        raise UnknownInstruction("128-bit registers are not implemented", instruction=inst)
    access = Access(inst, "load", size * len(elements), size)
    # Floating-point values are moved as bits: in a wider register zeros lie above them.
    moved = type_name if type_name[0] in "us" else f"b{size * 8}"
    targets: list[np.ndarray | None] = []
    for element in elements:
        if isinstance(element, Sink):
            targets.append(None)
            continue
        assert isinstance(element, Register)
        targets.append(binder.registers.row(element, widened(moved, binder.registers.width(element))))
    if len(elements) == 1:
        operation = through_space(inst, binder, inst.operands[1], lambda space: _load_scalar(space, access, targets[0], DTYPES[moved]))
        if targets[0] is not None and size == targets[0].itemsize and space_name(inst, inst.operands[1], binder) in ("param", "const"):
            return _same_for_all(operation, binder, inst.operands[1], access, targets[0])
        return operation
    block = _adjacent_rows(binder, elements)
    return through_space(
        inst,
        binder,
        inst.operands[1],
        lambda space: _load_vector(space, access, targets, np.dtype(DTYPES[moved]), block),
    )


def _same_for_all(operation: Operation, binder: Binder, address: Operand, access: Access, target: np.ndarray) -> Operation:
    """The load of a parameter or constant at an address that is the same for all lanes, done once while nobody watches those."""
    if not isinstance(address, Address) or not isinstance(address.base, Symbol):
        return operation
    placed = binder.program.symbols.get(address.base.name)
    if placed is None or placed.variable.space not in ("param", "const"):
        return operation
    space, width = binder.spaces.global_, access.width
    offset = placed.offset + address.base.offset + address.offset
    raw, every = target.view(f"u{width}"), operation.full

    def full() -> None:
        if any(observer.sees_parameters for observer in space.observers) or not space.holds(offset, width):
            every()
        else:
            raw.fill(space.units[width][offset // width])

    return Operation(full, operation.some)


def _load_scalar(space: Space, access: Access, target: np.ndarray | None, dtype: type[np.generic]) -> Transfer:
    units, width = space.units, access.width
    direct = target is not None and target.itemsize == width and target.flags.c_contiguous
    raw_row = target.view(f"u{width}") if target is not None and direct else None
    narrow = np.dtype(dtype)
    natively = fused(space, access, [target], narrow.kind == "i") if target is not None else None

    def transfer(lanes: Lanes | None, addresses: np.ndarray) -> None:
        if natively is not None and natively(lanes, addresses):
            return
        index = space.locate(access, lanes, addresses)
        if lanes is None and raw_row is not None:
            units[width].take(index, None, raw_row, "wrap")
        elif target is not None:
            values = units[width][index]
            target[... if lanes is None else lanes] = values.view(target.dtype if direct else narrow)

    return transfer


def _adjacent_rows(binder: Binder, elements: Sequence[Operand]) -> np.ndarray | None:
    """The rows of a vector's registers as one array, if they are neighbours."""
    places = [binder.registers.place(element) for element in elements if isinstance(element, Register)]
    name, first = places[0] if places else ("", 0)
    if len(places) != len(elements) or places != [(name, first + step) for step in range(len(elements))]:
        return None
    return binder.registers.arrays[name][first : first + len(elements)]


def _load_vector(space: Space, access: Access, targets: list[np.ndarray | None], dtype: np.dtype, block: np.ndarray | None) -> Transfer:
    units = space.units
    unit = min(access.width, UNIT_BYTES)
    pieces = access.width // unit
    per_piece = len(targets) // pieces
    if block is not None and block.itemsize != dtype.itemsize:
        block = None
    raw = np.dtype(f"u{dtype.itemsize}")
    natively = fused(space, access, targets, dtype.kind == "i")

    def transfer(lanes: Lanes | None, addresses: np.ndarray) -> None:
        if natively is not None and natively(lanes, addresses):
            return
        index = space.locate(access, lanes, addresses)
        for piece in range(pieces):
            values = units[unit].take(index + piece if piece else index, None, None, "wrap")
            if lanes is None and block is not None:
                rows = block[piece * per_piece : (piece + 1) * per_piece]
                np.copyto(rows, values.view(raw).reshape(-1, per_piece).T)
                continue
            columns = values.view(dtype).reshape(-1, per_piece)
            for column in range(per_piece):
                target = targets[piece * per_piece + column]
                if target is not None:
                    value = columns[:, column]
                    if target.dtype.itemsize == value.dtype.itemsize:
                        value = value.view(target.dtype) if value.flags.c_contiguous else value.copy().view(target.dtype)
                    target[... if lanes is None else lanes] = value

    return transfer


@instruction("st")
def store(inst: Instruction, binder: Binder) -> Operation:
    """Writes the low part of one to eight registers."""
    elements = _vector_elements(inst.operands[1])
    _check_width(inst, elements)
    type_name = inst.type
    size = TYPE_BYTES[type_name]
    if size > 8:
        raise UnknownInstruction("128-bit registers are not implemented", instruction=inst)
    access = Access(inst, "store", size * len(elements), size)
    raw = f"b{size * 8}"
    sources = [binder.source(inst, element, type_name if not isinstance(element, Register) else raw) for element in elements]
    sources = [source if isinstance(source, np.ndarray) else source.view(DTYPES[raw]) for source in sources]
    access.stored = lambda lanes: _stored_bytes(sources, size, lanes)
    if len(elements) == 1:
        return through_space(inst, binder, inst.operands[0], lambda space: _store_scalar(space, access, sources[0]))
    return through_space(inst, binder, inst.operands[0], lambda space: _store_vector(space, access, sources))


def _stored_bytes(sources: list[Source], size: int, lanes: Lanes) -> np.ndarray:
    """Bytes that lanes are about to store, one row a lane."""
    columns = np.empty((len(lanes), len(sources)), f"u{size}")
    for column, source in enumerate(sources):
        columns[:, column] = source[lanes] if isinstance(source, np.ndarray) else source
    return columns.view(np.uint8)


def _rows(sources: Sequence[Source], space: Space) -> list[np.ndarray]:
    """The values of all lanes, constants repeated."""
    return [source if isinstance(source, np.ndarray) else np.full(space.geometry.lanes, source) for source in sources]


def _store_scalar(space: Space, access: Access, source: Source) -> Transfer:
    units, width = space.units, access.width
    is_row = isinstance(source, np.ndarray)
    natively = fused(space, access, _rows([source], space))

    def transfer(lanes: Lanes | None, addresses: np.ndarray) -> None:
        if natively is not None and natively(lanes, addresses):
            return
        index = space.locate(access, lanes, addresses)
        units[width][index] = source if lanes is None or not is_row else source[lanes]

    return transfer


def _store_vector(space: Space, access: Access, sources: list[Source]) -> Transfer:
    units = space.units
    unit = min(access.width, UNIT_BYTES)
    pieces = access.width // unit
    per_piece = len(sources) // pieces
    dtype = np.dtype(f"u{access.element_bytes}")
    natively = fused(space, access, _rows(sources, space))

    def transfer(lanes: Lanes | None, addresses: np.ndarray) -> None:
        if natively is not None and natively(lanes, addresses):
            return
        index = space.locate(access, lanes, addresses)
        for piece in range(pieces):
            memory = units[unit]
            columns = np.empty((len(index), per_piece), dtype)
            for column in range(per_piece):
                source = sources[piece * per_piece + column]
                columns[:, column] = source[lanes] if lanes is not None and isinstance(source, np.ndarray) else source
            memory[index + piece if piece else index] = columns.view(memory.dtype)[:, 0]

    return transfer


@instruction("prefetch", "prefetchu", "discard", "applypriority", "createpolicy")
def prefetch(inst: Instruction, binder: Binder) -> Operation:
    """Hints to the caches: no effect on results."""
    if inst.opcode in ("discard",):
        raise UnknownInstruction("discard destroys data; it is not implemented", instruction=inst)
    return Operation(lambda: None, lambda lanes: None)
