"""The loops of a function in machine code, found from where its branches lead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemmgen.core.graphs import cycles, reached
from gemmgen.toolchain.sass import Instruction

_JUMPS = ("BRA", "JMP")
_NEVER_CONTINUE = ("EXIT", "RET", "KILL", "BRX", "JMX", "BRXU")
"""After these the next instruction comes only if a predicate skips them. Where BRX leads is not in the text."""

INSTRUCTION_BYTES = 16
"""Length of every machine instruction since Volta."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A set of instructions that control can go round in: an innermost loop, or one around others."""

    instructions: tuple[Instruction, ...]
    """In order of address, with those of the loops inside."""
    own: tuple[Instruction, ...]
    """Instructions that are in no loop inside this one."""
    depth: int
    """1 for a loop that is in no other."""

    @property
    def first_address(self) -> int:
        return self.instructions[0].address

    @property
    def last_address(self) -> int:
        return self.instructions[-1].address


def find_loops(function: Sequence[Instruction]) -> list[Loop]:
    """The loops of one function's instructions, which are in order of address; outer ones before those inside.

    A loop is a strongly connected set of basic blocks. Taking away its first block, where control enters it, leaves the sets
    that are the loops inside, and so on. Code that control does not come to is in no loop: the branch to itself that fills
    the end of a function. A call counts as one instruction; the called function is analysed separately.
    """
    if not function:
        return []
    starts = _block_starts(function)
    blocks = [range(start, end) for start, end in zip(starts, [*starts[1:], len(function)], strict=True)]
    edges = _edges(function, blocks)
    roots = [block for block, span in enumerate(blocks) if block == 0 or _is_subroutine(function[span[0]])]
    return _loops_within(function, blocks, edges, set(reached(roots, edges.__getitem__)), depth=1)


def successors(body: Sequence[Instruction]) -> list[list[int]]:
    """For each instruction of a loop's body, the places in the body of those that may come next.

    Ways out of the loop are left out. A body without a branch back to its start is taken to be gone round from its end.
    """
    starts = _block_starts(body)
    blocks = [range(start, end) for start, end in zip(starts, [*starts[1:], len(body)], strict=True)]
    follows: list[list[int]] = [[place + 1] for place in range(len(body))]
    for span, after in zip(blocks, _edges(body, blocks), strict=True):
        last = span[-1]
        falls_through = last + 1 < len(body) and body[last + 1].address == body[last].address + INSTRUCTION_BYTES
        follows[last] = [blocks[block][0] for block in after if falls_through or blocks[block][0] != last + 1]
    if body and not any(0 in after for after in follows):
        follows[-1] = [0]
    return follows


def _is_subroutine(instruction: Instruction) -> bool:
    return any(label.startswith("$") for label in instruction.labels)


def _block_starts(function: Sequence[Instruction]) -> list[int]:
    starts = {0}
    for index, instruction in enumerate(function):
        if instruction.labels:
            starts.add(index)
        if instruction.mnemonic in _JUMPS + _NEVER_CONTINUE:
            starts.add(index + 1)
    targets = {instruction.target for instruction in function if instruction.mnemonic in _JUMPS}
    starts |= {index for index, instruction in enumerate(function) if instruction.address in targets}
    return sorted(start for start in starts if start < len(function))


def _edges(function: Sequence[Instruction], blocks: Sequence[range]) -> list[list[int]]:
    """For each block, the blocks that may follow it."""
    places: dict[str | int, int] = {}
    for block, span in enumerate(blocks):
        first = function[span[0]]
        places[first.address] = block
        places.update(dict.fromkeys(first.labels, block))
    edges = []
    for block, span in enumerate(blocks):
        last = function[span[-1]]
        follows = []
        jumps = last.mnemonic in _JUMPS
        if jumps and last.target in places:
            follows.append(places[last.target])
        goes_on = not (jumps or last.mnemonic in _NEVER_CONTINUE) or last.conditional or (jumps and len(last.operands) > 1)
        if goes_on and block + 1 < len(blocks):
            follows.append(block + 1)
        edges.append(follows)
    return edges


def _loops_within(
    function: Sequence[Instruction], blocks: Sequence[range], edges: Sequence[Sequence[int]], among: set[int], depth: int
) -> list[Loop]:
    loops = []
    for component in map(sorted, cycles(sorted(among), lambda block: [after for after in edges[block] if after in among])):
        entry = _entry(edges, among, component)
        inner = _loops_within(function, blocks, edges, set(component) - {entry}, depth + 1)
        whole = tuple(function[index] for block in component for index in blocks[block])
        inside = {instruction.address for loop in inner for instruction in loop.instructions}
        own = tuple(instruction for instruction in whole if instruction.address not in inside)
        loops += [Loop(whole, own, depth), *inner]
    return sorted(loops, key=lambda loop: (loop.first_address, loop.depth))


def _entry(edges: Sequence[Sequence[int]], among: set[int], component: Sequence[int]) -> int:
    """The block of a component that control comes to from outside it, the first if there are several."""
    inside = set(component)
    entered = {follower for block in among - inside for follower in edges[block] if follower in inside}
    return min(entered or inside)
