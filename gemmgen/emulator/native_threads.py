"""Whole kernels compiled to C, for launches without hazards: threads run one after another, each up to its next barrier.

The compiled code checks every access: bounds, alignment, bytes that nothing has written, and conflicts with other threads that no barrier
orders. Meeting anything that is not certainly free of hazards, it gives the launch up; memory gets its former contents back, and the
emulator runs the launch lane by lane, which finds the same results and all findings. A kernel with an instruction that has no
translation, with strong accesses whose order decides about results, or with registers that may hold no value is not compiled.
"""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gemmgen.emulator import native
from gemmgen.emulator.binding import Binder
from gemmgen.emulator.blocks import BasicBlock
from gemmgen.emulator.errors import EmulatorError
from gemmgen.emulator.geometry import Dim3, Geometry
from gemmgen.emulator.hazards.sites import granules
from gemmgen.emulator.hazards.undefined import find_undefined, results_of, sources_of
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
)
from gemmgen.emulator.registers import RegisterFile, widened

_MEMORY, _BLOCKS = (Path(__file__).with_name(name) for name in ("native_threads.c", "native_threads_blocks.c"))
_LONGEST = 12_000
"""Instructions of a kernel: the compiler's time grows faster than their number."""
_MOST_LOCAL_BYTES = 64 << 20
PAGE_BYTES = 1 << 16
LAST_TIME = (1 << 21) - 64
_SECONDS_OF_A_STEP = 0.1
_THREAD_LIMIT = 1 << 32
"""Turns of loops of one thread from which it seems to wait for another one."""
_STRONG = ("volatile", "relaxed", "acquire", "release", "acq_rel", "sc", "mmio")
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


MOST_FAILURES = 2
"""Launches of a kernel in a row that were given up, after which none is tried any more."""
ENOUGH_WORK = 1_000_000
"""Instructions, as far as they can be foreseen, from which a kernel is compiled."""
MANY_THREADS = 8192
"""Threads of a launch from which vectors of lanes are worth their overhead."""
LARGE_LAUNCH = 50_000_000
"""Such instructions from which a launch without a device is tried by compiled code."""
_TURNS = 20
"""Foreseen turns of a loop."""


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
        *((name, ctypes.c_int32) for name in ("why", "place")),
    ]


class _Thread(Run):
    """A kernel as C statements over the registers of one thread."""

    def __init__(self, program: Program) -> None:
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
        self.floating = _floating(program)

    def kept(self, register: Register) -> str:
        """The type of a register's C variable: a float where it mostly holds one, so that compilers keep it among floats."""
        name, width = self.binder.registers.place(register)[0], self.binder.registers.width(register)
        return {4: "float", 8: "double"}[width] if register.name in self.floating else CLASS_TYPES[name]

    def bits(self, register: Register) -> str:
        """A register's variable as an unsigned number."""
        place, kept = self.variable(register), self.kept(register)
        return f"raw_{kept}({place})" if kept in ("float", "double") else place

    def of_bits(self, register: Register, expression: str) -> str:
        """Bits as a value of a register's variable."""
        kept = self.kept(register)
        return f"{kept}_of({expression})" if kept in ("float", "double") else expression

    def read(self, inst: Instruction, operand: Operand, type_name: str) -> str:
        if isinstance(operand, Special):
            word = _special(operand.name)
            if word is None or type_name not in ("u32", "s32", "b32"):
                raise Untranslated(operand.name)
            return f"(({C_TYPES[type_name]}){word})"
        if not isinstance(operand, Register) or operand.name not in self.floating:
            return super().read(inst, operand, type_name)
        place, kept = self.variable(operand), self.kept(operand)
        if type_name == "pred" or TYPE_BYTES[type_name] > self.binder.registers.width(operand):
            raise Untranslated(operand.name)
        return place if C_TYPES.get(type_name) == kept else as_type(self.bits(operand), type_name)

    def write(self, inst: Instruction, operand: Operand, type_name: str, expression: str) -> None:
        if isinstance(operand, Sink):
            return
        if not isinstance(operand, Register):
            raise Untranslated(str(operand))
        place, width, kept = self.variable(operand), self.binder.registers.width(operand), self.kept(operand)
        is_predicate = type_name == "pred"
        if width != (1 if is_predicate else TYPE_BYTES[type_name]) or (place[0] == "p") != is_predicate:
            raise Untranslated(operand.name)
        floating = C_TYPES[type_name] if type_name in ("f32", "f64") else ""
        if floating == kept:
            value = f"plain_{kept}({expression})"
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
        lines += [f"t->turns = n; t->at = {site + 1}; t->site = {site}; return {stop};", f"resume_{site}:;"]
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


def _plain(inst: Instruction) -> None:
    if any(inst.has(word) for word in _STRONG) or any("cluster" in word for word in inst.modifiers):
        raise Untranslated("a strong access")


def _pointer(run: _Thread, inst: Instruction, operand: Operand, width: int, kind: str) -> str:
    """The call that checks an access and returns where its bytes are."""
    space, address = space_name(inst, operand, run.binder), run.address(inst, operand)
    if space == "shared":
        return f"{kind}_shared(c, {address}, {width}, &w)"
    if space == "local":
        if kind == "update":
            raise Untranslated("an atomic operation on local memory")
        return f"at_local(c, {address}, {width}, &w, {int(kind == 'write')})"
    if space == "generic":
        return f"{kind}_generic(c, {run.hint()}, {address}, {width}, &w)"
    constant = f", {int(inst.has('nc'))}" if kind == "read" else ""
    return f"{kind}_global(c, {run.hint()}, {address}, {width}, &w{constant})"


def _load(run: _Thread, inst: Instruction, live: frozenset[str]) -> None:
    _plain(inst)
    elements = inst.operands[0].elements if isinstance(inst.operands[0], Vector) else (inst.operands[0],)
    size = TYPE_BYTES[inst.type]
    width = size * len(elements)
    if size > 8 or width > 32:
        raise Untranslated("a wide load")
    moved = inst.type if inst.type[0] in "us" else f"b{size * 8}"
    lines = [f"const uint8_t *p = {_pointer(run, inst, inst.operands[1], width, 'read')};", f"if (UNLIKELY(!p)) GIVE_UP({inst.line});"]
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
    _plain(inst)
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
    """Integer operations whose order does not matter, and whose results nobody reads."""
    if any(inst.has(word) for word in ("acquire", "release", "acq_rel", "sc", "cta", "cluster", "v2", "v4", "v8")):
        raise Untranslated("an ordering operation")
    has_result = inst.opcode == "atom"
    if has_result and isinstance(inst.operands[0], Register) and inst.operands[0].name in live:
        raise Untranslated("the result of an atomic operation")
    operation, kind = inst.first_of(("add", "min", "max", "and", "or", "xor", "inc", "dec", "exch", "cas")), inst.type
    address, value = inst.operands[int(has_result) :][:2]
    if kind[0] not in "bus" or kind not in C_TYPES or TYPE_BYTES[kind] not in (4, 8):
        raise Untranslated(kind)
    bits = 8 * TYPE_BYTES[kind]
    old = f"({C_TYPES[kind]})get_{bits}(p)"
    other = run.read(inst, value, kind)
    if operation in _UPDATES:
        new = _UPDATES[operation].format(old=old, value=other)
    elif operation in ("min", "max"):
        new = f"{old} {'<' if operation == 'min' else '>'} {other} ? {old} : {other}"
    else:
        raise Untranslated(operation or "atom")
    lines = [f"uint8_t *p = {_pointer(run, inst, address, TYPE_BYTES[kind], 'update')};", f"if (UNLIKELY(!p)) GIVE_UP({inst.line});"]
    run.emit(inst, ["{", *lines, f"put_{bits}(p, {new});", "}"])


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
    run.suspend(inst, _SHUFFLES[mode], live, given, [run.assign(value, "t->r[0]"), run.assign(valid, "t->r[1]")])


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
    if not inst.has("any") or TYPE_BYTES[inst.type] != 4 or inst.guard is not None:
        raise Untranslated("match")
    given = [run.read(inst, inst.operands[1], "u32"), "", "", run.read(inst, inst.operands[2], "u32")]
    run.suspend(inst, "MATCH_ANY", live, given, [run.assign(inst.operands[0], "t->r[0]")])


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
    "bar": _warp_barrier,
}


def _translate(run: _Thread, inst: Instruction, live: frozenset[str]) -> None:
    """The statements of an instruction; `live`: registers that may be read behind it. Raises Untranslated."""
    try:
        check_form(inst)
        if inst.opcode in _NOTHING:
            if any("proxy" in word for word in inst.modifiers) or inst.has("cluster"):
                raise Untranslated(inst.opcode)
        elif inst.opcode in _MORE:
            _MORE[inst.opcode](run, inst, live)
        elif inst.opcode in TRANSLATIONS:
            run.add(inst)
        else:
            raise Untranslated(inst.opcode)
    except (EmulatorError, *MISUSE) as error:
        raise Untranslated(inst.opcode) from error


_MOVES = {
    "mov",
    "selp",
    "add",
    "sub",
    "mul",
    "mad",
    "fma",
    "cvt",
    "cvta",
    "and",
    "or",
    "xor",
    "not",
    "shl",
    "shr",
    "lop3",
    "setp",
    "min",
    "max",
    "neg",
    "abs",
}
"""Instructions that move an undefined value without an effect; every other one that may read such a value is not translated."""


def _follow(run: _Thread, inst: Instruction) -> None:
    """Statements ahead of an instruction, if it reads or writes registers that may hold no value: they give the launch up where such a
    value has an effect, and mark the values computed from it."""
    without = run.undefined
    if not without:
        return
    results = [register for operand in inst.operands[:1] for register in registers_of(operand) if register.name in results_of(inst)]
    sources = [register for operand in sources_of(inst) for register in registers_of(operand) if register.name in without]
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
    if marked:
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
    failures: int = 0
    """Launches in a row that were given up."""
    given_up_at: int = 0
    """PTX line of the instruction that gave the last one of them up; others than lines are numbers of native_threads.c."""


def is_for_lanes(program: Program, grid: Dim3, block: Dim3) -> bool:
    """True if a launch is likely to run faster lane by lane."""
    return int(np.prod(grid)) * int(np.prod(block)) >= MANY_THREADS and suits_lanes(program)


def expected_work(program: Program, grid: Dim3, block: Dim3) -> int:
    """A rough number of the instructions of a launch."""
    loops = any(target <= each.index for each in program.blocks for target in each.targets)
    count = sum(len(each.body) + 1 for each in program.blocks) * (_TURNS if loops else 1)
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
    found: set[str] = set()
    grew = True
    while grew:
        grew = False
        for block in program.blocks:
            for inst in block.body:
                results = results_of(inst)
                if not results or found.issuperset(results):
                    continue
                operands = sources_of(inst)
                names = {register.name for operand in operands for register in registers_of(operand)}
                special = any(isinstance(operand, Special) and operand.name.partition(".")[0] not in _SAME_FOR_ALL for operand in operands)
                if special or names & found or inst.opcode in ("atom", "shfl", "match") or (inst.guard and inst.guard.name in found):
                    found.update(results)
                    grew = True
    return frozenset(found)


def translation(program: Program) -> tuple[str, bool, int, int, int]:
    """The C text of a kernel; True if its threads wait for each other; the shifts of granules; the number of hints. Raises Untranslated."""
    count = sum(len(block.body) + 1 for block in program.blocks)
    if count > _LONGEST or program.allocates or program.meets_grid or program.names_clusters:
        raise Untranslated("the kernel as a whole")
    run, live_behind = _Thread(program), compiled(program).live
    texts: list[str] = []
    for block in program.blocks:
        behind: list[frozenset[str]] = []
        live = set(live_behind[block.index])
        ending = [block.terminator] if block.terminator is not None else []
        for inst in reversed([*block.body, *ending]):
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
    return _source(program, run, texts, shifts), bool(run.sites), shifts[0], shifts[1], run.hints + 1


def _source(program: Program, run: _Thread, texts: Sequence[str], shifts: Sequence[int]) -> str:
    constants = {
        "GRANULE_SHIFT": shifts[0],
        "SHARED_SHIFT": shifts[1],
        "SHARED_START": f"{program.shared_start}ull",
        "HAS_GAPS": int(bool(program.shared_gaps)),
        "LOCAL_BYTES": program.local_bytes,
        "SUSPENDS": int(bool(run.sites)),
        "SAVED": len(run.slots),
        "SHARED_WINDOW": f"{SHARED_WINDOW}ull",
        "LOCAL_WINDOW": f"{LOCAL_WINDOW}ull",
        "PLACE": "__LINE__",
        "ONE_BY_ONE": "1",
    }
    variables = []
    for name, group in program.registers.items():
        if name in CLASS_TYPES:
            variables += [f"{run.kept(register)} {run.variable(register)} = 0;" for register in group]
            variables += [f"uint8_t {run.mark(register)} = 1;" for register in group if register.name in run.undefined]
    cases = [f"case {site + 1}: goto resume_{site};" for site in run.resumes]
    body = [
        "static int run_thread(struct Context *c, struct Thread *t) {",
        "int32_t *const hints = c->hints; uint64_t n = t->turns; const struct Who w = who_runs(c, t->number);",
        "const uint32_t thread = t->number; (void)thread; (void)hints; (void)n;",
        "uint64_t *const restrict counts = c->counts;",
        *variables,
        *([f"switch (t->at) {{ case 0: break; {' '.join(cases)} }}"] if cases else []),
        *texts,
        "}",
    ]
    sites = f"static const struct Site SITES[] = {{{', '.join(run.sites) or '{0, 0}'}}};"
    return "\n".join(
        [
            *(f"#define {name} {value}" for name, value in constants.items()),
            PRELUDE.read_text(),
            _MEMORY.read_text(),
            sites,
            *body,
            _BLOCKS.read_text(),
        ]
    )


def kernel_of(program: Program) -> Kernel | None:
    """The compiled kernel; None if it has no translation, or without a compiler."""
    if not native.is_possible():
        return None
    try:
        text, suspends, granule_shift, shared_shift, hints = translation(program)
    except Untranslated:
        return None
    library = native.library("emulator threads", text.encode(), exact_options("-O2"), ("run_blocks", "finish"))
    if library is None:
        return None
    library.run_blocks.argtypes = (ctypes.POINTER(_Context), ctypes.c_int64, ctypes.c_int64)
    library.run_blocks.restype = ctypes.c_int64
    library.finish.argtypes = (ctypes.POINTER(_Context), ctypes.c_int64, ctypes.c_int)
    library.finish.restype = None
    return Kernel(program, library, suspends, granule_shift, shared_shift, hints)


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

    def granules(self, shift: int, size_bytes: int) -> np.ndarray:
        """The records of the granules of so many bytes."""
        count = (size_bytes >> shift) + 1
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
    flags: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]
    """Accessed regions by their starts: flags of the units that were read, written, and changed by atomic operations."""

    def instructions(self, program: Program) -> Counter[str]:
        """Instructions by opcode, summed over threads."""
        counts: Counter[str] = Counter()
        for block, executed in zip(program.blocks, self.executions, strict=True):
            for inst in (*block.body, *([block.terminator] if block.terminator is not None else [])) if executed else ():
                counts[inst.opcode] += executed
        return counts


def run(
    kernel: Kernel,
    memory: np.ndarray,
    regions: Sequence[Region],
    watched: Sequence[Region],
    pages: np.ndarray,
    unwritten: Mapping[int, np.ndarray],
    units: Mapping[int, int],
    clock: Clock,
    grid: Dim3,
    block: Dim3,
    shared_bytes: tuple[int, int],
    progress: Callable[[int, int], object] | None = None,
) -> Outcome | None:
    """Runs all blocks; None if that was given up: memory is then as it was before. `watched` are the regions that the kernel may write;
    `pages` and `unwritten` the state of each page's bytes; `units`: bytes of a flag of accesses to a region, by its start;
    `shared_bytes`: dynamic and all shared memory of a block."""
    program, library = kernel.program, kernel.library
    dynamic, needed = shared_bytes
    threads = block[0] * block[1] * block[2]
    if (threads if kernel.suspends else 1) * program.local_bytes > _MOST_LOCAL_BYTES or not regions:
        return None
    context = _Context()
    try:
        granules = clock.granules(kernel.granule_shift, len(memory))
    except MemoryError:
        return None
    clock.now += 1
    table = (_RegionOfC * len(regions))()
    may_write = {region.start for region in watched}
    for place, region in enumerate(regions):
        entry = table[place]
        entry.start, entry.size = GLOBAL_BASE + region.start, region.stop - region.start
        entry.writable, entry.watched = region.writable, region.writable and region.start in may_write
        first, last = region.start // PAGE_BYTES, (max(region.stop, region.start + 1) - 1) // PAGE_BYTES
        entry.partly = bool(pages[first : last + 1].any())
        if region.start in units:
            entry.units, entry.unit_shift = _count(region, units[region.start]), units[region.start].bit_length() - 1
    count = -(-len(memory) // PAGE_BYTES)
    state = np.ascontiguousarray(pages[:count])
    tables = np.zeros((2, count), np.uint64)
    own = np.zeros(count, np.uint8)
    for page, known in unwritten.items():
        if page < count and state[page]:
            tables[0, page] = known.ctypes.data
    size = needed + program.shared_gap_bytes
    shared, gaps = np.zeros(size + 16, np.uint8), _gaps(kernel, size)
    shared_granules = np.zeros(len(gaps), np.uint64)
    local = np.zeros((2, max(program.local_bytes * (threads if kernel.suspends else 1), 1)), np.uint8)
    hints = np.zeros(kernel.hints, np.int32)
    counts = np.zeros(len(program.blocks), np.uint64)
    context.memory, context.base = memory.ctypes.data, GLOBAL_BASE
    context.regions, context.region_count = ctypes.addressof(table), len(regions)
    context.granules, context.page_state, context.own_flags = granules.ctypes.data, state.ctypes.data, own.ctypes.data
    context.unwritten, context.saved = tables[0].ctypes.data, tables[1].ctypes.data
    context.grid[:], context.block[:], context.threads = grid, block, threads
    context.dynamic_bytes, context.total_bytes = dynamic, needed
    context.now = context.launch_start = clock.now
    context.shared, context.gaps, context.shared_granules = shared.ctypes.data, gaps.ctypes.data, shared_granules.ctypes.data
    context.shared_bytes = max(size - program.shared_start, 0)
    context.local, context.local_state = local[0].ctypes.data, local[1].ctypes.data
    context.thread_limit, context.hints = _THREAD_LIMIT, hints.ctypes.data
    context.counts, context.bytes = counts.ctypes.data, len(memory)
    total, done, step, succeeded = grid[0] * grid[1] * grid[2], 0, 1, False
    try:
        while done < total:
            wanted, began = min(step, total - done), time.perf_counter()
            ended = library.run_blocks(ctypes.byref(context), done, wanted)
            done += ended
            if ended < wanted:
                kernel.given_up_at = context.why
                return None
            step = step * 2 if time.perf_counter() - began < _SECONDS_OF_A_STEP else max(step // 2, 1)
            if progress is not None:
                progress(done, total)
        succeeded = True
        left = {page: _flags_at(int(tables[0, page]), PAGE_BYTES) for page in np.flatnonzero(own).tolist()}
        flags = {}
        for region, entry in zip(regions, table, strict=True):
            if entry.met and entry.units:
                read, written, updated = (_flags_at(place, entry.units) for place in (entry.read, entry.written, entry.updated))
                flags[region.start] = (read, written, updated)
        return Outcome(counts.tolist(), left, flags)
    finally:
        clock.now = context.now
        library.finish(ctypes.byref(context), count, not succeeded)


def _gaps(kernel: Kernel, size: int) -> np.ndarray:
    """1 for the granules of shared memory between variables, else 0."""
    granule = 1 << kernel.shared_shift
    gaps = np.zeros((size >> kernel.shared_shift) + 2, np.uint8)
    for start, stop in kernel.program.shared_gaps:
        gaps[-(-start // granule) : stop // granule] = 1
    return gaps


def _count(region: Region, unit: int) -> int:
    return (region.stop - region.start) // unit + 1


def _flags_at(address: int | None, count: int) -> np.ndarray:
    """A copy of flags; none is set without an address."""
    if not address:
        return np.zeros(count, np.bool_)
    raw = (ctypes.c_uint8 * count).from_address(address)
    flags: np.ndarray = np.ctypeslib.as_array(raw).view(np.bool_).copy()
    return flags
