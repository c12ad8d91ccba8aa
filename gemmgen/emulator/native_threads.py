"""Whole kernels compiled to C, for launches without hazards: threads run one after another, each up to its next barrier.

The compiled code checks every access: bounds, alignment, bytes that nothing has written, and conflicts with other threads that no barrier
orders. Meeting anything that is not certainly free of hazards, it gives the launch up; memory gets its former contents back, and the
emulator runs the launch lane by lane, which finds the same results and all findings. A kernel with an instruction that has no
translation, with strong accesses whose order decides about results, or with registers that may hold no value is not compiled.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from gemmgen.emulator import native
from gemmgen.emulator.binding import Binder
from gemmgen.emulator.blocks import BasicBlock
from gemmgen.emulator.errors import EmulatorError
from gemmgen.emulator.geometry import Dim3, Geometry
from gemmgen.emulator.hazards.compare_and_swap_guesses import guesses
from gemmgen.emulator.hazards.sites import granules
from gemmgen.emulator.hazards.undefined import find_undefined, tainted_by
from gemmgen.emulator.instructions.forms import check_form
from gemmgen.emulator.instructions.memory import space_name
from gemmgen.emulator.instructions.registry import MISUSE
from gemmgen.emulator.memory import GLOBAL_BASE, LOCAL_WINDOW, SHARED_WINDOW, Region
from gemmgen.emulator.native_runs import (
    C_TYPES,
    CLASS_TYPES,
    PRELUDE,
    TRANSLATIONS,
    Run,
    Untranslated,
    as_type,
    compiled,
    effects,
    exact_options,
)
from gemmgen.emulator.program import Program
from gemmgen.emulator.program_properties import of_program
from gemmgen.emulator.ptx.syntax import (
    TYPE_BYTES,
    Address,
    Float,
    Instruction,
    Integer,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
    registers_of,
    sources_of,
    written_by,
)
from gemmgen.emulator.registers import RegisterFile, widened

_MEMORY, _BLOCKS = (Path(__file__).with_name(name) for name in ("native_threads.c", "native_threads_blocks.c"))
_LONGEST = 12_000
"""Instructions of a kernel: the compiler's time grows faster than their number."""
_MAX_LOCAL_BYTES = 64 << 20
_MAX_TEXT = 2 << 20
"""Characters of C that a compiler is asked to translate: gcc takes more than three minutes for twice as many."""
PAGE_BYTES = 1 << 16
LAST_TIME = (1 << 21) - 64
_SECONDS_OF_A_STEP = 0.1
_THREAD_LIMIT = 1 << 32
"""Iterations of loops of one thread from which it seems to wait for another one."""
_WAITING_LIMIT = 1 << 24
"""Such iterations for a kernel with accesses by which its threads may wait for each other."""
_ALONE_SECONDS = 0.03
"""Seconds of a launch from which several threads of this process share its blocks."""
_SHARED_STEP_SECONDS = 0.05
_WAITS, _LANE_IS_MISSING = -1, -11
"""Why a launch is given up at a shuffle, as native_threads.c has it."""
_STRONG = ("volatile", "relaxed", "acquire")
_UPDATES = {"add": "{old} + {value}", "and": "{old} & {value}", "or": "{old} | {value}", "xor": "{old} ^ {value}"}
_AXES = {"x": 0, "y": 1, "z": 2}
_SPECIALS = {
    "%tid": "t->tid[{}]",
    "%ntid": "c->block[{}]",
    "%ctaid": "t->ctaid[{}]",
    "%nctaid": "c->grid[{}]",
}
_SPECIAL_WORDS = {
    "%laneid": "(thread % 32)",
    "%warpid": "(thread / 32)",
    "%nwarpid": "((c->threads + 31) / 32)",
    "%lanemask_eq": "(1u << thread % 32)",
    "%lanemask_lt": "((1u << thread % 32) - 1)",
    "%lanemask_le": "(uint32_t)((2ull << thread % 32) - 1)",
    "%lanemask_gt": "~(uint32_t)((2ull << thread % 32) - 1)",
    "%lanemask_ge": "~((1u << thread % 32) - 1)",
    "%dynamic_smem_size": "c->dynamic_bytes",
    "%total_smem_size": "c->total_bytes",
}
_VOTES = {"all": "VOTE_ALL", "any": "VOTE_ANY", "uni": "VOTE_UNIFORM", "ballot": "VOTE_BALLOT"}
_SHUFFLES = {"up": "SHUFFLE_UP", "down": "SHUFFLE_DOWN", "bfly": "SHUFFLE_BUTTERFLY", "idx": "SHUFFLE_INDEX"}
_ACCESSES = {"ld", "ldu", "st", "atom", "red"}
_WEIGHT_OF_AN_ACCESS = 16
"""Arithmetic instructions beside which an access makes up for what vectors of lanes gain."""
_SAME_FOR_ALL = {"%ntid", "%nctaid"}
_OF_THE_CORE = {
    *("mma", "wmma", "wgmma", "tcgen05", "ldmatrix", "stmatrix", "movmatrix", "cp", "mbarrier", "fence", "setmaxnreg", "griddepcontrol"),
    *("tex", "tld4", "suld", "sust", "barrier", "mapa", "clusterlaunchcontrol"),
}
"""Instructions without which a kernel that has them does little: without a translation of one, none is compiled."""
_NOTHING = {"membar", "fence", "prefetch", "prefetchu", "nanosleep"}


_MAX_FAILURES = 2
"""Launches of a kernel in a row that were given up, after which some run lane by lane at once: 1, then 2, 4, and so on."""
_LONGEST_REST = 64
ENOUGH_WORK = 1_000_000
"""Instructions, as far as they can be foreseen, from which a kernel is compiled."""
MANY_THREADS = 8192
"""Threads of a launch from which vectors of lanes are worth their overhead."""
_MANY_JOBS = 4
"""Threads of this process that are faster together than vectors of lanes in one."""
LARGE_LAUNCH = 50_000_000
"""Such instructions from which a launch without a device is tried by compiled code."""
_FORESEEN_ITERATIONS = 20
"""Foreseen iterations of a loop."""


class _RegionOfC(ctypes.Structure):
    """`struct Region` of native_threads.c."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("start", "size")),
        *((name, ctypes.c_void_p) for name in ("read", "written", "updated")),
        ("units", ctypes.c_uint64),
        ("unit_shift", ctypes.c_int32),
        *((name, ctypes.c_uint8) for name in ("writable", "watched", "partly", "met")),
    ]


class _Context(ctypes.Structure):
    """`struct Context` of native_threads.c."""

    _fields_ = [
        ("memory", ctypes.c_void_p),
        ("base", ctypes.c_uint64),
        ("regions", ctypes.c_void_p),
        ("region_count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("granules", "page_state", "unwritten", "saved", "own_flags")),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        *((name, ctypes.c_uint32) for name in ("threads", "dynamic_bytes", "total_bytes")),
        *((name, ctypes.c_uint32) for name in ("now", "launch_start", "block_start", "phase_start")),
        ("warp_start", ctypes.c_uint32 * 32),
        *((name, ctypes.c_void_p) for name in ("shared", "gaps", "shared_granules")),
        ("shared_bytes", ctypes.c_uint64),
        *((name, ctypes.c_void_p) for name in ("local", "local_state")),
        ("thread_limit", ctypes.c_uint64),
        ("counts", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("hints", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("why", "place", "shares")),
        ("lock", ctypes.c_void_p),
        ("log", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("logged", "room")),
    ]


class _Thread(Run):
    """A kernel as C statements over the registers of one thread."""

    def __init__(self, program: Program, follows_shuffles: bool) -> None:
        registers = RegisterFile(program, 1)
        # Operands are bound for their constants alone: neither memory nor special registers are read here.
        super().__init__(Binder(program, Geometry((1, 1, 1), 1), registers, None, None))  # type: ignore[arg-type]
        self.program = program
        self.hints = 0
        self.sites: list[str] = []
        self.slots: dict[str, int] = {}
        self.resumes: list[int] = []
        self.undefined = find_undefined(program)
        """Registers that may hold no value."""
        self.follows_shuffles = follows_shuffles
        if follows_shuffles:
            shuffled = {name for block in program.blocks for inst in block.body if inst.opcode == "shfl" for name in written_by(inst)}
            self.undefined |= tainted_by(program, shuffled)
        self.floating = _floating(program)
        self.is_ordered = False
        """True if the order of atomic operations may decide about results."""
        self.sums: list[str] = []
        """Functions for atomic additions of floats whose results nobody takes: they are put off while several threads share the blocks."""
        self.waits = False
        """True if a thread may wait in a loop for what another one does."""
        self.carries = any(inst.has("cc") for block in program.blocks for inst in block.body)
        if self.carries:
            self.slots["carry"] = 0

    def c_type(self, register: Register) -> str:
        """The type of a register's C variable: a float where it mostly holds one, so that compilers keep it among floats."""
        name, width = self.binder.registers.place(register)[0], self.binder.registers.width(register)
        return {4: "float", 8: "double"}[width] if register.name in self.floating else CLASS_TYPES[name]

    def bits(self, register: Register) -> str:
        """A register's variable as an unsigned number."""
        place, c_type = self.variable(register), self.c_type(register)
        return f"raw_{c_type}({place})" if c_type in ("float", "double") else place

    def of_bits(self, register: Register, expression: str) -> str:
        """Bits as a value of a register's variable."""
        c_type = self.c_type(register)
        return f"{c_type}_of({expression})" if c_type in ("float", "double") else expression

    def read(self, inst: Instruction, operand: Operand, type_name: str) -> str:
        if isinstance(operand, Special):
            word = _special(operand.name)
            if word is None or type_name not in ("u32", "s32", "b32"):
                raise Untranslated(operand.name)
            return f"(({C_TYPES[type_name]}){word})"
        if not isinstance(operand, Register) or operand.name not in self.floating:
            return super().read(inst, operand, type_name)
        place, c_type = self.variable(operand), self.c_type(operand)
        if type_name == "pred" or TYPE_BYTES[type_name] > self.binder.registers.width(operand):
            raise Untranslated(operand.name)
        return place if C_TYPES.get(type_name) == c_type else as_type(self.bits(operand), type_name)

    def write(self, inst: Instruction, operand: Operand, type_name: str, expression: str) -> None:
        if isinstance(operand, Sink):
            return
        if not isinstance(operand, Register):
            raise Untranslated(str(operand))
        place, width, c_type = self.variable(operand), self.binder.registers.width(operand), self.c_type(operand)
        is_predicate = type_name == "pred"
        if width != (1 if is_predicate else TYPE_BYTES[type_name]) or (place[0] == "p") != is_predicate:
            raise Untranslated(operand.name)
        floating = C_TYPES[type_name] if type_name in ("f32", "f64") else ""
        if floating == c_type:
            value = f"plain_{c_type}({expression})"
        elif floating:
            value = f"bits_of_{floating}({expression})"
        else:
            value = self.of_bits(operand, f"(uint{8 * width}_t)({expression})")
        self.emit(inst, [f"{place} = {value};"])

    def mark(self, register: Register) -> str:
        """The C variable that is 1 while a register holds no value."""
        return f"undefined_{self.variable(register)}"

    def address(self, inst: Instruction, operand: Operand) -> str:
        """The address of a memory operand as an expression of 64 bits."""
        if not isinstance(operand, Address) or operand.extra:
            raise Untranslated(str(operand))
        base = operand.base
        if isinstance(base, Register):
            width = self.binder.registers.width(base)
            if width not in (4, 8):
                raise Untranslated(base.name)
            kind = f"u{8 * width}"
            offset = operand.offset & ((1 << 8 * width) - 1)
            return f"(uint64_t)({C_TYPES[kind]})({self.read(inst, base, kind)} + {offset}ull)"
        if isinstance(base, Symbol):
            return f"{self.binder.address_of(inst, Symbol(base.name, base.offset + operand.offset)) & (2**64 - 1)}ull"
        if isinstance(base, Integer):
            return f"{(base.value + operand.offset) & (2**64 - 1)}ull"
        raise Untranslated(str(operand))

    def hint(self) -> str:
        """The place of the region that an access met the last time."""
        self.hints += 1
        return f"&hints[{self.hints - 1}]"

    def emit(self, inst: Instruction, lines: Sequence[str]) -> None:
        """Statements that run where the guard holds."""
        text = " ".join(lines)
        if inst.guard is not None:
            text = f"if ({'!' if inst.guard_negated else ''}{self.read(inst, inst.guard, 'pred')}) {{ {text} }}"
        self.statements.append(text)

    def assign(self, operand: Operand, expression: str) -> str:
        """The assignment of bits to a register's variable."""
        if isinstance(operand, Sink):
            return ""
        if not isinstance(operand, Register):
            raise Untranslated(str(operand))
        return f"{self.variable(operand)} = {self.of_bits(operand, expression)};"

    def suspend(self, inst: Instruction, kind: str, live: frozenset[str], values: Sequence[str], then: Sequence[str]) -> None:
        """Stops the thread until the others have come, and continues with `then`."""
        site = len(self.sites)
        self.sites.append(f"{{{kind}, {int(inst.has('aligned'))}}}")
        saved, back = [], []
        if self.carries:
            saved.append("t->s[0] = carry;")
            back.append("carry = t->s[0];")
        for group in self.program.registers.values():
            for register in group:
                if register.name in live:
                    slot = self.slots.setdefault(register.name, len(self.slots))
                    saved.append(f"t->s[{slot}] = {self.bits(register)};")
                    back.append(f"{self.variable(register)} = {self.of_bits(register, f't->s[{slot}]')};")
                    if register.name in self.undefined:
                        slot = self.slots.setdefault(f"{register.name} undefined", len(self.slots))
                        saved.append(f"t->s[{slot}] = {self.mark(register)};")
                        back.append(f"{self.mark(register)} = t->s[{slot}];")
        self.resumes.append(site)
        lines = [f"t->x[{place}] = {value};" for place, value in enumerate(values) if value]
        lines += saved
        stop = "IN_WARP" if not kind.startswith("BARRIER") else "AT_BARRIER"
        lines += [f"t->iterations = n; t->at = {site + 1}; t->site = {site}; return {stop};", f"resume_{site}:;"]
        lines += back
        self.emit(inst, [*lines, *then])


_OF_ANY_BITS = {"ld", "ldu", "st", "mov", "selp", "shfl", "atom", "red"}
"""Instructions that take floats and other values alike."""


def _floating(program: Program) -> frozenset[str]:
    """Registers that instructions read and write as float32 or float64 more often than as other bits."""
    balance: Counter[str] = Counter()
    for block in program.blocks:
        for inst in block.body:
            if inst.opcode in _OF_ANY_BITS or not inst.types:
                continue
            for place, operand in enumerate(inst.operands):
                type_name = inst.types[min(place, len(inst.types) - 1)] if inst.opcode == "cvt" else inst.type
                weight = 1 if type_name in ("f32", "f64") else -1
                for register in registers_of(operand):
                    balance[register.name] += weight
    floats = {register.name for name in ("b32", "b64") for register in program.registers.get(name, ())}
    return frozenset(name for name, count in balance.items() if count > 0 and name in floats)


def _special(name: str) -> str | None:
    stem, _, axis = name.partition(".")
    if axis in _AXES and stem in _SPECIALS:
        return _SPECIALS[stem].format(_AXES[axis])
    return _SPECIAL_WORDS.get(name)


_Translate = Callable[[_Thread, Instruction, frozenset[str]], None]


def _check_scope(run: _Thread, inst: Instruction) -> None:
    """Strong accesses are taken as plain ones: threads that exchange data by them conflict then, and the launch is given up."""
    if any("cluster" in word for word in inst.modifiers) or inst.has("mmio"):
        raise Untranslated("an access of a cluster")
    run.waits |= any(inst.has(word) for word in _STRONG)


def _pointer(run: _Thread, inst: Instruction, operand: Operand, width: int, kind: str) -> str:
    """The call that checks an access and returns where its bytes are."""
    space, address = space_name(inst, operand, run.binder), run.address(inst, operand)
    if space == "shared":
        return f"{kind}_shared(c, {address}, {width}, &w)"
    if space == "local":
        if kind in ("update", "guess"):
            raise Untranslated("an atomic operation on local memory")
        return f"at_local(c, {address}, {width}, &w, {int(kind == 'write')})"
    if space == "generic":
        return f"{kind}_generic(c, {run.hint()}, {address}, {width}, &w)"
    constant = f", {int(inst.has('nc'))}" if kind == "read" else ""
    return f"{kind}_global(c, {run.hint()}, {address}, {width}, &w{constant})"


def _load(run: _Thread, inst: Instruction, live: frozenset[str]) -> None:
    _check_scope(run, inst)
    elements = inst.operands[0].elements if isinstance(inst.operands[0], Vector) else (inst.operands[0],)
    size = TYPE_BYTES[inst.type]
    width = size * len(elements)
    if size > 8 or width > 32:
        raise Untranslated("a wide load")
    moved = inst.type if inst.type[0] in "us" else f"b{size * 8}"
    kind = "guess" if inst in guesses(run.program) else "read"
    lines = [f"const uint8_t *p = {_pointer(run, inst, inst.operands[1], width, kind)};", f"if (UNLIKELY(!p)) GIVE_UP({inst.line});"]
    for place, element in enumerate(elements):
        if isinstance(element, Sink):
            continue
        if not isinstance(element, Register):
            raise Untranslated(str(element))
        kind = widened(moved, run.binder.registers.width(element))
        if TYPE_BYTES[kind] != run.binder.registers.width(element):
            raise Untranslated(element.name)
        value = f"({C_TYPES[kind]})({C_TYPES[moved]})get_{8 * size}(p + {place * size})"
        lines.append(run.assign(element, value))
    run.emit(inst, ["{", *lines, "}"])


def _store(run: _Thread, inst: Instruction, live: frozenset[str]) -> None:
    _check_scope(run, inst)
    elements = inst.operands[1].elements if isinstance(inst.operands[1], Vector) else (inst.operands[1],)
    size = TYPE_BYTES[inst.type]
    width = size * len(elements)
    if size > 8 or width > 32:
        raise Untranslated("a wide store")
    lines = [f"uint8_t *p = {_pointer(run, inst, inst.operands[0], width, 'write')};", f"if (UNLIKELY(!p)) GIVE_UP({inst.line});"]
    for place, element in enumerate(elements):
        lines.append(f"put_{8 * size}(p + {place * size}, {_bits(run, inst, element, size)});")
    run.emit(inst, ["{", *lines, "}"])


def _bits(run: _Thread, inst: Instruction, operand: Operand, size: int) -> str:
    """The low bits of an operand as they are."""
    if isinstance(operand, Register):
        return run.read(inst, operand, f"b{8 * size}")
    value = run.binder.source(inst, operand, inst.type)
    if isinstance(value, np.ndarray):
        raise Untranslated(str(operand))
    return f"{int(np.asarray(value).view(f'u{size}'))}ull"


def _atomic(run: _Thread, inst: Instruction, live: frozenset[str]) -> None:
    """A read, an update and a write. Threads take turns in the order in which they run, which is one of those that a GPU may take."""
    if any(inst.has(word) for word in ("cta", "cluster", "v2", "v4", "v8", "async", "mmio")):
        raise Untranslated("this atomic operation")
    has_result = inst.opcode == "atom"
    result = inst.operands[0] if has_result else Sink()
    if isinstance(result, Register) and result.name not in live:
        result = Sink()
    operation, kind = inst.first_of(("add", "min", "max", "and", "or", "xor", "inc", "dec", "exch", "cas")), inst.type
    address, *values = inst.operands[int(has_result) :]
    bits = 8 * TYPE_BYTES[kind]
    raw = f"uint{bits}_t"
    space = space_name(inst, address, run.binder)
    if bits not in (16, 32, 64) or (kind == "f32" and space == "generic"):
        raise Untranslated(kind)
    new, commutes = _updated(run, inst, operation or "", kind, values, space == "global")
    sums = operation == "add" and not commutes and isinstance(result, Sink) and space != "shared"
    # A block's operations on its shared memory have one order, however many threads share the blocks.
    run.is_ordered |= space != "shared" and not sums and (not commutes or not isinstance(result, Sink))
    run.waits |= not isinstance(result, Sink)
    lines = [f"uint8_t *p = {_pointer(run, inst, address, bits // 8, 'update')};", f"if (UNLIKELY(!p)) GIVE_UP({inst.line});"]
    lines.append(f"{raw} raw = get_{bits}(p);")
    if commutes and isinstance(result, Sink):
        lines.append(
            f"if (c->shares) while (!__atomic_compare_exchange_n(({raw} *)p, &raw, ({raw})({new}), 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));"
        )
        lines.append(f"else put_{bits}(p, ({raw})({new}));")
    elif sums:
        value = f"const {raw} value = {_bits(run, inst, values[0], bits // 8)};"
        put = f"put_{bits}(p, ({raw})({new}));"
        if len(run.sums) >= 1 << 15:
            raise Untranslated("so many atomic operations")
        defers = f"if (!defer(c, p, {len(run.sums)}, value)) GIVE_UP({inst.line});"
        is_global = "" if space == "global" else " && p >= c->memory && p < c->memory + c->bytes"
        lines += [value, f"if (c->shares{is_global}) {{ {defers} }} else {put}"]
        run.sums.append(f"{{ {raw} raw = get_{bits}(p); const {raw} value = ({raw})given; {put} break; }}")
    else:
        if operation == "add" and not commutes:
            lines.append(f"const {raw} value = {_bits(run, inst, values[0], bits // 8)};")
        lines.append(f"put_{bits}(p, ({raw})({new}));")
        if isinstance(result, Register):
            wide = f"uint{8 * run.binder.registers.width(result)}_t"
            lines.append(run.assign(result, f"({wide})raw"))
    run.emit(inst, ["{", *lines, "}"])


def _updated(run: _Thread, inst: Instruction, operation: str, kind: str, values: Sequence[Operand], is_global: bool) -> tuple[str, bool]:
    """The new bits as an expression of the old ones, `raw`, and of `value` for sums of floats; True if the order of several such operations
    makes no difference."""
    if operation in ("exch", "cas"):
        given = [_bits(run, inst, value, TYPE_BYTES[kind]) for value in values]
        return (given[0] if operation == "exch" else f"raw == {given[0]} ? {given[1]} : raw"), False
    if kind in ("f16", "bf16", "f16x2", "bf16x2") and operation == "add":
        name = kind.removesuffix("x2")
        shifts = range(0, 8 * TYPE_BYTES[kind], 16)
        pairs = [[f"double_of_{name}((uint16_t)({bits} >> {shift}))" for bits in ("raw", "value")] for shift in shifts]
        parts = [f"(uint32_t)bits_of_{name}(odd_sum({old}, {more})) << {16 * place}" for place, (old, more) in enumerate(pairs)]
        return " | ".join(parts), False
    if kind not in C_TYPES:
        raise Untranslated(kind)
    old = as_type("raw", kind)
    if kind == "f32" and operation == "add":
        other = as_type("value", kind)
        # PTX ISA, atom: on global memory additions of float32 flush subnormal numbers, on shared memory they do not.
        total = f"flushed(flushed({old}) + flushed({other}))" if is_global else f"{old} + {other}"
        return f"bits_of_float({total})", False
    if kind == "f64" and operation == "add":
        return "sum_of_bits(raw, value)", False
    if kind[0] not in "bus":
        raise Untranslated(kind)
    other = run.read(inst, values[0], kind)
    if operation in _UPDATES:
        return _UPDATES[operation].format(old=old, value=other), True
    if operation in ("min", "max"):
        return f"{old} {'<' if operation == 'min' else '>'} {other} ? {old} : {other}", True
    if operation == "inc":
        return f"{old} >= {other} ? 0 : {old} + 1", True
    if operation == "dec":
        return f"{old} == 0 || {old} > {other} ? {other} : {old} - 1", True
    raise Untranslated(operation or "atom")


def _carry(run: _Thread, inst: Instruction) -> None:
    """Sums and products that take or leave a carry: there is one flag, of a + b and of a + ~b + 1."""
    kind = inst.type
    if kind[0] not in "us" or TYPE_BYTES[kind] < 4 or inst.has("sat"):
        raise Untranslated(inst.opcode)
    stem, unsigned = inst.opcode.removesuffix("c"), C_TYPES[f"u{kind[1:]}"]
    given = [run.read(inst, operand, kind) for operand in inst.operands[1:]]
    if stem == "mad":
        bits = 8 * TYPE_BYTES[kind]
        whole = {"u32": "uint64_t", "s32": "int64_t", "u64": "unsigned __int128", "s64": "__int128"}[kind]
        product = f"(({whole}){given[0]} * ({whole}){given[1]})" if inst.has("hi") else f"(({unsigned}){given[0]} * ({unsigned}){given[1]})"
        given = [f"({product} >> {bits})" if inst.has("hi") else product, given[2]]
    start = "carry" if inst.opcode.endswith("c") else str(int(stem == "sub"))
    lines = [
        f"const {unsigned} a = ({unsigned}){given[0]}, b = {'~' if stem == 'sub' else ''}({unsigned}){given[1]};",
        f"const {unsigned} first = a + b, sum = first + {start};",
        *(["carry = first < a || sum < first;"] if inst.has("cc") else []),
        run.assign(inst.operands[0], "sum"),
    ]
    run.emit(inst, ["{", *lines, "}"])


def _mov(run: _Thread, inst: Instruction, live: frozenset[str]) -> None:
    if isinstance(inst.operands[1], Special):
        kind = f"u{8 * TYPE_BYTES[inst.type]}"
        run.write(inst, inst.operands[0], kind, run.read(inst, inst.operands[1], kind))
    else:
        TRANSLATIONS["mov"](run, inst)


def _cvta(run: _Thread, inst: Instruction, live: frozenset[str]) -> None:
    shared = any(word.split("::")[0] == "shared" for word in inst.modifiers)
    if not shared and not inst.has("local"):
        TRANSLATIONS["cvta"](run, inst)
        return
    if inst.type != "u64":
        raise Untranslated("cvta")
    sign, window = "-" if inst.has("to") else "+", SHARED_WINDOW if shared else LOCAL_WINDOW
    run.write(inst, inst.operands[0], "u64", f"{run.read(inst, inst.operands[1], 'u64')} {sign} {window}ull")


def _shuffle(run: _Thread, inst: Instruction, live: frozenset[str]) -> None:
    mode = inst.first_of(tuple(_SHUFFLES))
    destination = inst.operands[0]
    value, valid = (destination.first, destination.second) if isinstance(destination, Pair) else (destination, Sink())
    if mode is None or not inst.has("sync") or inst.guard is not None:
        raise Untranslated("shfl")
    given = [run.read(inst, operand, "u32") for operand in inst.operands[1:5]]
    then = [run.assign(value, "t->r[0]"), run.assign(valid, "t->r[1]")]
    if run.follows_shuffles:
        source = inst.operands[1]
        lacking = run.mark(source) if isinstance(source, Register) and source.name in run.undefined else "0"
        run.emit(inst, [f"t->lacks = {lacking};"])
        then += [f"{run.mark(value)} = t->lacked;"] if isinstance(value, Register) else []
        then += [f"{run.mark(valid)} = 0;"] if isinstance(valid, Register) else []
    run.suspend(inst, _SHUFFLES[mode], live, given, then)


def _vote(run: _Thread, inst: Instruction, live: frozenset[str]) -> None:
    mode, operand = inst.first_of(tuple(_VOTES)), inst.operands[1]
    if mode is None or not inst.has("sync") or inst.guard is not None:
        raise Untranslated("vote")
    voted = f"!{run.read(inst, operand.register, 'pred')}" if isinstance(operand, Negated) else run.read(inst, operand, "pred")
    given = [voted, "", "", run.read(inst, inst.operands[2], "u32")]
    run.suspend(inst, _VOTES[mode], live, given, [run.assign(inst.operands[0], "t->r[0]")])


def _redux(run: _Thread, inst: Instruction, live: frozenset[str]) -> None:
    operation = inst.first_of(("add", "min", "max", "and", "or", "xor"))
    if operation is None or inst.type not in ("u32", "s32", "b32") or inst.guard is not None:
        raise Untranslated("redux")
    signed = "S" if inst.type == "s32" and operation in ("min", "max") else ""
    given = [run.read(inst, inst.operands[1], "u32"), "", "", run.read(inst, inst.operands[2], "u32")]
    run.suspend(inst, f"REDUX_{signed}{operation.upper()}", live, given, [run.assign(inst.operands[0], "t->r[0]")])


def _match(run: _Thread, inst: Instruction, live: frozenset[str]) -> None:
    size, destination = TYPE_BYTES[inst.type], inst.operands[0]
    if size not in (4, 8) or inst.guard is not None:
        raise Untranslated("match")
    mask, equal = (destination.first, destination.second) if isinstance(destination, Pair) else (destination, Sink())
    value = run.read(inst, inst.operands[1], f"u{8 * size}")
    given = [f"(uint32_t){value}", f"(uint32_t)((uint64_t){value} >> 32)", "", run.read(inst, inst.operands[2], "u32")]
    kind = "MATCH_ANY" if inst.has("any") else "MATCH_ALL"
    run.suspend(inst, kind, live, given, [run.assign(mask, "t->r[0]"), run.assign(equal, "t->r[1]")])


def _active(run: _Thread, inst: Instruction, live: frozenset[str]) -> None:
    """The lanes that have come as far as this before any other lane of the warp can continue."""
    if inst.guard is not None:
        raise Untranslated("activemask")
    run.suspend(inst, "ACTIVE", live, ["0", "0", "0", "~0u"], [run.assign(inst.operands[0], "t->r[0]")])


def _warp_barrier(run: _Thread, inst: Instruction, live: frozenset[str]) -> None:
    if not inst.has("warp") or inst.guard is not None:
        raise Untranslated("bar")
    run.suspend(inst, "WARP_BARRIER", live, ["", "", "", run.read(inst, inst.operands[0], "u32")], [])


_MORE: dict[str, _Translate] = {
    "ld": _load,
    "ldu": _load,
    "st": _store,
    "atom": _atomic,
    "red": _atomic,
    "cvta": _cvta,
    "mov": _mov,
    "shfl": _shuffle,
    "vote": _vote,
    "redux": _redux,
    "match": _match,
    "activemask": _active,
    "bar": _warp_barrier,
}


def _translate(run: _Thread, inst: Instruction, live: frozenset[str]) -> None:
    """The statements of an instruction; `live`: registers that may be read behind it. Raises Untranslated."""
    try:
        check_form(inst)
        if inst.opcode in _NOTHING:
            if any("proxy" in word for word in inst.modifiers) or inst.has("cluster"):
                raise Untranslated(inst.opcode)
        elif inst.has("cc") or inst.opcode in ("addc", "subc", "madc"):
            _carry(run, inst)
        elif inst.opcode in _MORE:
            _MORE[inst.opcode](run, inst, live)
        elif inst.opcode in TRANSLATIONS:
            run.add(inst)
        else:
            raise Untranslated(inst.opcode)
    except (EmulatorError, *MISUSE) as error:
        raise Untranslated(inst.opcode) from error


_MOVES = {
    *("mov", "selp", "add", "sub", "mul", "mad", "fma", "cvt", "cvta", "and", "or", "xor", "not", "shl", "shr", "lop3", "setp", "min"),
    *("max", "neg", "abs"),
}
"""Instructions that move an undefined value without an effect; every other one that may read such a value is not translated."""


def _follow(run: _Thread, inst: Instruction) -> None:
    """Statements ahead of an instruction, if it reads or writes registers that may hold no value: they give the launch up where such a
    value has an effect, and mark the values computed from it."""
    without = run.undefined
    if not without:
        return
    results = [register for operand in inst.operands[:1] for register in registers_of(operand) if register.name in written_by(inst)]
    shuffles = inst.opcode == "shfl" and run.follows_shuffles
    read = inst.operands[2:] if shuffles else sources_of(inst)
    sources = [register for operand in read for register in registers_of(operand) if register.name in without]
    if inst.guard is not None and inst.guard.name in without:
        run.statements.append(f"if ({run.mark(inst.guard)}) GIVE_UP({inst.line});")
    marked = [register for register in results if register.name in without]
    value = " | ".join(run.mark(register) for register in sources) or "0"
    if inst.opcode == "selp" and all(isinstance(operand, Register | Integer | Float | Symbol) for operand in inst.operands[1:]):
        first, second, chooses = (
            run.mark(operand) if isinstance(operand, Register) and operand.name in without else "0" for operand in inst.operands[1:4]
        )
        value = f"{chooses} | ({run.read(inst, inst.operands[3], 'pred')} ? {first} : {second})"
    elif inst.opcode not in _MOVES and sources:
        run.emit(inst, [f"if ({value}) GIVE_UP({inst.line});"])
        value = "0"
    if marked and not shuffles:
        run.emit(inst, [f"{run.mark(register)} = {value};" for register in marked])


def _translate_or_give_up(run: _Thread, inst: Instruction, live: frozenset[str], block: int) -> None:
    """Translates as `_translate`; without a translation, the launch is given up where a thread executes it. Every thread executes those
    of the first block, and nearly every one those of the kernel's core."""
    before = list(run.statements)
    try:
        _translate(run, inst, live)
    except Untranslated:
        if inst.opcode in _OF_THE_CORE or (block == 0 and inst.guard is None):
            raise
        run.statements[:] = before
        run.emit(inst, [f"GIVE_UP({inst.line});"])


def _end(run: _Thread, block: BasicBlock, live: frozenset[str]) -> None:
    """The statements of a terminator."""
    inst, following = block.terminator, block.index + 1
    if inst is None:
        run.statements.append(f"goto L{following};")
        return
    try:
        check_form(inst)
    except EmulatorError as error:
        raise Untranslated(inst.opcode) from error
    match inst.opcode:
        case "bra":
            run.emit(inst, [_jump(block, block.targets[0])])
        case "brx":
            cases = [f"case {place}: {_jump(block, target)}" for place, target in enumerate(block.targets)]
            run.emit(inst, [f"switch ({run.read(inst, inst.operands[0], 'u32')}) {{", *cases, f"default: GIVE_UP({inst.line}); }}"])
        case "ret" | "exit":
            run.emit(inst, ["return EXITED;"])
        case "trap":
            run.emit(inst, [f"GIVE_UP({inst.line});"])
        case "bar" | "barrier":
            _barrier(run, inst, live)
        case _:
            raise Untranslated(inst.opcode)
    if inst.guard is not None or inst.opcode in ("bar", "barrier"):
        run.statements.append(f"goto L{following};")


def _jump(block: BasicBlock, target: int) -> str:
    if target > block.index:
        return f"goto L{target};"
    return f"{{ if (UNLIKELY(++n > c->thread_limit)) GIVE_UP(-1); goto L{target}; }}"


def _barrier(run: _Thread, inst: Instruction, live: frozenset[str]) -> None:
    reduction = inst.first_of(("popc", "and", "or")) if inst.has("red") else None
    operands = list(inst.operands)
    result, predicate = (operands.pop(0), operands.pop()) if reduction else (Sink(), None)
    if inst.has("arrive") or len(operands) != 1 or not isinstance(operands[0], Integer) or not 0 <= operands[0].value < 16:
        raise Untranslated("a barrier of a part of the block")
    if reduction is None:
        run.suspend(inst, "BARRIER", live, [], [])
        return
    voted = f"!{run.read(inst, predicate.register, 'pred')}" if isinstance(predicate, Negated) else run.read(inst, predicate, "pred")  # type: ignore[arg-type]
    run.suspend(inst, f"BARRIER_{reduction.upper()}", live, [voted], [run.assign(result, "t->r[0]")])


# -- the whole kernel ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Kernel:
    """A compiled kernel."""

    program: Program
    library: ctypes.CDLL
    suspends: bool
    granule_shift: int
    shared_shift: int
    hints: int
    """Accesses that remember a region."""
    is_ordered: bool
    """True if the order of blocks may decide about results."""
    thread_limit: int
    """Iterations of loops of one thread from which it seems to wait for another one."""
    follows_shuffles: bool
    failures: int = 0
    """Launches in a row that were given up."""
    rested: int = 0
    """Launches since the last one of them that were not tried."""
    given_up_at: int = 0
    """PTX line of the instruction that gave the last one of them up; others than lines are numbers of native_threads.c."""


def is_for_lanes(program: Program, grid: Dim3, block: Dim3, jobs: int = 1) -> bool:
    """True if a launch is likely to run faster lane by lane, which takes one thread."""
    return jobs < _MANY_JOBS and int(np.prod(grid)) * int(np.prod(block)) >= MANY_THREADS and suits_lanes(program)


def is_worth_a_try(kernel: Kernel) -> bool:
    """False for some launches of a kernel behind others that were given up: what it met then need not last. A wait for another block
    usually does."""
    rest = min(1 << (kernel.failures - _MAX_FAILURES), _LONGEST_REST) if kernel.failures >= _MAX_FAILURES else 0
    tries = kernel.rested >= rest
    kernel.rested = 0 if tries else kernel.rested + 1
    return tries


def expected_work(program: Program, grid: Dim3, block: Dim3) -> int:
    """A rough number of the instructions of a launch."""
    loops = any(target <= each.index for each in program.blocks for target in each.targets)
    count = sum(len(each.body) + 1 for each in program.blocks) * (_FORESEEN_ITERATIONS if loops else 1)
    return count * grid[0] * grid[1] * grid[2] * block[0] * block[1] * block[2]


@of_program
def suits_lanes(program: Program) -> bool:
    """True if the instructions of a kernel's innermost loops are mostly arithmetic, and all threads take the same branches: vectors of many
    lanes are faster there than one thread after another."""
    jumps = [(target, block.index) for block in program.blocks for target in block.targets if target <= block.index]
    innermost = [(first, last) for first, last in jumps if not any(first <= a and b <= last and (a, b) != (first, last) for a, b in jumps)]
    bodies = [block for block in program.blocks if any(first <= block.index <= last for first, last in innermost)]
    varying = _varying(program)
    looping = [block for block in program.blocks if any(first <= block.index <= last for first, last in jumps)]
    ends = [block.terminator for block in looping if block.terminator is not None]
    if not bodies or any(end.opcode == "brx" or (end.guard is not None and end.guard.name in varying) for end in ends):
        return False
    accesses = sum(inst.opcode in _ACCESSES for block in bodies for inst in block.body)
    return _WEIGHT_OF_AN_ACCESS * accesses < sum(len(block.body) for block in bodies)


def _varying(program: Program) -> frozenset[str]:
    """Registers whose values may differ between threads."""
    varying: set[str] = set()
    grew = True
    while grew:
        grew = False
        for block in program.blocks:
            for inst in block.body:
                results = written_by(inst)
                if not results or varying.issuperset(results):
                    continue
                operands = sources_of(inst)
                names = {register.name for operand in operands for register in registers_of(operand)}
                special = any(isinstance(operand, Special) and operand.name.partition(".")[0] not in _SAME_FOR_ALL for operand in operands)
                if special or names & varying or inst.opcode in ("atom", "shfl", "match") or (inst.guard and inst.guard.name in varying):
                    varying.update(results)
                    grew = True
    return frozenset(varying)


@dataclass(frozen=True, slots=True)
class Translation:
    """The C text of a kernel, and the facts about it that `Kernel` describes."""

    text: str
    suspends: bool
    granule_shift: int
    shared_shift: int
    hints: int
    is_ordered: bool
    thread_limit: int


def translation(program: Program, follows_shuffles: bool = False) -> Translation:
    """The C text of a kernel. Raises Untranslated."""
    count = sum(len(block.body) + 1 for block in program.blocks)
    if count > _LONGEST or program.allocates or program.meets_grid or program.names_clusters:
        raise Untranslated("the kernel as a whole")
    run, live_behind = _Thread(program, follows_shuffles), compiled(program).live
    texts: list[str] = []
    for block in program.blocks:
        behind: list[frozenset[str]] = []
        live = set(live_behind[block.index])
        for inst in reversed(block.instructions):
            behind.append(frozenset(live))
            read, written = effects(inst)
            live = (live - written) | read
        behind.reverse()
        texts.append(f"L{block.index}:; ++counts[{block.index}];")
        for inst, after in zip(block.body, behind, strict=False):
            run.statements.clear()
            _follow(run, inst)
            _translate_or_give_up(run, inst, after, block.index)
            texts += run.statements
        run.statements.clear()
        if block.terminator is not None:
            _follow(run, block.terminator)
        _end(run, block, behind[-1] if behind else frozenset())
        texts += run.statements
    texts.append(f"L{len(program.blocks)}:; GIVE_UP(-2);")
    shifts = [granules(program)[space].bit_length() - 1 for space in ("global", "shared")]
    text, limit = _source(program, run, texts, shifts), _WAITING_LIMIT if run.waits else _THREAD_LIMIT
    return Translation(text, bool(run.sites), shifts[0], shifts[1], run.hints + 1, run.is_ordered, limit)


def _source(program: Program, run: _Thread, texts: Sequence[str], shifts: Sequence[int]) -> str:
    constants = {
        "GRANULE_SHIFT": shifts[0],
        "SHARED_SHIFT": shifts[1],
        "SHARED_START": f"{program.shared_start}ull",
        "HAS_GAPS": int(bool(program.shared_gaps)),
        "LOCAL_BYTES": program.local_bytes,
        "SUSPENDS": int(bool(run.sites)),
        "DEFERS": int(bool(run.sums)),
        "SAVED": len(run.slots),
        "FOLLOWS_SHUFFLES": int(run.follows_shuffles),
        "SHARED_WINDOW": f"{SHARED_WINDOW}ull",
        "LOCAL_WINDOW": f"{LOCAL_WINDOW}ull",
        "PLACE": "__LINE__",
        "ONE_BY_ONE": "1",
    }
    variables = []
    for name, group in program.registers.items():
        if name in CLASS_TYPES:
            variables += [f"{run.c_type(register)} {run.variable(register)} = 0;" for register in group]
            variables += [f"uint8_t {run.mark(register)} = 1;" for register in group if register.name in run.undefined]
    cases = [f"case {site + 1}: goto resume_{site};" for site in run.resumes]
    body = [
        "static int run_thread(struct Context *c, struct Thread *t) {",
        "int32_t *const hints = c->hints; uint64_t n = t->iterations; const struct Who w = who_runs(c, t->number);",
        "const uint32_t thread = t->number; (void)thread; (void)hints; (void)n;",
        "uint64_t *const restrict counts = c->counts;",
        *variables,
        *(["uint8_t carry = 0;"] if run.carries else []),
        *([f"switch (t->at) {{ case 0: break; {' '.join(cases)} }}"] if cases else []),
        *texts,
        "}",
    ]
    sums = [f"case {number}: {text}" for number, text in enumerate(run.sums)]
    head = "static void apply_one(uint32_t number, uint8_t *p, uint64_t given) { (void)p; (void)given; switch (number) {"
    sites = f"static const struct Site SITES[] = {{{', '.join(run.sites) or '{0, 0}'}}};"
    return "\n".join(
        [
            *(f"#define {name} {value}" for name, value in constants.items()),
            PRELUDE.read_text(),
            _MEMORY.read_text(),
            sites,
            *(head, *sums, "} }"),
            *body,
            _BLOCKS.read_text(),
        ]
    )


def kernel_of(program: Program, follows_shuffles: bool = False) -> Kernel | None:
    """The compiled kernel; None if it has no translation, or without a compiler. `follows_shuffles`: it knows which values come from lanes
    that take no part in a shuffle, and gives up where one has an effect; else it gives up at the shuffle."""
    if not native.is_possible():
        return None
    try:
        made = translation(program, follows_shuffles)
    except Untranslated:
        return None
    if len(made.text) > _MAX_TEXT:
        return None
    functions = ("run_blocks", "conflict", "apply", "has_changed", "finish", "release")
    library = native.library("emulator threads", made.text.encode(), exact_options("-O2"), functions)
    if library is None:
        return None
    library.run_blocks.argtypes = (ctypes.POINTER(_Context), ctypes.c_int64, ctypes.c_int64)
    library.run_blocks.restype = ctypes.c_int64
    library.finish.argtypes = (ctypes.POINTER(_Context), ctypes.c_int64, ctypes.c_int)
    library.finish.restype = None
    library.has_changed.argtypes = (ctypes.POINTER(_Context), ctypes.c_int64)
    library.has_changed.restype = ctypes.c_int
    library.apply.argtypes = (ctypes.POINTER(_Context), ctypes.c_void_p, ctypes.c_int64)
    library.apply.restype = None
    library.release.argtypes = (ctypes.c_void_p,)
    library.release.restype = None
    library.conflict.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    library.conflict.restype = ctypes.c_int
    facts = (made.suspends, made.granule_shift, made.shared_shift, made.hints, made.is_ordered, made.thread_limit)
    return Kernel(program, library, *facts, follows_shuffles)


@of_program
def remembered_kernel(program: Program) -> Kernel | None:
    """`kernel_of`, remembered."""
    return kernel_of(program)


# -- launches --------------------------------------------------------------------------------------------------


class Clock:
    """Records of accesses to global memory, which later launches need not clear: time continues from launch to launch."""

    def __init__(self) -> None:
        self._granules: dict[int, np.ndarray] = {}
        self.now = 1
        self.others: list[Clock] = []
        """Clocks of further threads that share the blocks of a launch."""

    def granules(self, shift: int, size_bytes: int) -> np.ndarray:
        """The records of the granules of so many bytes."""
        count = (size_bytes >> shift) + PAGE_BYTES
        if self.now > LAST_TIME // 2:
            self._granules.clear()
            self.now = 1
        known = self._granules.get(shift)
        if known is None or len(known) < count:
            # Granules of another size have records of other accesses, none of this launch.
            known = self._granules[shift] = np.zeros(count + count // 4, np.uint64)
        return known


@dataclass(slots=True)
class Outcome:
    """A launch that has run to its end without hazards."""

    executions: list[int]
    """Number of executions of each basic block, by threads."""
    unwritten: dict[int, np.ndarray]
    """Flags of the bytes of pages that the launch has written to, where something was unwritten before."""
    has_changed: bool
    """True if memory holds other bytes than before."""
    flags: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]
    """Accessed regions by their starts: flags of the units that were read, written, and changed by atomic operations."""

    def instructions(self, program: Program) -> Counter[str]:
        """Instructions by opcode, summed over threads."""
        counts: Counter[str] = Counter()
        for block, executed in zip(program.blocks, self.executions, strict=True):
            for inst in block.instructions if executed else ():
                counts[inst.opcode] += executed
        return counts


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a compiled kernel: its memory, its shape, and the records of its accesses."""

    memory: np.ndarray
    regions: Sequence[Region]
    watched: Sequence[Region]
    """The regions that the kernel may write."""
    pages: np.ndarray
    """The state of each page's bytes."""
    unwritten: Mapping[int, np.ndarray]
    """Flags of the bytes of the pages some of whose bytes nothing has written."""
    units: Mapping[int, int]
    """Bytes of a flag of accesses to a region, by its start."""
    clock: Clock
    grid: Dim3
    block: Dim3
    dynamic_bytes: int
    """Dynamic shared memory of a block."""
    shared_bytes: int
    """All shared memory of a block."""
    jobs: int = 1
    """Threads of this process that may share the blocks."""
    progress: Callable[[int, int], object] | None = None


def run(kernel: Kernel, launch: Launch) -> Outcome | None:
    """Runs all blocks; None if that was given up: memory is then as it was before, and the kernel counts a failure."""
    outcome = _attempt(kernel, launch)
    if outcome is None and kernel.given_up_at == _LANE_IS_MISSING and not kernel.follows_shuffles:
        other = kernel_of(kernel.program, follows_shuffles=True)
        if other is not None:
            kernel.library, kernel.suspends, kernel.hints, kernel.follows_shuffles = other.library, other.suspends, other.hints, True
            outcome = _attempt(kernel, launch)
    kernel.failures = kernel.failures + 1 if outcome is None else 0
    if outcome is None and kernel.given_up_at == _WAITS:
        kernel.failures = max(kernel.failures, _MAX_FAILURES + _LONGEST_REST.bit_length())
    return outcome


def _attempt(kernel: Kernel, launch: Launch) -> Outcome | None:
    """Runs all blocks, as `run` describes."""
    program, library = kernel.program, kernel.library
    memory, regions, pages, units, clock, grid = launch.memory, launch.regions, launch.pages, launch.units, launch.clock, launch.grid
    needed, threads = launch.shared_bytes, math.prod(launch.block)
    if (threads if kernel.suspends else 1) * program.local_bytes > _MAX_LOCAL_BYTES or not regions:
        return None
    kernel.given_up_at = 0
    context = _Context()
    try:
        granules = clock.granules(kernel.granule_shift, len(memory))
    except MemoryError:
        return None
    clock.now += 1
    table = (_RegionOfC * len(regions))()
    may_write = {region.start for region in launch.watched}
    for place, region in enumerate(regions):
        entry = table[place]
        entry.start, entry.size = GLOBAL_BASE + region.start, region.stop - region.start
        entry.writable, entry.watched = region.writable, region.writable and region.start in may_write
        first, last = region.start // PAGE_BYTES, (max(region.stop, region.start + 1) - 1) // PAGE_BYTES
        entry.partly = bool(pages[first : last + 1].any())
        # Without anybody to ask for flags, there is one for the whole region.
        unit = units.get(region.start, 1 << 63)
        entry.units, entry.unit_shift = _count(region, unit), unit.bit_length() - 1
    count = -(-len(memory) // PAGE_BYTES)
    state = np.ascontiguousarray(pages[:count])
    tables = np.zeros((2, count), np.uint64)
    own = np.zeros(count, np.uint8)
    for page, known in launch.unwritten.items():
        if page < count and state[page]:
            tables[0, page] = known.ctypes.data
    context.memory, context.base = memory.ctypes.data, GLOBAL_BASE
    context.regions, context.region_count = ctypes.addressof(table), len(regions)
    context.page_state, context.own_flags = state.ctypes.data, own.ctypes.data
    context.unwritten, context.saved = tables[0].ctypes.data, tables[1].ctypes.data
    context.grid[:], context.block[:], context.threads = grid, launch.block, threads
    context.dynamic_bytes, context.total_bytes = launch.dynamic_bytes, needed
    context.thread_limit, context.bytes = kernel.thread_limit, len(memory)
    latch = np.zeros(1, np.int32)
    context.lock = latch.ctypes.data
    team = [_Member(kernel, context, clock, granules, needed, threads)]
    jobs = 1 if kernel.is_ordered else min(launch.jobs, _most_members(kernel, launch.watched))
    total, done, step, succeeded, began = grid[0] * grid[1] * grid[2], 0, 1, False, time.perf_counter()
    try:
        while done < total:
            wanted, started = min(step, total - done), time.perf_counter()
            ended = team[0].run(done, wanted)
            done += ended
            if ended < wanted:
                kernel.given_up_at = team[0].context.why
                return None
            now = time.perf_counter()
            step = step * 2 if now - started < _SECONDS_OF_A_STEP else max(step // 2, 1)
            if launch.progress is not None:
                launch.progress(done, total)
            if jobs > 1 and now - began > _ALONE_SECONDS and total - done > 1:
                while len(clock.others) < jobs - 1:
                    clock.others.append(Clock())
                try:
                    for other in clock.others[: jobs - 1]:
                        records = other.granules(kernel.granule_shift, len(memory))
                        other.now += 1
                        team.append(_Member(kernel, context, other, records, needed, threads))
                except MemoryError:
                    jobs = 1
                    continue
                why = _share(team, done, total, count, launch.progress)
                if why:
                    kernel.given_up_at = why
                    return None
                done = total
        succeeded = True
        left = {page: _flags_at(int(tables[0, page]), PAGE_BYTES) for page in np.flatnonzero(own).tolist()}
        flags = {}
        for region, entry in zip(regions, table, strict=True):
            if entry.met and region.start in units:
                read, written, updated = (_taken(library, place, entry.units) for place in (entry.read, entry.written, entry.updated))
                flags[region.start] = (read, written, updated)
                entry.read = entry.written = entry.updated = None
        executions = np.sum([member.counts for member in team], axis=0).tolist()
        return Outcome(executions, left, bool(library.has_changed(ctypes.byref(context), count)), flags)
    finally:
        for member in team:
            # Records of memory that this launch does not know keep their times when those begin anew: the next launch clears all.
            member.clock.now = member.context.now if member.context.now >= member.began else LAST_TIME
        library.finish(ctypes.byref(context), count, not succeeded)


class _Member:
    """One of the threads of this process that run the blocks of a launch, with the memory that each needs for itself."""

    def __init__(self, kernel: Kernel, shared: _Context, clock: Clock, granules: np.ndarray, needed: int, threads: int) -> None:
        program = kernel.program
        self.kernel, self.clock = kernel, clock
        self.context = context = _Context.from_buffer_copy(shared)
        size = needed + program.shared_gap_bytes
        self.counts = np.zeros(len(program.blocks), np.uint64)
        gaps = _gaps(kernel, size)
        local = max(program.local_bytes * (threads if kernel.suspends else 1), 1)
        self._buffers = (
            granules,
            np.zeros(size + 16, np.uint8),
            gaps,
            np.zeros(len(gaps), np.uint64),
            np.zeros(local, np.uint8),
            np.zeros(local, np.uint8),
            np.zeros(kernel.hints, np.int32),
        )
        context.granules, context.shared, context.gaps, context.shared_granules, context.local, context.local_state, context.hints = (
            each.ctypes.data for each in self._buffers
        )
        context.shared_bytes = max(size - program.shared_start, 0)
        context.counts = self.counts.ctypes.data
        context.now = context.launch_start = self.began = clock.now

    def run(self, first: int, count: int) -> int:
        """Runs blocks; the number of those that have ended."""
        return int(self.kernel.library.run_blocks(ctypes.byref(self.context), first, count))

    def taken_log(self) -> tuple[int | None, int]:
        """The additions that were put off, and their number; they are the caller's from now on."""
        log, logged = self.context.log, self.context.logged
        self.context.log, self.context.logged, self.context.room = None, 0, 0
        return log, logged


def _most_members(kernel: Kernel, watched: Sequence[Region]) -> int:
    """The number of threads whose records of accesses find room in memory."""
    each = sum(region.stop - region.start for region in watched) // (1 << kernel.granule_shift) * 8
    if each < 1 << 26:
        return 1 << 10
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return 1
    return max(free // 2 // each, 1)


def _share(team: Sequence[_Member], done: int, total: int, pages: int, progress: Callable[[int, int], object] | None) -> int:
    """Runs the blocks from `done` on by all members; the reason why the launch is given up, or 0."""
    latch, whys = threading.Lock(), [0]
    following, ended, applied = done, done, done
    library = team[0].kernel.library
    deferred: dict[int, tuple[int, int | None, int]] = {}
    """Blocks that have ended, and their additions that are put off, by the first block."""

    def take(count: int) -> tuple[int, int]:
        nonlocal following
        with latch:
            first = following
            following = min(total, first + max(min(count, (total - first) // (2 * len(team))), 1))
            return first, following - first

    def work(member: _Member, is_first: bool) -> None:
        nonlocal ended, applied
        step = 1
        while not whys[0]:
            first, count = take(step)
            if not count:
                return
            began = time.perf_counter()
            if member.run(first, count) < count:
                whys[0] = member.context.why or -3
                return
            step = step * 2 if time.perf_counter() - began < _SHARED_STEP_SECONDS else max(step // 2, 1)
            with latch:
                ended += count
                deferred[first] = (count, *member.taken_log())
                while applied in deferred:
                    blocks, log, logged = deferred.pop(applied)
                    library.apply(ctypes.byref(team[0].context), log, logged)
                    library.release(log)
                    applied += blocks
            if is_first and progress is not None:
                progress(ended, total)

    for member in team:
        member.context.shares = 1
    others = [threading.Thread(target=work, args=(member, False), daemon=True) for member in team[1:]]
    for thread in others:
        thread.start()
    try:
        work(team[0], True)
    except BaseException:
        whys[0] = -3
        raise
    finally:
        for thread in others:
            thread.join()
        for log in [*(log for _, log, _ in deferred.values()), *(member.taken_log()[0] for member in team)]:
            library.release(log)
    places = (ctypes.c_void_p * len(team))(*(ctypes.addressof(member.context) for member in team))
    part = -(-pages // len(team))
    conflicts = [0] * len(team)

    def compare(number: int) -> None:
        first = number * part
        conflicts[number] = team[0].kernel.library.conflict(places, len(team), first, max(min(part, pages - first), 0))

    others = [threading.Thread(target=compare, args=(number,), daemon=True) for number in range(len(team))]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join()
    return whys[0] or (-4 if any(conflicts) else 0)


def _gaps(kernel: Kernel, size: int) -> np.ndarray:
    """1 for the granules of shared memory between variables, else 0."""
    granule = 1 << kernel.shared_shift
    gaps = np.zeros((size >> kernel.shared_shift) + 2, np.uint8)
    for start, stop in kernel.program.shared_gaps:
        gaps[-(-start // granule) : stop // granule] = 1
    return gaps


def _count(region: Region, unit: int) -> int:
    return (region.stop - region.start) // unit + 1


def _flags_at(address: int, count: int) -> np.ndarray:
    """A copy of flags."""
    flags: np.ndarray = np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address)).view(np.bool_).copy()
    return flags


def _taken(library: ctypes.CDLL, address: int | None, count: int) -> np.ndarray:
    """Flags that a kernel has allocated, which go with the array from now on; none is set without an address."""
    if not address:
        return _none_set(1 << (count - 1).bit_length())[:count]
    raw = (ctypes.c_uint8 * count).from_address(address)
    weakref.finalize(raw, library.release, address).atexit = False
    flags: np.ndarray = np.ctypeslib.as_array(raw).view(np.bool_)
    return flags


@lru_cache(maxsize=4)
def _none_set(count: int) -> np.ndarray:
    flags = np.zeros(count, np.bool_)
    flags.setflags(write=False)
    return flags
