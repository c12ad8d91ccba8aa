"""Tasks and their results as JSON of declared shape: all messages between a sweep and the workers of a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Literal

import pydantic

from gemmgen.sweep.evaluation import Conditions, Ending, Prepared
from gemmgen.sweep.machine import Machine
from gemmgen.sweep.processes import Outcome, Task
from gemmgen.sweep.records import Stage, SweepError

MAX_CHARACTERS = 16_000_000
"""Longest text that is taken for a task or an answer."""


@dataclass(frozen=True)
class Member:
    """Self-description of a cluster's worker."""

    machine: Machine
    code: str
    """The gemmgen that it runs."""
    gpu: str
    """Host and PCI address of the GPU that its tasks use; "" if none is used."""


Kind = Literal["describe", "execute", "nothing"]
_PAYLOADS: dict[Kind, Any] = {
    "describe": tuple[str, Stage, str],
    "execute": tuple[Prepared, Conditions, tuple[Stage, ...]],
    "nothing": None,
}
_VALUES: dict[Kind, Any] = {"describe": Member, "execute": Ending, "nothing": str | None}
"""The shapes of a task's input and of its result."""


class _Plain(pydantic.BaseModel, extra="forbid", strict=True):
    """Fields that every message has."""

    kind: Kind


class _Request(_Plain):
    function: str
    payload: Any
    limits: dict[str, float]


class _Answer(_Plain):
    outcome: Literal["done", "died", "expired", "raised", "memory", "mistake", "missing"]
    value: Any
    text: str
    stage: str | None
    limit: float
    seconds: float


@cache
def _adapter(kind: Kind, answer: bool) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter((_VALUES if answer else _PAYLOADS)[kind])


def encode_task(task: Task) -> str:
    """A task as text."""
    kind = _kind_of(task.payload)
    limits = {str(stage): seconds for stage, seconds in task.limits.items()}
    message = {"kind": kind, "function": task.function, "payload": task.payload, "limits": limits}
    return json.dumps(message, default=asdict)


def decode_task(text: str) -> tuple[Task, Kind]:
    """The inverse, and the shape that the answer will have. Raises ``SweepError`` for any other text."""
    request = _checked(_Request, text)
    payload = _value(request.kind, False, request.payload)
    limits: Mapping[Stage, float] = {_stage(name): seconds for name, seconds in request.limits.items()}
    return Task(request.function, payload, limits), request.kind


def encode_outcome(outcome: Outcome, kind: Kind) -> str:
    """Outcome of a task whose answer has the shape ``kind``, as text. Raises ``SweepError`` if it has another."""
    value = json.dumps(outcome.value if outcome.kind == "done" else None, default=asdict)
    if outcome.kind == "done":
        _value(kind, True, json.loads(value))
    fields = {**asdict(replace(outcome, value=None)), "kind": kind, "outcome": outcome.kind, "value": json.loads(value)}
    return json.dumps(fields)


def decode_outcome(text: object, task: Task) -> Outcome:
    """The inverse, for the task that was sent. Raises ``SweepError`` for any other text."""
    answer = _checked(_Answer, text)
    if answer.kind != _kind_of(task.payload):
        raise SweepError(f"an answer to something else: {answer.kind}")
    value = _value(answer.kind, True, answer.value) if answer.outcome == "done" else None
    stage = None if answer.stage is None else _stage(answer.stage)
    return Outcome(answer.outcome, value, answer.text, stage, answer.limit, answer.seconds)


def _kind_of(payload: Any) -> Kind:
    if payload is None:
        return "nothing"
    return "describe" if isinstance(payload[0], str) else "execute"


def _checked(model: type[Any], text: object) -> Any:
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        raise SweepError(f"not a message of gemmgen's: {type(text).__name__}, need text of at most {MAX_CHARACTERS} characters")
    try:
        return model.model_validate(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise SweepError(f"not a message of gemmgen's: {_short(error)}") from None


def _value(kind: Kind, answer: bool, data: object) -> Any:
    try:
        return _adapter(kind, answer).validate_python(data)
    except (ValueError, RecursionError) as error:
        raise SweepError(f"not a message of gemmgen's: {_short(error)}") from None


def _stage(name: str) -> Stage:
    try:
        return Stage(name)
    except ValueError as error:
        raise SweepError(f"not a message of gemmgen's: {_short(error)}") from None


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
