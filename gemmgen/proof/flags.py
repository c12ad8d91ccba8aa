"""Proofs that flag loops end: loops that wait for words of a workspace which other blocks store.

The threads of block 0 wait until words are not 0; one thread waits for each word, once. Thread 0 of another block stores a number other
than 0 to the word, and does not wait. The word keeps that number until it is read, because only the waiting thread stores a 0 there, after
its wait. So every wait ends, provided that the other blocks run while block 0 waits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import z3

from gemmgen.emulator.ptx.syntax import Instruction, Integer, Register, writers_of, written
from gemmgen.proof.data import Access
from gemmgen.proof.forms import PURE
from gemmgen.proof.knowledge import Path
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.obligations import OtherThread
from gemmgen.proof.terms import mentions, node_of
from gemmgen.proof.values import as_condition

STRONG = ("relaxed", "acquire", "release", "volatile")
WIDE = ("gpu", "sys")
"""Scopes that make a store visible to other blocks."""


@dataclass(frozen=True)
class Wait:
    """A loop of one basic block that ends when a word is not 0."""

    header: int
    after: int
    """The basic block after the loop."""
    access: Access
    address: z3.ArithRef


def ended_waits(lifter: Lifter) -> frozenset[int]:
    """Identities (``id``) of the first statements of the unbounded loops, if all of them are waits that are proved to end; else none."""
    waits = [_wait(lifter, header) for header in _unbounded(lifter)]
    ended = [wait for wait in waits if wait is not None]
    if not ended or len(ended) < len(waits) or len({wait.access.address.base for wait in ended if wait.access.address}) > 1:
        return frozenset()
    if not _Protocol(lifter, ended).holds():
        return frozenset()
    return frozenset(id(lifter.flow.blocks[wait.header][0]) for wait in ended)


def words_become_zero(lifter: Lifter) -> bool:
    """True if every word that a block stores is waited for, and set to 0 again. The waits must be proved to end."""
    return _Protocol(lifter, waits(lifter)).all_cleared()


def waits(lifter: Lifter) -> list[Wait]:
    """The unbounded loops that are waits."""
    return [wait for header in _unbounded(lifter) if (wait := _wait(lifter, header)) is not None]


def _unbounded(lifter: Lifter) -> list[int]:
    firsts = {id(instruction) for instruction in lifter.known.lifted.unbounded_loops}
    return [header for header in lifter.flow.loops if id(lifter.flow.blocks[header][0]) in firsts]


def _wait(lifter: Lifter, header: int) -> Wait | None:
    """The loop as a wait; None if it is not one."""
    known, flow = lifter.known, lifter.flow
    statements = flow.blocks[header]
    if flow.loops[header] != {header} or any(each.opcode not in PURE | {"nanosleep", "ld", "bra"} for each in statements):
        return None
    loaded = _repeats_while_zero(statements)
    accesses = [access for access in known.lifted.accesses if access.instruction is loaded]
    if loaded is None or len(accesses) != 1 or flow.successors[header][0] != header:
        return None
    (access,) = accesses
    array = None if access.address is None else known.contract.arrays.get(access.address.base or "")
    if access.address is None or array is None or not array.workspace or not access.iterations:
        return None
    fixed = [value.z3 for value in known.thread.values()] + [known.block["x"].z3, *access.iterations[:-1]]
    others = {symbol.get_id() for symbol in known.private} - {symbol.get_id() for symbol in fixed}
    if node_of(access.address.z3).symbols & others or not isinstance(access.size, int):
        return None  # the word may change from iteration to iteration
    return Wait(header, flow.successors[header][1], access, access.address.z3)


def _repeats_while_zero(statements: Sequence[Instruction]) -> Instruction | None:
    """The only load of a basic block that repeats while the loaded number is 0; None for other blocks."""
    loads = [each for each in statements if each.opcode == "ld"]
    if len(loads) != 1 or not strong(loads[0]) or loads[0].guard is not None:
        return None
    test = _zero_test(statements, loads[0])
    return loads[0] if test is True else None


def _zero_test(statements: Sequence[Instruction], load: Instruction) -> bool | None:
    """True if a basic block's last branch is taken if a loaded number is 0, False if it is taken otherwise; None for other branches."""
    branch, target = statements[-1], load.operands[0]
    if branch.opcode != "bra" or branch.guard is None or not isinstance(target, Register):
        return None
    after = list(statements[statements.index(load) + 1 : -1])
    tests = [each for each in after if any(register.name == branch.guard.name for register in written(each))]
    changed = [each for each in after if any(register.name == target.name for register in written(each))]
    if len(tests) != 1 or changed or tests[0].opcode != "setp" or tests[0].guard is not None or len(tests[0].operands) != 3:
        return None
    (test,) = tests
    if test.operands[0] != branch.guard:
        return None  # the second of two predicates is the opposite of the comparison
    is_zero = test.operands[1] == target and isinstance(test.operands[2], Integer) and test.operands[2].value == 0
    whole = test.type[1:] == load.type[1:] and test.type[0] in "sub"
    if not is_zero or not whole or not (test.has("eq") or test.has("ne")):
        return None
    return test.has("eq") != branch.guard_negated


def strong(instruction: Instruction) -> bool:
    """True for accesses that are ordered with accesses of other blocks."""
    volatile = instruction.has("volatile")
    return volatile or (any(instruction.has(word) for word in STRONG) and any(instruction.has(word) for word in WIDE))


class _Protocol:
    """The premises under which the waits of one kernel end."""

    def __init__(self, lifter: Lifter, waits: Sequence[Wait]) -> None:
        self._lifter, self._known, self._waits = lifter, lifter.known, waits
        self._writers = writers_of(instruction for block in lifter.flow.blocks for instruction in block)
        self._stores = [access for access in self._known.lifted.accesses if access.writes and self._touches(access)]

    def _touches(self, access: Access) -> bool:
        return access.space not in ("shared", "local") and self._known.contract.in_workspace(access.address)

    def holds(self) -> bool:
        """True if every wait ends."""
        known = self._known
        block = known.block["x"]
        if isinstance(block.term, int) or not all(isinstance(known.block[axis].term, int) for axis in "yz"):
            return False
        clears: list[Access] = []
        releases: list[Access] = []
        for store in self._stores:
            number = None if store.kind != "store" or store.address is None else self._number(store.instruction)
            if number is None or not isinstance(store.size, int) or store.size != self._waits[0].access.size:
                return False
            (clears if number == 0 else releases).append(store)
        if len(releases) != 1:
            return False
        for wait in self._waits:
            here = wait.access.path
            if wait.access.size != releases[0].size or not known.proves(here, block.z3 == 0) or not self._released(wait, releases[0]):
                return False
            if not all(self._cleared_after(wait, clear) for clear in clears):
                return False
        return all(self._only_one(one, two) for one in self._waits for two in self._waits)

    def _number(self, store: Instruction) -> int | None:
        """0 if a store stores 0, another number if it stores no 0; None if neither is known."""
        data, bits = store.operands[1], (1 << int(store.type[1:])) - 1
        if isinstance(data, Integer):
            return data.value & bits
        writers = self._writers.get(data.name, []) if isinstance(data, Register) else []
        if len(writers) != 1 or writers[0].guard is not None or not self._precedes(writers[0], store):
            return None
        (writer,) = writers
        constants = [operand.value & bits for operand in writer.operands[1:] if isinstance(operand, Integer)]
        if writer.opcode == "mov" and len(constants) == 1:
            return constants[0]
        return constants[0] if writer.opcode == "or" and constants and constants[0] and writer.type[1:] == store.type[1:] else None

    def _precedes(self, one: Instruction, other: Instruction) -> bool:
        """True if every way to a statement comes past another one first."""
        flow = self._lifter.flow
        places = {id(each): (block, place) for block, statements in enumerate(flow.blocks) for place, each in enumerate(statements)}
        (block, place), (behind, later) = places[id(one)], places[id(other)]
        return place < later if block == behind else block in flow.dominators[behind]

    def _released(self, wait: Wait, store: Access) -> bool:
        """True if thread 0 of another block stores the word for all data."""
        known, guards = self._known, self._lifter.guards(store.block, store.path)
        if (
            store.iterations
            or guards is None
            or store.address is None
            or not strong(store.instruction)
            or store.instruction.guard is not None
        ):
            return False
        block = known.block["x"].z3
        form = dict(known.polynomials.of(store.address.z3))
        number = form.pop((block.get_id(),), 0)
        if form or not isinstance(store.size, int) or number < store.size:
            return False
        named = wait.address / number  # the block that stores this word
        if not known.proves(wait.access.path, z3.And(wait.address % number == 0, named >= 1, named < known.contract.grid[0])):
            return False
        first = [(value.z3, z3.IntVal(0)) for value in known.thread.values() if not isinstance(value.term, int)]
        own = [symbol for symbol in known.private if not any(symbol.eq(one) for one, _ in [*first, (block, None)])]
        for guard in guards:
            if isinstance(guard, bool):
                if not guard:
                    return False
                continue
            if mentions(guard, own) or not known.proves(wait.access.path, z3.substitute(guard, *first, (block, named))):
                return False
        return True

    def _cleared_after(self, wait: Wait, clear: Access) -> bool:
        """True if a thread stores a 0 only to its own word, after its wait in the same iteration, and to no other awaited word."""
        flow, known = self._lifter.flow, self._known
        if (
            clear.address is None
            or not known.proves(clear.path, known.block["x"].z3 == 0)  # the block that waits
            or not known.proves((), clear.address.z3 == wait.address)
            or not _same(clear.iterations, wait.access.iterations[:-1])
        ):
            return False
        behind = wait.after
        if behind not in flow.dominators[clear.block] or any(clear.block in flow.loops[loop] for loop in self._inner(wait)):
            return False
        before = set(flow.predecessors[behind]) - {wait.header}
        if not all(self._saw(block, wait, behind) for block in before):
            return False
        other = OtherThread(known, same_block=True)
        theirs = other.term(wait.address)
        premises = [*clear.path, *other.facts, *other.conditions(wait.access.path), clear.address.z3 == theirs]
        return known.proves(premises, self._one_wait(other, wait.access.iterations[:-1]))

    def all_cleared(self) -> bool:
        """True if one of the waits is for every word that a block stores, and a store of 0 follows it on every way."""
        return any(self._waits_for_all(wait) and self._always_cleared(wait) for wait in self._waits)

    def _waits_for_all(self, wait: Wait) -> bool:
        """True if for each block but the first a thread comes to the wait for its word, in some iteration of one loop around it."""
        flow, known = self._lifter.flow, self._known
        around = [header for header, blocks in flow.loops.items() if wait.header in blocks and header != wait.header]
        iterations, threads = wait.access.iterations[:-1], known.contract.launch.block
        tid = known.thread["x"]
        release = [store for store in self._stores if store.address is not None and self._number(store.instruction) != 0]
        if len(around) != 1 or len(iterations) != 1 or threads[1:] != (1, 1) or isinstance(tid.term, int) or len(release) != 1:
            return False
        (header,), (iteration,), (released,) = around, iterations, release
        assert released.address is not None
        other, symbol = z3.Int("the other block"), known.block["x"].z3
        word = z3.substitute(released.address.z3, (symbol, other))
        origin = z3.simplify(
            z3.substitute(wait.address, (tid.z3, z3.IntVal(0)), (iteration, z3.IntVal(0))) - z3.substitute(word, (other, z3.IntVal(0)))
        )
        number = known.polynomials.of(released.address.z3).get((symbol.get_id(),), 0)
        if not z3.is_int_value(origin) or number < 1:
            return False
        here = [(tid.z3, (other - origin.as_long() // number) % threads[0]), (symbol, z3.IntVal(0))]
        first = z3.substitute(wait.address, *here, (iteration, z3.IntVal(0)))
        step = known.polynomials.of(wait.address).get((iteration.get_id(),), 0)
        guards = self._lifter.guards_of_loop(header)
        if step <= 0 or guards is None or not self._passes(header, wait):
            return False
        if not known.proves(released.path, z3.And(symbol >= 1, known.linear_thread.z3 == 0)):
            return False
        last, before = (word - first) / step, z3.Int("an iteration before")
        premises = [*known.contract.facts, other >= 1, other < known.contract.grid[0]]
        goals = [last >= 0, z3.substitute(wait.address, *here, (iteration, last)) == word]
        goals += [z3.substitute(as_condition(guard), *here, (iteration, z3.IntVal(0))) for guard in guards]
        own = [symbol for symbol in known.private if not any(symbol.eq(each) for each in (tid.z3, known.block["x"].z3, iteration))]
        if any(mentions(as_condition(guard), own) for guard in guards) or mentions(wait.address, own):
            return False
        stays: list[tuple[int, z3.BoolRef]] = []
        for block in self._lifter.ways_out(header):
            conditions = [condition for _, condition in self._lifter.conditions([block])]
            if len(conditions) != 1 or mentions(as_condition(conditions[0]), own):
                return False
            taken_stays = flow.successors[block][0] in flow.loops[header]
            stays.append((block, as_condition(conditions[0]) if taken_stays else z3.Not(as_condition(conditions[0]))))
        for block, stay in stays:
            after_wait = wait.after in flow.dominators[block]
            in_iteration = z3.And(before >= 0, before < last if after_wait else before <= last)
            goals.append(z3.Implies(in_iteration, z3.substitute(stay, *here, (iteration, before))))
        return all(known.solver.proves(premises, goal) for goal in goals)

    def _passes(self, header: int, wait: Wait) -> bool:
        """True if every iteration of a loop that is not left comes past a wait."""
        return not self._leads(header, {wait.after}, flow_out=False)

    def _always_cleared(self, wait: Wait) -> bool:
        """True if a thread stores a 0 to its word after every wait."""
        clears = {
            store.block
            for store in self._stores
            if store.instruction.guard is None and self._number(store.instruction) == 0 and self._cleared_after(wait, store)
        }
        return bool(clears) and (wait.after in clears or not self._leads(wait.after, clears, flow_out=True))

    def _leads(self, start: int, avoiding: Collection[int], *, flow_out: bool) -> bool:
        """True if a way from a basic block comes to the start of an iteration of a loop around it, or (``flow_out``) leaves the loop."""
        flow = self._lifter.flow
        around = [header for header, blocks in flow.loops.items() if start in blocks]
        seen, pending = set[int](), [start]
        while pending:
            block = pending.pop()
            for target in () if block == flow.end else flow.successors[block]:
                outside = any(target not in flow.loops[header] for header in around)
                if target in around or (outside and flow_out) or (target == flow.end and flow_out):
                    return True
                if target not in seen and target not in avoiding and not outside:
                    seen.add(target)
                    pending.append(target)
        return False

    def _inner(self, wait: Wait) -> list[int]:
        """Headers of the loops that do not contain a wait."""
        return [header for header, blocks in self._lifter.flow.loops.items() if wait.header not in blocks]

    def _saw(self, block: int, wait: Wait, behind: int) -> bool:
        """True if a thread goes from a basic block past the wait only if it loaded its word and the word was not 0."""
        flow, known = self._lifter.flow, self._known
        statements, targets = flow.blocks[block], flow.successors[block]
        loads = [each for each in statements if each.opcode == "ld" and strong(each) and each.guard is None]
        accesses = [access for access in known.lifted.accesses if loads and access.instruction is loads[-1]]
        if (
            len(accesses) != 1
            or len(targets) != 2
            or accesses[0].address is None
            or not known.proves((), accesses[0].address.z3 == wait.address)
        ):
            return False
        test = _zero_test(statements, loads[-1])
        return test is not None and targets[1 if test else 0] == behind and targets[0 if test else 1] != behind

    def _only_one(self, one: Wait, two: Wait) -> bool:
        """True if no two threads or iterations wait for the same word."""
        known, other = self._known, OtherThread(self._known, same_block=True)
        path: Path = one.access.path
        premises = [*path, *other.facts, *other.conditions(two.access.path), one.address == other.term(two.address)]
        if one is two:
            return known.proves(premises, self._one_wait(other, one.access.iterations[:-1]))
        return known.proves(premises, False)

    def _one_wait(self, other: OtherThread, iterations: Sequence[z3.ArithRef]) -> z3.BoolRef:
        threads = [value.z3 for value in self._known.thread.values() if not isinstance(value.term, int)]
        return z3.And(*[as_condition(symbol == other.term(symbol)) for symbol in (*threads, *iterations)])


def _same(one: Sequence[z3.ArithRef], two: Sequence[z3.ArithRef]) -> bool:
    return len(one) == len(two) and all(mine.eq(theirs) for mine, theirs in zip(one, two, strict=True))
