"""Quality of choices: the regret of the model and of interpolation on tabulated problems that neither has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemmgen.core.errors import LaunchError
from gemmgen.dispatch.selection import base_name, choose_by
from gemmgen.dispatch.table import Row, Table
from gemmgen.hardware.target import Device


@dataclass(frozen=True)
class Regret:
    """One problem: how much longer the chosen kernel takes than the best measured one, as a fraction of that."""

    row: Row
    best: str
    model_pick: str
    model: float
    table_pick: str
    table: float
    """By interpolation from all other rows."""

    @property
    def beside_peer(self) -> float | None:
        """The peer's time over that of the instance that interpolation picks."""
        return None if self.row.peer is None else self.row.peer / self.row.times[self.table_pick]


def regrets(table: Table, device: Device) -> list[Regret]:
    """The regret of each row that has a choice: at least two instances that are known.

    Both choices are made as ``ops`` makes them, among the instances that were timed; neither looks at the row's times.
    """
    all_regrets = []
    for row in table.rows:
        regret = row_regret(table, row, device)
        if regret is not None:
            all_regrets.append(regret)
    return all_regrets


def row_regret(table: Table, row: Row, device: Device) -> Regret | None:
    """The regret on one row; None if there is nothing to choose between."""
    try:
        by_model = choose_by(None, row.request, device, among=row.times)
        by_table = choose_by(table, row.request, device, without=row, among=row.times)
    except LaunchError:
        return None
    if len(by_model.options) < 2:
        return None
    best = min(row.times, key=lambda name: row.times[name])
    picks = [base_name(choice.chosen.candidate.spec, device.architecture) for choice in (by_model, by_table)]
    (model, table_) = ((pick, row.times[pick] / row.times[best] - 1) for pick in picks)
    return Regret(row, best, *model, *table_)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; NaN of nothing."""
    return sum(values) / len(values) if values else float("nan")
