"""Errors of an emulated launch, in the form of a compiler's diagnostics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gemmgen.emulator.printing import Output

SourceText = Callable[[str], str | None]
"""The text of a CUDA file by its name; None if it is not known."""


class Location(Protocol):
    """A place in the CUDA source; as text, with the function and where that was inlined."""

    @property
    def file(self) -> str:
        """The name of the file."""

    @property
    def line(self) -> int:
        """The line, from 1."""

    @property
    def column(self) -> int:
        """The column, from 1."""

    @property
    def function(self) -> str | None:
        """The function that was inlined here, if one was."""

    @property
    def inlined_at(self) -> Location | None:
        """The call of that function."""

    def own(self) -> Location:
        """The line of the user's that the place was inlined into."""


class Instruction(Protocol):
    """A statement of PTX, as far as messages quote it."""

    @property
    def line(self) -> int:
        """The line in the PTX."""

    @property
    def text(self) -> str:
        """The statement as it stands there."""

    @property
    def location(self) -> Location | None:
        """The CUDA line that it comes from."""


class EmulatorError(Exception):
    """Base of everything the emulator raises.

    `message` describes the error in one sentence; `instruction` is its position, if it has one, and `threads` names the threads.
    `source` is the CUDA text, or a function from a file's name to its text; the line is then quoted. `ptx_line` stands in when
    there is no instruction.
    `other` is the second instruction of a conflict, and `other_threads` are its threads; `other_source` is its CUDA text if that is
    another one, as it is where two launches meet.
    """

    title = "emulator error"
    code = ""
    """The stable name of the kind, where it is not that of the class."""

    def __init__(
        self,
        message: str,
        *,
        instruction: Instruction | None = None,
        threads: str | None = None,
        ptx_line: int | None = None,
        source: str | SourceText | None = None,
        other: Instruction | None = None,
        other_threads: str | None = None,
        other_source: str | SourceText | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.instruction = instruction
        self.threads = threads
        self.ptx_line = ptx_line if instruction is None else instruction.line
        self.source = source
        self.other = other
        self.other_threads = other_threads
        self.other_source = other_source
        self.printed = Output()
        """Text that the kernel printed until then."""

    @property
    def output(self) -> str:
        """The text that the kernel printed until then."""
        return self.printed.text

    def __reduce__(self) -> tuple[Any, ...]:
        # A function that finds sources stays behind when an error travels to another process.
        state = {**self.__dict__, **{name: None for name in ("source", "other_source") if callable(getattr(self, name))}}
        return _restored, (type(self), state)

    @property
    def location(self) -> Location | None:
        """The CUDA line, from the `.loc` directives (compile with -lineinfo)."""
        return self.instruction.location if self.instruction is not None else None

    def __str__(self) -> str:
        return self.alone()

    def alone(self) -> str:
        """The message about this error only, without others that it brings along."""
        lines = [f"{self.title}: {self.message}"]
        lines += self._place(self.instruction, self.threads, "by", self.source)
        if self.instruction is None and self.ptx_line is not None:
            lines.append(f"  PTX   line {self.ptx_line}")
        if self.other is not None:
            lines += self._place(self.other, self.other_threads or "the same threads", "and", self.other_source or self.source)
        return "\n".join(lines)

    @staticmethod
    def _place(instruction: Instruction | None, threads: str | None, label: str, source: str | SourceText | None) -> list[str]:
        """The threads of an instruction, and its position in the CUDA source and in the PTX."""
        lines = [f"  {label:5s} {threads}"] if threads else []
        if instruction is None:
            return lines
        location = instruction.location
        if location is not None:
            lines.append(f"  CUDA  {location}")
            at: Location | None = location.own()
            while at is not None:
                quoted = _quote(source, at)
                if quoted is not None:
                    lines.append(f"        {at.line:5d} | {quoted}")
                at = at.inlined_at
        lines.append(f"  PTX   line {instruction.line}: {instruction.text}")
        return lines


def _quote(source: str | SourceText | None, location: Location) -> str | None:
    text = source(location.file) if callable(source) else source
    if text is None:
        return None
    source_lines = text.splitlines()
    if 1 <= location.line <= len(source_lines):
        return source_lines[location.line - 1].strip()
    return None


def _restored(kind: type[EmulatorError], state: dict[str, object]) -> EmulatorError:
    error = kind.__new__(kind, state["message"])
    error.__dict__.update(state)
    return error


class ParseError(EmulatorError):
    """The text is not PTX that this parser understands."""

    title = "cannot parse PTX"


class UnknownInstruction(EmulatorError):
    """An instruction, or a form of one, that the emulator does not implement."""

    title = "unknown instruction"


class NoFieldMeaning(UnknownInstruction):
    """An instruction that means something for real numbers alone, in a run over a finite field."""

    title = "no meaning over a field"


class BadLaunch(EmulatorError):
    """The launch itself is wrong: geometry, arguments, shared memory."""

    title = "bad launch"


class OutOfBounds(EmulatorError):
    """A lane touched memory that belongs to no buffer, variable or shared allocation."""

    title = "out of bounds"


class ReadOnly(EmulatorError):
    """A lane wrote to memory that may only be read."""

    title = "write to read-only memory"


class Misaligned(EmulatorError):
    """An address is no multiple of the width of the access."""

    title = "misaligned address"


class InFlightRead(EmulatorError):
    """A lane read shared memory that an asynchronous copy, not yet waited for, is going to write."""

    title = "read of data still in flight"


class InFlightWrite(EmulatorError):
    """A lane wrote, or copied to, shared memory that an asynchronous copy, not yet waited for, is going to write."""

    title = "write over data still in flight"


class RegisterInFlight(EmulatorError):
    """A lane touched a register that a wgmma, not yet waited for, reads or writes."""

    title = "register of a wgmma in flight"


class UnfinishedWgmma(EmulatorError):
    """A lane ended without waiting for a wgmma."""

    title = "wgmma never waited for"


class TensorMemoryMisuse(EmulatorError):
    """Tensor memory that is not allocated, not given back, or out of reach."""

    title = "misused tensor memory"


class TensorMemoryInFlight(EmulatorError):
    """Tensor memory is touched while an operation in flight still reads or writes it."""

    title = "tensor memory still in use"


class UnfinishedTensorOperation(EmulatorError):
    """A block ended with a tcgen05 operation in flight."""

    title = "tcgen05 operation never waited for"


class InvalidMatrix(EmulatorError):
    """A wgmma or tcgen05 operand whose descriptor the PTX ISA gives no meaning, or that lies outside shared memory."""

    title = "invalid matrix operand"


class UnfinishedCopy(EmulatorError):
    """A block ended while an asynchronous operation still needed its shared memory."""

    title = "asynchronous operation outlives its block"


class BarrierMisuse(EmulatorError):
    """A barrier in shared memory that is used before it exists, counted beyond its limits, or touched as if it were data."""

    title = "misused barrier"


class ClusterMisuse(EmulatorError):
    """Memory or barriers of a cluster used when the other blocks need not be there."""

    title = "misused cluster"


class RegisterPoolMisuse(EmulatorError):
    """setmaxnreg against its rules."""

    title = "misused register pool"


class InvalidCopy(EmulatorError):
    """An asynchronous copy whose operands the PTX ISA gives no meaning."""

    title = "invalid asynchronous copy"


class DivergentBarrier(EmulatorError):
    """A block-wide barrier that only a part of the block reached, or a warp that reached it in pieces."""

    title = "divergent barrier"


class DivergentWarp(EmulatorError):
    """A warp-synchronous instruction whose member mask names lanes that never arrive, or omits the executing lane."""

    title = "divergent warp"


class Deadlock(EmulatorError):
    """No lane can make progress, or the step limit was reached."""

    title = "deadlock"


class BadAllocation(EmulatorError):
    """A `free` of a pointer that `malloc` did not return."""

    title = "bad free"


class Trapped(EmulatorError):
    """The kernel executed `trap`, or an assertion in it failed."""

    title = "trap"
