"""The errors that end in one readable message, and the reasons a spec was rejected for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """Reason that a request cannot be served: the field, the value found, the value needed and a fix to try.

    `code` is stable and meant for programs and tests; the other fields are text for people. Empty fields are left out
    of the message.
    """

    code: str
    field: str
    got: str
    need: str
    hint: str = ""
    fault: str = ""
    """The mistake in words, where the value found and the requirement do not explain it."""

    def __str__(self) -> str:
        """The reason on one line, even if its parts contain line breaks."""
        where = f"{self.field}: " if self.field else ""
        got = f"got {self.got}" if self.got else ""
        need = f"need {self.need}" if self.need else ""
        hint = f" ({self.hint})" if self.hint else ""
        return " ".join(f"{where}{', '.join(part for part in (self.fault, got, need) if part)}{hint} [{self.code}]".split())


class Mismatch(ValueError):
    """A part of a text that does not go with the rest: the value found, the value needed, and the position."""

    def __init__(self, got: str, need: str, where: str = "") -> None:
        super().__init__(f"{got}{f' at {where}' if where else ''}: {need}")
        self.got, self.need, self.where = got, need, where


class GemmgenError(Exception):
    """Something the user can act on. Shown as one message without a traceback; `exit_code` is the process's."""

    exit_code = 2


class TimeIsUp(GemmgenError):
    """A kernel did not end in the time that it was given."""


class SpecError(GemmgenError):
    """A spec could not be read: missing file, malformed YAML, unknown field or wrong value."""


class PlanError(GemmgenError):
    """A well-formed spec that cannot work on its target, with every reason at once in `reasons`."""

    def __init__(self, message: str, reasons: Iterable[Reason] = ()) -> None:
        self.message = message
        self.reasons: tuple[Reason, ...] = tuple(reasons)
        super().__init__("\n".join([message, *(f"  - {reason}" for reason in self.reasons)]))

    def __reduce__(self) -> tuple[type[PlanError], tuple[str, tuple[Reason, ...]]]:
        """Pickles with its reasons, so that it can cross from a worker process."""
        return type(self), (self.message, self.reasons)


class CompileError(GemmgenError):
    """The compiler rejected a source; the message quotes the lines. `log` is the compiler's own text."""

    def __init__(self, message: str, log: str = "") -> None:
        self.message = message
        self.log = log
        super().__init__(message)

    def __reduce__(self) -> tuple[type[CompileError], tuple[str, str]]:
        """Pickles with its log, so that it can cross from a worker process."""
        return type(self), (self.message, self.log)


class LaunchError(GemmgenError):
    """A kernel was given arrays, scalars or a geometry that it cannot be launched with, or the launch failed."""


class VerificationError(GemmgenError):
    """A kernel computed something other than its reference."""

    exit_code = 1


class EnvironmentMissing(GemmgenError):
    """A tool, library or device that the request needs is not on this machine; the message says how to get it."""
