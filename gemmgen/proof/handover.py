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

That a block reads the right elements is not part of this property.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import z3

from gemmgen.emulator.ptx.syntax import Instruction
from gemmgen.proof.data import Access
from gemmgen.proof.flags import Wait, strong, waits
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.obligations import OtherThread, Verdict, place
from gemmgen.proof.tickets import Ticket, tickets

SCOPES = ("gpu", "sys")


def handover(lifter: Lifter, ended: Collection[int]) -> Verdict:
    """The protocol of one kernel whose memory, races and progress are proved; ``ended`` are its waits that are proved to end."""
    known, verdict = lifter.known, Verdict("handover")
    arrays = known.contract.arrays
    accesses = [access for access in known.lifted.accesses if access.space not in ("shared", "local")]
    for access in accesses:
        if access.address is None or access.address.base is None:
            verdict.unproved.append(f"{place(access)}: the array that it points into is not known")
    if verdict.unproved:
        return verdict
    here = [access for access in accesses if access.address is not None and arrays[access.address.base or ""].workspace]
    verdict.obligations = len(here)
    if known.contract.launch.programmatic:
        verdict.unproved += [f"{place(access)}: the launch before may still run" for access in here if not _waited(lifter, access)]
    if any(access.writes for access in here) and not all(access.kind == "store" for access in here):
        ready = tickets(lifter)
        if ready:
            verdict.unproved += _by_ticket(lifter, here, ready[0])
        elif ended:
            verdict.unproved += _by_words(lifter, here)
        else:
            verdict.unproved.append("blocks read data that blocks of this launch store, by no known protocol")
    verdict.proved = verdict.obligations - len(verdict.unproved)
    return verdict


def _waited(lifter: Lifter, access: Access) -> bool:
    """True if the launches before this one are complete when a thread comes to an access."""

    def is_wait(instruction: Instruction) -> bool:
        return instruction.opcode == "griddepcontrol" and instruction.has("wait") and instruction.guard is None

    for block in lifter.flow.dominators[access.block]:
        statements = lifter.flow.blocks[block]
        if block == access.block:
            statements = statements[: next(at for at, each in enumerate(statements) if each is access.instruction)]
        if any(map(is_wait, statements)):
            return True
    return False


def _by_words(lifter: Lifter, accesses: Sequence[Access]) -> list[str]:
    """The accesses to a workspace whose kernel waits for words there that are no part of this protocol."""
    awaited = waits(lifter)
    found: list[str] = []
    for access in accesses:
        assert access.address is not None
        single = access.kind != "atomic" and strong(access.instruction) and not any(access.instruction.has(word) for word in ("v2", "v4"))
        if not single:
            found.append(f"{place(access)}: no single access at the scope of the device")
        elif not access.writes and not any(_is_of(lifter, access, wait) for wait in awaited):
            found.append(f"{place(access)}: it does not wait for the word that it loads")
    return found


def _is_of(lifter: Lifter, access: Access, wait: Wait) -> bool:
    """True if a load is that of a wait, or the attempt before its loop."""
    assert access.address is not None
    first = access.block in lifter.flow.predecessors[wait.after]
    return access is wait.access or (first and lifter.known.proves((), access.address.z3 == wait.address))


def _by_ticket(lifter: Lifter, accesses: Sequence[Access], ticket: Ticket) -> list[str]:
    """The accesses to a workspace that the protocol of tickets does not order."""
    known, atomic = lifter.known, ticket.atomic
    instruction = atomic.instruction
    if not instruction.has("acq_rel") or not any(instruction.has(scope) for scope in SCOPES):
        return [f"{place(atomic)}: it does not release and acquire at the scope of the device"]
    assert atomic.address is not None
    first = OtherThread(known, same_block=True)
    drawing = [*first.facts, *first.conditions(atomic.path)]
    found: list[str] = []
    for access in accesses:
        assert access.address is not None
        if access is atomic:
            continue
        if not access.writes:
            if access.instruction.has("nc"):
                found.append(f"{place(access)}: loads through the cache of constant data do not see stores of this launch")
            elif not known.proves(access.path, ticket.came_last):
                found.append(f"{place(access)}: a block may load here that did not come last")
            continue
        from_counter = z3.simplify(access.address.z3 - atomic.address.z3, som=True)
        if z3.is_int_value(from_counter) and from_counter.as_long() == 0:
            continue  # the counter, which a block resets that came last
        before = access.barriers[0].z3 < first.term(atomic.barriers[0].z3)
        if not known.solver.proves([*known.facts, *access.path, *drawing], before):
            found.append(f"{place(access)}: no barrier lies between this store and the addition to the counter")
    return found
