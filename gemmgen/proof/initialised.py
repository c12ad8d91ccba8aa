"""Initialised shared memory and registers: before each load of shared memory, some store to its bytes was carried out and has arrived.

The load's thread made that store earlier on its way, or a barrier that both threads pass orders the two. A load in a loop reads data
stored before the loop, or a fixed number of iterations earlier; the first iterations, which have none, are checked one by one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import z3

from gemmgen.emulator.ptx.syntax import Instruction, Register, written
from gemmgen.proof.data import Access
from gemmgen.proof.enumeration import NotEnumerable, Numbers
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.members import missing_lanes
from gemmgen.proof.obligations import NO_ARRAY, Verdict, place, statement
from gemmgen.proof.provenance import FARTHEST, Case, Form, NotShown, Provenance, Stores, kinds_of_problems
from gemmgen.proof.registers import copied, read_unwritten
from gemmgen.proof.terms import mentions
from gemmgen.proof.values import Condition, negation

MAX_WAYS = 500
"""Basic blocks that are looked at on ways to a register that may be unwritten."""
MAX_STARTS = 12
"""Blocks before a statement that such ways begin at."""
WAY_MILLISECONDS = 500


def initialised(lifter: Lifter) -> Verdict:
    """Every load of shared memory comes after a store. The kernel's races and progress must be proved."""
    verdict = Verdict("initialised", 1)
    unwritten = _read_unwritten(lifter)
    if unwritten is None:
        verdict.proved += 1
    else:
        instruction, register = unwritten
        verdict.unproved.append(f"{statement(instruction)}: {register.name} may be read before it is written")
    for instruction in missing_lanes(lifter.known.function, lifter.known.contract.launch.threads):
        verdict.obligations += 1
        verdict.unproved.append(f"{statement(instruction)}: it may read from a lane that the block does not have")
    for access in lifter.known.lifted.accesses:
        array = lifter.known.contract.arrays.get(access.base or "")
        if access.kind != "store" and access.base is None and access.space in ("global", "generic"):
            verdict.obligations += 1
            verdict.unproved.append(f"{place(access)}: {NO_ARRAY}")
        if access.kind != "store" and array is not None and array.role == "output":
            verdict.obligations += 1
            verdict.unproved.append(f"{place(access)}: reads {array.name}, which nothing wrote before the kernel")
    shared = [access for access in lifter.known.lifted.accesses if access.space in ("shared", "generic", "local")]
    loads = [access for access in shared if access.kind != "store"]
    if not loads:
        return verdict
    sizes = [access.size for access in shared if isinstance(access.size, int)]
    if len(sizes) < len(shared):
        verdict.unproved.append("an access to shared memory of a number of bytes that is not known")
        return verdict
    for kind in kinds_of_problems(lifter):
        at = Provenance(lifter, math.gcd(*sizes), kind, partial=True)
        known: dict[tuple[object, ...], bool] = {}
        for load in loads:
            if verdict.hopeless:
                verdict.unproved.append("and loads after these, which were not tried")
                return verdict
            verdict.obligations += 1
            try:
                _stored_before(lifter, at, load, known)
                verdict.proved += 1
            except NotShown as error:
                verdict.unproved.append(f"{place(load)}: {error}")
            except NotEnumerable:
                verdict.unproved.append(f"{place(load)}: an address that is no sum of a shared part and one of the thread")
    return verdict


def _read_unwritten(lifter: Lifter) -> tuple[Instruction, Register] | None:
    """A statement with a register that some way to it leaves unwritten; None if the conditions of each such way contradict each other."""
    ways = _Ways(lifter)
    for instruction, register in read_unwritten(lifter.known.function, lifter.flow):
        if ways.unwritten(ways.block_of(instruction), register):
            return instruction, register
    return None


class _Ways:
    """Ways through a kernel on which registers stay unwritten."""

    def __init__(self, lifter: Lifter) -> None:
        self._known, self._flow = lifter.known, lifter.flow
        self._conditions: dict[int, list[Condition]] = {}
        for block, condition in lifter.known.lifted.branches:
            self._conditions.setdefault(block, []).append(condition)
        self._blocks = {id(one): block for block, each in enumerate(lifter.flow.blocks) for one in each}
        self._writes: dict[str, list[Instruction]] = {}
        for each in lifter.flow.blocks:
            for one in each:
                for register in written(one) if one.guard is None else ():
                    self._writes.setdefault(register.name, []).append(one)
        self._answers: dict[tuple[int, str], bool] = {}
        self._by_writers: dict[tuple[int, frozenset[int]], bool] = {}

    def block_of(self, instruction: Instruction) -> int:
        """The basic block of a statement."""
        return self._blocks[id(instruction)]

    def unwritten(self, block: int, register: Register) -> bool:
        """True unless a register, and each that is copied to it, is written on all ways to a basic block that some problem takes."""
        key = block, register.name
        if key not in self._answers:
            self._answers[key] = True  # registers that are copied in a circle
            writes = self._writes.get(register.name, [])
            sources = [(self.block_of(one), source) for one in writes if (source := copied(one)) is not None]
            writers = frozenset(map(self.block_of, writes))
            missing = any(self.unwritten(*each) for each in sources)
            self._answers[key] = missing or self._any_without(block, writers)
        return self._answers[key]

    def _any_without(self, target: int, writers: frozenset[int]) -> bool:
        key = target, writers
        if key not in self._by_writers:
            self._by_writers[key] = self._comes_without(target, writers)
        return self._by_writers[key]

    def _comes_without(self, target: int, writers: frozenset[int]) -> bool:
        """True unless no problem leads to a basic block on a way without any of the writers.

        Each way passes the blocks that dominate the target: it is enough that the parts from one of them contradict each other.
        """
        start = target
        for _ in range(MAX_STARTS):
            if start == 0:
                return True
            start = self._flow.immediate_dominator(start)
            if start in writers or not self._leads(start, target, writers):
                return False
        return self._leads(0, target, writers)

    def _leads(self, start: int, target: int, writers: frozenset[int]) -> bool:
        """True unless no problem leads from one basic block to another without any of the writers, and without the first block again.

        A way that repeats a block has more conditions than the one without the iterations in between. In a loop between the two, these may
        be of another iteration: they are left out. Else the first iteration of each such loop must contradict its conditions.
        """
        flow = self._flow
        between, behind = {target}, [target]
        while behind:
            before_ = {other for other in flow.predecessors.get(behind.pop(), ()) if other != start} - between
            between |= before_
            behind += before_
        headers = {block for block in between if block in flow.loops}
        return self._follow(start, target, writers, between, headers, False) and (
            not headers or self._follow(start, target, writers, between, headers, True)
        )

    def _follow(
        self, start: int, target: int, writers: frozenset[int], between: Collection[int], headers: Collection[int], first_iterations: bool
    ) -> bool:
        """True unless all ways contradict themselves; ``first_iterations``: as far as they repeat no block."""
        known, flow = self._known, self._flow
        first: list[tuple[int, Condition]] = []
        if first_iterations:
            first += [(known.loops[iteration.get_id()], iteration == 0) for iteration in known.finished]
            first += [(header, value == initial) for header, value, initial in known.at_start]
        iterations = known.changing if headers and not first_iterations else []
        pending: list[tuple[int, tuple[Condition, ...], frozenset[int]]] = [(start, (), frozenset())]
        for _ in range(MAX_WAYS):
            if not pending:
                return False
            block, way, before = pending.pop()
            if block == start and before:
                continue
            if (block == target and before) or (first_iterations and block in before):
                begun = [condition for header, condition in first if header in headers and header in before]
                if not known.proves([*begun, *way], False, WAY_MILLISECONDS):
                    return True
                continue
            if block in writers or block in before or (before and block not in between):
                continue
            conditions, targets = self._conditions.get(block, []), flow.successors[block]
            meeting = self._meeting(block, target, writers)
            if meeting is not None:
                pending.append((meeting, way, before | {block}))
                continue
            decides = len(conditions) == 1 and len(targets) == 2 and not mentions(conditions[0], iterations)
            for number, following in enumerate(targets):
                extra = way if not decides else (*way, conditions[0] if number == 0 else negation(conditions[0]))
                pending.append((following, extra, before | {block}))
        return True

    def _meeting(self, block: int, target: int, writers: frozenset[int]) -> int | None:
        """The basic block where all ways from one meet again, if neither the target nor a writer lies in between."""
        flow = self._flow
        if len(flow.successors[block]) < 2:
            return None
        meeting = flow.meeting(block)
        excluded = {block, target, flow.end, *writers}
        return meeting if meeting != flow.end and excluded.isdisjoint(flow.between(block, meeting)) else None


def _stored_before(lifter: Lifter, at: Provenance, load: Access, known: dict[tuple[object, ...], bool]) -> None:
    """Raises ``NotShown`` unless all bytes of a load were stored before, for every thread and iteration."""
    if load.address is None or load.address.base is None or not isinstance(load.size, int):
        raise NotShown(NO_ARRAY)
    groups = at.all_stores(load.address.base)[::-1]
    iteration = at.loop_of(load)
    if at.depends(at.barriers(load)):
        raise NotShown("threads differ in the barriers they passed")
    whole = at.form(load.address.z3, load.path)
    readers = at.possible(load)
    for part in range(load.size // at.unit):
        address = whole.plus(part * at.unit)
        missing = np.zeros(len(address.table), dtype=bool)
        missing[readers] = True
        for group in groups:
            if group.iteration is None and missing.any():
                delta = at.distance(load, address, group, None)
                if delta is not None:
                    missing &= ~_from(lifter, at, load, address, Case(group, 0, None, delta), missing, known)
        if not missing.any():
            continue
        if iteration is None:
            raise NotShown("no store before it was found")
        _in_loop(lifter, at, load, address, groups, iteration, missing, known)


def _in_loop(
    lifter: Lifter,
    at: Provenance,
    load: Access,
    address: Form,
    groups: Sequence[Stores],
    iteration: z3.ArithRef,
    missing: Numbers,
    known: dict[tuple[object, ...], bool],
) -> None:
    """Shows it for a load in a loop, or after one, by the stores of that loop's iterations."""
    mine = [group for group in groups if group.iteration is not None and group.iteration.eq(iteration)]
    used: list[tuple[int, Numbers]] = []
    left = missing.copy()
    for shift in range(0, -FARTHEST, -1):
        for group in mine:
            case = Case(group, shift, None, 0)
            if left.any() and at.same_place(load, address, case):
                covered = _from(lifter, at, load, address, case, left, known)
                if covered.any():
                    used.append((shift, covered))
                    left &= ~covered
    if left.any():
        raise NotShown("no store before it was found")
    for first in range(max((-shift for shift, _ in used), default=0)):
        if at.impossible((*load.path, iteration == first)):
            continue
        left = missing.copy()
        for shift, covered in used:
            if -shift <= first:
                left &= ~covered
        for group in groups:
            delta = at.distance(load, address, group, first) if group.iteration is None and left.any() else None
            if delta is not None:
                left &= ~_from(lifter, at, load, address, Case(group, 0, first, delta), left, known)
        if left.any():
            raise NotShown("no store before it was found for the first iterations of its loop")


def _from(
    lifter: Lifter, at: Provenance, load: Access, address: Form, case: Case, wanted: Numbers, known: dict[tuple[object, ...], bool]
) -> Numbers:
    """The threads among ``wanted`` whose load reads data that the stores of a case wrote."""
    stores = case.stores
    flags = np.zeros(len(address.table), dtype=bool)
    if not len(stores.addresses):
        return flags
    places = np.minimum(np.searchsorted(stores.addresses, address.table + case.delta), len(stores.addresses) - 1)
    hits = wanted & (stores.addresses[places] == address.table + case.delta)
    for number in np.unique(stores.site[places][hits]).tolist():
        mine = hits & (stores.site[places] == number)
        writers = stores.thread[places]
        for members in _ordered(lifter, at, load, case, number, mine, writers, known):
            if not members.any():
                continue
            try:
                at.carried_out(load, stores.sites[number], case, writers[members])
            except NotShown:
                continue
            flags |= members
            break
    return flags


def _ordered(
    lifter: Lifter,
    at: Provenance,
    load: Access,
    case: Case,
    number: int,
    mine: Numbers,
    writers: Numbers,
    known: dict[tuple[object, ...], bool],
) -> Iterator[Numbers]:
    """The threads whose store is ordered before their load: all by the block's barriers, some by their warp's, some by their own way."""
    site, premises = case.stores.sites[number], at.premises(load, case)
    path = tuple(each if isinstance(each, bool) else each.get_id() for each in load.path)
    levels = (0, 2) if len(lifter.members) == 2 and lifter.members[1] is not None else (0,)
    threads = np.arange(len(mine))
    for level in levels:
        key = (id(site), level, case.shift, case.at, *[value.key for value in load.barriers], *path)
        if key not in known:
            known[key] = at.ordered(load, site, case, premises, level)
        if known[key]:
            yield mine if level == 0 else mine & (writers // 32 == threads // 32)
    if site.access.group is None and case.shift == 0 and _earlier(lifter, site.access, load):
        yield mine & (writers == threads)


def _earlier(lifter: Lifter, store: Access, load: Access) -> bool:
    """True if a store precedes a load on every way of one thread that comes to both in the same iteration."""
    accesses = lifter.known.lifted.accesses
    if not any(each is store for each in accesses[: next(place for place, each in enumerate(accesses) if each is load)]):
        return False  # of a later iteration of a loop that was run iteration by iteration
    if store.block == load.block:
        return store.instruction.line < load.instruction.line
    return store.block in lifter.flow.dominators[load.block]
