"""The syntax tree of a PTX module: plain immutable data, nothing resolved but registers and scopes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gemmgen.emulator.demangling import plainly

if TYPE_CHECKING:
    from gemmgen.emulator.errors import ParseError

TYPE_BYTES = {
    **dict.fromkeys(("b8", "u8", "s8", "pred"), 1),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16"), 2),
    **dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2", "bf16x2"), 4),
    **dict.fromkeys(("b64", "u64", "s64", "f64", "f32x2"), 8),
    "b128": 16,
}


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the CUDA source, as `.loc` gives it. The name of a library's header is in angle brackets."""

    file: str
    line: int
    column: int
    function: str | None = None
    inlined_at: Location | None = None

    def chain(self) -> Iterator[Location]:
        """This place, the call of the function that was inlined here, the call of that call's function, and so on."""
        at: Location | None = self
        while at is not None:
            yield at
            at = at.inlined_at

    def own(self) -> Location:
        """The line of the user's that this place was inlined into; the place itself where all is the library's."""
        return next((at for at in self.chain() if not at.file.startswith("<")), self)

    def __str__(self) -> str:
        own = self.own()
        text = f"{own.file}:{own.line}"
        if own.function:
            text += f" in {plainly(own.function)}"
        if own.inlined_at is not None:
            text += f", inlined at {own.inlined_at}"
        return text if own is self else f"{text}, through {self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Register:
    """A declared register; `name` is unique in its function, `type` as declared (`pred`, `b32`, `f32`, ...)."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Special:
    """A special register, `%tid.x`."""

    name: str


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer literal."""

    value: int


@dataclass(frozen=True, slots=True)
class Float:
    """A floating literal as its bits: `0f3F800000` has width 32, `0d...` and decimal literals 64."""

    bits: int
    width: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, parameter, label or function by name, with a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`; `extra` holds the coordinates that tensor copies put beside the base."""

    base: Operand
    offset: int = 0
    extra: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, c, d}`."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`%p|%q`: two destinations."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Negated:
    """`!%p`."""

    register: Register


@dataclass(frozen=True, slots=True)
class Group:
    """`(a, b)` in a call."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`: a destination nobody wants."""


Operand = Register | Special | Integer | Float | Symbol | Address | Vector | Pair | Negated | Group | Sink


@dataclass(frozen=True, slots=True)
class Instruction:
    """One statement. `opcode` is the part before the first dot, `modifiers` the rest, in order."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None
    guard_negated: bool
    line: int
    text: str
    location: Location | None
    scope: int = 0

    @property
    def type(self) -> str:
        """The last type among the modifiers: the type of the operation."""
        for modifier in reversed(self.modifiers):
            if modifier in TYPE_BYTES:
                return modifier
        return ""

    @property
    def types(self) -> tuple[str, ...]:
        """All types among the modifiers, in order (`cvt.f32.s32` has two)."""
        return tuple(modifier for modifier in self.modifiers if modifier in TYPE_BYTES)

    def has(self, modifier: str) -> bool:
        """True if the instruction carries this modifier."""
        return modifier in self.modifiers

    def first_of(self, candidates: tuple[str, ...]) -> str | None:
        """The first modifier that is one of the candidates."""
        for modifier in self.modifiers:
            if modifier in candidates:
                return modifier
        return None


def registers_of(operand: Operand) -> Iterator[Register]:
    """Every register that an operand mentions."""
    match operand:
        case Register():
            yield operand
        case Negated(register):
            yield register
        case Vector(elements) | Group(elements):
            for element in elements:
                yield from registers_of(element)
        case Pair(first, second):
            yield from registers_of(first)
            yield from registers_of(second)
        case Address(base, _, extra):
            yield from registers_of(base)
            for element in extra:
                yield from registers_of(element)
        case _:
            return


_WITHOUT_RESULTS = frozenset(
    (
        *("st", "sust", "red", "cp", "stmatrix", "bra", "brx", "ret", "exit", "trap", "membar", "fence", "nanosleep"),
        *("prefetch", "prefetchu", "griddepcontrol", "setmaxnreg", "pmevent"),
    )
)
"""Opcodes whose first operand is not written."""


def written(inst: Instruction) -> tuple[Register, ...]:
    """The registers that an instruction may write: all if its guard holds."""
    if not inst.operands or inst.opcode in _WITHOUT_RESULTS or isinstance(inst.operands[0], Address):
        return ()
    if (inst.opcode in ("bar", "barrier") and not inst.has("red")) or inst.modifiers[:1] == ("dealloc",):
        return ()
    target = inst.operands[0]
    return (target,) if isinstance(target, Register) else tuple(registers_of(target))


def written_by(inst: Instruction) -> tuple[str, ...]:
    """Names of the registers that an instruction may write."""
    return tuple([register.name for register in written(inst)])


def writers_of(instructions: Iterable[Instruction]) -> dict[str, list[Instruction]]:
    """The instructions that may write each register, by its name."""
    writers: dict[str, list[Instruction]] = {}
    for inst in instructions:
        for name in written_by(inst):
            writers.setdefault(name, []).append(inst)
    return writers


def sources_of(inst: Instruction) -> tuple[Operand, ...]:
    """The operands that an instruction reads."""
    return inst.operands[1:] if written(inst) else inst.operands


def source_registers(inst: Instruction) -> list[str]:
    """Names of the registers in all operands but the first, which instructions with a result write."""
    return [register.name for operand in inst.operands[1:] for register in registers_of(operand)]


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable or parameter: `count` elements of `element_bytes`; `count` 0 is an unsized extern array."""

    name: str
    space: str
    type: str
    alignment: int
    element_bytes: int
    count: int
    initial: tuple[Operand, ...] = ()
    external: bool = False
    line: int = 0
    scope: int = 0
    """Number of the block that declares a function's variable."""

    @property
    def size(self) -> int:
        """Bytes."""
        return self.element_bytes * self.count


@dataclass(frozen=True, slots=True)
class Function:
    """An entry or a device function. `labels` maps (scope, name) to an index into `body`."""

    name: str
    is_entry: bool
    parameters: tuple[Variable, ...]
    results: tuple[Variable, ...]
    variables: tuple[Variable, ...]
    body: tuple[Instruction, ...]
    labels: dict[tuple[int, str], int]
    scope_parents: tuple[int, ...]
    branch_targets: dict[tuple[int, str], tuple[str, ...]]
    directives: dict[str, tuple[int, ...]]
    defined: bool
    line: int
    problem: ParseError | None = None
    """Reason that the body could not be parsed: only kernels that call this function cannot run."""

    def find_targets(self, scope: int, name: str) -> tuple[str, ...] | None:
        """The labels of a `.branchtargets` list, seen from a scope."""
        while True:
            if (scope, name) in self.branch_targets:
                return self.branch_targets[scope, name]
            if scope == 0:
                return None
            scope = self.scope_parents[scope]

    def find_variable(self, scope: int, name: str) -> Variable | None:
        """The variable or parameter that a name stands for, seen from a scope."""
        while True:
            for variable in self.variables:
                if variable.scope == scope and variable.name == name:
                    return variable
            if scope == 0:
                return next((parameter for parameter in (*self.results, *self.parameters) if parameter.name == name), None)
            scope = self.scope_parents[scope]


@dataclass(frozen=True, slots=True)
class Module:
    """A whole PTX file."""

    version: str
    target: str
    variables: dict[str, Variable]
    functions: dict[str, Function]
    files: dict[int, str] = field(default_factory=dict)
