"""Runs of arithmetic instructions compiled to C: one pass over the lanes instead of one NumPy call or more for each instruction.

Of a basic block that runs often, the runs of instructions without effects beyond registers are translated and compiled by the system's C
compiler, like `gemmgen.emulator.native`. A register whose value nobody reads behind the run is not stored. Results are the same bits as
those of the instructions' handlers; an instruction without a translation here stays with its handler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from gemmgen.core.graphs import live_at_entry
from gemmgen.emulator import native
from gemmgen.emulator.binding import Binder
from gemmgen.emulator.errors import EmulatorError
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.forms import check_form
from gemmgen.emulator.instructions.registry import MISUSE
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.program import Program
from gemmgen.emulator.program_properties import of_program
from gemmgen.emulator.ptx.syntax import (
    TYPE_BYTES,
    Float,
    Instruction,
    Integer,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Symbol,
    Vector,
    registers_of,
    source_registers,
)
from gemmgen.emulator.registers import widened

PRELUDE = Path(__file__).with_name("native_runs.c")
_LONGEST = 160
"""Instructions of one function: the compiler's time grows faster than their number."""
_SHORTEST = 2
ENOUGH_WORK = 20_000_000
"""Instructions of threads in a basic block after which it is compiled: a fraction of a second."""

CLASS_TYPES = {"pred": "uint8_t", "b16": "uint16_t", "b32": "uint32_t", "b64": "uint64_t"}
C_TYPES = {
    **{f"{kind}{bits}": f"{'' if kind == 's' else 'u'}int{bits}_t" for kind in "bus" for bits in (8, 16, 32, 64)},
    "f32": "float",
    "f64": "double",
    "pred": "uint8_t",
}
_INTEGERS = frozenset(f"{kind}{bits}" for kind in "us" for bits in (16, 32, 64))
_BITS = frozenset(f"b{bits}" for bits in (16, 32, 64))


class Untranslated(Exception):
    """An instruction, or a form of it, that has no translation."""


@dataclass(slots=True)
class Run:
    """Instructions as C statements over the registers that they name."""

    binder: Binder
    statements: list[str] = field(default_factory=list)
    loaded: dict[str, Register] = field(default_factory=dict)
    """Registers whose values before the run matter, or may."""
    written: dict[str, Register] = field(default_factory=dict)

    # -- operands ----------------------------------------------------------------------------------------------

    def variable(self, register: Register) -> str:
        """The C variable of a register."""
        name, row = self.binder.registers.place(register)
        if name not in CLASS_TYPES:
            raise Untranslated(name)
        return f"{name}_{row}"

    def read(self, inst: Instruction, operand: Operand, type_name: str) -> str:
        """An operand as an expression of a type."""
        if type_name not in C_TYPES:
            raise Untranslated(type_name)
        if isinstance(operand, Register):
            place = self.variable(operand)
            if self.binder.registers.width(operand) < _bytes_of(type_name) or (place[0] == "p") != (type_name == "pred"):
                raise Untranslated(operand.name)
            if operand.name not in self.written:
                self.loaded[operand.name] = operand
            return as_type(place, type_name)
        if isinstance(operand, Integer | Float | Symbol):
            value = self.binder.source(inst, operand, type_name)
            if isinstance(value, np.ndarray):
                raise Untranslated("a value for each lane")
            return _literal(value, type_name)
        raise Untranslated(str(operand))

    def write(self, inst: Instruction, operand: Operand, type_name: str, expression: str) -> None:
        """A statement that gives a register a value of a type; the guard decides about each lane."""
        if isinstance(operand, Sink):
            return
        if not isinstance(operand, Register):
            raise Untranslated(str(operand))
        place, width = self.variable(operand), self.binder.registers.width(operand)
        if width != _bytes_of(type_name) or (place[0] == "p") != (type_name == "pred"):
            raise Untranslated(operand.name)
        value = f"bits_of_{C_TYPES[type_name]}({expression})" if type_name in ("f32", "f64") else f"({_unsigned(width)})({expression})"
        if inst.guard is not None:
            guard = self.read(inst, inst.guard, "pred")
            if operand.name not in self.written:
                self.loaded[operand.name] = operand
            value = f"{'!' if inst.guard_negated else ''}{guard} ? {value} : {place}"
        self.written[operand.name] = operand
        self.statements.append(f"{place} = {value};")

    # -- the whole ---------------------------------------------------------------------------------------------

    def add(self, inst: Instruction) -> None:
        """Translates an instruction; without a translation, raises Untranslated and leaves the run as it was."""
        translate = TRANSLATIONS.get(inst.opcode)
        if translate is None:
            raise Untranslated(inst.opcode)
        before = (list(self.statements), dict(self.loaded), dict(self.written))
        try:
            check_form(inst)
            (_half if _is_half(inst) else translate)(self, inst)
        except (Untranslated, EmulatorError, *MISUSE) as error:
            self.statements, self.loaded, self.written = before
            raise Untranslated(inst.opcode) from error

    def source(self, name: str, live: frozenset[str]) -> str:
        """The C functions of the run: `name` for lanes, over rows of registers. Of the registers it writes, those in `live` are stored."""
        stored = [register for register in self.written.values() if register.name in live]
        rows, before, after = [], [], []
        for register in {**self.loaded, **{each.name: each for each in stored}}.values():
            place = self.variable(register)
            kind, _, row = place.partition("_")
            rows.append(f"  {CLASS_TYPES[kind]} *const row_{place} = rows->{kind} + {row} * rows->lanes;")
        for register in {**self.loaded, **self.written}.values():
            place = self.variable(register)
            start = f" = row_{place}[lane]" if register.name in self.loaded else ""
            before.append(f"    {CLASS_TYPES[place.partition('_')[0]]} {place}{start};")
        after += [f"    row_{place}[lane] = {place};" for place in map(self.variable, stored)]
        loop = ["#pragma GCC ivdep", "  for (int64_t lane = from; lane < to; ++lane) {", *before]
        loop += [*(f"    {each}" for each in self.statements), *after, "  }"]
        head = f"static __attribute__((noinline)) void body_{name}(const struct Rows *rows, int64_t from, int64_t to) {{"
        call = f"void {name}(const struct Rows *rows, int64_t count, const int64_t *lanes) {{ EACH_STRETCH(body_{name}) }}"
        return "\n".join([head, *rows, *loop, "}", call, ""])


def _bytes_of(type_name: str) -> int:
    return 1 if type_name == "pred" else TYPE_BYTES[type_name]


def _unsigned(size: int) -> str:
    return f"uint{8 * size}_t"


def as_type(place: str, type_name: str) -> str:
    """A register's variable as a type: the low part of a wider one."""
    if type_name in ("f32", "f64"):
        return f"{C_TYPES[type_name]}_of({place})"
    return place if type_name == "pred" else f"({C_TYPES[type_name]}){place}"


def _literal(value: np.generic, type_name: str) -> str:
    bits = int(np.asarray(value).view(f"u{value.dtype.itemsize}"))
    text = f"0x{bits:x}ull" if bits >> 32 else f"0x{bits:x}u"
    return f"{C_TYPES[type_name]}_of({text})" if type_name in ("f32", "f64") else f"(({C_TYPES[type_name]}){text})"


# -- translations ----------------------------------------------------------------------------------------------

TRANSLATIONS: dict[str, Callable[[Run, Instruction], None]] = {}


def _translation(*opcodes: str) -> Callable[[Callable[[Run, Instruction], None]], Callable[[Run, Instruction], None]]:
    def register(translate: Callable[[Run, Instruction], None]) -> Callable[[Run, Instruction], None]:
        for opcode in opcodes:
            TRANSLATIONS[opcode] = translate
        return translate

    return register


def _only(inst: Instruction, *modifiers: str) -> None:
    """Raises Untranslated if an instruction has other modifiers than its types and these."""
    if not all(modifier in modifiers or modifier in TYPE_BYTES for modifier in inst.modifiers):
        raise Untranslated(str(inst.modifiers))


def _reads(run: Run, inst: Instruction, type_name: str) -> list[str]:
    return [run.read(inst, operand, type_name) for operand in inst.operands[1:]]


@_translation("add", "sub")
def _add(run: Run, inst: Instruction) -> None:
    sign = "+" if inst.opcode == "add" else "-"
    if inst.type in _INTEGERS:
        _only(inst)
        type_name = f"u{inst.type[1:]}"
        first, second = _reads(run, inst, type_name)
        run.write(inst, inst.operands[0], type_name, f"{first} {sign} {second}")
    else:
        _float(run, inst, lambda a, b: f"{a} {sign} {b}")


@_translation("mul")
def _mul(run: Run, inst: Instruction) -> None:
    if inst.type in _INTEGERS:
        _product(run, inst)
    else:
        _float(run, inst, lambda a, b: f"{a} * {b}")


@_translation("mad", "fma")
def _mad(run: Run, inst: Instruction) -> None:
    if inst.type in _INTEGERS:
        _product(run, inst)
    elif inst.type == "f64":
        _only(inst, "rn")
        first, second, third = _reads(run, inst, "f64")
        run.write(inst, inst.operands[0], "f64", f"multiply_add({first}, {second}, {third})")
    elif inst.has("rm"):
        _float(run, inst, lambda a, b, c: f"multiply_add_down({a}, {b}, {c})", "rm")
    else:
        _float(run, inst, lambda a, b, c: f"fmaf({a}, {b}, {c})")


def _product(run: Run, inst: Instruction) -> None:
    """mul and mad of integers."""
    _only(inst, "lo", "hi", "wide")
    type_name, size = inst.type, TYPE_BYTES[inst.type]
    wide = f"{type_name[0]}{16 * size}"
    first, second = (run.read(inst, operand, type_name) for operand in inst.operands[1:3])
    if inst.has("wide"):
        result, product = wide, f"({C_TYPES[wide]}){first} * ({C_TYPES[wide]}){second}"
    elif inst.has("hi"):
        whole = C_TYPES.get(wide) or ("__int128" if type_name[0] == "s" else "unsigned __int128")
        result, product = type_name, f"({C_TYPES[type_name]})(({whole}){first} * ({whole}){second} >> {8 * size})"
    else:
        # Unsigned, and of at least 32 bits: the low half is the same, and C promotes smaller ones to signed.
        whole = _unsigned(max(size, 4))
        result, product = type_name, f"({whole}){first} * ({whole}){second}"
    unsigned = f"u{result[1:]}"
    if inst.opcode == "mad":
        product = f"({C_TYPES[unsigned]})({product}) + {run.read(inst, inst.operands[3], unsigned)}"
    run.write(inst, inst.operands[0], unsigned, product)


def _float(run: Run, inst: Instruction, compute: Callable[..., str], rounding: str = "rn") -> None:
    """Arithmetic of floats."""
    type_name = inst.type
    if inst.types not in (("f32",), ("f64",)):
        raise Untranslated(type_name)
    _only(inst, rounding, *(("ftz", "sat", "approx", "full") if type_name == "f32" else ()))
    values = _reads(run, inst, type_name)
    if inst.has("ftz"):
        values = [f"flushed({value})" for value in values]
    result = compute(*values)
    if inst.has("ftz"):
        result = f"flushed({result})"
    if inst.has("sat"):
        result = f"clipped({result})"
    if type_name == "f64":
        result = f"passing({result}, {values[1]})"
    run.write(inst, inst.operands[0], type_name, result)


@_translation("div")
def _div(run: Run, inst: Instruction) -> None:
    if inst.type in _INTEGERS:
        _only(inst)
        kind = C_TYPES[inst.type]
        run.write(inst, inst.operands[0], inst.type, f"quotient_{kind}({', '.join(_reads(run, inst, inst.type))})")
    elif inst.type == "f64":
        _only(inst, "rn")
        first, second = _reads(run, inst, "f64")
        run.write(inst, inst.operands[0], "f64", f"{first} / {second}")
    else:
        _float(run, inst, lambda a, b: f"{a} / {b}")


@_translation("rem")
def _rem(run: Run, inst: Instruction) -> None:
    if inst.type not in _INTEGERS:
        raise Untranslated(inst.type)
    run.write(inst, inst.operands[0], inst.type, f"remainder_{C_TYPES[inst.type]}({', '.join(_reads(run, inst, inst.type))})")


@_translation("rcp", "sqrt", "rsqrt")
def _root(run: Run, inst: Instruction) -> None:
    if inst.type == "f32":
        forms = {"rcp": "1.0f / {}", "sqrt": "sqrtf({})", "rsqrt": "(float)(1.0 / sqrt((double){}))"}
        _float(run, inst, lambda a: forms[inst.opcode].format(a))
        return
    if inst.type == "f64" and inst.opcode != "sqrt" and inst.has("approx"):
        _only(inst, "approx", "ftz")
        (value,) = _reads(run, inst, "f64")
        result = f"upper_word(1.0 / upper_word({value}))" if inst.opcode == "rcp" else f"1.0 / sqrt({value})"
        run.write(inst, inst.operands[0], "f64", result)
        return
    _only(inst, "rn")
    if inst.type != "f64" or inst.opcode == "rsqrt":
        raise Untranslated(inst.opcode)
    (value,) = _reads(run, inst, "f64")
    run.write(inst, inst.operands[0], "f64", f"1.0 / {value}" if inst.opcode == "rcp" else f"sqrt({value})")


_HALVES = {"f16": 1, "bf16": 1, "f16x2": 2, "bf16x2": 2}
_HALF_FORMS = {
    "add": "odd_sum({}, {})",
    "sub": "odd_sum({}, -{})",
    "mul": "{} * {}",
    "fma": "odd_sum({} * {}, {})",
    "min": "smaller_double({}, {})",
    "max": "larger_double({}, {})",
    "neg": "-{}",
    "abs": "fabs({})",
}


def _is_half(inst: Instruction) -> bool:
    return inst.opcode in _HALF_FORMS and all(each in _HALVES for each in inst.types) and bool(inst.types)


def _half(run: Run, inst: Instruction) -> None:
    """Arithmetic of float16 and bfloat16, each element rounded once."""
    _only(inst, "rn")
    kind, count = inst.type.removesuffix("x2"), _HALVES[inst.type]
    raw = f"b{16 * count}"
    values, parts = _reads(run, inst, raw), []
    for element in range(count):
        part = _HALF_FORMS[inst.opcode].format(*(f"double_of_{kind}((uint16_t)({value} >> {16 * element}))" for value in values))
        parts.append(f"(uint32_t)bits_of_{kind}({part}) << {16 * element}")
    run.write(inst, inst.operands[0], raw, " | ".join(parts))


_FUNCTIONS = {"ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos", "tanh": "tanh"}


@_translation(*_FUNCTIONS)
def _function(run: Run, inst: Instruction) -> None:
    if inst.type != "f32":
        raise Untranslated(inst.type)
    _float(run, inst, lambda a: f"rounded_{_FUNCTIONS[inst.opcode]}({a})")


@_translation("neg", "abs")
def _neg(run: Run, inst: Instruction) -> None:
    type_name = inst.type
    (value,) = _reads(run, inst, type_name)
    if type_name in _INTEGERS:
        _only(inst)
        unsigned = C_TYPES[f"u{type_name[1:]}"]
        negative = f"0 - ({unsigned}){value}"
        run.write(
            inst, inst.operands[0], type_name, negative if inst.opcode == "neg" else f"{value} < 0 ? {negative} : ({unsigned}){value}"
        )
    elif type_name == "f32":
        _only(inst, "ftz")
        value = f"flushed({value})" if inst.has("ftz") else value
        run.write(inst, inst.operands[0], "f32", f"-{value}" if inst.opcode == "neg" else f"fabsf({value})")
    elif type_name == "f64":
        changed = f"-{value}" if inst.opcode == "neg" else f"fabs({value})"
        run.write(inst, inst.operands[0], "f64", f"{value} != {value} ? quiet({value}) : {changed}")
    else:
        raise Untranslated(type_name)


@_translation("min", "max")
def _min(run: Run, inst: Instruction) -> None:
    if inst.type == "f64" and len(inst.operands) == 3:
        _only(inst)
        name = "smaller_double" if inst.opcode == "min" else "larger_double"
        run.write(inst, inst.operands[0], "f64", f"quieted({name}({', '.join(_reads(run, inst, 'f64'))}))")
        return
    if inst.type == "f32" and len(inst.operands) == 3:
        _only(inst, "ftz")
        name = "smaller_float" if inst.opcode == "min" else "larger_float"
        _float(run, inst, lambda a, b: f"{name}({a}, {b})")
        return
    if inst.type not in _INTEGERS:
        raise Untranslated(inst.type)
    _only(inst)
    first, second = _reads(run, inst, inst.type)
    run.write(inst, inst.operands[0], inst.type, f"{first} {'<' if inst.opcode == 'min' else '>'} {second} ? {first} : {second}")


@_translation("and", "or", "xor")
def _logic(run: Run, inst: Instruction) -> None:
    first, second = _reads(run, inst, inst.type)
    run.write(inst, inst.operands[0], inst.type, f"{first} {dict(zip(('and', 'or', 'xor'), '&|^', strict=True))[inst.opcode]} {second}")


@_translation("not", "cnot")
def _not(run: Run, inst: Instruction) -> None:
    (value,) = _reads(run, inst, inst.type)
    run.write(inst, inst.operands[0], inst.type, f"{'!' if inst.opcode == 'cnot' or inst.type == 'pred' else '~'}{value}")


@_translation("lop3")
def _lop3(run: Run, inst: Instruction) -> None:
    _only(inst)
    table = inst.operands[4]
    if not isinstance(table, Integer):
        raise Untranslated("lop3")
    values = [run.read(inst, operand, "b32") for operand in inst.operands[1:4]]
    terms = [
        " & ".join(value if row >> shift & 1 else f"~{value}" for value, shift in zip(values, (2, 1, 0), strict=True))
        for row in range(8)
        if table.value >> row & 1
    ]
    run.write(inst, inst.operands[0], "b32", " | ".join(f"({term})" for term in terms) or "0")


@_translation("shl", "shr")
def _shift(run: Run, inst: Instruction) -> None:
    type_name, bits = inst.type, 8 * TYPE_BYTES[inst.type]
    value, amount = run.read(inst, inst.operands[1], type_name), run.read(inst, inst.operands[2], "u32")
    if inst.opcode == "shl":
        moved, outside = f"({_unsigned(max(bits, 32) // 8)}){value} << ({amount} & {bits - 1})", "0"
    else:
        moved, outside = f"{value} >> ({amount} & {bits - 1})", f"{value} >> {bits - 1}" if type_name[0] == "s" else "0"
    run.write(inst, inst.operands[0], type_name, f"{amount} < {bits} ? {moved} : {outside}")


@_translation("shf")
def _funnel(run: Run, inst: Instruction) -> None:
    low, high, amount = _reads(run, inst, "u32")
    count = f"({amount} < 32 ? {amount} : 32)" if inst.has("clamp") else f"({amount} & 31)"
    whole = f"((uint64_t){high} << 32 | {low})"
    run.write(inst, inst.operands[0], "b32", f"({whole} << {count}) >> 32" if inst.has("l") else f"{whole} >> {count}")


@_translation("bfe")
def _extract(run: Run, inst: Instruction) -> None:
    unsigned = f"u{inst.type[1:]}"
    fields = _fields(run, inst, inst.operands[2:4])
    value = run.read(inst, inst.operands[1], unsigned)
    run.write(inst, inst.operands[0], unsigned, f"extract_{C_TYPES[unsigned]}({value}, {fields}, {int(inst.type[0] == 's')})")


@_translation("bfi")
def _insert(run: Run, inst: Instruction) -> None:
    unsigned = f"u{inst.type[1:]}"
    first, second = (run.read(inst, operand, unsigned) for operand in inst.operands[1:3])
    run.write(inst, inst.operands[0], unsigned, f"insert_{C_TYPES[unsigned]}({first}, {second}, {_fields(run, inst, inst.operands[3:5])})")


def _fields(run: Run, inst: Instruction, operands: Sequence[Operand]) -> str:
    """Start and length of a bit field: their low bytes, or at most 255 for 64 bits."""
    numbers = [run.read(inst, operand, "u32") for operand in operands]
    if TYPE_BYTES[inst.type] == 4:
        return ", ".join(f"{number} & 255" for number in numbers)
    return ", ".join(f"{number} < 255 ? {number} : 255" for number in numbers)


@_translation("prmt")
def _permute(run: Run, inst: Instruction) -> None:
    _only(inst)
    run.write(inst, inst.operands[0], "b32", f"permuted({', '.join(_reads(run, inst, 'u32'))})")


@_translation("popc", "clz", "brev")
def _count(run: Run, inst: Instruction) -> None:
    unsigned, bits = f"u{inst.type[1:]}", 8 * TYPE_BYTES[inst.type]
    (value,) = _reads(run, inst, unsigned)
    if inst.opcode == "brev":
        run.write(inst, inst.operands[0], unsigned, f"reversed_{C_TYPES[unsigned]}({value})")
    elif inst.opcode == "popc":
        run.write(inst, inst.operands[0], "u32", f"__builtin_popcountll({value})")
    else:
        run.write(inst, inst.operands[0], "u32", f"{value} ? __builtin_clzll({value}) - {64 - bits} : {bits}")


_ORDERED = {"eq": "==", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_UNORDERED = {"equ": "eq", "ltu": "lt", "leu": "le", "gtu": "gt", "geu": "ge"}


@_translation("setp")
def _setp(run: Run, inst: Instruction) -> None:
    type_name = inst.type
    if type_name in ("f16", "bf16"):
        (a,), (b,) = (_half_values(run, operand, inst, type_name) for operand in inst.operands[1:3])
    elif type_name not in _INTEGERS | _BITS | {"f32", "f64"}:
        raise Untranslated(type_name)
    else:
        a, b = (run.read(inst, operand, type_name) for operand in inst.operands[1:3])
    if inst.has("ftz"):
        if type_name != "f32":
            raise Untranslated("ftz")
        a, b = f"flushed({a})", f"flushed({b})"
    holds = _comparison(inst.modifiers[0], a, b, is_float="f" in type_name)
    other, combine = "", inst.first_of(("and", "or", "xor"))
    if combine is not None:
        operand = inst.operands[3]
        negated = isinstance(operand, Negated)
        other = f" {dict(zip(('and', 'or', 'xor'), '&|^', strict=True))[combine]} {'!' if negated else ''}"
        other += run.read(inst, operand.register if isinstance(operand, Negated) else operand, "pred")
    destination = inst.operands[0]
    if not isinstance(destination, Pair):
        run.write(inst, destination, "pred", f"({holds}){other}")
        return
    named = {register.name for each in inst.operands[1:] for register in registers_of(each)}
    if inst.guard is not None or any(register.name in named for register in registers_of(destination)):
        raise Untranslated("setp")
    run.write(inst, destination.first, "pred", f"({holds}){other}")
    run.write(inst, destination.second, "pred", f"!({holds}){other}")


@_translation("set")
def _set(run: Run, inst: Instruction) -> None:
    """A comparison as a number."""
    result, type_name = inst.types
    _only(inst, *_ORDERED, *_UNORDERED, "ne", "neu", "num", "nan", *(("ftz",) if type_name == "f32" else ()))
    if type_name in _HALVES:
        elements = [_half_values(run, operand, inst, type_name) for operand in inst.operands[1:3]]
        holds = [_comparison(inst.modifiers[0], a, b, is_float=True) for a, b in zip(*elements, strict=True)]
    elif type_name in _INTEGERS | _BITS | {"f32", "f64"}:
        a, b = (run.read(inst, operand, type_name) for operand in inst.operands[1:3])
        if inst.has("ftz"):
            a, b = f"flushed({a})", f"flushed({b})"
        holds = [_comparison(inst.modifiers[0], a, b, is_float=type_name[0] == "f")]
    else:
        raise Untranslated(type_name)
    size = TYPE_BYTES[result]
    ones = {"f32": 0x3F800000, "f16": 0x3C00, "f16x2": 0x3C00, "bf16": 0x3F80, "bf16x2": 0x3F80}
    one = ones.get(result, 0xFFFF if len(holds) == 2 else (1 << 8 * size) - 1)
    terms = [f"(({each}) ? 0x{one:x}u : 0u) << {16 * place}" for place, each in enumerate(holds)]
    run.write(inst, inst.operands[0], f"b{8 * size}", " | ".join(terms))


def _half_values(run: Run, operand: Operand, inst: Instruction, type_name: str) -> list[str]:
    """The elements of a float16 or bfloat16 operand as float64."""
    count, kind = _HALVES[type_name], type_name.removesuffix("x2")
    value = run.read(inst, operand, f"b{16 * count}")
    return [f"double_of_{kind}((uint16_t)({value} >> {16 * element}))" for element in range(count)]


def _comparison(name: str, a: str, b: str, *, is_float: bool) -> str:
    if name in _ORDERED:
        return f"{a} {_ORDERED[name]} {b}"
    if name == "ne":
        return f"{a} < {b} || {a} > {b}" if is_float else f"{a} != {b}"
    unordered = f"{a} != {a} || {b} != {b}"
    if name in _UNORDERED:
        return f"{a} {_ORDERED[_UNORDERED[name]]} {b} || {unordered}"
    forms = {"neu": f"{a} != {b}", "nan": unordered, "num": f"!({unordered})"}
    if name not in forms:
        raise Untranslated(name)
    return forms[name]


@_translation("selp")
def _selp(run: Run, inst: Instruction) -> None:
    raw = f"b{8 * TYPE_BYTES[inst.type]}"
    first, second = (_raw(run, inst, operand, inst.type) for operand in inst.operands[1:3])
    run.write(inst, inst.operands[0], raw, f"{run.read(inst, inst.operands[3], 'pred')} ? {first} : {second}")


def _raw(run: Run, inst: Instruction, operand: Operand, type_name: str) -> str:
    """The bits of an operand: moves leave NaNs as they are."""
    if isinstance(operand, Register):
        return run.read(inst, operand, f"b{8 * TYPE_BYTES[type_name]}")
    value = run.binder.source(inst, operand, type_name) if isinstance(operand, Integer | Float | Symbol) else None
    if value is None or isinstance(value, np.ndarray):
        raise Untranslated(str(operand))
    return _literal(value.view(f"u{value.dtype.itemsize}"), f"b{8 * value.dtype.itemsize}")


@_translation("mov")
def _mov(run: Run, inst: Instruction) -> None:
    target, value = inst.operands
    if isinstance(target, Vector) or isinstance(value, Vector):
        _parts(run, inst, target, value)
    elif inst.type == "pred":
        run.write(inst, target, "pred", run.read(inst, value, "pred"))
    else:
        run.write(inst, target, f"b{8 * TYPE_BYTES[inst.type]}", _raw(run, inst, value, inst.type))


def _parts(run: Run, inst: Instruction, target: Operand, value: Operand) -> None:
    """A register put together from others, or taken apart."""
    size = TYPE_BYTES[inst.type]
    vector = target if isinstance(target, Vector) else value
    assert isinstance(vector, Vector)
    bits = 8 * size // len(vector.elements)
    if bits not in (16, 32) or size > 8 or (isinstance(target, Vector) and isinstance(value, Vector)):
        raise Untranslated("mov")
    if vector is value:
        parts = [f"({_unsigned(size)}){run.read(inst, each, f'b{bits}')} << {bits * i}" for i, each in enumerate(vector.elements)]
        run.write(inst, target, f"b{8 * size}", " | ".join(parts))
        return
    whole = run.read(inst, value, f"b{8 * size}")
    for i, each in enumerate(vector.elements):
        if isinstance(each, Register) and isinstance(value, Register) and each.name == value.name:
            raise Untranslated("mov")
        run.write(inst, each, f"b{bits}", f"{whole} >> {bits * i}")


@_translation("cvta")
def _cvta(run: Run, inst: Instruction) -> None:
    if not inst.has("global") and not inst.has("const") and not inst.has("param"):
        raise Untranslated("cvta")
    run.write(inst, inst.operands[0], inst.type, run.read(inst, inst.operands[1], inst.type))


_WHOLE = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


@_translation("copysign")
def _copysign(run: Run, inst: Instruction) -> None:
    _only(inst)
    if inst.type not in ("f32", "f64"):
        raise Untranslated(inst.type)
    raw, sign = f"b{8 * TYPE_BYTES[inst.type]}", f"({_unsigned(TYPE_BYTES[inst.type])})1 << {8 * TYPE_BYTES[inst.type] - 1}"
    first, second = (_raw(run, inst, operand, inst.type) for operand in inst.operands[1:3])
    run.write(inst, inst.operands[0], raw, f"({first} & ({sign})) | ({second} & ~({sign}))")


def _narrow(run: Run, inst: Instruction, value: str) -> None:
    """Conversions between float16 or bfloat16 and float32."""
    to, source = inst.types
    _only(inst, "rn")
    if to == "f32" and source == "f16":
        run.write(inst, inst.operands[0], "f32", f"(float)double_of_f16({value})")
    elif to == "f32" and source == "bf16":
        run.write(inst, inst.operands[0], "b32", f"(uint32_t){value} << 16")
    elif source == "f32" and to in ("f16", "bf16"):
        run.write(inst, inst.operands[0], "b16", f"bits_of_{to}({value})")
    else:
        raise Untranslated(to)


def _narrow_two(run: Run, inst: Instruction) -> None:
    _only(inst, "rn")
    kind = inst.types[0].removesuffix("x2")
    upper, lower = (run.read(inst, operand, "f32") for operand in inst.operands[1:3])
    run.write(inst, inst.operands[0], "b32", f"(uint32_t)bits_of_{kind}({upper}) << 16 | bits_of_{kind}({lower})")


@_translation("cvt")
def _cvt(run: Run, inst: Instruction) -> None:
    if inst.types in (("f16x2", "f32"), ("bf16x2", "f32")) and len(inst.operands) == 3:
        _narrow_two(run, inst)
        return
    if len(inst.types) != 2 or not isinstance(inst.operands[0], Register):
        raise Untranslated("cvt")
    to, source = inst.types
    if {to, source} & {"f16", "bf16"} and "f32" in (to, source):
        _narrow(run, inst, run.read(inst, inst.operands[1], "f32" if source == "f32" else "b16"))
        return
    integers = {*_INTEGERS, "u8", "s8"}
    if source in ("f16", "bf16") and to not in ("f16", "bf16"):
        (value,) = _half_values(run, inst.operands[1], inst, source)
    else:
        value = run.read(inst, inst.operands[1], source)
    if to in ("f16", "bf16") and source in integers and TYPE_BYTES[source] <= 4:
        _only(inst, "rn")
        run.write(inst, inst.operands[0], "b16", f"bits_of_{to}((double){value})")
        return
    if to in integers:
        if source in integers:
            _only(inst)
            result = f"({C_TYPES[to]}){value}"
        elif source in ("f32", "f64", "f16", "bf16"):
            result = _whole_number(inst, to, source, value)
        else:
            raise Untranslated(source)
        width = run.binder.registers.width(inst.operands[0])
        row = widened(to, width)
        run.write(inst, inst.operands[0], row, f"({C_TYPES[row]})({C_TYPES[to]})({result})")
        return
    if to not in ("f32", "f64") or source not in integers | {"f32", "f64"}:
        raise Untranslated(to)
    if source in integers:
        _only(inst, "rn")
        run.write(inst, inst.operands[0], to, f"({C_TYPES[to]}){value}")
    elif to != source:
        _only(inst, "rn", "ftz")
        raw = "raw_float" if to == "f32" else "raw_double"
        if inst.has("ftz") and to == "f64":
            # Every NaN becomes the same one.
            run.write(inst, inst.operands[0], "b64", f"{value} != {value} ? 0x7fffffffe0000000ull : raw_double((double)flushed({value}))")
            return
        if inst.has("ftz"):
            # A NaN keeps its payload, as without .ftz.
            run.write(inst, inst.operands[0], "b32", f"raw_float(flushed((float){value}))")
            return
        run.write(inst, inst.operands[0], f"b{8 * TYPE_BYTES[to]}", f"{raw}(({C_TYPES[to]}){value})")
    elif to == "f32" and inst.has("sat") and inst.first_of(tuple(_WHOLE)) is None:
        _only(inst, "sat", "ftz")
        value = f"clipped(flushed({value}))" if inst.has("ftz") else f"clipped({value})"
        run.write(inst, inst.operands[0], to, f"flushed({value})" if inst.has("ftz") else value)
    else:
        _only(inst, *_WHOLE)
        name = inst.first_of(tuple(_WHOLE))
        if name is None:
            raise Untranslated("cvt")
        run.write(inst, inst.operands[0], to, f"{_WHOLE[name]}{'f' if to == 'f32' else ''}({value})")


def _whole_number(inst: Instruction, to: str, source: str, value: str) -> str:
    """A float rounded to an integer: clamped; NaN gives zero, or the top bit for a float64 source or a 64-bit result."""
    _only(inst, *_WHOLE, "ftz")
    name = inst.first_of(tuple(_WHOLE))
    if name is None:
        raise Untranslated("cvt")
    bits, signed = 8 * TYPE_BYTES[to], to[0] == "s"
    exponent = bits - signed
    low, high = (-(1 << exponent) if signed else 0), (1 << exponent) - 1
    value = f"flushed({value})" if inst.has("ftz") and source == "f32" else value
    whole = f"{_WHOLE[name]}((double){value})"
    nan = 1 << (bits - 1) if source == "f64" or bits == 64 else 0
    kind = C_TYPES[to]
    below = f"{whole} < {float(low).hex()} ? ({kind})({low & (1 << bits) - 1}ull) : ({kind}){whole}"
    inside = f"{whole} >= 0x1p{exponent} ? ({kind}){high}ull : {below}"
    return f"{value} != {value} ? ({kind}){nan}ull : {inside}"


# -- compiling -------------------------------------------------------------------------------------------------


class _Rows(ctypes.Structure):
    """`struct Rows` of native_runs.c."""

    _fields_ = [*((name, ctypes.c_void_p) for name in CLASS_TYPES), ("lanes", ctypes.c_int64)]


Function = Callable[..., None]


@dataclass(slots=True)
class Compiled:
    """The compiled runs of a program, by basic block, and the work done in each block so far."""

    live: list[frozenset[str]]
    """Registers whose values matter behind each block."""
    work: list[int]
    runs: dict[tuple[int, tuple[int, ...]], dict[tuple[int, int], Function]] = field(default_factory=dict)
    """By a block and the instructions that stay out: the functions of its runs, by their first and last instruction (exclusive)."""


@of_program
def compiled(program: Program) -> Compiled:
    """The compiled runs of a program."""
    return Compiled(_live_registers(program), [0] * len(program.blocks))


def effects(inst: Instruction) -> tuple[set[str], set[str]]:
    """Registers that an instruction may read, and those that it certainly overwrites."""
    mentioned = {register.name for operand in inst.operands for register in registers_of(operand)}
    if inst.guard is not None:
        mentioned.add(inst.guard.name)
    if inst.opcode not in TRANSLATIONS or inst.guard is not None or not inst.operands:
        return mentioned, set()
    written = {register.name for register in registers_of(inst.operands[0])}
    return set(source_registers(inst)), written


def _live_registers(program: Program) -> list[frozenset[str]]:
    """For each block, the registers that may be read behind it."""
    blocks = program.blocks
    if any(not inst.opcode.isidentifier() for block in blocks for inst in block.body):
        # Functions that call themselves keep registers aside.
        everything = frozenset(register.name for group in program.registers.values() for register in group)
        return [everything] * len(blocks)
    reads: list[set[str]] = []
    overwrites: list[set[str]] = []
    for block in blocks:
        needed: set[str] = set()
        gone: set[str] = set()
        for inst in block.instructions:
            read, written = effects(inst)
            needed |= read - gone
            gone |= written
        reads.append(needed)
        overwrites.append(gone)
    before = live_at_entry([block.successors for block in blocks], reads, overwrites)
    return [frozenset[str]().union(*(before[other] for other in block.successors)) for block in blocks]


def compile_block(
    program: Program, number: int, binder: Binder, excluded: Callable[[Instruction], bool]
) -> dict[tuple[int, int], Function]:
    """The functions of a block's runs; none if there is nothing to compile, or no compiler. Remembered."""
    known, block = compiled(program), program.blocks[number]
    left_out = tuple(place for place, inst in enumerate(block.body) if excluded(inst))
    functions = known.runs.get((number, left_out))
    if functions is not None:
        return functions
    pieces: dict[tuple[int, int], Run] = {}
    run, first = Run(binder), 0

    def close(stop: int) -> None:
        nonlocal run
        if stop - first >= _SHORTEST and run.statements:
            pieces[first, stop] = run
        run = Run(binder)

    for place, inst in enumerate(block.body):
        if place - first >= _LONGEST:
            close(place)
            first = place
        try:
            if place in left_out:
                raise Untranslated(inst.opcode)
            run.add(inst)
        except Untranslated:
            close(place)
            first = place + 1
    close(len(block.body))
    functions = known.runs[number, left_out] = {}
    if pieces:
        texts = []
        for start, stop in pieces:
            needed = set(known.live[number])
            for inst in reversed(block.instructions[stop:]):
                read, written = effects(inst)
                needed = (needed - written) | read
            texts.append(pieces[start, stop].source(f"run_{start}_{stop}", frozenset(needed)))
        names = {piece: "run_{}_{}".format(*piece) for piece in pieces}
        source = (PRELUDE.read_text() + "\n".join(texts)).encode()
        library = native.library("emulator runs", source, exact_options("-O3"), tuple(names.values()))
        if library is not None:
            for (start, stop), name in names.items():
                function = getattr(library, name)
                function.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
                function.restype = None
                functions[start, stop] = function
    return functions


@cache
def exact_options(level: str) -> tuple[str, ...]:
    """Options of the compiler: vectors of this processor; no rounding but IEEE's."""
    exact = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fwrapv")
    return (level, "-fPIC", "-shared", *exact, "-march=native")


def operation_of(function: Function, binder: Binder) -> Operation:
    """The operation of a compiled run on a machine's registers."""
    registers = binder.registers
    rows = _Rows(*(native.pointer(registers.arrays.get(name)) for name in CLASS_TYPES), registers.lanes)
    place, everyone = ctypes.addressof(rows), registers.lanes

    def full(keep: _Rows = rows) -> None:
        function(place, everyone, None)

    def some(lanes: Lanes) -> None:
        if not native.is_index(lanes):
            lanes = np.ascontiguousarray(lanes, np.int64)
        function(place, len(lanes), lanes.ctypes.data)

    return Operation(full, some)


def pieces_of(count: int, runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """`count` instructions as their runs, and single instructions between them."""
    stops = {start: stop for start, stop in runs}
    pieces, place = [], 0
    while place < count:
        stop = stops.get(place, place + 1)
        pieces.append((place, stop))
        place = stop
    return pieces
