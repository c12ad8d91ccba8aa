"""The space that a search walks through: axes, each with its settings, and the problems that every point is run on."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gemmgen.sweep.records import SweepError

Choice = tuple[int, ...]
"""A point: for each axis the number of a setting."""


@dataclass(frozen=True)
class SearchAxis:
    """One direction of the space. A setting maps field paths to values, for one field or for several at once."""

    name: str
    settings: tuple[dict[str, Any], ...]

    @property
    def ordered(self) -> bool:
        """True if the settings are growing numbers, so that neighbours are alike."""
        if any(len(setting) != 1 for setting in self.settings):
            return False
        values = [next(iter(setting.values())) for setting in self.settings]
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            return False
        return all(one < other for one, other in itertools.pairwise(values))


@dataclass(frozen=True)
class SearchSpace:
    """All combinations of the axes' settings. The axes set different fields."""

    axes: tuple[SearchAxis, ...]
    problems: tuple[tuple[int, ...], ...] = ((),)
    """Sizes in the family's order; one empty entry if nothing is timed."""

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.axes]
        if len(set(names)) < len(names) or not all(axis.settings for axis in self.axes) or not self.problems:
            raise SweepError("a search needs axes with different names, a value for each, and a problem")

    @classmethod
    def of(cls, axes: Mapping[str, Sequence[object]], problems: Sequence[Sequence[int]] = ()) -> SearchSpace:
        """A space with one axis for each field: field path -> values."""
        made = tuple(SearchAxis(path, tuple({path: value} for value in values)) for path, values in axes.items())
        return cls(made, tuple(tuple(sizes) for sizes in problems) or ((),))

    @property
    def size(self) -> int:
        """Number of points."""
        return math.prod(len(axis.settings) for axis in self.axes)

    def points(self) -> Iterator[Choice]:
        """Every point, the last axis fastest."""
        return itertools.product(*(range(len(axis.settings)) for axis in self.axes))

    def fields(self, choice: Choice) -> dict[str, Any]:
        """Fields that a point sets: field path -> value."""
        merged: dict[str, Any] = {}
        for axis, number in zip(self.axes, choice, strict=True):
            merged |= axis.settings[number]
        return merged

    def choice_of(self, fields: Mapping[str, object]) -> Choice | None:
        """The point that sets exactly ``fields``; None if it lies outside the space."""
        rest = {path: _canonical(value) for path, value in fields.items()}
        choice = []
        for lookup in self._lookups:
            for paths, numbers in lookup:
                number = numbers.get(tuple(rest.get(path, "") for path in paths))
                if number is not None:
                    choice.append(number)
                    for path in paths:
                        del rest[path]
                    break
            else:
                return None
        return None if rest else tuple(choice)

    @cached_property
    def _lookups(self) -> list[list[tuple[tuple[str, ...], dict[tuple[str, ...], int]]]]:
        """For each axis: the fields that its settings set, most first, with the number of each setting by its values."""
        tables = []
        for axis in self.axes:
            by_paths: dict[tuple[str, ...], dict[tuple[str, ...], int]] = {}
            for number, setting in enumerate(axis.settings):
                values = tuple(_canonical(value) for value in setting.values())
                by_paths.setdefault(tuple(setting), {}).setdefault(values, number)
            tables.append(sorted(by_paths.items(), key=lambda item: -len(item[0])))
        return tables


def _canonical(value: object) -> str:
    """A value as text by which it can be looked up, whether it comes from YAML or, after a detour, from JSON."""
    return json.dumps(value, sort_keys=True, default=str)
