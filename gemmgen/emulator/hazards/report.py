"""Found hazards as errors: what, where in CUDA and PTX, by whom, and what to look at."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gemmgen.emulator.errors import EmulatorError
from gemmgen.emulator.program import Program

MOST_HAZARDS = 5
"""After so many different ones a launch ends at once."""
MOST_REPEATS = 200
"""After so many findings in all, different or not, a launch ends at once."""

_LOCAL_STATIC = re.compile(r"^_ZZ.*E(\d+)([A-Za-z_]\w*)$")
_MANGLED = re.compile(r"^_ZN?(\d+)(\w+)$")


class HazardError(EmulatorError):
    """A kernel whose result depends on luck. `also` are the other hazards of the same launch."""

    hint = ""

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message, **details)  # type: ignore[arg-type]
        self.also: tuple[EmulatorError, ...] = ()

    def __str__(self) -> str:
        parts = [super().__str__()]
        if self.hint:
            parts[0] += f"\n  look  {self.hint}"
        for other in self.also:
            if other.source is None:
                other.source = self.source
            parts.append(str(other))
        return "\n".join(parts)


class UnwrittenRead(HazardError):
    """A lane read memory that nothing has written."""

    title = "read of unwritten memory"
    hint = "a store that is missing or masked off, a barrier too early, or an index that runs into padding"


class SharedRace(HazardError):
    """Two lanes touch one byte of shared memory, one of them writes, and nothing orders them."""

    title = "shared memory race"
    hint = "a __syncthreads() between the two, or a __syncwarp() if they are of one warp; shuffles and votes order no memory"


class LockstepRace(SharedRace):
    """Lanes of one warp pass data through volatile shared memory as if they ran in lockstep."""

    hint = (
        "a __syncwarp() between the two: lanes of a warp do not run in lockstep, and volatile makes none wait for another; a "
        "value has to be read by all before it is overwritten"
    )


class GlobalRace(HazardError):
    """Two lanes touch one byte of global memory, one of them writes, and nothing orders them."""

    title = "global memory race"
    hint = (
        "threads of one block need a barrier between the two; threads of different blocks need __threadfence() after the "
        "write and before the flag, an atomic or volatile flag, and __threadfence() after reading the flag"
    )


class UndefinedRegister(HazardError):
    """A value that no instruction has computed reaches memory, an address or a branch."""

    title = "use of an uninitialised variable"
    hint = "a variable that is assigned on some paths only"


class Findings:
    """Collects hazards; the same pair of instructions counts once."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], HazardError] = {}
        self._repeats = 0

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, hazard: HazardError) -> None:
        """Notes a hazard. Raises all if there are enough."""
        lines = tuple(inst.line if inst is not None else 0 for inst in (hazard.instruction, hazard.other))
        self._found.setdefault((type(hazard), *lines), hazard)
        self._repeats += 1
        if len(self._found) >= MOST_HAZARDS or self._repeats >= MOST_REPEATS:
            raise self.error()

    def error(self, last: EmulatorError | None = None) -> HazardError:
        """The first hazard, with all others, and with the error that ended the launch."""
        first, *others = self._found.values()
        first.also = (*others, *([last] if last is not None and last is not first else []))
        return first


def plain_name(symbol: str) -> str:
    """A variable as the CUDA source calls it: `_ZZ4gemmE6tile_a` is tile_a."""
    for pattern in (_LOCAL_STATIC, _MANGLED):
        match = pattern.match(symbol)
        if match is not None and len(match[2]) >= int(match[1]):
            return match[2][: int(match[1])]
    return symbol


def shared_place(program: Program, address: int) -> str:
    """`shared tile_a + 132`: the shared variable that holds an address, and the byte in it."""
    best: tuple[int, str] | None = None
    for name, placed in program.symbols.items():
        if placed.variable.space == "shared" and placed.offset <= address and (best is None or placed.offset >= best[0]):
            best = (placed.offset, name)
    return f"shared address {address}" if best is None else f"shared {plain_name(best[1])} + {address - best[0]}"


def global_place(names: Sequence[tuple[int, int, str]], offset: int, element_bytes: int) -> str:
    """`C[17]`: the region (start, stop, name) that holds an offset, and the element in it."""
    for start, stop, name in names:
        if start <= offset < stop:
            element, byte = divmod(offset - start, element_bytes)
            return f"{plain_name(name)}[{element}]" + (f" (its byte {byte})" if byte else "")
    return f"global offset {offset}"
