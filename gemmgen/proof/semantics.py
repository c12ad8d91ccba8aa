"""The meaning of single PTX statements as formulas.

Statements that touch memory or order threads and are not modelled raise ``Unliftable``: they are never passed over. Arithmetic that is not
modelled gives a register of which nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import z3

from gemmgen.emulator.ptx.syntax import (
    Address,
    Float,
    Instruction,
    Integer,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
    registers_of,
    written,
)
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.proof.contract import AXES
from gemmgen.proof.data import DATA, UNKNOWN, Access, AccessKind, Applied, Chosen, Data, Packed, content, results
from gemmgen.proof.enumeration import NotEnumerable, evaluate
from gemmgen.proof.forms import PURE, WITHOUT_EFFECT
from gemmgen.proof.knowledge import (
    BARRIERS,
    GROUPS,
    LEVELS,
    TEAM_BARRIERS,
    WARP_BARRIERS,
    Knowledge,
    Path,
    State,
    Wait,
    bits_of,
)
from gemmgen.proof.parameters import beyond_parameters, whole_parameter
from gemmgen.proof.slicing import FLOATS, SPACES, is_plain, negated_register
from gemmgen.proof.terms import mentions, node_of
from gemmgen.proof.values import (
    UNBOUNDED,
    Condition,
    Term,
    Value,
    add,
    as_condition,
    bitwise,
    choose,
    conjunction,
    constant,
    floor_divide,
    larger,
    low_bits,
    multiply,
    negation,
    smaller,
    subtract,
    summands,
)

ORDERS: dict[str, Callable[[z3.ArithRef, z3.ArithRef], z3.BoolRef]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lo": lambda a, b: a < b,
    "ls": lambda a, b: a <= b,
    "hi": lambda a, b: a > b,
    "hs": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}
OF_RINGS = frozenset(
    (
        "bar",
        "barrier",
        "cp",
        "fence",
        "griddepcontrol",
        "ldmatrix",
        "mapa",
        "mbarrier",
        "membar",
        "nanosleep",
        "setmaxnreg",
        "stmatrix",
        "tcgen05",
        "wgmma",
    )
)
"""Opcodes of kernels with a ring that the ring's own rules cover: see ``gemmgen.proof.rings``."""
KINDS: dict[str, AccessKind] = {"ld": "load", "st": "store"}
GENERIC = "generic "
"""Prefix of the array of an address that was made generic: it is no address in the array's space until it is converted back."""
MATRIX_ROW_BYTES = 16
"""Bytes that a lane's address of ``ldmatrix`` and ``stmatrix`` names."""
LANES_PER_MATRIX = 8
BY_AXIS = frozenset(("tid", "ntid", "ctaid", "nctaid"))
SHARED_ADDRESS_BITS, GLOBAL_ADDRESS_BITS = 32, 64
NAMED_BARRIERS = 16
"""Barriers of a block; number 0 is that of ``__syncthreads``."""
LOGIC: dict[int, tuple[str, str]] = {
    0x80: ("and", "and"),
    0xFE: ("or", "or"),
    0x96: ("xor", "xor"),
    0xEA: ("and", "or"),
    0x6A: ("and", "xor"),
    0xA8: ("or", "and"),
    0x28: ("xor", "and"),
    0xBE: ("xor", "or"),
}
"""Tables of ``lop3`` that are (a op b) op c."""


def execute(known: Knowledge, instruction: Instruction, block: int, path: Path, state: State) -> None:
    """Carries out one statement where ``path`` leads; changes ``state``. Raises ``Unliftable``."""
    if not known.tracks_data or known.guessing:
        _carry_out(known, instruction, block, path, state)
        return
    data = {
        register.name: known_data
        for operand in instruction.operands
        for register in registers_of(operand)
        if not isinstance(known_data := state.get(DATA + register.name, UNKNOWN), Value | bool | z3.BoolRef)
    }
    known.latest, known.stored = None, ()
    if instruction.opcode == "st":
        stored = content(instruction.operands[1], data)
        known.stored = tuple(stored.parts) if isinstance(stored, Packed) else (stored,)
    guard = path[-1] if instruction.guard is not None else None
    choice = None
    compared: Sequence[Data] = ()
    if instruction.opcode == "selp":
        chooser = negated_register(instruction.operands[3])[0]
        if chooser not in known.data_predicates:
            choice = _predicate(known, instruction.operands[3], state)
        else:
            compared = _compared(chooser, state)
    _carry_out(known, instruction, block, path, state)
    targets = written(instruction)
    if not targets:
        return
    if targets[0].type == "pred":
        inputs = [content(operand, data) for operand in instruction.operands[1:]]
        alone = instruction.opcode == "setp" and len(targets) == 1 and len(inputs) == 2 and guard is None
        for target in targets:
            state[DATA + target.name] = Applied("setp", inputs) if alone else UNKNOWN
        return
    known_data = results(instruction, data, known.latest, choice, path, compared)
    first = instruction.operands[0]
    places = first.elements if isinstance(first, Vector) else (first,)
    for target in targets:  # of a second result, such as a predicate, nothing is known
        state[DATA + target.name] = UNKNOWN
    for place, register in enumerate(places):
        if isinstance(register, Register):
            old = data.get(register.name, UNKNOWN)
            datum: Data = known_data[place] if len(known_data) == len(places) else UNKNOWN
            state[DATA + register.name] = datum if guard is None else Chosen(guard, datum, old)


def _compared(predicate: Register | None, state: State) -> Sequence[Data]:
    """The data that the comparison which gave a predicate its present content compared; nothing if it is not known."""
    data = None if predicate is None else state.get(DATA + predicate.name)
    return data.operands if isinstance(data, Applied) else ()


def _carry_out(known: Knowledge, instruction: Instruction, block: int, path: Path, state: State) -> None:
    """The statement's effect on addresses, guards, barriers and memory."""
    opcode = instruction.opcode
    if known.of_ring and _belongs_to_ring(instruction):
        _forget(known, instruction, state)
        return
    waits_for_warp = instruction.has("warp") if opcode in ("bar", "barrier") else instruction.has("sync")
    if waits_for_warp and not known.guessing:
        known.lifted.warp_blocks.append(block)
        if instruction.guard is not None:
            known.lifted.warp_guards.append((block, path[-1]))
    if opcode in ("ld", "st", "atom", "red"):
        _memory(known, instruction, block, path, state)
    elif opcode in ("ldmatrix", "stmatrix"):
        _matrices(known, instruction, block, path, state)
    elif opcode == "cp":
        _copy(known, instruction, block, path, state)
    elif opcode in ("bar", "barrier"):
        _barrier(known, instruction, block, path, state)
    elif opcode in WITHOUT_EFFECT or opcode in ("fence", "griddepcontrol"):  # of fences, no order is taken for granted
        if any(modifier.startswith("proxy") for modifier in instruction.modifiers):
            raise known.unliftable("fences between proxies are not modelled")
    elif opcode in PURE:
        _assign(known, instruction, path, state)
    else:
        raise known.unliftable(f"{opcode} is not modelled")


def _belongs_to_ring(instruction: Instruction) -> bool:
    """True for statements on shared memory and barriers, products of warpgroups, and all others that change no global memory by address."""
    opcode = instruction.opcode
    if opcode in ("ld", "st"):
        return instruction.has("shared") or any(modifier.startswith("shared::") for modifier in instruction.modifiers)
    return opcode in OF_RINGS


def _forget(known: Knowledge, instruction: Instruction, state: State) -> None:
    for register in written(instruction):
        if register.name in known.relevant and register.type != "pred":
            state[register.name] = known.anything(bits_of(register.type))
        else:
            state.pop(register.name, None)


def _assign(known: Knowledge, instruction: Instruction, path: Path, state: State) -> None:
    targets = [register for register in written(instruction) if register.name in known.relevant]
    if not targets:
        for register in written(instruction):
            state.pop(register.name, None)
        return
    result: Value | Condition | None = None
    if instruction.opcode == "shfl" and (sent := _from_lane(known, instruction, path, state)) is not None:
        _forget(known, instruction, state)
        state[targets[0].name] = sent
        return
    if len(written(instruction)) == 1 and targets[0].type not in FLOATS:
        result = _computed(known, instruction, path, state)
    if result is None:
        before = {register.name: state.get(register.name) for register in targets}
        _forget(known, instruction, state)
        if instruction.guard is None:
            return
        for name, old in before.items():  # a guarded result that nothing is known of leaves nothing of the old one
            if isinstance(old, Value):
                state[name] = known.anything(64, None)
            else:
                state.pop(name, None)
        return
    name = targets[0].name
    if instruction.guard is None:
        state[name] = result
        return
    guard, old = path[-1], state.get(name)
    if isinstance(result, Value):
        merged = choose(guard, result, old) if isinstance(old, Value) else None
        state[name] = merged if merged is not None else known.anything(bits_of(targets[0].type))
    else:
        other = old if isinstance(old, bool | z3.BoolRef) else known.any_condition()
        state[name] = z3.If(as_condition(guard), as_condition(result), as_condition(other))


def _from_lane(known: Knowledge, instruction: Instruction, path: Path, state: State) -> Value | None:
    """``shfl.idx`` from one lane, where every thread of the block comes to it once: a number that depends on the thread's index alone."""
    first, *operands = instruction.operands
    target = first.first if isinstance(first, Pair) else first
    x, y, z = known.contract.threads
    everyone = not path and not known.finished and not known.guessing and instruction.guard is None
    if not everyone or len(operands) != 4 or not isinstance(target, Register) or target.name not in known.relevant:
        return None
    source, lane, clamp, members = (operand_value(known, operand, state) for operand in operands)
    if source is None or lane is None or clamp is None or members is None or source.base or not instruction.has("idx"):
        return None
    whole = members.constant in (-1, (1 << WARP_THREADS) - 1) and clamp.constant == WARP_THREADS - 1 and (y, z) == (1, 1)
    if not whole or x % WARP_THREADS or lane.constant is None or not 0 <= lane.constant < WARP_THREADS:
        return None
    thread = known.thread["x"].z3
    if not node_of(source.z3).symbols <= {thread.get_id()}:
        return None
    there = thread - thread % WARP_THREADS + lane.constant
    return Value(z3.simplify(z3.substitute(source.z3, (thread, there))), source.low, source.high)


def operand_value(known: Knowledge, operand: Operand, state: State) -> Value | None:
    """The content of an operand; None for floats."""
    match operand:
        case Integer(number):
            return constant(number)
        case Register(name, kind):
            if kind in FLOATS:
                return None
            value = state.get(name)
            if not isinstance(value, Value):
                value = state[name] = known.anything(bits_of(kind))
            return value
        case Special(name):
            return _special(known, name)
        case Symbol(name, offset):
            if name in known.contract.arrays:  # addresses are told apart by names
                raise known.unliftable(f"{name} is a variable with the name of an array of the launch")
            here = known.here
            if here is not None and here.scope and (inner := known.function.find_variable(here.scope, name)) is not None and inner.scope:
                raise known.unliftable(f"{name} is a variable of an inner scope")
            return constant(offset, name)
        case Float():
            return None
    raise known.unliftable(f"an operand of the kind {type(operand).__name__.lower()} is not modelled")


def _special(known: Knowledge, name: str) -> Value:
    register, _, axis = name.lstrip("%").partition(".")
    contract = known.contract
    if axis not in ("", *AXES) or (not axis and register in BY_AXIS):
        return known.anything(64)
    place = "xyz".find(axis) if axis else -1
    if register == "tid":
        return known.thread[axis]
    if register == "ntid":
        return constant(contract.threads[place])
    if register == "ctaid":
        return known.block[axis]
    if register == "nctaid":
        return Value(contract.grid[place], 1, (1 << 31) - 1)
    if register == "laneid":
        return known.lane
    if register == "cluster_ctarank" or (register, axis) == ("cluster_ctaid", "x"):
        return known.rank
    if (register, axis) == ("clusterid", "x"):
        return known.cluster if contract.launch.cluster != (1, 1, 1) else known.block["x"]
    return known.anything(64)


def _predicate(known: Knowledge, operand: Operand, state: State) -> Condition:
    if isinstance(operand, Integer):
        return bool(operand.value)
    register, is_negated = negated_register(operand)
    if register is None:
        return known.any_condition()
    condition = known.condition(register.name, state)
    return negation(condition) if is_negated else condition


def _computed(known: Knowledge, instruction: Instruction, path: Path, state: State) -> Value | Condition | None:
    """The result of a statement of integers; None if it has no formula here."""
    opcode, operands, kind = instruction.opcode, instruction.operands, instruction.type
    if opcode == "setp":
        return _comparison(known, instruction, path, state)
    if kind == "pred":
        return _logic(known, instruction, state)
    if kind in FLOATS:
        return None
    if opcode == "selp":
        yes, no = operand_value(known, operands[1], state), operand_value(known, operands[2], state)
        return None if yes is None or no is None else choose(_predicate(known, operands[3], state), yes, no)
    if opcode == "cvt":
        return _conversion(known, instruction, path, state)
    if opcode not in ("mov", "cvta") and (opcode not in _ARITHMETIC or not kind):  # several numbers in a register have no type here
        return None
    if not is_plain(instruction):
        return None
    values: list[Value] = []
    for operand in operands[1:]:
        if isinstance(operand, Vector | Sink):
            return None
        value = operand_value(known, operand, state)
        if value is None:
            return None
        values.append(value)
    if bits_of(kind) < GLOBAL_ADDRESS_BITS and any(_is_wide_address(known, value) for value in values):
        return None  # a part of an address
    if opcode == "mov":
        return values[0]
    if opcode == "cvta":
        return _converted_address(known, instruction, values[0])
    bits, signed = bits_of(kind), kind.startswith("s")
    return _ARITHMETIC[opcode](known, instruction, values, bits, signed, path)


def _is_wide_address(known: Knowledge, value: Value) -> bool:
    """True for an address that a register of 32 bits has a part of."""
    return value.base is not None and _space_of(known, value.base) not in ("shared", "local", "const")


def _converted_address(known: Knowledge, instruction: Instruction, address: Value) -> Value | None:
    """An address in one space as a generic one, or the reverse. Those of global memory are equal; of other spaces, ``GENERIC`` tells."""
    space = instruction.first_of(SPACES)
    if address.base is None:
        return address if space == "global" else None
    plain = address.base.removeprefix(GENERIC)
    if _space_of(known, plain) != space:
        return None
    if space == "global":
        return address
    to_space, is_generic = instruction.has("to"), plain != address.base
    return replace(address, base=plain if to_space else GENERIC + plain) if to_space == is_generic else None


def _comparison(known: Knowledge, instruction: Instruction, path: Path, state: State) -> Condition | None:
    kind = instruction.type
    order = next((modifier for modifier in instruction.modifiers if modifier in ORDERS), None)
    if kind in FLOATS and len(instruction.operands) == 3:
        return uniform_comparison(known, instruction)
    if kind in FLOATS or order is None or any(modifier in ("and", "or", "xor") for modifier in instruction.modifiers):
        return None
    a, b = (operand_value(known, operand, state) for operand in instruction.operands[1:3])
    if a is None or b is None or a.base != b.base:
        return None
    if a.base is None:
        a, b = (known.seen(value, bits_of(kind), kind.startswith("s"), path) for value in (a, b))
    elif order not in ("eq", "ne") or (not known.guessing and not _near(known, a, b, bits_of(kind), path)):
        return None
    if a.constant is not None and b.constant is not None:
        return z3.is_true(z3.simplify(ORDERS[order](a.z3, b.z3)))
    return ORDERS[order](a.z3, b.z3)


def _near(known: Knowledge, a: Value, b: Value, bits: int, path: Path) -> bool:
    """True if two addresses in one array are so close that they are equal modulo 2^bits only if they are equal."""
    half = 1 << (bits - 1)
    difference = subtract(a, b)
    if difference is None:
        return False
    bounded = -half < difference.low and difference.high < half
    return bounded or known.proves(path, z3.And(difference.z3 > -half, difference.z3 < half))


def uniform_comparison(known: Knowledge, instruction: Instruction) -> Condition | None:
    """A comparison of floats that all threads of a launch agree on, such as alpha with 0; None for other comparisons."""
    names: list[str] = []
    for operand in instruction.operands[1:]:
        if isinstance(operand, Register) and operand.name in known.uniform_floats:
            names.append(known.uniform_floats[operand.name])
        elif isinstance(operand, Float):
            names.append(repr(operand))
        else:
            return None
    return z3.Bool(" ".join((*instruction.modifiers, *instruction.types, *names)))


def _logic(known: Knowledge, instruction: Instruction, state: State) -> Condition | None:
    conditions = [_predicate(known, operand, state) for operand in instruction.operands[1:]]
    parts = [as_condition(condition) for condition in conditions]
    result: Condition | None = None
    match instruction.opcode:
        case "and":
            result = z3.And(*parts)
        case "or":
            result = z3.Or(*parts)
        case "xor":
            result = z3.Xor(parts[0], parts[1])
        case "not":
            result = negation(conditions[0])
        case "mov":
            result = conditions[0]
    if result is not None and not isinstance(result, bool) and all(isinstance(condition, bool) for condition in conditions):
        return z3.is_true(z3.simplify(result))
    return result


def _conversion(known: Knowledge, instruction: Instruction, path: Path, state: State) -> Value | None:
    to, source = instruction.types[0], instruction.types[-1]
    value = operand_value(known, instruction.operands[1], state)
    if value is None or to in FLOATS or source in FLOATS or len(instruction.modifiers) != 2:
        return None
    target = instruction.operands[0]
    held = bits_of(target.type) if isinstance(target, Register) else 0
    if value.base is not None:
        if value.base in known.contract.arrays or value.base.startswith(GENERIC) or min(bits_of(to), bits_of(source)) < SHARED_ADDRESS_BITS:
            return value if bits_of(to) == bits_of(source) == GLOBAL_ADDRESS_BITS else None  # a part of an address
        if held < bits_of(to):
            return None
        narrow = min(bits_of(to), bits_of(source)) < max(held, bits_of(source))
        return value if not narrow or known.guessing or value.low >= 0 or known.proves(path, value.z3 >= 0) else None
    if bits_of(to) > bits_of(source):
        value = known.seen(value, bits_of(source), source.startswith("s"), path)
    if held > bits_of(to):  # the result is extended to its register
        value = known.seen(value, bits_of(to), to.startswith("s"), path)
    return value


# Arithmetic: each takes the values, the type's bits and sign, and the path.


def _add(known: Knowledge, instruction: Instruction, values: list[Value], bits: int, signed: bool, path: Path) -> Value | None:
    if "cc" in instruction.modifiers or "sat" in instruction.modifiers:
        return None
    return add(values[0], values[1])


def _subtract(known: Knowledge, instruction: Instruction, values: list[Value], bits: int, signed: bool, path: Path) -> Value | None:
    if "cc" in instruction.modifiers or "sat" in instruction.modifiers:
        return None
    a, b = values
    for dividend, multiple, remainder in known.divisions:  # a - a / b * b
        if not isinstance(a.term, int) and not isinstance(b.term, int) and a.term.eq(dividend) and b.term.eq(multiple):
            positive = a.low >= 0 or known.guessing or known.proves(path, remainder >= 0)
            return Value(remainder, 0 if positive else min(a.low, 0), max(a.high, 0))  # on other ways, the divisor may have other bounds
    return subtract(a, b)


def _negate(known: Knowledge, instruction: Instruction, values: list[Value], bits: int, signed: bool, path: Path) -> Value | None:
    return subtract(constant(0), values[0])


def _product(known: Knowledge, instruction: Instruction, values: list[Value], bits: int, signed: bool, path: Path) -> Value | None:
    if values[0].base or values[1].base or "sat" in instruction.modifiers:
        return None
    if instruction.has("wide") or instruction.has("hi"):
        a, b = (known.seen(value, bits, signed, path) for value in values[:2])
        product = multiply(a, b)
        if product is not None and instruction.has("hi"):
            product = floor_divide(product, 1 << bits)
    else:
        product = multiply(values[0], values[1])
        if product is not None and not known.guessing:
            _share_of_blocks(known, product, values[0], values[1])
    if product is None or instruction.opcode == "mul":
        return product
    return add(product, values[2])


def _shift_left(known: Knowledge, instruction: Instruction, values: list[Value], bits: int, signed: bool, path: Path) -> Value | None:
    by = values[1].constant
    return multiply(values[0], constant(1 << by)) if by is not None and 0 <= by < bits else None


def _shift_right(known: Knowledge, instruction: Instruction, values: list[Value], bits: int, signed: bool, path: Path) -> Value | None:
    by = values[1].constant
    if by is None or not 0 <= by < bits or values[0].base:
        return None
    half, number = 1 << (bits - 1), values[0]
    within = -half <= number.low < 0 <= number.high < half
    if not signed and within and (by == bits - 1 or (number.low, number.high) == (-1, 0)):  # the sign, or ones under it
        return choose(number.z3 < 0, constant((2 * half - 1) >> by), constant(0))
    return _in_cluster(known, number, 1 << by) or floor_divide(known.seen(number, bits, signed, path), 1 << by)


def _in_cluster(known: Knowledge, number: Value, divisor: int) -> Value | None:
    """The cluster's index, as the quotient of a block's index by the blocks of a cluster; None for other quotients."""
    index = known.block["x"].term
    is_index = not isinstance(index, int) and not isinstance(number.term, int) and index.eq(number.term)
    return known.cluster if is_index and known.block_symbols and divisor == known.contract.launch.cluster[0] else None


def _divide(known: Knowledge, instruction: Instruction, values: list[Value], bits: int, signed: bool, path: Path) -> Value | None:
    if values[0].base or values[1].base:
        return None
    a, b = (known.seen(value, bits, signed, path) for value in values)
    remainder_wanted = instruction.opcode == "rem"
    if b.constant is not None and b.constant > 0 and (a.low >= 0 or not signed):
        quotient = _in_cluster(known, a, b.constant) or floor_divide(a, b.constant)
        product = multiply(quotient, b)
        return quotient if not remainder_wanted or product is None else subtract(a, product)
    if b.low < 1 and not known.guessing and not known.proves(path, b.z3 >= 1):
        return None
    common = _common_factor(known, a, b)
    if common > 1 and a.constant is None:  # g x divided by g y is x divided by y, and the remainder g times theirs
        quotient, part = _quotient(known, *(_part(known, value, common) for value in (a, b)))
        remainder = multiply(part, constant(common))
        assert remainder is not None
        known.divisions.append((a.z3, quotient.z3 * b.z3, remainder.z3))
    else:
        quotient, remainder = _quotient(known, a, b)
    return remainder if remainder_wanted else quotient


def _common_factor(known: Knowledge, *values: Value) -> int:
    """The greatest number that divides each summand of several sums."""
    return math.gcd(*[number for value in values for number in known.polynomials.of(value.z3).values()])


def _part(known: Knowledge, value: Value, divisor: int) -> Value:
    """A sum divided by a factor of all its summands."""
    total: z3.ArithRef = z3.IntVal(0)
    for monomial, number in known.polynomials.of(value.z3).items():
        total = total + z3.Product(z3.IntVal(number // divisor), *map(known.polynomials.term, monomial))
    return Value(z3.simplify(total), -(-value.low // divisor), value.high // divisor)


def _quotient(known: Knowledge, a: Value, b: Value) -> tuple[Value, Value]:
    """The quotient and the remainder of two numbers that are not known; the divisor is at least 1."""
    never_negative = a.low >= 0
    most = max(0, min(b.high, UNBOUNDED) - 1)

    def bounded(quotient: z3.ArithRef, remainder: z3.ArithRef) -> tuple[Value, Value]:
        """Both with the bounds that the dividend has here; on other ways it may have others."""
        low = 0 if never_negative else min(a.low, 0)
        return Value(quotient, low, max(a.high, 0)), Value(remainder, 0 if never_negative else -most, most)

    for one, other in known.divided:
        if all(mine.eq(theirs) for mine, theirs in zip((a.z3, b.z3), known.quotients[one.z3.get_id()], strict=True)):
            return bounded(one.z3, other.z3)
    q, r = known.symbol("quotient").z3, known.symbol("remainder").z3
    quotient, remainder = bounded(q, r)
    known.facts.append(z3.Implies(b.z3 >= 1, a.z3 == q * b.z3 + r))
    known.facts.append(z3.Implies(z3.And(a.z3 >= 0, b.z3 >= 1), z3.And(r >= 0, r < b.z3, q >= 0, q <= a.z3)))
    # rounded towards 0
    known.facts.append(z3.Implies(z3.And(a.z3 < 0, b.z3 >= 1), z3.And(r <= 0, r > -b.z3, q <= 0, q >= a.z3)))
    for value in (quotient, remainder):
        known.quotients[value.z3.get_id()] = (a.z3, b.z3)
    known.divided.append((quotient, remainder))
    known.divisions.append((a.z3, quotient.z3 * b.z3, remainder.z3))
    _block_quotient(known, a, b, quotient, remainder)
    return quotient, remainder


def _multiple(known: Knowledge, one: z3.ArithRef, other: z3.ArithRef) -> int:
    """The number g for which one term is g times another, product for product; 0 if there is none."""
    mine, theirs = known.polynomials.of(one), known.polynomials.of(other)
    if not theirs or mine.keys() != theirs.keys():
        return 0
    times = next(iter(mine.values())) // next(iter(theirs.values()))
    return times if times > 0 and all(mine[monomial] == times * number for monomial, number in theirs.items()) else 0


def _block_quotient(known: Knowledge, a: Value, b: Value, quotient: Value, remainder: Value) -> None:
    """A block's index, or a part of it, divided by factors of the number of its values: the quotient is below the product of the others.

    Of P Q values, index < P Q and index = q Q + r with 0 <= r < Q give q < P, since q >= P would make the index at least P Q.
    """
    factors = None if isinstance(a.term, int) else known.factors.get(a.term.get_id())
    grouped = None if isinstance(a.term, int) else known.grouped.get(a.term.get_id())
    if grouped is not None:
        # index - q (g Q) is below g Q and below (P - g q) Q: divided by the smaller of g and P - g q, it is below Q.
        divisor, times, left = grouped
        if known.proves((), z3.Or(b.z3 == times, b.z3 == left)):
            known.facts.append(z3.Implies(z3.And(a.z3 >= 0, b.z3 >= 1), quotient.z3 < z3.Product(*divisor)))
        return
    if factors is None or len(factors) < 2:
        return
    for place, one in enumerate(factors):
        others = (*factors[:place], *factors[place + 1 :])
        for divisor, rest in (((one,), others), (others, (one,))):
            times = _multiple(known, b.z3, z3.Product(*divisor))
            if times > 1:
                # index < P Q and q (g Q) <= index give g q < P. In the last group of g there may be fewer, P - g q.
                left = z3.Product(*rest)
                known.facts.append(z3.Implies(a.z3 >= 0, times * quotient.z3 < left))
                known.grouped[remainder.z3.get_id()] = (divisor, times, left - times * quotient.z3)
                return
            if known.proves((), b.z3 == z3.Product(*divisor)):
                known.facts += [quotient.z3 < z3.Product(*rest), remainder.z3 < z3.Product(*divisor)]
                for value, below in ((quotient.z3, rest), (remainder.z3, divisor)):
                    known.factors[value.get_id()] = below
                    known.extents[value.get_id()] = z3.Product(*below)
                for axis, parts in known.block_parts.items():
                    if any(part.eq(a.z3) for part in parts):
                        known.block_parts[axis] = (*[part for part in parts if not part.eq(a.z3)], quotient.z3, remainder.z3)
                return


def _share_of_blocks(known: Knowledge, product: Value, a: Value, b: Value) -> None:
    """Bounds of a product of a block's index z of Z and c q + d, where q is a quotient by Z: z (c q + d) <= (Z - 1) (c q + d), and
    Z q is the dividend less the remainder."""
    for index, share in ((a, b), (b, a)):
        extent = None if isinstance(index.term, int) else known.extents.get(index.term.get_id())
        if extent is None or isinstance(share.term, int):
            continue
        parts, number = summands(share.z3)
        if len(parts) != 1 or parts[0][1].get_id() not in known.quotients:
            continue
        (times, quotient), (dividend, divisor) = parts[0], known.quotients[parts[0][1].get_id()]
        remainder = next((r.z3 for q, r in known.divided if q.z3.eq(quotient)), None)
        if remainder is None or not known.proves((), extent == divisor):
            continue
        most = times * (dividend - remainder) + number * divisor - share.z3
        known.facts.append(z3.Implies(share.z3 >= 0, z3.And(product.z3 >= 0, product.z3 <= most)))


def _minimum(known: Knowledge, instruction: Instruction, values: list[Value], bits: int, signed: bool, path: Path) -> Value | None:
    if any(value.base for value in values):
        return None
    a, b = (known.seen(value, bits, signed, path) for value in values)
    return smaller(a, b) if instruction.opcode == "min" else larger(a, b)


def _bits_of_two(known: Knowledge, instruction: Instruction, values: list[Value], bits: int, signed: bool, path: Path) -> Value | None:
    if instruction.opcode == "not":
        return None if values[0].base else subtract(constant(-1), values[0])
    number = bitwise(instruction.opcode, values[0], values[1], bits)
    if number is None and instruction.opcode == "or" and bits == 64 and not values[0].base and not values[1].base and not known.guessing:
        return _high_words(known, *(known.seen(value, bits, False, path) for value in values))
    return number


def _high_words(known: Knowledge, a: Value, b: Value) -> Value:
    """The bits of two numbers of 64 bits together: the high word is 0 if theirs are, and compilers then divide the low words alone."""
    both, words = known.symbol("ones", 0, (1 << 64) - 1), 1 << 32
    inside = z3.And(*[z3.And(each.z3 >= 0, each.z3 < 1 << 64) for each in (a, b)])
    narrow = z3.And(a.z3 < words, b.z3 < words)
    known.facts.append(z3.Implies(inside, z3.And(both.z3 >= a.z3, both.z3 >= b.z3, (both.z3 < words) == narrow)))
    return both


def _three_operands(known: Knowledge, instruction: Instruction, values: list[Value], bits: int, signed: bool, path: Path) -> Value | None:
    table = values[3].constant
    if table not in LOGIC:
        return None
    first, second = LOGIC[table]
    inner = bitwise(first, values[0], values[1], bits)
    return None if inner is None else bitwise(second, inner, values[2], bits)


def _insert(known: Knowledge, instruction: Instruction, values: list[Value], bits: int, signed: bool, path: Path) -> Value | None:
    inserted, target, position, length = values[0], values[1], values[2].constant, values[3].constant
    if position is None or length is None or inserted.base or target.base or not 0 <= position < bits or not 0 <= length < 256:
        return None
    low = low_bits(target, position)
    if position + length >= bits:
        moved = multiply(inserted, constant(1 << position))
        return None if moved is None else add(low, moved)
    high = floor_divide(known.seen(target, bits, False, path), 1 << (position + length))
    moved = multiply(low_bits(inserted, length), constant(1 << position))
    above = multiply(high, constant(1 << (position + length)))
    if moved is None or above is None:
        return None
    below = add(low, moved)
    return None if below is None else add(below, above)


def _extract(known: Knowledge, instruction: Instruction, values: list[Value], bits: int, signed: bool, path: Path) -> Value | None:
    position, length = values[1].constant, values[2].constant
    if signed or position is None or length is None or values[0].base or not 0 <= position < bits or not 0 <= length <= bits - position:
        return None
    return low_bits(floor_divide(known.seen(values[0], bits, False, path), 1 << position), length)


_Arithmetic = Callable[[Knowledge, Instruction, list[Value], int, bool, Path], Value | None]
_ARITHMETIC: dict[str, _Arithmetic] = {
    "add": _add,
    "sub": _subtract,
    "neg": _negate,
    "mul": _product,
    "mad": _product,
    "shl": _shift_left,
    "shr": _shift_right,
    "div": _divide,
    "rem": _divide,
    "min": _minimum,
    "max": _minimum,
    "and": _bits_of_two,
    "or": _bits_of_two,
    "xor": _bits_of_two,
    "not": _bits_of_two,
    "lop3": _three_operands,
    "bfi": _insert,
    "bfe": _extract,
}


# Memory --------------------------------------------------------------------------------------------------------------------


def _address(known: Knowledge, operand: Operand, state: State, space: str) -> Value | None:
    """The address of an access in a space; None if it is not known, or no address in that space."""
    if not isinstance(operand, Address):
        raise known.unliftable("an access without an address")
    base = operand_value(known, operand.base, state)
    address = None if base is None else add(base, constant(operand.offset))
    if address is None or address.base is None:
        return None
    plain = address.base.removeprefix(GENERIC)
    is_generic = plain != address.base
    if space == "generic":
        return replace(address, base=plain) if is_generic or _space_of(known, plain) == "global" else None
    return None if is_generic else address


def _memory(known: Knowledge, instruction: Instruction, block: int, path: Path, state: State) -> None:
    opcode, operands = instruction.opcode, instruction.operands
    space = instruction.first_of(SPACES) or "generic"
    if opcode == "ld" and space == "param":
        _parameter(known, instruction, state)
        return
    if instruction.has("shared::cluster"):
        raise known.unliftable("shared memory of other blocks is not modelled")
    space = "shared" if instruction.has("shared::cta") else space
    is_first = opcode in ("st", "red")
    where, data = (operands[0], operands[1]) if is_first else (operands[1], operands[0])
    count = len(data.elements) if isinstance(data, Vector) else 1
    size = count * bits_of(instruction.type) // 8
    address = _address(known, where, state, space)
    barriers = _passed(state)
    kind = KINDS.get(opcode, "atomic")
    if space == "generic" and address is not None and address.base is not None:
        space = _space_of(known, address.base)
    known.record(Access(kind, space, address, size, size, path, barriers, instruction, block))
    access = known.lifted.accesses[-1] if not known.guessing else None
    if opcode in ("st", "atom") and access is not None:
        given = operand_value(known, operands[2 if opcode == "atom" else 1], state) if count == 1 and not is_float(data) else None
        known.numbers += [(access, given)] if given is not None else []
    if opcode in ("ld", "atom"):
        _forget(known, instruction, state)
        result = state.get(data.name) if isinstance(data, Register) else None
        if isinstance(result, Value) and access is not None and instruction.guard is None:  # else the register may keep its content
            known.results.append((access, result))
            known.loaded[result.z3.get_id()] = access.iterations


def is_float(operand: Operand) -> bool:
    """True for floats and registers of floats, and for several numbers."""
    return not isinstance(operand, Integer) and not (isinstance(operand, Register) and operand.type not in FLOATS)


def _space_of(known: Knowledge, base: str) -> str:
    """The space of an array or a variable; empty for names that nothing is known of."""
    if base in known.contract.arrays:
        return "global"
    variable = known.function.find_variable(0, base) or known.module.variables.get(base)
    return "" if variable is None else variable.space


def _parameter(known: Knowledge, instruction: Instruction, state: State) -> None:
    source, target = instruction.operands[1], instruction.operands[0]
    if not isinstance(source, Address):
        raise known.unliftable("an access without an address")
    if isinstance(source.base, Register):  # the address of a parameter, which a register holds
        address = _address(known, source, state, "param")
        if address is None or address.constant is None or address.base is None or source.extra:
            raise known.unliftable("a parameter at an address that is computed")
        source = Address(Symbol(address.base, 0), address.constant)
        instruction = replace(instruction, operands=(target, source), scope=0)  # variables of inner scopes have no address here
    if why := beyond_parameters(known.function, instruction):
        raise known.unliftable(why)
    if instruction.guard is not None:
        _forget(known, instruction, state)
        return
    number = whole_parameter(known.function, instruction)
    promised = None if number is None else known.contract.parameter(number)
    if promised is not None and isinstance(target, Register):
        state[target.name] = promised
        return
    # A number or a part of a structure: the same for all threads, whenever it is read.
    registers = target.elements if isinstance(target, Vector) else (target,)
    for place, register in enumerate(registers):
        if isinstance(register, Register) and register.name in known.relevant and register.type != "pred":
            bits = bits_of(register.type)
            term = z3.Int(f"parameter {source.base} + {source.offset}, {place}, {instruction.type} in {bits} bits")
            half = 1 << (bits - 1)
            known.facts += [term >= -half, term < half]
            state[register.name] = Value(term, -half, half - 1)


def _matrices(known: Knowledge, instruction: Instruction, block: int, path: Path, state: State) -> None:
    if not instruction.has("m8n8"):
        raise known.unliftable("only matrices of 8 x 8 are modelled")
    stores = instruction.opcode == "stmatrix"
    space = "shared" if any(word in ("shared", "shared::cta") for word in instruction.modifiers) else "generic"
    address = _address(known, instruction.operands[0 if stores else 1], state, space)
    matrices = int(next((modifier[1:] for modifier in instruction.modifiers if modifier in ("x1", "x2", "x4")), "1"))
    lanes = LANES_PER_MATRIX * matrices
    where = path if lanes >= WARP_THREADS else (*path, known.lane.z3 < lanes)
    barriers = _passed(state)
    kind: AccessKind = "store" if stores else "load"
    size = MATRIX_ROW_BYTES
    known.record(Access(kind, "shared", address, size, size, where, barriers, instruction, block))
    if not stores:
        _forget(known, instruction, state)


def _copy(known: Knowledge, instruction: Instruction, block: int, path: Path, state: State) -> None:
    groups, barriers = state[GROUPS], _passed(state)
    assert isinstance(groups, Value)
    if not instruction.has("async") or any(word in instruction.modifiers for word in ("bulk", "mbarrier", "reduce")):
        raise known.unliftable("bulk copies are not modelled")
    if instruction.has("commit_group"):
        if instruction.guard is not None:
            raise known.unliftable("a guarded end of a group of copies is not modelled")
        closed = add(groups, constant(1))
        assert closed is not None
        state[GROUPS] = closed
        return
    if instruction.has("wait_group") or instruction.has("wait_all"):
        if instruction.guard is not None:
            raise known.unliftable("a guarded wait is not modelled")
        pending = 0
        if instruction.has("wait_group"):
            amount = instruction.operands[0]
            if not isinstance(amount, Integer):
                raise known.unliftable("a wait for a number of groups that is not known")
            pending = amount.value
        elif instruction.has("wait_all"):
            closed = add(groups, constant(1))  # copies in no group yet are one, and later copies belong to another
            assert closed is not None
            groups = state[GROUPS] = closed
        if not known.guessing:
            iteration = known.iterations[-1] if known.iterations else None
            reached = conjunction(path) if iteration is None and not any(mentions(part, known.finished) for part in path) else None
            known.lifted.waits.append(Wait(pending, groups, barriers, iteration, path, reached, block))
        return
    target, source, size, *rest = instruction.operands
    hint = any("cache_hint" in modifier for modifier in instruction.modifiers)
    if not isinstance(size, Integer) or hint or len(rest) > 1 or any(register_is_predicate(operand) for operand in rest):
        raise known.unliftable("this form of an asynchronous copy is not modelled")
    amount_read: Term = size.value
    if rest:
        given = operand_value(known, rest[0], state)
        if given is None:
            raise known.unliftable("a copy of a number of bytes that is not known")
        seen = known.seen(given, 32, False, path)
        amount_read = seen.term if seen.constant is None else seen.constant
        if not known.guessing and seen.high > size.value and not known.proves(path, seen.z3 <= size.value):
            raise known.unliftable("a copy may read more bytes than it writes")
    to, origin = _address(known, target, state, "shared"), _address(known, source, state, "global")
    known.record(Access("load", "global", origin, amount_read, size.value, path, barriers, instruction, block))
    known.record(Access("store", "shared", to, size.value, size.value, path, barriers, instruction, block, groups))


def register_is_predicate(operand: Operand) -> bool:
    """True for a predicate register, negated or not."""
    register, _ = negated_register(operand)
    return register is not None and register.type == "pred"


def _passed(state: State) -> tuple[Value, ...]:
    """Barriers passed so far, by ``LEVELS``."""
    return tuple(value for name in LEVELS if isinstance(value := state[name], Value))


def _pass(state: State, level: str) -> None:
    """Counts a barrier of a level, and of all that are finer."""
    for name in LEVELS[LEVELS.index(level) :]:
        passed = state[name]
        assert isinstance(passed, Value)
        following = add(passed, constant(1))
        assert following is not None
        state[name] = following


def _barrier(known: Knowledge, instruction: Instruction, block: int, path: Path, state: State) -> None:
    operands = instruction.operands
    if instruction.has("warp"):
        mask = operand_value(known, operands[0], state)
        if instruction.guard is None and mask is not None and mask.constant in (-1, (1 << WARP_THREADS) - 1):
            _pass(state, WARP_BARRIERS)  # of other masks, no order is taken for granted
        return
    if instruction.guard is not None or any(instruction.has(word) for word in ("cluster", "arrive", "red")):
        raise known.unliftable("only barriers at which all threads of the block or of a team of warps wait are modelled")
    if len(operands) == 1 and isinstance(operands[0], Integer) and operands[0].value == 0:
        _pass(state, BARRIERS)
        if not known.guessing:
            known.lifted.barrier_blocks.append(block)
        return
    _team_barrier(known, operands, state)
    _pass(state, TEAM_BARRIERS)
    if not known.guessing:
        known.lifted.team_blocks.append(block)


def _team_barrier(known: Knowledge, operands: tuple[Operand, ...], state: State) -> None:
    """A named barrier: its number must tell whole warps apart into teams of as many threads as it waits for, the same in all statements."""
    number = operand_value(known, operands[0], state)
    threads = operand_value(known, operands[1], state) if len(operands) == 2 else None
    if number is None or threads is None or threads.constant is None:
        raise known.unliftable("a barrier for a number of threads that is not known")
    if threads.constant % WARP_THREADS:
        raise known.unliftable(f"a barrier waits for whole warps, not for {threads.constant} threads")
    if known.team is not None:
        if known.team[1] != threads.constant or not known.team[0].eq(number.z3):
            raise known.unliftable("named barriers of different teams are not modelled")
        return
    try:
        numbers = np.broadcast_to(evaluate(number.z3, known.all_threads()), known.contract.launch.threads)
    except NotEnumerable:
        raise known.unliftable("a named barrier whose number depends on more than the thread") from None
    warps = [set(numbers[first : first + WARP_THREADS].tolist()) for first in range(0, len(numbers), WARP_THREADS)]
    counts = {int(value): int((numbers == value).sum()) for value in np.unique(numbers)}
    if any(len(warp) > 1 for warp in warps) or any(not 0 < name < NAMED_BARRIERS for name in counts):
        raise known.unliftable("a named barrier that splits warps, or whose number is out of range")
    if set(counts.values()) != {threads.constant}:
        raise known.unliftable(f"a named barrier waits for {threads.constant} threads, and {counts} threads name it")
    known.team = number.z3, threads.constant
