"""All points of a sweep, numbered, so that any of them can be made without listing the others."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from gemmgen.core.errors import SpecError
from gemmgen.kernels.spec_files import with_field
from gemmgen.sweep.expression import Expression
from gemmgen.sweep.file import SweepFile
from gemmgen.sweep.records import Stage, SweepError


@dataclass(frozen=True)
class Point:
    """One combination of the axes' values, with the problem to time it on and the architecture to compile it for."""

    sweep: str
    fields: dict[str, Any]
    """The spec, as a file would hold it, in plain data; not checked yet."""
    axes: dict[str, Any]
    """Field path -> value, for every field that an axis sets."""
    sizes: tuple[int, ...] = ()
    """The problem's sizes in the family's order; empty: none is timed."""
    architecture: str | None = None
    """None: the GPU's or the spec's own."""
    mistake: str = ""
    """Reason for axis values that make no spec: one sets a field of a value that another axis replaced by one without fields."""


@dataclass(frozen=True)
class Space:
    """Space that a sweep file spans.

    ``stage`` is the last stage that its points go through: problems only make separate points if it is ``bench``.
    """

    file: SweepFile
    stage: Stage

    def __post_init__(self) -> None:
        """Raises ``SweepError`` if problems are to be timed and there are none."""
        if self.stage is Stage.BENCH and not self.file.sizes:
            raise SweepError(
                f"{self.file.name}: sizes: got none, need the problems that the stage bench times, a list of sizes for each, "
                "in the order of gemmgen bench --size"
            )

    @cached_property
    def axes(self) -> dict[str, list[dict[str, Any]]]:
        """For each axis its choices, each a mapping from field paths to values."""
        return self.file.choices()

    @property
    def kind(self) -> str:
        """The kind of spec that is varied; "" if the base does not say."""
        assert isinstance(self.file.base, dict), "load_sweep reads the base"
        return str(self.file.base.get("kind", ""))

    @cached_property
    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """The problems to time; one empty entry if none is."""
        return (self.file.sizes or ((),)) if self.stage is Stage.BENCH else ((),)

    @cached_property
    def architectures(self) -> tuple[str | None, ...]:
        """The architectures to compile for; None stands for the GPU's or the spec's own."""
        return self.file.architectures or (None,)

    @cached_property
    def constraints(self) -> tuple[Expression, ...]:
        """The constraints. Raises ``ExpressionError`` for one that is not in the grammar."""
        return tuple(Expression(name, text) for name, text in self.file.constraints.items())

    @cached_property
    def size(self) -> int:
        """Number of points; more than any list could hold, perhaps."""
        return len(self.architectures) * prod(map(len, self.axes.values())) * len(self.sizes)

    def __getitem__(self, number: int) -> Point:
        """The point of that number: problems change fastest, then the last axis; architectures change slowest."""
        if not 0 <= number < self.size:
            raise IndexError(number)
        number, size = divmod(number, len(self.sizes))
        chosen = {}
        for name, choices in reversed(self.axes.items()):
            number, chosen[name] = divmod(number, len(choices))
        values: dict[str, Any] = {}
        for name, choices in self.axes.items():
            values |= choices[chosen[name]]
        return self.point(values, self.sizes[size], self.architectures[number])

    def point(self, axes: Mapping[str, object], sizes: Sequence[int] = (), architecture: str | None = None) -> Point:
        """The point at which the fields of ``axes`` (path -> value) have these values."""
        assert isinstance(self.file.base, dict), "load_sweep reads the base"
        fields = self.file.base
        mistake = ""
        try:
            for path, value in axes.items():
                fields = with_field(fields, path, value, f"axis {path}")
        except SpecError as error:
            mistake = str(error)
        return Point(self.file.name, plain(fields), plain(dict(axes)), tuple(sizes), architecture, mistake)

    def numbers(self, seed: int | None = None) -> Iterator[int]:
        """The numbers of all points: in order, or shuffled by ``seed``."""
        if seed is None:
            yield from range(self.size)
        else:
            yield from _shuffled(self.size, seed)


def plain(value: object) -> Any:
    """``value`` as JSON; other YAML types, such as dates and bytes, become text."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    return str(value)


def _shuffled(count: int, seed: int) -> Iterator[int]:
    """Every number below ``count`` once, in random order, without a list of them: Fisher and Yates' shuffle, remembering only
    the places that were touched."""
    generator = random.Random(seed)
    moved: dict[int, int] = {}
    for place in range(count):
        other = generator.randrange(place, count)
        here, there = moved.pop(place, place), moved.get(other, other)
        if other != place:
            moved[other] = here
            yield there
        else:
            yield here
