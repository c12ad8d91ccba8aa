"""Straight code cut into basic blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemmgen.core.graphs import cycles, reached, reversed_edges
from gemmgen.emulator.ptx.syntax import Instruction, Operand, Symbol, registers_of

_BRANCHES = {"bra", "brx", "ret", "exit", "trap"}
_BARRIERS = {"bar", "barrier"}
_WITHOUT_EFFECTS = {"mov", "selp", "setp", "and", "or", "xor", "not", "cvt"}
"""Instructions through which the answer of a wait goes, and that matter only if somebody reads their results."""
_WARP_SYNCHRONOUS = {"shfl", "vote", "match", "redux", "elect", "mma", "wmma", "ldmatrix", "stmatrix", "movmatrix", "wgmma", "setmaxnreg"}


@dataclass(frozen=True, slots=True)
class BasicBlock:
    """Instructions that run one after another. The terminator, if any, decides where the lanes go next.

    `synchronizing`: the first instruction makes lanes of a warp wait for each other. `parking`: it waits for an engine.
    `polling`: the block lies on a cycle and reads memory in a way that another thread's write can end the cycle. `spins`: it lies
    on a cycle with a polling one.
    """

    index: int
    body: tuple[Instruction, ...]
    terminator: Instruction | None
    targets: tuple[int, ...]
    """Blocks that the terminator may branch to."""
    successors: tuple[int, ...]
    """Blocks that may come next: the targets, and the next one if control may fall through to it."""
    synchronizing: bool
    parking: bool
    polling: bool
    spins: bool
    endless: bool = False
    """True if no path from here leads to an end of the thread, for any contents of memory."""

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The body, and the terminator if there is one."""
        return self.body if self.terminator is None else (*self.body, self.terminator)


def cut(body: Sequence[Instruction], labels: Mapping[str, int], branch_targets: Mapping[str, tuple[str, ...]]) -> tuple[BasicBlock, ...]:
    """The basic blocks of straight code with labels (name to index) and lists of labels for indexed branches."""
    starts = {0, *(index for index in labels.values() if index < len(body))}
    for index, instruction in enumerate(body):
        if _is_terminator(instruction):
            starts.add(index + 1)
        elif is_warp_synchronous(instruction) or may_park(instruction):
            starts.add(index)
    ordered = sorted(start for start in starts if start < len(body))
    number = {start: block for block, start in enumerate(ordered)}
    successors: list[tuple[int, ...]] = []
    pieces: list[tuple[tuple[Instruction, ...], Instruction | None, tuple[int, ...]]] = []
    for block, start in enumerate(ordered):
        stop = ordered[block + 1] if block + 1 < len(ordered) else len(body)
        last = body[stop - 1]
        terminator = last if _is_terminator(last) else None
        inner = tuple(body[start : stop - 1 if terminator else stop])
        targets: tuple[int, ...] = ()
        if terminator is not None and terminator.opcode == "bra":
            targets = (number[labels[_label(terminator.operands[0])]],)
        elif terminator is not None and terminator.opcode == "brx":
            targets = tuple(number[labels[name]] for name in branch_targets[_label(terminator.operands[1])])
        falls = terminator is None or terminator.guard is not None or terminator.opcode in _BARRIERS
        pieces.append((inner, terminator, targets))
        successors.append((*targets, block + 1) if falls and block + 1 < len(ordered) else targets)
    components = cycles(range(len(pieces)), successors.__getitem__)
    cyclic = {block for component in components for block in component}
    ends = [block for block, (_, last, _) in enumerate(pieces) if not successors[block] or _ends_threads(last)]
    ending = set(reached(ends, reversed_edges(successors).__getitem__))
    polling = {block for block in cyclic if polls(pieces[block][0]) is not None}
    spinning = {block for component in components if not polling.isdisjoint(component) for block in component}
    heeded = _heeded(body)
    blocks = []
    for block, (inner, terminator, targets) in enumerate(pieces):
        synchronizing = bool(inner) and is_warp_synchronous(inner[0])
        # Outside of loops, test_wait is a question whose answer may be no; a wait whose answer nobody reads waits for nothing.
        parking = bool(inner) and may_park(inner[0]) and (block in cyclic or not inner[0].has("test_wait"))
        if parking and inner[0].opcode == "mbarrier":
            parking = any(register.name in heeded for register in registers_of(inner[0].operands[0]))
        facts = (synchronizing, parking, block in polling, block in spinning, block not in ending)
        blocks.append(BasicBlock(block, inner, terminator, targets, successors[block], *facts))
    return tuple(blocks)


def _heeded(body: Sequence[Instruction]) -> frozenset[str]:
    """The registers that a program with waits at mbarriers reads to some effect, a branch for one."""
    if not any(instruction.opcode == "mbarrier" and may_park(instruction) for instruction in body):
        return frozenset()
    names: set[str] = set()
    passed_on: dict[str, set[str]] = {}
    for instruction in body:
        if instruction.guard is not None:
            names.add(instruction.guard.name)
        passes = instruction.opcode in _WITHOUT_EFFECTS and bool(instruction.operands)
        waits = instruction.opcode == "mbarrier" and may_park(instruction)
        sources = {register.name for operand in instruction.operands[passes or waits :] for register in registers_of(operand)}
        if passes:
            for register in registers_of(instruction.operands[0]):
                passed_on.setdefault(register.name, set()).update(sources)
        else:
            names |= sources
    return frozenset(reached(names, lambda name: passed_on.get(name, ())))


def polls(body: Sequence[Instruction]) -> Instruction | None:
    """The first instruction that can see effects of other threads."""
    return next((instruction for instruction in body if _can_observe_others(instruction)), None)


def is_warp_synchronous(instruction: Instruction) -> bool:
    """True if lanes of a warp wait for each other at this instruction."""
    if instruction.opcode in _WARP_SYNCHRONOUS:
        return True
    if instruction.opcode == "tcgen05":
        return instruction.has("aligned")
    if instruction.opcode == "barrier":
        return instruction.has("cluster") and instruction.has("aligned")
    return instruction.opcode == "bar" and instruction.has("warp")


def may_park(instruction: Instruction) -> bool:
    """True if lanes may have to wait for an engine before this instruction."""
    match instruction.opcode:
        case "mbarrier":
            return instruction.has("try_wait") or instruction.has("test_wait")
        case "barrier":
            return instruction.has("cluster") and instruction.has("wait")
        case "setmaxnreg":
            return instruction.has("inc")
        case _:
            return False


def _ends_threads(terminator: Instruction | None) -> bool:
    return terminator is not None and terminator.opcode in ("ret", "exit", "trap")


def _is_terminator(instruction: Instruction) -> bool:
    if instruction.opcode in _BARRIERS:
        return not instruction.has("warp") and not instruction.has("cluster")
    return instruction.opcode in _BRANCHES


def _can_observe_others(instruction: Instruction) -> bool:
    if instruction.opcode == "atom":
        return True
    if instruction.opcode == "nanosleep":
        return True
    return instruction.opcode == "ld" and any(instruction.has(word) for word in ("volatile", "relaxed", "acquire", "mmio"))


def _label(operand: Operand) -> str:
    assert isinstance(operand, Symbol)
    return operand.name
