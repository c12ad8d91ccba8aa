"""Cases of products of matrices, whatever computes them: values for the scalars of BLAS, and seeds."""

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
    found: dict[str, dict[str, float]] = {"integers": {}, "reals": {}}
    for scalar in sequence.scalars:
        whole, real = {"alpha": (3.0, 1.25), "beta": (-2.0, -0.7)}.get(scalar.name, (-5.0, 0.3))
        found["integers"][scalar.name], found["reals"][scalar.name] = whole, real
    return found
