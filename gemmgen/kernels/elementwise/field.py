"""Elementwise kernels over a finite field: one element per thread, regardless of the instance's vectors, tiles and iterations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt

from gemmgen.kernels.elementwise.access import AXES
from gemmgen.kernels.elementwise.oracle import cases
from gemmgen.kernels.elementwise.plan import ElementwisePlan
from gemmgen.kernels.epilogue.degree import degree_of_steps
from gemmgen.kernels.family import Case, FieldPart

_SHARED_FIELDS = ("kind", "input", "output", "operations", "rank")


def reference_spec(plan: ElementwisePlan) -> dict[str, Any]:
    """The operations on one element per thread."""
    fields = plan.spec.model_dump(mode="json", exclude_unset=True)
    return {name: fields[name] for name in _SHARED_FIELDS if name in fields} | {"inner": "strided", "label": "field_reference"}


def field_cases(plan: ElementwisePlan) -> list[Case]:
    """Several tiles, the last of them not whole."""
    return [next(case for case in cases(plan) if case.name == "several tiles and a rest")]


def excluded(plan: ElementwisePlan) -> str:
    """Types that have no residues."""
    return "" if plan.stored in ("f32", "f16", "bf16", "s8") else f"elements of type {plan.stored} are no residues"


def degree(plan: ElementwisePlan) -> int:
    """One for the element, and more by the operations."""
    return degree_of_steps(plan.steps, 1)


def types(plan: ElementwisePlan) -> dict[str, str]:
    """All elements count in full."""
    return {}


def polynomial(
    plan: ElementwisePlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]], scalars: Mapping[str, int]
) -> dict[str, npt.NDArray[Any]] | None:
    """Left to the plain kernel."""
    return None


def parts(plan: ElementwisePlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]], scalars: Mapping[str, int]) -> Iterator[FieldPart]:
    """The whole problem."""
    yield FieldPart({name: case.dimensions[name] for name in AXES if name in case.dimensions}, {})


def unclaimed(plan: ElementwisePlan) -> tuple[str, ...]:
    """Nothing is left out."""
    return ()
