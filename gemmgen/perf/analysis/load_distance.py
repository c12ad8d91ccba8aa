"""How long before its result is needed a load is issued: the time that the instructions in between give its latency."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gemmgen.perf.analysis.instruction_mix import access_bytes
from gemmgen.toolchain.sass import Instruction

_REGISTER = re.compile(r"\bR(\d+)\b")
_WITHOUT_RESULT = ("STS", "STG", "STL", "ST", "STSM", "RED", "REDG", "LDGSTS", "BRA", "EXIT", "BAR")
_REGISTER_BYTES = 4


def load_distances(body: Sequence[Instruction], mnemonic: str) -> list[int]:
    """For each load of that kind (LDG, LDS) in a loop's ``body``, how many instructions come before the first that reads its
    result, this time round or the next. A load whose result nothing in the loop reads is left out."""
    found = []
    for place, load in enumerate(body):
        result = load.register(0)
        if load.mnemonic != mnemonic or result is None:
            continue
        registers = max(1, (access_bytes(load) or _REGISTER_BYTES) // _REGISTER_BYTES)
        loaded = set(range(result[0], result[0] + registers))
        for distance in range(1, len(body) + 1):
            if loaded & _reads(body[(place + distance) % len(body)]):
                found.append(distance - 1)
                break
    return found


def _reads(instruction: Instruction) -> set[int]:
    """The numbers of the registers that an instruction names as sources; the first one where it reads several in a row."""
    operands = instruction.operands if instruction.mnemonic in _WITHOUT_RESULT else instruction.operands[1:]
    return {int(number) for operand in operands for number in _REGISTER.findall(operand)}
