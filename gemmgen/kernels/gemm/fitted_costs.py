"""Fitted costs of GEMM launches: factors on a launch's counted work, from ``fitted_costs.json``.

The file says for each kind of kernel which measurements its factors were fitted to. ``python -m measurements.fit_costs`` reports how well
they predict those times, and fits them anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gemmgen.kernels.family import Costs

FILE = Path(__file__).with_name("fitted_costs.json")


@dataclass(frozen=True)
class FittedCosts:
    """The factors of all kinds of GEMM launches."""

    kinds: Mapping[str, Costs]
    """Costs by kind of kernel."""
    stores: Mapping[str, Mapping[str, float]]
    """Time of stores of results, over that of their bytes in whole lines: by the instructions that multiply, and the way of storing."""


@cache
def fitted_costs() -> FittedCosts:
    """The costs that ship with gemmgen, read once."""
    data = json.loads(FILE.read_text(encoding="utf-8"))
    kinds = {kind: Costs(**row["costs"]) for kind, row in data["kinds"].items()}
    return FittedCosts(kinds, {instructions: row["factors"] for instructions, row in data["stores"].items()})


def costs_of(kind: str) -> Costs:
    """Costs of one kind of kernel."""
    return fitted_costs().kinds[kind]


def store_costs(instructions: str) -> Mapping[str, float]:
    """Time of each way of storing, over that of the bytes in whole lines."""
    return fitted_costs().stores[instructions]


def as_text(data: Mapping[str, object]) -> str:
    """The text of the data file: a line for each kind of kernel."""
    sections = []
    for name, section in data.items():
        if not isinstance(section, Mapping):
            sections.append(f"  {json.dumps(name)}: {json.dumps(section)}")
            continue
        rows = [f"    {json.dumps(key)}: {json.dumps(row)}" for key, row in section.items()]
        sections.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n  }")
    return "{\n" + ",\n".join(sections) + "\n}\n"
