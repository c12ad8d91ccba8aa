"""Cases of matrix products for all backends: values for the scalars of BLAS, and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmgen.kernels.family import Case
from gemmgen.kernels.launch import LaunchSequence


def case_of(name: str, dimensions: Mapping[str, int], scalars: Mapping[str, float], data: Any, **more: Any) -> Case:
    """A case whose seed follows from its dimensions."""
    return Case(name, dimensions, scalars, data, seed=sum(dimensions.values()), **more)


def scalar_values(sequence: LaunchSequence) -> dict[str, dict[str, float]]:
    """Values for alpha, beta and scalar biases, for integer and for real data."""
    values: dict[str, dict[str, float]] = {"integers": {}, "reals": {}}
    for scalar in sequence.scalars:
        whole, real = {"alpha": (3.0, 1.25), "beta": (-2.0, -0.7)}.get(scalar.name, (-5.0, 0.3))
        if scalar.type == "s64":
            whole, real = 12345, 67280421310721
        values["integers"][scalar.name], values["reals"][scalar.name] = whole, real
    return values


def corner_cases(dimensions: Mapping[str, int], scalars: Mapping[str, float]) -> list[Case]:
    """The corners of BLAS: alpha of 0 reads neither factor, beta of 0 does not read C, and both of 1 leave nothing out."""
    corners: list[dict[str, float]] = [{name: 0.0} for name in ("alpha", "beta") if name in scalars]
    if len(corners) == 2:
        corners += [{"alpha": 0.0, "beta": 0.0}, {"alpha": 1.0, "beta": 1.0}]
    named = ((" and ".join(f"{scalar} of {value:g}" for scalar, value in corner.items()), corner) for corner in corners)
    return [case_of(name, dimensions, {**scalars, **corner}, "integers") for name, corner in named]
