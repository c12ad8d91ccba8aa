"""A kernel made ready to run: calls expanded, symbols placed, basic blocks cut. Nothing here depends on a launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from gemmgen.emulator.blocks import BasicBlock, cut
from gemmgen.emulator.call_graph import DEVICE_LAUNCHES, RUNTIME_CALLS, candidates, function_address, recursive_groups
from gemmgen.emulator.demangling import plain_name
from gemmgen.emulator.errors import BadLaunch, ParseError, UnknownInstruction
from gemmgen.emulator.ptx import parse
from gemmgen.emulator.ptx.syntax import (
    TYPE_BYTES,
    Address,
    Function,
    Group,
    Instruction,
    Integer,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Variable,
    Vector,
    registers_of,
)

MAX_CALL_DEPTH = 32
MAX_INSTRUCTIONS = 2_000_000
MAX_CALLS = 100_000
SHARED_GAP = 1024
"""Bytes left free between shared variables, so that an overrun is not taken for an access to the next one, and before the first one:
a GPU from sm_80 on keeps the first KiB for its system, so that no variable lies at address 0. A multiple of the row of banks and of every
swizzle, so that both see the addresses that they would see without gaps."""
_SHARED_ADDRESSES = 1 << 18
"""Matrix descriptors know no shared addresses from here on."""

FRAME = "(frame)"
"""The opcode that moves frames of recursive calls: no PTX can spell it."""


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
    """Sum of the gaps before the last variable, and of the bytes before the first one."""
    shared_start: int = 0
    """Address of the first shared variable. Messages count from there."""
    allocates: bool = False
    """True if it calls malloc."""
    meets_grid: bool = False
    """True if it asks where grid barriers count."""
    names_clusters: bool = False
    """True if an instruction can reach another block of its cluster."""
    mentioned_once: frozenset[str] = frozenset()
    """Registers that only one operand names: values written to them are never read."""

    def describe_shared(self, address: int) -> str:
        """An address of shared memory, and the variable that holds it."""
        starts = [(held.offset, name) for name, held in self.symbols.items() if held.variable.space == "shared" and held.offset <= address]
        shown = f"shared address {address - self.shared_start}"
        if not starts:
            return shown
        start, name = max(starts)
        return f"{shown} (byte {address - start} of {plain_name(name)})"


def _reaches_cluster(instruction: Instruction) -> bool:
    words = (instruction.opcode, *instruction.modifiers)
    return any("cluster" in word or word in ("mapa", "getctarank", "cta_group::2") for word in words)


def register_class(type_name: str) -> str:
    """The register array that holds a type: pred, b16, b32, b64, b128."""
    return {"pred": "pred", "b8": "b16", "u8": "b16", "s8": "b16"}.get(type_name) or {
        2: "b16",
        4: "b32",
        8: "b64",
        16: "b128",
    }[TYPE_BYTES[type_name]]


@lru_cache(maxsize=8)
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


def link_in_place(module: Module, entry: str, places: Mapping[str, Placed]) -> Program:
    """The program of one entry of a module whose variables have been placed. Raises BadLaunch if there is no such entry."""
    function = module.functions.get(entry)
    if function is None or not function.is_entry:
        raise BadLaunch(f"no entry {entry!r} in the module")
    return _Linker(module, function, places).program()


@dataclass(slots=True)
class _Flat:
    """The expanded code: instructions whose branch targets are unique label strings."""

    body: list[Instruction]
    labels: dict[str, int]


class _Linker:
    def __init__(self, module: Module, entry: Function, places: Mapping[str, Placed] | None = None) -> None:
        """`places` of the module's variables in global memory; None puts them behind the parameters."""
        self.module = module
        self.places = places
        self.entry = entry
        self.flat = _Flat([], {})
        self.branch_targets: dict[str, tuple[str, ...]] = {}
        self.symbols: dict[str, Placed] = {}
        self.local_bytes = 0
        self.shared: list[Variable] = []
        self.instances = 0
        self.recursive = recursive_groups(module)
        """The functions that can call themselves, and the group that calls each other."""
        self.frames: dict[int, list[str]] = {}
        """For each group in use, the labels that its calls return to."""

    def program(self) -> Program:
        parameter_bytes = self._place_parameters()
        static_bytes = self._place_module_variables(parameter_bytes)
        self._expand(self.entry, "", {}, 0)
        self._append_final_return()
        self._expand_recursive()
        shared_bytes, dynamic_offset, gaps, gap_bytes, shared_start = self._place_shared()
        blocks = cut(self.flat.body, self.flat.labels, self.branch_targets)
        return Program(
            self.module,
            self.entry,
            blocks,
            self._collect_registers(),
            self.symbols,
            parameter_bytes,
            static_bytes,
            shared_bytes,
            dynamic_offset,
            _align(self.local_bytes, 16),
            any(block.polling for block in blocks),
            gaps,
            gap_bytes,
            shared_start,
            any(inst.opcode == "call" and inst.has("malloc") for inst in self.flat.body),
            any(isinstance(o, Special) and o.name.startswith("%envreg") for inst in self.flat.body for o in inst.operands),
            any(_reaches_cluster(inst) for inst in self.flat.body),
            _mentioned_once(blocks),
        )

    # -- placing -----------------------------------------------------------------------------------------------

    def _place_parameters(self) -> int:
        offset = 0
        for parameter in self.entry.parameters:
            offset = _align(offset, parameter.alignment)
            self.symbols[parameter.name] = Placed(parameter, offset)
            offset += parameter.size
        return _align(offset, 256) if offset else 256

    def _place_module_variables(self, offset: int) -> int:
        if self.places is not None:
            self.symbols.update(self.places)
            return offset
        # Read-only and writable variables are separate regions; a guard lies after each variable.
        for variable in self.module.variables.values():
            if variable.space in ("global", "const"):
                if variable.external:
                    continue
                offset = _align(offset, max(256, variable.alignment))
                self.symbols[variable.name] = Placed(variable, offset)
                offset += variable.size + 256
        return _align(offset, 256)

    def _place_shared(self) -> tuple[int, int, tuple[tuple[int, int], ...], int, int]:
        mentioned = {name for instruction in self.flat.body for name in _symbols_of(instruction.operands)}
        declared = list(self.module.variables.values()) + self.shared
        candidates = [v for v in declared if v.space == "shared" and v.name in mentioned]
        dynamic = [variable for variable in candidates if variable.external or variable.size == 0]
        fixed = [variable for variable in candidates if variable not in dynamic]
        total = sum(_align(variable.size, variable.alignment) for variable in fixed)
        steps = max(len(fixed) - 1 + bool(dynamic), 1)
        first = _align(SHARED_GAP, max((variable.alignment for variable in candidates), default=1)) if candidates else 0
        gap = first if total + steps * first <= _SHARED_ADDRESSES // 2 else 0
        gaps = []
        offset, added = 0, first
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
        return offset, dynamic_offset, tuple(gaps), added, first

    def _place_local(self, variable: Variable, name: str) -> None:
        self.local_bytes = _align(self.local_bytes, variable.alignment)
        self.symbols[name] = Placed(replace(variable, name=name, space="local"), self.local_bytes)
        self.local_bytes += variable.size

    # -- expanding calls ---------------------------------------------------------------------------------------

    def _expand(self, function: Function, prefix: str, bindings: dict[str, str], depth: int) -> None:
        """Appends a function's code; `bindings` maps its parameter names to the caller's variables."""
        if depth > MAX_CALL_DEPTH:
            raise UnknownInstruction(f"calls nest deeper than {MAX_CALL_DEPTH}: recursion is not supported")
        if function.problem is not None:
            raise function.problem
        names = dict(bindings)
        for variable in function.variables:
            if variable.space == "shared":
                self.shared.append(variable)
            elif variable.space in ("local", "param"):
                unique = prefix + variable.name
                known = self.symbols.get(unique)
                if known is not None and known.variable.size >= variable.size:
                    # Calls reuse the same parameter names in separate scopes; one place serves them all if it is big enough.
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
        groups = [operand.elements for operand in instruction.operands if isinstance(operand, Group)]
        has_results = bool(instruction.operands) and isinstance(instruction.operands[0], Group)
        results = groups.pop(0) if has_results else ()
        arguments = groups.pop(0) if groups else ()
        target = instruction.operands[int(has_results)] if len(instruction.operands) > int(has_results) else None
        actuals: list[str] = []
        for actual in (*results, *arguments):
            if not isinstance(actual, Symbol):
                raise UnknownInstruction("call arguments must be .param variables", instruction=instruction)
            actuals.append(names.get(actual.name, actual.name))
        self.instances += 1
        skip = f"call#{self.instances}/skip"
        if instruction.guard is not None:
            guard = Register(prefix + instruction.guard.name, "pred")
            skipping = replace(
                instruction,
                opcode="bra",
                modifiers=(),
                operands=(Symbol(skip),),
                guard=guard,
                guard_negated=not instruction.guard_negated,
            )
            self.flat.body.append(skipping)
        unguarded = replace(instruction, guard=None, guard_negated=False)
        if isinstance(target, Register):
            named = [actual.name for actual in (*results, *arguments) if isinstance(actual, Symbol)]
            variables = [caller.find_variable(instruction.scope, name) for name in named]
            places = [variable for variable in variables if variable is not None]
            if len(places) != len(named):
                raise UnknownInstruction("call arguments must be .param variables", instruction=instruction)
            address = Register(prefix + target.name, target.type)
            self._call_by_address(unguarded, address, actuals, (tuple(places[: len(results)]), tuple(places[len(results) :])), depth)
        elif isinstance(target, Symbol):
            self._call_by_name(unguarded, target.name, actuals, len(results), depth)
        else:
            raise UnknownInstruction("a call of nothing", instruction=instruction)
        self.flat.labels[skip] = len(self.flat.body)

    def _call_by_name(self, call: Instruction, name: str, actuals: list[str], results: int, depth: int) -> None:
        callee = self.module.functions.get(name)
        if callee is None or not callee.defined:
            self._call_runtime(call, name, actuals, results)
            return
        formals = (*callee.results, *callee.parameters)
        if len(actuals) != len(formals) or results != len(callee.results):
            raise UnknownInstruction(f"call of {callee.name} with the wrong number of arguments", instruction=call)
        if callee.name in self.recursive:
            self._call_recursive(call, callee, actuals)
            return
        self.instances += 1
        if self.instances > MAX_CALLS:  # of functions without instructions, whose calls double from one to the next
            raise UnknownInstruction("the expanded code is too large; calls are expanded in place")
        bindings = {formal.name: actual for formal, actual in zip(formals, actuals, strict=True)}
        self._expand(callee, f"{callee.name}#{self.instances}/", bindings, depth + 1)

    def _call_runtime(self, call: Instruction, name: str, actuals: list[str], results: int) -> None:
        """A call of a function that the module does not define: the runtime's own functions are instructions here."""
        operands = tuple(Symbol(actual) for actual in actuals)
        if name == "__assertfail":
            self.flat.body.append(replace(call, opcode="trap", modifiers=("assert",), operands=operands))
        elif name == "cudaGraphSetConditional" and len(actuals) == 2:
            # `gemmgen run` makes a handle the address of the value.
            handle, value = (Register(f"call#{len(self.flat.body)}/{part}", kind) for part, kind in (("handle", "b64"), ("value", "b32")))
            for register, actual, kind in ((handle, operands[0], "u64"), (value, operands[1], "u32")):
                loaded = (register, Address(actual, 0))
                self.flat.body.append(replace(call, opcode="ld", modifiers=("param", kind), operands=loaded))
            stored = (Address(handle, 0), value)
            self.flat.body.append(replace(call, opcode="st", modifiers=("relaxed", "sys", "global", "u32"), operands=stored))
        elif name in RUNTIME_CALLS:
            self.flat.body.append(replace(call, opcode="call", modifiers=(name,), operands=(Group(operands),)))
        elif name.startswith(DEVICE_LAUNCHES):
            raise UnknownInstruction(f"{name}: kernels that launch kernels are not supported", instruction=call)
        else:
            raise UnknownInstruction(f"call of {name}, which the module does not define", instruction=call)

    def _call_by_address(
        self, call: Instruction, address: Register, actuals: list[str], places: tuple[tuple[Variable, ...], ...], depth: int
    ) -> None:
        """A comparison with each function that can be meant, and a trap behind them. `places`: results, then parameters."""
        done = f"call#{self.instances}/done"
        for callee in candidates(self.module, *places):
            self.instances += 1
            following = f"call#{self.instances}/next"
            value = function_address(self.module, callee.name)
            assert value is not None
            other = Register(f"call#{self.instances}/other", "pred")
            self.flat.body.append(replace(call, opcode="setp", modifiers=("ne", "u64"), operands=(other, address, Integer(value))))
            self.flat.body.append(replace(call, opcode="bra", modifiers=(), operands=(Symbol(following),), guard=other))
            self._call_by_name(call, callee.name, actuals, len(places[0]), depth)
            self.flat.body.append(replace(call, opcode="bra", modifiers=(), operands=(Symbol(done),)))
            self.flat.labels[following] = len(self.flat.body)
        self.flat.body.append(replace(call, opcode="trap", modifiers=("nowhere",), operands=()))
        self.flat.labels[done] = len(self.flat.body)

    # -- recursion ---------------------------------------------------------------------------------------------

    def _call_recursive(self, call: Instruction, callee: Function, actuals: list[str]) -> None:
        """A call of a function that can call itself: one copy of its code, whose registers and variables go onto a stack."""
        group = self.recursive[callee.name]
        frame = f"recursion{group}/"
        if group not in self.frames:
            self.frames[group] = []
            for name, number in self.recursive.items():
                if number == group:
                    self._place_formals(self.module.functions[name], frame)
        back = f"{frame}return{len(self.frames[group])}"
        self.frames[group].append(back)
        at_return = Register(f"{frame}return", "b32")
        body = self.flat.body
        body.append(replace(call, opcode=FRAME, modifiers=("push",), operands=(Symbol(frame),)))
        formals = [*(f"results of {frame}{callee.name}/{v.name}" for v in callee.results)]
        parameters = [f"{frame}{callee.name}/{v.name}" for v in callee.parameters]
        for formal, actual in zip(parameters, actuals[len(formals) :], strict=True):
            body.append(replace(call, opcode=FRAME, modifiers=("argument",), operands=(Symbol(formal), Symbol(actual))))
        body.append(replace(call, opcode="mov", modifiers=("b32",), operands=(at_return, Integer(len(self.frames[group]) - 1))))
        body.append(replace(call, opcode="bra", modifiers=(), operands=(Symbol(f"{frame}{callee.name}/entry"),)))
        self.flat.labels[back] = len(body)
        for formal, actual in zip(formals, actuals, strict=False):
            body.append(replace(call, opcode=FRAME, modifiers=("result",), operands=(Symbol(actual), Symbol(formal))))

    def _place_formals(self, function: Function, frame: str) -> None:
        for variable in function.results:
            # A result outlives the frame that it comes from.
            self._place_local(variable, f"results of {frame}{function.name}/{variable.name}")
        for variable in function.parameters:
            self._place_local(variable, f"{frame}{function.name}/{variable.name}")

    def _expand_recursive(self) -> None:
        """The code of the functions that call themselves, behind all other code."""
        done: set[int] = set()
        while len(done) < len(self.frames):
            for group in [group for group in self.frames if group not in done]:
                done.add(group)
                frame = f"recursion{group}/"
                for name, number in self.recursive.items():
                    if number == group:
                        self._expand_frame(self.module.functions[name], frame)
        for group, labels in self.frames.items():
            self.branch_targets[f"recursion{group}/targets"] = tuple(labels)

    def _expand_frame(self, function: Function, frame: str) -> None:
        prefix = f"{frame}{function.name}/"
        bindings = {variable.name: f"results of {prefix}{variable.name}" for variable in function.results}
        bindings |= {variable.name: f"{prefix}{variable.name}" for variable in function.parameters}
        self.flat.labels[f"{prefix}entry"] = len(self.flat.body)
        self._expand(function, prefix, bindings, 1)
        last = Instruction(FRAME, ("pop",), (Symbol(frame),), None, False, function.line, f"return of {function.name}", None)
        back, target = Register(f"{frame}return", "b32"), Register(f"back of {frame}", "b32")
        self.flat.body.append(replace(last, opcode="mov", modifiers=("b32",), operands=(target, back)))
        self.flat.body.append(last)
        self.flat.body.append(replace(last, opcode="brx", modifiers=("idx",), operands=(target, Symbol(f"{frame}targets"))))

    def _append_final_return(self) -> None:
        body = self.flat.body
        if (
            not body
            or body[-1].opcode not in ("ret", "exit", "trap")
            or body[-1].guard is not None
            or (len(body) in self.flat.labels.values())
        ):
            line = body[-1].line if body else self.entry.line
            body.append(Instruction("ret", (), (), None, False, line, "ret;", None))

    def _collect_registers(self) -> dict[str, tuple[Register, ...]]:
        """The registers in use by class, in order of name, so that runs of registers are runs of rows."""
        by_name: dict[str, Register] = {}
        for instruction in self.flat.body:
            if instruction.guard is not None:
                by_name.setdefault(instruction.guard.name, instruction.guard)
            for operand in instruction.operands:
                for register in registers_of(operand):
                    by_name.setdefault(register.name, register)
        by_class: dict[str, list[Register]] = {"pred": [], "b16": [], "b32": [], "b64": [], "b128": []}
        for register in by_name.values():
            by_class[register_class(register.type)].append(register)
        return {name: tuple(sorted(group, key=_natural)) for name, group in by_class.items()}


def _mentioned_once(blocks: Iterable[BasicBlock]) -> frozenset[str]:
    mentions: Counter[str] = Counter()
    for block in blocks:
        for inst in block.instructions:
            mentions.update(register.name for operand in inst.operands for register in registers_of(operand))
            if inst.guard is not None:
                mentions[inst.guard.name] += 1
    return frozenset(name for name, count in mentions.items() if count == 1)


def _natural(register: Register) -> tuple[str, int, str]:
    stem = register.name.rstrip("0123456789")
    digits = register.name[len(stem) :]
    return stem, int(digits) if digits else -1, register.name


def _symbols_of(operands: tuple[Operand, ...]) -> set[str]:
    names: set[str] = set()
    for operand in operands:
        match operand:
            case Symbol(name):
                names.add(name)
            case Address(base, _, extra):
                names |= _symbols_of((base, *extra))
            case Vector(elements) | Group(elements):
                names |= _symbols_of(elements)
            case _:
                pass
    return names


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
