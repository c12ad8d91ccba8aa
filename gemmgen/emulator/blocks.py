"""Straight code cut into basic blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    synchronizing: bool
    parking: bool
    polling: bool
    spins: bool
    endless: bool = False
    """True if no path from here leads to an end of the thread, for any contents of memory."""


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
    cycles = _cycles(successors)
    ending = _reaching(successors, [not after or _ends_threads(last) for after, (_, last, _) in zip(successors, pieces, strict=True)])
    polling = [cycle >= 0 and polls(inner) is not None for cycle, (inner, _, _) in zip(cycles, pieces, strict=True)]
    spinning = {cycle for cycle, polled in zip(cycles, polling, strict=True) if polled}
    heeded = _heeded(body)
    blocks = []
    for block, (inner, terminator, targets) in enumerate(pieces):
        synchronizing = bool(inner) and is_warp_synchronous(inner[0])
        # Outside of loops, test_wait is a question whose answer may be no; a wait whose answer nobody reads waits for nothing.
        parking = bool(inner) and may_park(inner[0]) and (cycles[block] >= 0 or not inner[0].has("test_wait"))
        if parking and inner[0].opcode == "mbarrier":
            parking = any(register.name in heeded for register in registers_of(inner[0].operands[0]))
        spins = cycles[block] in spinning
        blocks.append(BasicBlock(block, inner, terminator, targets, synchronizing, parking, polling[block], spins, not ending[block]))
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
    work = list(names)
    while work:
        new = passed_on.get(work.pop(), set()) - names
        names |= new
        work += new
    return frozenset(names)


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


def _reaching(successors: list[tuple[int, ...]], ends: list[bool]) -> list[bool]:
    """For each block, True if a path leads to one of the ends."""
    before: list[list[int]] = [[] for _ in successors]
    for block, followers in enumerate(successors):
        for follower in followers:
            before[follower].append(block)
    reaching, work = list(ends), [block for block, end in enumerate(ends) if end]
    while work:
        for block in before[work.pop()]:
            if not reaching[block]:
                reaching[block] = True
                work.append(block)
    return reaching


def _cycles(successors: list[tuple[int, ...]]) -> list[int]:
    """The strongly connected component of each block that lies on a cycle, as a number (Tarjan's algorithm, iterative); else -1."""
    count = len(successors)
    order, low, on_stack = [-1] * count, [0] * count, [False] * count
    result = [-1] * count
    stack: list[int] = []
    counter = 0
    for root in range(count):
        if order[root] != -1:
            continue
        work: list[tuple[int, int]] = [(root, 0)]
        while work:
            block, position = work.pop()
            if position == 0:
                order[block] = low[block] = counter
                counter += 1
                stack.append(block)
                on_stack[block] = True
            descended = False
            for offset in range(position, len(successors[block])):
                successor = successors[block][offset]
                if order[successor] == -1:
                    work.append((block, offset + 1))
                    work.append((successor, 0))
                    descended = True
                    break
                if on_stack[successor]:
                    low[block] = min(low[block], order[successor])
            if descended:
                continue
            if low[block] == order[block]:
                component = []
                while True:
                    member = stack.pop()
                    on_stack[member] = False
                    component.append(member)
                    if member == block:
                        break
                if len(component) > 1 or block in successors[block]:
                    for member in component:
                        result[member] = block
            if work:
                parent = work[-1][0]
                low[parent] = min(low[parent], low[block])
    return result


def _label(operand: Operand) -> str:
    assert isinstance(operand, Symbol)
    return operand.name
