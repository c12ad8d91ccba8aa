"""Lifts the PTX of a kernel to formulas for one symbolic thread: the address, condition and barrier interval of each access.

Registers become ``Value``s and conditions over the thread's index, the block's and the problem. A loop gets a counter, its iteration;
registers that it changes get closed forms over the iteration, which are guessed from one iteration and then proved by induction
(``gemmgen.proof.loops``). The number of barriers that a thread has passed is one more register, so that two threads are between the
same barriers if two integers are equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import z3

from gemmgen.core.graphs import reached
from gemmgen.emulator.ptx.syntax import Function, Instruction, Module
from gemmgen.proof.contract import Contract
from gemmgen.proof.control import LEAVES, ControlFlow, control_flow
from gemmgen.proof.data import DATA, UNKNOWN, Data, join
from gemmgen.proof.knowledge import COUNTERS, Knowledge, Lifted, Path, State
from gemmgen.proof.loops import Edge, run_loop
from gemmgen.proof.semantics import execute
from gemmgen.proof.solver import Solver
from gemmgen.proof.terms import mentions
from gemmgen.proof.values import Condition, Value, as_condition, choose, conjunction, constant, negation


class Lifter:
    """One kernel under one contract. ``lift`` raises ``Unliftable`` for a statement that has no meaning here, ``OutOfTime``."""

    def __init__(self, module: Module, function: Function, contract: Contract, solver: Solver) -> None:
        self.known = Knowledge(module, function, contract, solver)
        self.flow: ControlFlow = control_flow(function)
        self.members: tuple[z3.ArithRef | None, ...] = ()
        """Common part of the threads that a team's and a warp's barriers order; None where those barriers are not relied on."""
        self._paths: dict[int, Path] = {}
        self._deciding: dict[int, frozenset[int]] = {}

    def lift(self) -> Lifted:
        """Runs the whole function once."""
        start: State = {name: constant(0) for name in COUNTERS}
        everything = frozenset(range(self.flow.end))
        if self.flow.loops.get(0) == everything:
            run_loop(self.known, self.flow, self, 0, (), start)
        else:
            self.region(everything, 0, [Edge(0, (), start)])
        self.known.look_later()
        waits = self.known.lifted.waits
        waits[:] = [wait if wait.iteration is not None else replace(wait, guards=self.guards(wait.block, wait.path)) for wait in waits]
        return self.known.lifted

    def region(self, blocks: frozenset[int], entry: int, incoming: Sequence[Edge]) -> tuple[list[Edge], list[Edge]]:
        """Runs a region from its entry, without its ways back to it; returns the ways back and the ways out."""
        edges: dict[int, list[Edge]] = defaultdict(list)
        edges[entry] = list(incoming)
        back: list[Edge] = []
        out: list[Edge] = []
        inner: set[int] = set()
        for block in sorted(blocks & self.flow.order.keys(), key=lambda number: self.flow.order[number]):
            if block in inner or not edges[block]:
                continue
            path, state = self.merge(block, edges[block])
            loop = self.flow.loops.get(block)
            if loop is not None and not (block == entry and loop == blocks):
                inner |= loop
                left = run_loop(self.known, self.flow, self, block, path, state)
            else:
                self._paths[block] = path
                left = self._run_block(block, path, state)
            for edge in left:
                if edge.target == entry:
                    back.append(edge)
                elif edge.target in blocks:
                    edges[edge.target].append(edge)
                else:
                    out.append(edge)
        return back, out

    def merge(self, block: int, edges: Sequence[Edge]) -> tuple[Path, State]:
        """The path and the state where several ways meet."""
        if len(edges) == 1:
            return edges[0].path, dict(edges[0].state)
        dominator = self.flow.immediate_dominator(block) if block in self.flow.dominators and block != 0 else block
        common = self._paths.get(dominator, ())
        relative = [conjunction(edge.path[_shared(edge.path, common) :]) for edge in edges]
        ended = [iteration for iteration in self.known.finished if not any(iteration is active for active in self.known.iterations)]
        complete = block in self.flow.post_dominators[dominator] and not any(mentions(part, ended) for part in relative)
        path = common if complete and all(_shared(edge.path, common) == len(common) for edge in edges) else (*common, z3.Or(*relative))
        if any(_shared(edge.path, common) < len(common) for edge in edges):
            path = (z3.Or(*[conjunction(edge.path) for edge in edges]),)
            relative = [conjunction(edge.path) for edge in edges]
        state = dict(edges[0].state)
        for condition, edge in zip(relative[1:], edges[1:], strict=True):
            there = edge.state
            differing = [name for name, content in state.items() if there.get(name) is not content]
            for name in [*differing, *[name for name in there if name not in state and name.startswith(DATA)]]:
                missing = UNKNOWN if name.startswith(DATA) else None
                other, here = there.get(name, missing), state.get(name, UNKNOWN)
                merged = None if other is None else _either(condition, other, here)
                if merged is None:
                    del state[name]
                else:
                    state[name] = merged
        return path, state

    def guards(self, block: int, path: Path) -> Path | None:
        """Conditions under which a thread comes to a place outside of loops that a path leads to, provided that loops end.

        They lack those of the path that say no more than in which iteration each loop before the place was left. None where they are not
        known, as for an iteration of an unrolled loop that is not its last one.
        """
        here = self._paths.get(block)
        if here is None or len(here) > len(path) or _shared(path, here) < len(here):
            return None
        conditions = self._guards(block)
        return None if conditions is None else (*conditions, *path[len(here) :])

    def guards_of_loop(self, header: int) -> Path | None:
        """Conditions under which a thread comes to a loop, and others that hold in its first iteration; None if not known."""
        return self._guards(header) if header in self._paths else None

    def relative_path(self, block: int, path: Path) -> Path | None:
        """The conditions of a path behind the start of a basic block; None if the path does not lead through it."""
        here = self._paths.get(block)
        return None if here is None or _shared(path, here) < len(here) else path[len(here) :]

    def _guards(self, block: int) -> Path | None:
        if block == 0:
            return ()
        dominator = self.flow.immediate_dominator(block)
        before = self._guards(dominator)
        if before is None or block in self.flow.post_dominators[dominator]:
            return before
        path, common = self._paths.get(block), self._paths.get(dominator)
        if path is None or common is None or _shared(path, common) < len(common):
            return None
        return (*before, *path[len(common) :])

    def guards_in_iteration(self, header: int, block: int, path: Path) -> Path | None:
        """Conditions under which a thread that begins an iteration of a loop comes to a place in it, and those of entering the loop.

        Loops within it are provided to end. None where the conditions are not known.
        """
        here, entry = self._paths.get(block), self._guards(header)
        if here is None or entry is None or len(here) > len(path) or _shared(path, here) < len(here):
            return None
        conditions: Path = path[len(here) :]
        while block != header:
            dominator = self.flow.immediate_dominator(block)
            if not self._always_in_iteration(header, dominator, block):
                path, common = self._paths[block], self._paths.get(dominator)
                if common is None or _shared(path, common) < len(common):
                    return None
                conditions = (*path[len(common) :], *conditions)
            block = dominator
        return (*entry, *conditions)

    def again(self, header: int) -> Path | None:
        """Conditions under which a thread that begins an iteration of a loop begins another one; None where they are not known."""
        latches = [block for block in self.flow.predecessors[header] if block in self.flow.loops[header]]
        path = self._paths.get(latches[0]) if len(latches) == 1 else None
        if path is None:
            return None
        (latch,) = latches
        conditions = self.guards_in_iteration(header, latch, path)
        if conditions is None or len(self.flow.successors[latch]) == 1:
            return conditions
        branches = [condition for _, condition in self.conditions(latches)]
        if len(branches) != 1:
            return None
        return (*conditions, branches[0] if self.flow.successors[latch][0] == header else negation(branches[0]))

    def _always_in_iteration(self, header: int, start: int, block: int) -> bool:
        """True if no way from one block of a loop to the iteration's end, or out of the loop, misses another block."""
        successors = self.flow.successors
        blocks = reached([start], lambda each: [target for target in successors[each] if target != block])
        return all(target != header and target in self.flow.loops[header] for each in blocks for target in successors[each])

    def deciding(self, block: int) -> frozenset[int]:
        """The basic blocks whose branches decide whether a thread comes to a block, provided that loops end."""
        if block not in self._deciding:
            blocks: frozenset[int] = frozenset()
            if block != 0:
                dominator = self.flow.immediate_dominator(block)
                if block in self.flow.post_dominators[dominator]:
                    blocks = self.deciding(dominator)
                else:
                    before = [other for other in self.flow.predecessors[block] if block not in self.flow.dominators[other]]
                    blocks = frozenset(other for other in before if len(self.flow.successors[other]) > 1)
                    blocks = blocks.union(*[self.deciding(other) for other in before])
            self._deciding[block] = blocks
        return self._deciding[block]

    def conditions(self, blocks: Iterable[int]) -> Iterator[tuple[int, Condition]]:
        """Branches at the ends of some basic blocks, with their conditions of each time that they were lifted."""
        wanted = set(blocks)
        return ((block, condition) for block, condition in self.known.lifted.branches if block in wanted)

    def agreed(self, block: int, condition: Condition, agree: Callable[[Condition], bool], around: frozenset[int] = frozenset()) -> bool:
        """True if threads agree on a branch: in the same iterations of its loops, and on how many iterations the loops before it take."""
        if isinstance(condition, bool):
            return True
        if not agree(condition):
            return False
        for header in self.known.loops_in(condition):
            if block not in self.flow.loops[header]:
                exits = self.conditions(self.ways_out(header))
                if header in around or not all(self.agreed(other, each, agree, around | {header}) for other, each in exits):
                    return False
        return True

    def ways_out(self, header: int) -> list[int]:
        """The basic blocks that a loop may be left from by a branch."""
        blocks, successors = self.flow.loops[header], self.flow.successors
        return [
            block for block in sorted(blocks) if len(successors[block]) > 1 and any(target not in blocks for target in successors[block])
        ]

    def _run_block(self, block: int, path: Path, state: State) -> list[Edge]:
        for instruction in self.flow.blocks[block]:
            self.known.solver.check_time()
            self.known.here = instruction
            targets = self.flow.successors[block]
            if instruction.opcode == "bra" or instruction.opcode in LEAVES:
                if instruction.guard is None:
                    self._note_trap(instruction, path)
                    return [Edge(targets[0], path, state)]
                condition = self.known.guard(instruction, state)
                self._note_trap(instruction, (*path, condition))
                if not self.known.guessing:
                    self.known.lifted.branches.append((block, condition))
                if isinstance(condition, bool):
                    return [Edge(targets[0 if condition else 1], path, state)]
                taken = Edge(targets[0], (*path, condition), dict(state))
                return [taken, Edge(targets[1], (*path, z3.Not(condition)), state)]
            where = path if instruction.guard is None else (*path, self.known.guard(instruction, state))
            execute(self.known, instruction, block, where, state)
        return [Edge(self.flow.successors[block][0], path, state)]

    def _note_trap(self, instruction: Instruction, path: Path) -> None:
        if instruction.opcode == "trap" and not self.known.guessing:
            self.known.lifted.traps.append((instruction, path))


def _shared(path: Path, common: Path) -> int:
    """Conditions at the start of two paths that are the same."""
    count = 0
    while count < min(len(path), len(common)) and path[count] is common[count]:
        count += 1
    return count


def _either(condition: Condition, yes: Value | Condition | Data, no: Value | Condition | Data) -> Value | Condition | Data | None:
    """One of two contents of a register; None if there is no formula for it."""
    if isinstance(yes, Value) and isinstance(no, Value):
        return choose(condition, yes, no)
    if isinstance(yes, Value) or isinstance(no, Value):
        return None
    if yes is no:
        return yes
    if isinstance(yes, bool | z3.BoolRef) and isinstance(no, bool | z3.BoolRef):
        return z3.If(as_condition(condition), as_condition(yes), as_condition(no))
    if isinstance(yes, bool | z3.BoolRef) or isinstance(no, bool | z3.BoolRef):
        return None
    return join(condition, yes, no)
