"""Instructions between a load and the first use of its result, which hide its latency.

The value is followed along every path through the loop, from the load to an instruction that reads one of its registers; a path ends
where they are all overwritten, or where it leaves the loop. An instruction that lanes may pass by, because of its predicate,
overwrites nothing for sure.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

from gemmgen.perf.analysis.control_flow import successors
from gemmgen.perf.analysis.instruction_mix import access_bytes
from gemmgen.toolchain.sass import Instruction

_REGISTER = re.compile(r"\bR(\d+)\b((?:\.\w+)*)")
_WITHOUT_RESULT = ("STS", "STG", "STL", "ST", "STSM", "RED", "REDG", "LDGSTS", "BRA", "EXIT", "BAR", "SYNCS", "UTMALDG", "UTMASTG")
_STORES = ("STS", "STG", "STL", "ST", "STSM")
_REGISTER_BYTES = 4
_WIDE_RESULTS = {"DADD": 2, "DMUL": 2, "DFMA": 2, "HMMA": 4, "IMMA": 4, "DMMA": 4, "QMMA": 4}
"""Registers that a result takes, of instructions whose results are wider than one."""


def load_distances(body: Sequence[Instruction], mnemonic: str) -> list[int]:
    """For each load of that kind (LDG, LDS) in a loop's ``body``, the fewest instructions on any path from it to one that reads
    its result, this time round or the next. A load whose result nothing in the loop reads is left out."""
    follows = successors(body)
    distances = []
    for place, load in enumerate(body):
        result = load.register(0)
        if load.mnemonic != mnemonic or result is None:
            continue
        registers = max(1, (access_bytes(load) or _REGISTER_BYTES) // _REGISTER_BYTES)
        distance = _first_use(body, follows, place, frozenset(range(result[0], result[0] + registers)))
        if distance is not None:
            distances.append(distance)
    return distances


def _first_use(body: Sequence[Instruction], follows: Sequence[Sequence[int]], place: int, loaded: frozenset[int]) -> int | None:
    """Instructions between ``place`` and the nearest reader of its result, breadth first; None where there is no reader."""
    waiting = deque((follower, loaded, 0) for follower in follows[place])
    seen: dict[int, set[int]] = {}
    while waiting:
        at, live, distance = waiting.popleft()
        fresh = live - seen.get(at, set())
        if not fresh:
            continue
        seen.setdefault(at, set()).update(fresh)
        instruction = body[at]
        if fresh & _reads(instruction):
            return distance
        left = fresh if instruction.conditional else fresh - _writes(instruction)
        if left:
            waiting += ((follower, left, distance + 1) for follower in follows[at])
    return None


def _reads(instruction: Instruction) -> set[int]:
    """The numbers of the registers that an instruction reads; only the first where an operand of a matrix product has several."""
    operands = instruction.operands if instruction.mnemonic in _WITHOUT_RESULT else instruction.operands[1:]
    registers: set[int] = set()
    for position, operand in enumerate(operands):
        for number, modifiers in _REGISTER.findall(operand):
            count = 2 if ".64" in modifiers else 1
            if instruction.mnemonic in _STORES and position == len(operands) - 1 and "[" not in operand:
                count = max(1, (access_bytes(instruction) or _REGISTER_BYTES) // _REGISTER_BYTES)
            registers.update(range(int(number), int(number) + count))
    return registers


def _writes(instruction: Instruction) -> set[int]:
    """The numbers of the registers that an instruction overwrites."""
    result = None if instruction.mnemonic in _WITHOUT_RESULT else instruction.register(0)
    if result is None:
        return set()
    if instruction.mnemonic.startswith("LD"):
        count = max(1, (access_bytes(instruction) or _REGISTER_BYTES) // _REGISTER_BYTES)
    else:
        count = 2 if "WIDE" in instruction.modifiers else _WIDE_RESULTS.get(instruction.mnemonic, 1)
    return set(range(result[0], result[0] + count))
