"""Result of one point of a sweep: its status, in the words of auto-tuners, and all measurements."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from gemmgen.core.errors import GemmgenError


class SweepError(GemmgenError):
    """A sweep file, an option of a sweep or a results file that cannot be used."""


class Status(StrEnum):
    """End of a point, in the vocabulary of the T4 format for auto-tuning results, and ``invalid``, which T4 counts among constraints."""

    CORRECT = "correct"
    CONSTRAINTS = "constraints"
    """A valid spec that cannot work, or that a constraint rejects."""
    INVALID = "invalid"
    """No valid spec: an axis has a value that its field does not take, which is a mistake in the sweep."""
    COMPILE = "compile"
    RUNTIME = "runtime"
    CORRECTNESS = "correctness"
    TIMEOUT = "timeout"


FAILURES = frozenset({Status.COMPILE, Status.RUNTIME, Status.CORRECTNESS, Status.TIMEOUT})
"""Statuses that an accepted point must not end in."""


class Stage(StrEnum):
    """Stages of a point, in this order."""

    CHECK = "check"
    COMPILE = "compile"
    VERIFY = "verify"
    BENCH = "bench"

    @property
    def number(self) -> int:
        """The position in the order."""
        return tuple(Stage).index(self)


@dataclass(frozen=True)
class PointResult:
    """One point of a sweep and its end. Plain data: it can be kept in a file and sent between processes."""

    digest: str
    """SHA-256, in hex, of all inputs that determine the result: rendered source (or the spec where it cannot be planned),
    options, compiler version, architecture, device, problem, stage asked for, the cases that a verification runs, and the
    named constraints that rejected it."""
    sweep: str
    kind: str
    """The kernel family; "" where the spec could not be read."""
    instance: str
    """The instance's name; "" where the spec could not be planned."""
    spec: dict[str, Any]
    """The whole spec, defaults included where it could be read."""
    axes: dict[str, Any]
    """Field path -> value, for every field that an axis of the sweep sets."""
    problem: dict[str, int]
    """The sizes that were timed, in the family's order; empty if there were none."""
    architecture: str
    device: str
    """The GPU or the emulator that ran it; "" for stages that run nothing."""
    backend: str
    """``gpu``, ``emulator``, or "" for stages that run nothing."""
    compiler: str
    """``NVRTC 13.0``; "" if nothing is compiled."""
    stage: Stage
    """The last stage that was reached: for a point that failed, the one in which it did."""
    status: Status
    reason: str
    """Why, in words; "" for ``correct``."""
    reason_code: str
    """The reason for programs: the name of a constraint, the code of a plan's reason, ``time_limit``; "" for ``correct``."""
    metrics: dict[str, float]
    """``registers`` and ``spill_bytes`` (a thread), ``shared_bytes`` (a block), ``threads`` (a block), ``blocks_per_sm``,
    ``predicted_us`` (by the model of ``gemmgen.dispatch.model``, no GPU needed), ``worst_ratio``, ``elements``, ``cases`` and
    ``cases_total``; of a timed point also ``median_us``, ``p10_us``, ``p90_us``, ``operations_per_second``, ``bytes_per_second``,
    ``operations``, ``bytes``, ``peer_us``, ``sm_clock_mhz``, ``memory_clock_mhz``. Of a sequence of kernels: the largest, of
    ``blocks_per_sm`` the smallest. On a processor, whose cores others use too, ``median_us`` and ``p10_us`` are the first quartile, as is
    ``peer_us``, of the fastest library; the compiled point has ``library_bytes`` in place of registers and shared memory."""
    seconds: dict[str, float]
    """Stage -> the time it took."""
    date: str
    """UTC, ISO 8601."""
    cases: tuple[str, ...] = field(default=())
    """The names of the cases that verification ran."""

    @property
    def failed(self) -> bool:
        """True if it was accepted and then did not come out right."""
        return self.status in FAILURES

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {**asdict(self), "stage": str(self.stage), "status": str(self.status), "cases": list(self.cases)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PointResult:
        """The inverse of ``to_json``. Raises ``SweepError`` if ``data`` is something else."""
        if not isinstance(data, Mapping):
            raise SweepError(f"not the result of a point: {reprlib.repr(data)}")
        known = {"cases": [], **data}
        for item in fields(cls):
            if item.name not in known or not _SHAPES[str(item.type)](known[item.name]):
                got = reprlib.repr(known[item.name]) if item.name in known else "missing"
                raise SweepError(f"not the result of a point: its {item.name} is {got}")
        if (known["status"], known["reason_code"]) == (Status.CONSTRAINTS, "spec"):  # as versions before wrote it
            known["status"] = Status.INVALID
        try:
            return cls(**{**known, "stage": Stage(known["stage"]), "status": Status(known["status"]), "cases": tuple(known["cases"])})
        except (TypeError, ValueError) as error:
            raise SweepError(f"not the result of a point: {error}") from None


DEEPEST = 64
"""Levels of lists and mappings in a spec or in the value of an axis; YAML has fewer."""
_LARGEST = 2**63
"""Integers from here on are no sizes and no measures, and have no float perhaps."""


def _is_size(value: object) -> bool:
    return type(value) is int and abs(value) < _LARGEST


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_size(value)


def _is_shallow(value: dict[str, object]) -> bool:
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [
            inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer) if isinstance(inner, dict | list)
        ]
        if not level:
            return True
    return False


_SHAPES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("str", "Stage", "Status"), lambda value: isinstance(value, str)),
    "dict[str, Any]": lambda value: isinstance(value, dict) and _is_shallow(value),
    "dict[str, int]": lambda value: isinstance(value, dict) and all(map(_is_size, value.values())),
    "dict[str, float]": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
    "tuple[str, ...]": lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
}
"""JSON type of a field of each type."""
