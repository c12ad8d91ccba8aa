"""Handover: blocks read the partial results of other blocks after these are stored, and visible.

Three protocols are known:

- *Launches*: a kernel that only stores to a workspace, or only loads from it. Launches of a stream run one after the other; a kernel that
  begins early waits for the launches before it first.
- *Tickets*: a thread stores its part; a barrier of the block follows; thread 0 adds 1 to a counter by an atomic operation that releases and
  acquires at the scope of the device. The block that saw N - 1 is preceded by the additions of all N blocks, as counters are 0 before a
  launch. It sets a flag in shared memory before another barrier, and its threads load only behind the flag: data that the others
  stored before their additions is visible to them.
- *Words*: a block waits until a word is not 0 (``gemmgen.proof.flags``). The word holds the partial result, and its loads and stores
  are single accesses at the scope of the device.

No two threads store one partial result; of words, each has one thread. With tickets, blocks of other counters store no element that a
block loads. Counters and words lie in the part of the workspace that is 0 before a run, and are 0 again after it. That a block reads all
of the right elements is not part of this property.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import gcd

import z3

from gemmgen.emulator.ptx.syntax import Instruction
from gemmgen.proof.data import Access
from gemmgen.proof.flags import Wait, strong, waits, words_become_zero
from gemmgen.proof.knowledge import Knowledge
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.obligations import NO_ARRAY, OtherThread, Verdict, grouped, place, stored_by_one
from gemmgen.proof.polynomials import Monomial
from gemmgen.proof.terms import node_of
from gemmgen.proof.tickets import Ticket, beside_counters, is_drawn, is_reset, tickets
from gemmgen.proof.values import Condition, as_term

SCOPES = ("gpu", "sys")


def handover(lifter: Lifter, ended: Collection[int]) -> Verdict:
    """The protocol of one kernel whose memory, races and progress are proved; ``ended`` are its waits that are proved to end."""
    known, verdict = lifter.known, Verdict("handover")
    accesses = [access for access in known.lifted.accesses if access.space not in ("shared", "local")]
    for access in accesses:
        if access.address is None or access.address.base is None:
            verdict.unproved.append(f"{place(access)}: {NO_ARRAY}")
    if verdict.unproved:
        return verdict
    here = [access for access in accesses if known.contract.in_workspace(access.address)]
    verdict.obligations = len(here)
    if known.contract.launch.programmatic:
        verdict.unproved += begun_early(lifter)
        if not _always_waits(lifter):
            verdict.unproved.append("this launch may be complete before those before it: threads may not wait for them")
    if any(access.writes for access in here) and not all(access.kind == "store" for access in here):
        ready = tickets(lifter)
        resets = ready[0].resets if ready else ()
        if ready or not ended:
            verdict.unproved += stored_by_several(known, [each for each in here if not any(each is reset for reset in resets)])
        mixed = _stored_and_loaded(accesses, here)
        if ready:
            verdict.unproved += _by_ticket(lifter, here, mixed, ready[0])
        elif ended:
            verdict.unproved += _by_words(lifter, here, mixed)
        else:
            verdict.unproved.append("blocks read data that blocks of this launch store, by no known protocol")
    else:
        zero = known.contract.zero_bytes
        verdict.unproved += stored_by_several(known, here)
        stores = [access for access in here if access.writes and access.address is not None]
        beyond = [access for access in stores if access.address is not None and not known.proves(access.path, access.address.z3 >= zero)]
        verdict.unproved += [f"{place(access)}: it may store to bytes of the workspace that must be 0 after a launch" for access in beyond]
    verdict.proved = verdict.obligations - len(verdict.unproved)
    return verdict


def stored_by_several(known: Knowledge, accesses: Sequence[Access]) -> list[str]:
    """Stores of partial results to places that another thread, block or iteration may store to as well."""
    stores = [access for access in accesses if access.kind == "store" and access.base is not None]
    arrays = [known.contract.arrays[name] for name in dict.fromkeys(store.base for store in stores) if name is not None]
    if not arrays:
        return []
    # Several arguments for the workspace point to its beginning; the one of the smallest elements stands for all of them.
    flat = len(arrays) == 1 or all(len(array.shape) == 1 for array in arrays)
    if flat and stored_by_one(known, min(arrays, key=lambda array: array.element_bytes), stores):
        return []
    return [f"{place(stores[0])}: another thread may store to a place of these partial results"]


def begun_early(lifter: Lifter) -> list[str]:
    """The accesses to global memory of a launch that may begin early, where the launches before it may still run."""
    if not lifter.known.contract.launch.programmatic:
        return []
    accesses = [access for access in lifter.known.lifted.accesses if access.space not in ("shared", "local", "const")]
    return [f"{place(access)}: the launch before may still run" for access in accesses if not _waited(lifter, access)]


def _stored_and_loaded(accesses: Sequence[Access], besides: Sequence[Access]) -> list[Access]:
    """Accesses to arrays that a kernel stores to and loads from, but for those given."""
    others = [access for access in accesses if access.address is not None and not any(access is each for each in besides)]
    stored = {access.address.base for access in others if access.writes and access.address is not None}
    loaded = {access.address.base for access in others if access.kind != "store" and access.address is not None}
    return [access for access in others if access.address is not None and access.address.base in stored & loaded]


def _waited(lifter: Lifter, access: Access) -> bool:
    """True if the launches before this one are complete when a thread comes to an access."""
    for block in lifter.flow.dominators[access.block]:
        statements = lifter.flow.blocks[block]
        if block == access.block:
            statements = statements[: next(at for at, each in enumerate(statements) if each is access.instruction)]
        if any(map(_is_wait, statements)):
            return True
    return False


def _always_waits(lifter: Lifter) -> bool:
    """True if no thread ends before the launches before this one are complete: so later launches come after those as well."""
    return any(any(map(_is_wait, lifter.flow.blocks[block])) for block in lifter.flow.post_dominators[0] if block != lifter.flow.end)


def _is_wait(instruction: Instruction) -> bool:
    return instruction.opcode == "griddepcontrol" and instruction.has("wait") and instruction.guard is None


def _by_words(lifter: Lifter, accesses: Sequence[Access], mixed: Sequence[Access]) -> list[str]:
    """The accesses to a workspace whose kernel waits for words there that are no part of this protocol."""
    awaited, known, zero = waits(lifter), lifter.known, lifter.known.contract.zero_bytes
    complaints: list[str] = []
    if not words_become_zero(lifter):
        complaints.append(f"{place(awaited[0].access)}: words may not be 0 again after they are waited for")
    for access in mixed:
        if not known.proves(access.path, known.block["x"].z3 == 0):
            complaints.append(f"{place(access)}: blocks that wait for no words store and load elements of one array")
    for access in accesses:
        assert access.address is not None
        vector = any(access.instruction.has(word) for word in ("v2", "v4", "v8", "b128"))
        single = access.kind != "atomic" and strong(access.instruction) and not vector
        if not single:
            complaints.append(f"{place(access)}: no single access at the scope of the device")
        elif not access.writes and not (
            known.proves(access.path, known.block["x"].z3 == 0) and any(_is_of(lifter, access, each) for each in awaited)
        ):
            complaints.append(f"{place(access)}: it does not wait for the word that it loads")
        elif not known.proves(access.path, access.address.z3 + as_term(access.size) <= zero):
            complaints.append(f"{place(access)}: the word may lie beyond the bytes of the workspace that are 0 before a launch")
    return complaints


def _is_of(lifter: Lifter, access: Access, wait: Wait) -> bool:
    """True if a load is that of a wait, or the attempt before its loop."""
    assert access.address is not None
    first = access.block in lifter.flow.predecessors[wait.after]
    return access is wait.access or (first and lifter.known.proves((), access.address.z3 == wait.address))


def _by_ticket(lifter: Lifter, accesses: Sequence[Access], mixed: Sequence[Access], ticket: Ticket) -> list[str]:
    """The accesses to a workspace that the protocol of tickets does not order."""
    known, atomic = lifter.known, ticket.atomic
    instruction = atomic.instruction
    if not instruction.has("acq_rel") or not any(instruction.has(scope) for scope in SCOPES):
        return [f"{place(atomic)}: it does not release and acquire at the scope of the device"]
    assert atomic.address is not None
    if not is_reset(lifter, ticket) or not is_drawn(lifter, ticket, (ticket.sharing >= 2,)):
        return [f"{place(atomic)}: the counter may not be 0 again after the last block"]
    zero = known.contract.zero_bytes
    if not known.proves(atomic.path, atomic.address.z3 + as_term(atomic.size) <= zero):
        return [f"{place(atomic)}: the counter may lie beyond the bytes of the workspace that are 0 before a launch"]
    first = OtherThread(known, same_block=True)
    drawing = [*first.facts, *first.conditions(atomic.path)]
    complaints: list[str] = []
    loads = [access for access in accesses if not access.writes]
    stores = [access for access in accesses if access.writes and access is not atomic and not any(access is each for each in ticket.resets)]
    if not stores:
        complaints.append("no partial result is stored")
    for access in mixed:
        if not known.proves(access.path, ticket.holds):
            complaints.append(f"{place(access)}: blocks that did not come last store and load elements of one array")
    for name in {access.address.base for access in mixed if access.address is not None}:
        own = [access for access in mixed if access.address is not None and access.address.base == name]
        if not _apart_from_other_counters(known, ticket, own, [access for access in own if access.writes]):
            complaints.append(f"{place(own[0])}: a block of another counter may store what this block loads")
    if loads and not _apart_from_other_counters(known, ticket, loads, stores):
        complaints.append(f"{place(loads[0])}: a block of another counter may store what this block loads")
    for access in accesses:
        assert access.address is not None
        if access is atomic:
            continue
        if not access.writes:
            if access.instruction.has("nc"):
                complaints.append(f"{place(access)}: loads through the cache of constant data do not see stores of this launch")
            elif not known.proves(access.path, ticket.came_last):
                complaints.append(f"{place(access)}: a block may load here that did not come last")
            elif not beside_counters(known, access, atomic):
                complaints.append(f"{place(access)}: it may load a counter")
            continue
        if any(access is reset for reset in ticket.resets):
            continue
        if not known.proves(access.path, access.address.z3 >= zero):
            complaints.append(f"{place(access)}: it may store to bytes of the workspace that must be 0 after a launch")
        before = access.barriers[0].z3 < first.term(atomic.barriers[0].z3)
        if not known.solver.proves([*known.facts, *access.path, *drawing], before):
            complaints.append(f"{place(access)}: no barrier lies between this store and the addition to the counter")
    return complaints


def _apart_from_other_counters(known: Knowledge, ticket: Ticket, loads: Sequence[Access], stores: Sequence[Access]) -> bool:
    """True if a block that another counter belongs to stores no byte that a block loads."""
    other = OtherThread(known, same_block=False)
    differ: list[z3.BoolRef] = []
    for axis, parts in known.block_parts.items():
        named = [part for part in parts if part.get_id() in ticket.parts]
        whole = known.block[axis].term
        differing = [whole] if len(named) == len(parts) and not isinstance(whole, int) else named
        differ += [part != other.term(part) for part in differing]
    for load in grouped(known, loads):
        for store in grouped(known, stores):
            one, two = load.first, store.first
            assert one.address is not None and two.address is not None
            mine, theirs = one.address.z3, other.term(two.address.z3)
            apart = z3.Or(mine + as_term(one.size) + load.span <= theirs, theirs + other.term(as_term(two.size)) + store.span <= mine)
            premises = [*known.facts, *other.facts, *one.path, *other.conditions(two.path), z3.Or(*differ)]
            if not known.solver.proves([*premises, *_multiples_apart(known, mine - theirs)], apart):
                return False
    return True


def _multiples_apart(known: Knowledge, difference: z3.ArithRef) -> list[Condition]:
    """For each part ``d E`` of a difference with a number E of the problem: it is 0 if d is, and at least E away from 0 otherwise."""
    problem = {symbol.get_id() for symbol in known.contract.symbols.values()}
    by_extent: dict[Monomial, dict[Monomial, int]] = {}
    for monomial, number in known.polynomials.of(difference).items():
        extent = tuple(factor for factor in monomial if node_of(known.polynomials.term(factor)).symbols <= problem)
        rest = tuple(factor for factor in monomial if factor not in extent)
        if extent and rest:
            by_extent.setdefault(extent, {})[rest] = number
    facts: list[Condition] = []
    for extent, numbers in by_extent.items():
        unit = gcd(*numbers.values())
        size = z3.Product(*map(known.polynomials.term, extent))
        parts = [(number // unit, z3.Product(*map(known.polynomials.term, rest))) for rest, number in numbers.items()]
        count, times = z3.Sum(*[number * part for number, part in parts]), z3.Sum(*[number * part * size for number, part in parts])
        facts.append(z3.Implies(count == 0, times == 0))
        facts.append(z3.Implies(z3.And(size >= 0, count >= 1), times >= size))
        facts.append(z3.Implies(z3.And(size >= 0, count <= -1), times <= -size))
    return facts
