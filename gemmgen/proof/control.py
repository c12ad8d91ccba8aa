"""The control flow of one PTX function: basic blocks, dominators, natural loops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gemmgen.core.graphs import dominators, natural_loop, reached
from gemmgen.emulator.ptx.syntax import Function, Instruction, Symbol

LEAVES = ("ret", "exit", "trap")
MAX_BLOCKS = 2000
"""Basic blocks of a function that is analysed; dominators are found by sets, whose work grows with the square."""


class Unliftable(Exception):
    """A construct that has no formula here: the statement, and the reason."""

    def __init__(self, instruction: Instruction | None, reason: str) -> None:
        self.instruction, self.reason = instruction, reason
        at = "" if instruction is None else f"line {instruction.line}: {instruction.text.strip()}: "
        super().__init__(at + reason)


@dataclass(frozen=True)
class ControlFlow:
    """Basic blocks by number, in the order of the text; the last number, ``end``, is the function's end."""

    blocks: tuple[tuple[Instruction, ...], ...]
    successors: tuple[tuple[int, ...], ...]
    """Successors of each block; for a conditional branch, the target comes first."""
    predecessors: Mapping[int, tuple[int, ...]]
    dominators: Mapping[int, frozenset[int]]
    post_dominators: Mapping[int, frozenset[int]]
    loops: Mapping[int, frozenset[int]]
    """Blocks of each natural loop by its header."""
    order: Mapping[int, int] = field(repr=False)
    """Places in a reverse post-order, in which a block comes after those that lead to it, but for ways back."""

    @property
    def end(self) -> int:
        """The number of the function's end."""
        return len(self.blocks)

    def immediate_dominator(self, block: int) -> int:
        """The last block that every way to this one passes."""
        return max(self.dominators[block] - {block}, key=lambda other: len(self.dominators[other]))

    def meeting(self, block: int) -> int:
        """The first block that all ways from a block pass."""
        return max(self.post_dominators[block] - {block}, key=lambda other: len(self.post_dominators[other]))

    def between(self, block: int, meeting: int) -> Iterator[int]:
        """The blocks on the ways from a block to the one where they meet, both left out unless a way leads back to the first."""

        def after(other: int) -> list[int]:
            return [each for each in self.successors[other] if each != meeting]

        return reached(after(block), after)


def control_flow(function: Function) -> ControlFlow:
    """The control flow of a function. Raises ``Unliftable`` for indirect branches, calls and loops with two entries."""
    body = function.body
    starts = {0, *(place for place in function.labels.values() if place < len(body))}
    for place, instruction in enumerate(body):
        if instruction.opcode in ("brx", "call"):
            raise Unliftable(instruction, "indirect branches and calls are not analysed")
        if instruction.opcode == "bra" or instruction.opcode in LEAVES:
            starts.add(place + 1)
    first = sorted(start for start in starts if start < len(body))
    if len(first) > MAX_BLOCKS:
        raise Unliftable(None, f"{len(first)} basic blocks, more than {MAX_BLOCKS}")
    number = {start: index for index, start in enumerate(first)}
    end = len(first)
    blocks, successors = [], []
    for index, start in enumerate(first):
        stop = first[index + 1] if index + 1 < end else len(body)
        blocks.append(body[start:stop])
        successors.append(_successors(function, body[stop - 1], number, index + 1 if index + 1 < end else end, end))
    predecessors: dict[int, list[int]] = defaultdict(list)
    for index, targets in enumerate(successors):
        for target in targets:
            predecessors[target].append(index)
    forward = {index: tuple(targets) for index, targets in enumerate(successors)} | {end: ()}
    dominating = dominators(0, end + 1, predecessors, range(end + 1))
    order = _reverse_post_order(forward)
    return ControlFlow(
        tuple(blocks),
        tuple(forward[index] for index in range(end + 1)),
        {block: tuple(before) for block, before in predecessors.items()},
        dominating,
        dominators(end, end + 1, forward, reversed(range(end + 1))),
        _loops(successors, predecessors, dominating, order),
        order,
    )


def _successors(function: Function, last: Instruction, number: Mapping[int, int], following: int, end: int) -> tuple[int, ...]:
    if last.opcode == "bra":
        label = last.operands[0]
        if not isinstance(label, Symbol):
            raise Unliftable(last, "a branch to something that is no label")
        scope = last.scope
        while (scope, label.name) not in function.labels and scope:
            scope = function.scope_parents[scope]
        place = function.labels.get((scope, label.name))
        if place is None:
            raise Unliftable(last, f"{label.name} is no label of this function")
        target = number.get(place, end)
        return (target,) if last.guard is None else (target, following)
    if last.opcode in LEAVES:
        return (end,) if last.guard is None else (end, following)
    return (following,)


def _loops(
    successors: Sequence[Sequence[int]],
    predecessors: Mapping[int, Sequence[int]],
    dominators: Mapping[int, frozenset[int]],
    order: Mapping[int, int],
) -> dict[int, frozenset[int]]:
    loops: dict[int, set[int]] = defaultdict(set)
    for block, targets in enumerate(successors):
        for header in targets:
            if block not in order or header not in order:
                continue
            if header in dominators[block]:
                loops[header] |= natural_loop(header, block, predecessors.__getitem__)
            elif order[header] <= order[block]:
                raise Unliftable(None, "a loop with two entries is not analysed")
    return {header: frozenset(blocks) for header, blocks in loops.items()}


def _reverse_post_order(successors: Mapping[int, Sequence[int]]) -> dict[int, int]:
    seen = {0}
    finished: list[int] = []
    pending: list[tuple[int, list[int]]] = [(0, list(successors[0]))]
    while pending:
        block, left = pending[-1]
        if not left:
            finished.append(block)
            pending.pop()
            continue
        following = left.pop()
        if following not in seen:
            seen.add(following)
            pending.append((following, list(successors[following])))
    return {block: place for place, block in enumerate(reversed(finished))}
