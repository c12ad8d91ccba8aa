"""Points of a space that a run takes: all of them, those for which an expression holds, or a random sample of either."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.sweep.evaluation import Conditions, selects
from gemmgen.sweep.expression import Expression
from gemmgen.sweep.records import SweepError
from gemmgen.sweep.space import Point, Space

MAX_POINTS = 1_000_000
"""Spaces beyond this are not enumerated."""


@dataclass
class Selection:
    """Iterates over the chosen points once, and counts those that it leaves out."""

    space: Space
    conditions: Conditions
    where: Expression | None = None
    sample: int | None = None
    seed: int = 0
    left_out: int = 0
    """Points seen so far for which ``where`` does not hold."""
    taken: int = 0

    def __post_init__(self) -> None:
        if self.space.size > MAX_POINTS and self.sample is None:
            raise SweepError(
                f"{self.space.file.name} has {_count(self.space.size)} points, too many to try all of them: "
                "take --sample N, or --search tpe --trials N"
            )

    @property
    def most(self) -> int:
        """Largest number of points, from the results so far."""
        rest = self.space.size - self.left_out
        return rest if self.sample is None else min(self.sample, rest)

    def __iter__(self) -> Iterator[Point]:
        for number in self.space.numbers(None if self.sample is None else self.seed):
            if self.taken == self.sample:
                return
            point = self.space[number]
            if self.where is not None and not selects(point, self.where, self.conditions):
                self.left_out += 1
                continue
            self.taken += 1
            yield point


def _count(number: int) -> str:
    return f"{number:,}" if number < 10**12 else f"more than 10^{len(str(number)) - 1}"
