"""Control codes and live registers of machine code, as nvdisasm's encodings and life ranges have them.

Since Volta an instruction takes 128 bits, and bits 105 to 125 tell the scheduler facts that the hardware does not track: cycles to stall, a
hint to switch to another warp, the barrier that a result or a read sets, the barriers to wait for (Jia et al., arXiv:1804.06826; Gray's
maxas wiki has the same of Maxwell)."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gemmgen.core.errors import EnvironmentMissing, GemmgenError
from gemmgen.core.extras import install_command
from gemmgen.toolchain.sass import find_nvdisasm

_TIMEOUT_SECONDS = 120
_NO_BARRIER = 7
_BARRIERS = 6
_SECTION = re.compile(r"^\s*\.section\s+\.text\.(?P<name>[^,]+)")
_FIRST = re.compile(r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/.*?;.*?/\* 0x(?P<low>[0-9a-f]{16}) \*/")
_SECOND = re.compile(r"^\s*/\* 0x(?P<high>[0-9a-f]{16}) \*/(?:\s*//\s*\|\s*(?P<live>\d*)\s*\|)?")


@dataclass(frozen=True, slots=True)
class Control:
    """Scheduling of one instruction."""

    stall: int
    """Cycles before the next instruction of the warp may be issued."""
    yields: bool
    """True if the instruction hints the scheduler to prefer another warp."""
    write_barrier: int | None
    """Barrier that is released when the result is there."""
    read_barrier: int | None
    """Barrier that is released when the operands have been read."""
    waits: tuple[int, ...]
    """Barriers that it waits for."""

    def __str__(self) -> str:
        """Text in the notation of maxas: waits, read barrier, write barrier, yield, stall."""
        waits = "".join(str(barrier) if barrier in self.waits else "-" for barrier in range(_BARRIERS))
        read, write = ("-" if barrier is None else str(barrier) for barrier in (self.read_barrier, self.write_barrier))
        return f"{waits}:{read}:{write}:{'Y' if self.yields else '-'}:{self.stall}"


@dataclass(frozen=True, slots=True)
class Annotation:
    """Facts of one instruction beside its text."""

    control: Control
    live_registers: int | None
    """General registers that hold a value which is still needed; None where nvdisasm does not say."""


def control_of(encoding: int) -> Control:
    """The control code in an instruction of 128 bits."""
    bits = encoding >> 105
    write, read, waits = bits >> 5 & 7, bits >> 8 & 7, bits >> 11 & 63
    return Control(
        stall=bits & 15,
        yields=not bits >> 4 & 1,
        write_barrier=None if write == _NO_BARRIER else write,
        read_barrier=None if read == _NO_BARRIER else read,
        waits=tuple(barrier for barrier in range(_BARRIERS) if waits >> barrier & 1),
    )


def annotate(cubin: bytes) -> dict[tuple[str, int], Annotation]:
    """The annotation of every instruction of a cubin, by function and address.

    Raises ``EnvironmentMissing`` without nvdisasm, ``GemmgenError`` if it rejects the cubin.
    """
    tool = find_nvdisasm()
    if tool is None:
        raise EnvironmentMissing(f"nvdisasm was not found; install it with: {install_command('sass')}")
    options = ["--print-code", "--print-instruction-encoding", "--print-life-ranges", "--life-range-mode", "count"]
    with tempfile.TemporaryDirectory(prefix="gemmgen-") as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        try:
            run = subprocess.run([str(tool), *options, str(file)], capture_output=True, timeout=_TIMEOUT_SECONDS, check=False, text=True)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise GemmgenError(f"{tool} could not be run: {error}") from error
    if run.returncode != 0:
        raise GemmgenError(f"nvdisasm cannot disassemble the cubin: {run.stderr.replace(str(file), 'the cubin').strip()}")
    return parse_annotations(run.stdout)


def parse_annotations(text: str) -> dict[tuple[str, int], Annotation]:
    """The annotations in a listing with encodings and life ranges."""
    annotations: dict[tuple[str, int], Annotation] = {}
    function, first = "", None
    for line in text.splitlines():
        if match := _SECTION.match(line):
            function, first = match["name"], None
        elif match := _FIRST.match(line):
            first = match
        elif first is not None and (match := _SECOND.match(line)):
            encoding = int(match["high"], 16) << 64 | int(first["low"], 16)
            live = int(match["live"]) if match["live"] else None
            annotations[function, int(first["address"], 16)] = Annotation(control_of(encoding), live)
            first = None
    return annotations
