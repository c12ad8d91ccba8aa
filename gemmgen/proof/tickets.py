"""Tickets: of the blocks that share a counter, only the last one continues.

Thread 0 of each block adds 1 to the counter of its tile, and compares the old number with N - 1, where at most N blocks add to a counter.
The outcome goes through a flag in shared memory to all threads of the block. At most one of these blocks sees N - 1, whatever the counter
was: all writes to a counter are these additions, at most N of them, and the 0 that a block stores which saw N - 1. After this 0, N more
additions would have to follow.

Two blocks that pass the flag and share a counter are thus one block. The statements that this rests on are checked here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import z3

from gemmgen.emulator.ptx.syntax import Instruction, Integer
from gemmgen.proof.data import Access
from gemmgen.proof.knowledge import Knowledge
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.values import Condition, Term, Value, as_condition, as_term, low_bits


@dataclass(frozen=True)
class Ticket:
    """A flag that at most one of the blocks with the same part of the block's index has."""

    holds: z3.BoolRef
    """In terms of a thread behind the flag: its block came last, or no other block shares its counter."""
    parts: frozenset[int]
    """Numbers of the parts of the block's index that name the counter."""
    atomic: Access
    """The addition to the counter."""
    came_last: z3.BoolRef
    """The flag, in terms of a thread behind it."""
    sharing: z3.ArithRef
    """The number of blocks that share a counter."""
    last: z3.ArithRef
    """The old number that is waited for."""
    complete: bool
    """True if the block that reads this number sets the flag."""
    old: z3.ArithRef
    """The number that a block's thread 0 reads."""
    resets: tuple[Access, ...]
    """The stores of 0 to a block's own counter, by its thread 0 if the block came last."""


def common_loads(lifter: Lifter) -> frozenset[int]:
    """Contents of shared memory that all threads of a block load alike, provided that races and progress are proved: from one address,
    after as many barriers. A store to it between the same barriers would be a race."""
    known = lifter.known
    indices: set[int] = set()
    present = {id(access) for access in known.lifted.accesses}
    for access, value in known.results:
        if id(access) not in present or access.kind != "load" or access.space != "shared" or isinstance(value.term, int):
            continue
        address = access.address
        if address is None or address.base is None or access.instruction.guard is not None:
            continue
        around = {known.loops[iteration.get_id()] for iteration in access.iterations}
        if _is_shared(lifter, address.term, around) and not any(known.depends_on_thread(each.term) for each in access.barriers):
            indices.add(value.term.get_id())
    return frozenset(indices)


def tickets(lifter: Lifter) -> list[Ticket]:
    """The tickets of a kernel whose memory, races and progress are proved."""
    known = lifter.known
    present = {id(access) for access in known.lifted.accesses}
    atomics = [access for access in known.lifted.accesses if access.kind == "atomic"]
    drawn = [(access, value) for access, value in known.results if access.kind == "atomic" and id(access) in present]
    if len(atomics) != 1 or len(drawn) != 1:
        return []
    ((atomic, old),) = drawn
    ticket = _ticket(lifter, atomic, old)
    return [] if ticket is None else [ticket]


def _ticket(lifter: Lifter, atomic: Access, old: Value) -> Ticket | None:
    known = lifter.known
    instruction, address = atomic.instruction, atomic.address
    of_all = not instruction.has("cta") and not instruction.has("cluster")
    adds_one = instruction.opcode == "atom" and instruction.has("add") and instruction.type == "u32" and of_all
    if (
        not adds_one
        or atomic.space != "global"
        or address is None
        or address.base is None
        or atomic.iterations
        or isinstance(old.term, int)
    ):
        return None
    array = known.contract.arrays.get(address.base)
    if array is None or not array.workspace or not _added_one(known, atomic) or not known.proves(atomic.path, known.linear_thread.z3 == 0):
        return None
    parts = _naming(known, address.z3)
    if parts is None:
        return None
    sharing: z3.ArithRef = z3.IntVal(1)
    for number in [part.get_id() for parts in known.block_parts.values() for part in parts]:
        if number not in parts:
            sharing = sharing * known.extents[number]
    flag = _flag(known, old)
    if flag is None:
        return None
    (stored, number), loaded, last = flag
    # No more blocks than the number that is waited for, and no other statement that changes a counter.
    if not known.proves((), z3.Implies(sharing >= 2, sharing <= last + 1)) and not known.proves(atomic.path, sharing <= last + 1):
        return None
    others = _others(known, atomic)
    resets = tuple(access for access in others if _resets(known, access, atomic, old, last))
    if not _reaches(lifter, stored, loaded[0]):
        return None
    if not all(any(access is reset for reset in resets) or beside_counters(known, access, atomic) for access in others):
        return None
    sets = isinstance(stored.size, int) and known.proves((old.z3 == last,), low_bits(number, 8 * stored.size).z3 != 0)
    return Ticket(z3.Or(loaded[1].z3 != 0, sharing <= 1), parts, atomic, loaded[1].z3 != 0, sharing, last, sets, old.z3, resets)


def is_drawn(lifter: Lifter, ticket: Ticket, premises: Sequence[Condition] = ()) -> bool:
    """True if one of the blocks that share a counter comes last: all add to it, and their number is waited for."""
    known, atomic = lifter.known, ticket.atomic
    if not ticket.complete or not known.proves(premises, ticket.sharing == ticket.last + 1) or atomic.instruction.guard is not None:
        return False
    guards = lifter.guards(atomic.block, atomic.path)
    if guards is None:
        return False
    zero = _first_thread(known)
    first = [z3.substitute(as_condition(condition), *zero) for condition in (*known.facts, *premises, *guards)]
    facts, goals = first[: len(first) - len(guards)], first[len(first) - len(guards) :]
    return known.solver.proves(facts, z3.And(*goals) if goals else z3.BoolVal(True))


def is_reset(lifter: Lifter, ticket: Ticket) -> bool:
    """True if thread 0 of the block that came last stores 0 to its counter."""
    known, atomic = lifter.known, ticket.atomic
    drawing = lifter.guards(atomic.block, atomic.path)
    for reset in ticket.resets:
        guards = None if reset.iterations or reset.instruction.guard is not None else lifter.guards(reset.block, reset.path)
        if drawing is None or guards is None:
            continue
        terms = (*known.facts, *drawing, ticket.old == ticket.last, *guards)
        first = [z3.substitute(as_condition(condition), *_first_thread(known)) for condition in terms]
        facts, goals = first[: len(first) - len(guards)], first[len(first) - len(guards) :]
        if known.solver.proves(facts, z3.And(*goals) if goals else z3.BoolVal(True)):
            return True
    return False


def _first_thread(known: Knowledge) -> list[tuple[z3.ArithRef, z3.ArithRef]]:
    return [(value.z3, z3.IntVal(0)) for value in known.thread.values() if not isinstance(value.term, int)]


def _naming(known: Knowledge, address: z3.ArithRef) -> frozenset[int] | None:
    """The parts of the block's index that a counter's address is a number times, alone or as ``y X + x``; None for other addresses."""
    form = {monomial: number for monomial, number in known.polynomials.of(address).items() if monomial}
    if not form:
        return frozenset()
    axes = {axis: (known.block[axis].z3, frozenset(part.get_id() for part in parts)) for axis, parts in known.block_parts.items()}
    named = {part.get_id(): frozenset((part.get_id(),)) for parts in known.block_parts.values() for part in parts}
    named |= {whole.get_id(): parts for whole, parts in axes.values()}
    if len(form) == 1:
        ((monomial, _),) = form.items()
        return named.get(monomial[0]) if len(monomial) == 1 else None
    number = min(map(abs, form.values()))
    for low, of_low in axes.values():
        for high, of_high in axes.values():
            extent = known.extents.get(low.get_id())
            if extent is None or low is high:
                continue
            wanted = known.polynomials.of((high * extent + low) * number)
            if {monomial: times for monomial, times in wanted.items() if monomial} == form:
                return of_low | of_high
    return None


def _added_one(known: Knowledge, atomic: Access) -> bool:
    operand = atomic.instruction.operands[2]
    if isinstance(operand, Integer):
        return operand.value == 1
    return any(access is atomic and value.constant == 1 for access, value in known.numbers)


def _flag(known: Knowledge, old: Value) -> tuple[tuple[Access, Value], tuple[Access, Value], z3.ArithRef] | None:
    """The store and the load of a flag that is not 0 only if an old number is N - 1, and N - 1."""
    for stored, number in known.numbers:
        base = stored.base
        if stored.space != "shared" or base is None or isinstance(number.term, int):
            continue
        there = [access for access in known.lifted.accesses if access.address is not None and access.address.base == base]
        stores = [access for access in there if access.writes]
        loads = [(access, value) for access, value in known.results if any(access is each for each in there) and access.kind == "load"]
        if stores != [stored] or len(loads) != 1 or len(there) != 2:
            continue
        for last in _compared_with(number.z3, old.z3):
            if known.proves((number.z3 != 0,), old.z3 == last):
                return (stored, number), loads[0], last
    return None


def _compared_with(term: z3.ExprRef, old: z3.ArithRef) -> list[z3.ArithRef]:
    bounds: list[z3.ArithRef] = []
    pending = [term]
    while pending:
        part = pending.pop()
        if z3.is_eq(part) and any(child.eq(old) for child in part.children()):
            bounds += [child for child in part.children() if not child.eq(old)]
        pending += part.children()
    return bounds


def _reaches(lifter: Lifter, stored: Access, loaded: Access) -> bool:
    """True if thread 0 of its block stored the flag, at the same place and before a barrier, whenever a thread loads it."""
    known = lifter.known
    assert stored.address is not None and loaded.address is not None
    if stored.iterations or loaded.iterations or stored.size != loaded.size or not isinstance(stored.size, int):
        return False
    one, two = stored.address, loaded.address
    if not _is_shared(lifter, one.term) or not _is_shared(lifter, two.term) or not known.proves((), one.z3 == two.z3):
        return False
    if not known.proves((), stored.barriers[0].z3 < loaded.barriers[0].z3) or not known.proves(stored.path, known.linear_thread.z3 == 0):
        return False
    if _behind_barrier(lifter, stored, loaded):
        return True
    guards = lifter.guards(stored.block, stored.path)
    if guards is None:
        return False
    zero = _first_thread(known)
    shared = [as_condition(condition) for condition in loaded.path if _is_shared(lifter, condition)]
    of_first = [z3.substitute(as_condition(condition), *zero) for condition in (*known.facts, *guards)]
    facts, goals = of_first[: len(known.facts)], of_first[len(known.facts) :]
    return known.solver.proves([*facts, *shared], z3.And(*goals) if goals else True)


def _is_shared(lifter: Lifter, term: Term | Condition, around: Collection[int] = ()) -> bool:
    """True if all threads of a block have the same value for a term: they leave the loops that it depends on in the same iterations.

    ``around``: headers of loops of which threads in one iteration are compared.
    """
    known = lifter.known

    def agree(condition: Condition) -> bool:
        return not known.depends_on_thread(condition)

    exits = [each for header in known.loops_in(term) - {*around} for each in lifter.conditions(lifter.ways_out(header))]
    return agree(term) and all(lifter.agreed(*each, agree) for each in exits)


def meets_block(instruction: Instruction) -> bool:
    """True for a barrier that all threads of a block pass together."""
    whole = len(instruction.operands) == 1 and instruction.has("sync") and not instruction.has("warp")
    return instruction.opcode in ("bar", "barrier") and instruction.guard is None and whole


def _behind_barrier(lifter: Lifter, stored: Access, loaded: Access) -> bool:
    """True if a store is one branch away from a barrier that a thread passes before it loads, and thread 0 takes this branch.

    Progress is proved, so thread 0 passes the barrier as well.
    """
    known, flow = lifter.known, lifter.flow
    if len(flow.predecessors[stored.block]) != 1 or stored.instruction.guard is not None:
        return False
    (before,) = flow.predecessors[stored.block]
    if (
        not any(map(meets_block, flow.blocks[before]))
        or before not in flow.dominators[loaded.block]
        or any(before in blocks for blocks in flow.loops.values())
    ):
        return False
    branch = lifter.relative_path(before, stored.path)
    if branch is None:
        return False
    zero = _first_thread(known)
    return known.proves((), z3.And(*[z3.substitute(as_condition(condition), *zero) for condition in branch]))


def _others(known: Knowledge, atomic: Access) -> Sequence[Access]:
    """Other statements that may change a counter."""
    return [
        access
        for access in known.lifted.accesses
        if access is not atomic
        and access.writes
        and access.space not in ("shared", "local")
        and known.contract.in_workspace(access.address)
    ]


def _resets(known: Knowledge, access: Access, atomic: Access, old: Value, last: z3.ArithRef) -> bool:
    """True for a store of 0 by the block that came last, in its own counter."""
    assert atomic.address is not None
    if access.address is None or not any(mine is access and value.constant == 0 for mine, value in known.numbers):
        return False
    own = z3.simplify(access.address.z3 - atomic.address.z3, som=True)
    return z3.is_int_value(own) and own.as_long() == 0 and access.size == atomic.size and known.proves(access.path, old.z3 == last)


def beside_counters(known: Knowledge, access: Access, atomic: Access) -> bool:
    """True if an access touches no counter of any block."""
    assert atomic.address is not None
    if access.address is None or access.address.base is None:
        return False
    # Counters of other blocks: every part of the block's index once more.
    private = [(part, z3.Const(f"{part}''", part.sort())) for parts in known.block_parts.values() for part in parts]
    counter = z3.substitute(atomic.address.z3, *private)
    bounds: list[Condition] = []
    for part, other in private:
        bounds += [other >= 0, other < z3.substitute(known.extents[part.get_id()], *private)]
    apart = z3.Or(access.address.z3 >= counter + as_term(atomic.size), access.address.z3 + as_term(access.size) <= counter)
    return known.proves((*access.path, *bounds), apart)
