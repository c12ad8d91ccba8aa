"""A kernel made ready to run: calls expanded, symbols placed, basic blocks cut. Nothing here depends on a launch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from gemmgen.emulator.blocks import BasicBlock, cut
from gemmgen.emulator.errors import BadLaunch, ParseError, UnknownInstruction
from gemmgen.emulator.ptx import parse
from gemmgen.emulator.ptx.syntax import (
    TYPE_BYTES,
    Address,
    Function,
    Group,
    Instruction,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    Variable,
    Vector,
    registers_of,
)

MAX_CALL_DEPTH = 32
MAX_INSTRUCTIONS = 2_000_000
SHARED_GAP = 1024
"""Bytes left free between shared variables, so that an overrun is not taken for an access to the next one. A multiple of the row of
banks and of every swizzle, so that both see the addresses that they would see without gaps."""
_SHARED_ADDRESSES = 1 << 18
"""Matrix descriptors know no shared addresses from here on."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A variable and the byte offset in its space where it lies."""

    variable: Variable
    offset: int


@dataclass(frozen=True, slots=True)
class Program:
    """One entry of a module, ready to run."""

    module: Module
    entry: Function
    blocks: tuple[BasicBlock, ...]
    registers: dict[str, tuple[Register, ...]]
    symbols: dict[str, Placed]
    parameter_bytes: int
    static_bytes: int
    shared_bytes: int
    dynamic_shared_offset: int
    local_bytes: int
    polls: bool
    shared_gaps: tuple[tuple[int, int], ...] = ()
    """Bytes [start, stop) of shared memory that lie between variables; sizes and `dynamic_shared_offset` do not count them."""
    shared_gap_bytes: int = 0
    """What the gaps add to the addresses of the last variable."""


def register_class(type_name: str) -> str:
    """Which of the register arrays holds a type: pred, b16, b32, b64, b128."""
    return {"pred": "pred", "b8": "b16", "u8": "b16", "s8": "b16"}.get(type_name) or {
        2: "b16", 4: "b32", 8: "b64", 16: "b128",
    }[TYPE_BYTES[type_name]]  # fmt: skip


@lru_cache(maxsize=64)
def link(text: str, entry: str | None) -> Program:
    """The program of one entry. `entry` None means the only one. Cached by text and name."""
    module = parse(text)
    entries = [name for name, function in module.functions.items() if function.is_entry]
    if entry is None:
        if len(entries) != 1:
            raise BadLaunch(f"the module has {len(entries)} entries ({', '.join(entries) or 'none'}): name one")
        entry = entries[0]
    if entry not in entries:
        raise BadLaunch(f"no entry {entry!r} in the module; it has: {', '.join(entries) or 'none'}")
    return _Linker(module, module.functions[entry]).program()


@dataclass(slots=True)
class _Flat:
    """The expanded code: instructions whose branch targets are unique label strings."""

    body: list[Instruction]
    labels: dict[str, int]


class _Linker:
    def __init__(self, module: Module, entry: Function) -> None:
        self.module = module
        self.entry = entry
        self.flat = _Flat([], {})
        self.branch_targets: dict[str, tuple[str, ...]] = {}
        self.symbols: dict[str, Placed] = {}
        self.local_bytes = 0
        self.shared: list[Variable] = []
        self.instances = 0

    def program(self) -> Program:
        parameter_bytes = self._place_parameters()
        static_bytes = self._place_module_variables(parameter_bytes)
        self._expand(self.entry, "", {}, 0)
        self._append_final_return()
        shared_bytes, dynamic_offset, gaps, gap_bytes = self._place_shared()
        blocks = cut(self.flat.body, self.flat.labels, self.branch_targets)
        return Program(
            self.module, self.entry, blocks, self._collect_registers(), self.symbols, parameter_bytes, static_bytes,
            shared_bytes, dynamic_offset, _align(self.local_bytes, 16), any(block.polling for block in blocks),
            gaps, gap_bytes,
        )  # fmt: skip

    # -- placing -----------------------------------------------------------------------------------------------

    def _place_parameters(self) -> int:
        offset = 0
        for parameter in self.entry.parameters:
            offset = _align(offset, parameter.alignment)
            self.symbols[parameter.name] = Placed(parameter, offset)
            offset += parameter.size
        return _align(offset, 256) if offset else 256

    def _place_module_variables(self, offset: int) -> int:
        # Read-only and writable variables are separate regions; a guard lies after each variable.
        for variable in self.module.variables.values():
            if variable.space in ("global", "const"):
                if variable.external:
                    continue
                offset = _align(offset, max(256, variable.alignment))
                self.symbols[variable.name] = Placed(variable, offset)
                offset += variable.size + 256
        return _align(offset, 256)

    def _place_shared(self) -> tuple[int, int, tuple[tuple[int, int], ...], int]:
        mentioned = {name for instruction in self.flat.body for name in _symbols_of(instruction.operands)}
        declared = list(self.module.variables.values()) + self.shared
        candidates = [v for v in declared if v.space == "shared" and v.name in mentioned]
        dynamic = [variable for variable in candidates if variable.external or variable.size == 0]
        fixed = [variable for variable in candidates if variable not in dynamic]
        total = sum(_align(variable.size, variable.alignment) for variable in fixed)
        steps = max(len(fixed) - 1 + bool(dynamic), 1)
        gap = SHARED_GAP if total + steps * SHARED_GAP <= _SHARED_ADDRESSES // 2 else 0
        gaps = []
        offset = added = 0
        for variable in fixed:
            start = _align(offset, variable.alignment)
            if offset and gap:
                gaps.append((offset + added, start + added + gap))
                added += gap
            self.symbols[variable.name] = Placed(variable, start + added)
            offset = start + variable.size
        dynamic_offset = _align(offset, max([16, *(v.alignment for v in dynamic)]))
        if dynamic and offset and gap:
            gaps.append((offset + added, dynamic_offset + added + gap))
            added += gap
        for variable in dynamic:
            self.symbols[variable.name] = Placed(variable, dynamic_offset + added)
        return offset, dynamic_offset, tuple(gaps), added

    def _place_local(self, variable: Variable, name: str) -> None:
        self.local_bytes = _align(self.local_bytes, variable.alignment)
        self.symbols[name] = Placed(replace(variable, name=name, space="local"), self.local_bytes)
        self.local_bytes += variable.size

    # -- expanding calls ---------------------------------------------------------------------------------------

    def _expand(self, function: Function, prefix: str, bindings: dict[str, str], depth: int) -> None:
        """Appends a function's code; `bindings` maps its parameter names to the caller's variables."""
        if depth > MAX_CALL_DEPTH:
            raise UnknownInstruction(f"calls nest deeper than {MAX_CALL_DEPTH}: recursion is not supported")
        names = dict(bindings)
        for variable in function.variables:
            if variable.space == "shared":
                self.shared.append(variable)
            elif variable.space in ("local", "param"):
                unique = prefix + variable.name
                known = self.symbols.get(unique)
                if known is not None and known.variable.size >= variable.size:
                    # Calls reuse the same parameter names in blocks of their own; one place serves them all if big enough.
                    continue
                names[variable.name] = unique
                self._place_local(variable, unique)
            else:
                raise ParseError(f".{variable.space} variables in functions are not supported", ptx_line=variable.line)
        end_label = f"{prefix}return"
        index_labels: dict[int, list[str]] = {}
        for (scope, label), index in function.labels.items():
            index_labels.setdefault(index, []).append(f"{prefix}{scope}:{label}")
        for index, instruction in enumerate(function.body):
            for label in index_labels.get(index, ()):
                self.flat.labels[label] = len(self.flat.body)
            if instruction.opcode == "call":
                self._call(function, instruction, prefix, names, depth)
                continue
            operands = self._branch_operands(function, instruction, prefix)
            if operands is None and (prefix or names):
                operands = tuple(_rename(operand, prefix, names) for operand in instruction.operands)
            renamed = instruction if operands is None else replace(instruction, operands=operands)
            if prefix and instruction.opcode == "ret":
                renamed = replace(instruction, opcode="bra", modifiers=(), operands=(Symbol(end_label),))
            if prefix and renamed.guard is not None:
                renamed = replace(renamed, guard=Register(prefix + renamed.guard.name, renamed.guard.type))
            self.flat.body.append(renamed)
            if len(self.flat.body) > MAX_INSTRUCTIONS:
                raise UnknownInstruction("the expanded code is too large; calls are expanded in place")
        for label in index_labels.get(len(function.body), ()):
            self.flat.labels[label] = len(self.flat.body)
        if prefix:
            self.flat.labels[end_label] = len(self.flat.body)

    def _branch_operands(self, function: Function, instruction: Instruction, prefix: str) -> tuple[Operand, ...] | None:
        """The operands of a branch with its labels made unique; None for other instructions."""
        if instruction.opcode not in ("bra", "brx"):
            return None
        position = 0 if instruction.opcode == "bra" else 1
        symbol = instruction.operands[position] if len(instruction.operands) > position else None
        if not isinstance(symbol, Symbol):
            raise UnknownInstruction("a branch without a label", instruction=instruction)
        if instruction.opcode == "bra":
            return (Symbol(self._unique_label(function, instruction, symbol.name, prefix)),)
        targets = function.find_targets(instruction.scope, symbol.name)
        if targets is None:
            raise UnknownInstruction(f"no .branchtargets list {symbol.name}", instruction=instruction)
        unique = f"{prefix}targets:{symbol.name}"
        self.branch_targets[unique] = tuple(self._unique_label(function, instruction, t, prefix) for t in targets)
        return (_rename(instruction.operands[0], prefix, {}), Symbol(unique))

    def _unique_label(self, function: Function, instruction: Instruction, name: str, prefix: str) -> str:
        scope = instruction.scope
        while (scope, name) not in function.labels:
            if scope == 0:
                raise ParseError(f"label {name} is not defined", instruction=instruction)
            scope = function.scope_parents[scope]
        return f"{prefix}{scope}:{name}"

    def _call(self, caller: Function, instruction: Instruction, prefix: str, names: dict[str, str], depth: int) -> None:
        operands = list(instruction.operands)
        results: tuple[Operand, ...] = ()
        if operands and isinstance(operands[0], Group):
            results = operands[0].elements
            del operands[0]
        if not operands or not isinstance(operands[0], Symbol):
            raise UnknownInstruction("indirect calls are not supported", instruction=instruction)
        callee = self.module.functions.get(operands[0].name)
        if callee is None or not callee.defined:
            if operands[0].name == "__assertfail":
                self.flat.body.append(replace(instruction, opcode="trap", modifiers=("assert",), operands=()))
                return
            raise UnknownInstruction(f"call of {operands[0].name}, which the module does not define", instruction=instruction)
        arguments = operands[1].elements if len(operands) > 1 and isinstance(operands[1], Group) else ()
        if len(arguments) != len(callee.parameters) or len(results) != len(callee.results):
            raise UnknownInstruction(f"call of {callee.name} with the wrong number of arguments", instruction=instruction)
        self.instances += 1
        instance = f"{callee.name}#{self.instances}/"
        bindings: dict[str, str] = {}
        formals = (*callee.results, *callee.parameters)
        for formal, actual in zip(formals, (*results, *arguments), strict=True):
            if not isinstance(actual, Symbol):
                raise UnknownInstruction("call arguments must be .param variables", instruction=instruction)
            bindings[formal.name] = names.get(actual.name, actual.name)
        skip = f"{instance}skip"
        if instruction.guard is not None:
            guard = Register(prefix + instruction.guard.name, "pred")
            skipping = replace(
                instruction, opcode="bra", modifiers=(), operands=(Symbol(skip),), guard=guard,
                guard_negated=not instruction.guard_negated,
            )  # fmt: skip
            self.flat.body.append(skipping)
        self._expand(callee, instance, bindings, depth + 1)
        self.flat.labels[skip] = len(self.flat.body)

    def _append_final_return(self) -> None:
        body = self.flat.body
        if not body or body[-1].opcode not in ("ret", "exit", "trap") or body[-1].guard is not None or (
            len(body) in self.flat.labels.values()
        ):  # fmt: skip
            line = body[-1].line if body else self.entry.line
            body.append(Instruction("ret", (), (), None, False, line, "ret;", None))

    def _collect_registers(self) -> dict[str, tuple[Register, ...]]:
        """The registers in use by class, in order of name, so that runs of registers are runs of rows."""
        found: dict[str, Register] = {}
        for instruction in self.flat.body:
            if instruction.guard is not None:
                found.setdefault(instruction.guard.name, instruction.guard)
            for operand in instruction.operands:
                for register in registers_of(operand):
                    found.setdefault(register.name, register)
        by_class: dict[str, list[Register]] = {"pred": [], "b16": [], "b32": [], "b64": [], "b128": []}
        for register in found.values():
            by_class[register_class(register.type)].append(register)
        return {name: tuple(sorted(group, key=_natural)) for name, group in by_class.items()}


def _natural(register: Register) -> tuple[str, int, str]:
    stem = register.name.rstrip("0123456789")
    digits = register.name[len(stem) :]
    return stem, int(digits) if digits else -1, register.name


def _symbols_of(operands: tuple[Operand, ...]) -> set[str]:
    found: set[str] = set()
    for operand in operands:
        match operand:
            case Symbol(name):
                found.add(name)
            case Address(base, _, extra):
                found |= _symbols_of((base, *extra))
            case Vector(elements) | Group(elements):
                found |= _symbols_of(elements)
            case _:
                pass
    return found


def _rename(operand: Operand, prefix: str, names: dict[str, str]) -> Operand:
    """An operand with its registers in the instance's own name space and its variables bound."""
    if not prefix and not names:
        return operand
    match operand:
        case Register(name, type_name):
            return Register(prefix + name, type_name) if prefix else operand
        case Negated(register):
            return Negated(Register(prefix + register.name, register.type)) if prefix else operand
        case Symbol(name, offset):
            return Symbol(names[name], offset) if name in names else operand
        case Address(base, offset, extra):
            return Address(_rename(base, prefix, names), offset, tuple(_rename(e, prefix, names) for e in extra))
        case Vector(elements):
            return Vector(tuple(_rename(element, prefix, names) for element in elements))
        case Pair(first, second):
            return Pair(_rename(first, prefix, names), _rename(second, prefix, names))
        case _:
            return operand


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
