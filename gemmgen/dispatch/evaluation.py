"""How good choices are: the regret of the model and of interpolation on tabulated problems that neither has seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gemmgen.dispatch.selection import row_model
from gemmgen.dispatch.table import Row, RowModel, Table
from gemmgen.target import Device


@dataclass(frozen=True)
class Regret:
    """One problem: how much longer what was picked takes than the best that was measured, as a fraction of that."""

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
    """The regret of each row that has a choice: at least two instances that are known."""
    model = row_model(device, device.architecture)
    found = []
    for row in table.rows:
        regret = row_regret(table, row, model)
        if regret is not None:
            found.append(regret)
    return found


def row_regret(table: Table, row: Row, model: RowModel) -> Regret | None:
    """The regret on one row; None if there is nothing to choose between."""
    modelled: dict[str, float] = {}
    for name in row.times:
        stored = row.models.get(name) if table.current else None
        seconds = model(row, name) if stored is None else stored * 1e-6
        if seconds is not None and math.isfinite(seconds):
            modelled[name] = seconds
    if len(modelled) < 2:
        return None
    near = table.near(row.request, without=row)
    estimates = {name: table.estimate(near, name, seconds, model)[0] for name, seconds in modelled.items()}
    best = min(row.times, key=lambda name: row.times[name])
    by_model, by_table = (min(values, key=lambda name: values[name]) for values in (modelled, estimates))
    least = row.times[best]
    return Regret(row, best, by_model, row.times[by_model] / least - 1, by_table, row.times[by_table] / least - 1)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; NaN of nothing."""
    return sum(values) / len(values) if values else float("nan")
