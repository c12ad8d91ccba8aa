"""Kernels that differ in numbers alone, as columns of arrays: enough for a choice among thousands of them, without a plan for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

from gemmgen.kernels.family import Costs, KernelSpec

if TYPE_CHECKING:
    import numpy as np
    from _typeshed import DataclassInstance
    from numpy.typing import NDArray

    Column = NDArray[np.float64]
    ColumnsT = TypeVar("ColumnsT", bound=DataclassInstance)


@dataclass(frozen=True)
class Works:
    """``Work`` of many kernels of one kind on one problem, an entry of a column for each."""

    blocks: Column
    threads: Column
    shared_bytes: Column
    fitting: Column
    """Blocks that an SM holds at a time."""
    steps: Column
    operations: Column
    unit: str
    issue: Column
    loaded_bytes: Column
    in_flight: Column
    stored_bytes: Column
    memory_bytes: float
    turns: Column
    results: Column
    finishing_clocks: Column
    costs: Costs
    early: NDArray[np.bool_]
    """True for launches that may start while the work before them still runs."""
    follows: bool = False
    shared_clocks: float = 0.0


@dataclass(frozen=True)
class Points:
    """Points of a space for one problem, alike in their kind of mainloop."""

    works: Works
    features: NDArray[np.float64]
    """Coordinates of each point, a row for each: kernels whose coordinates are less than one apart behave alike."""
    traits: Callable[[NDArray[np.intp]], NDArray[np.float64]]
    """Traits of some points, by their places, on which the model's error depends: a row for each."""
    errors: Callable[[NDArray[np.float64]], Column]
    """Logarithms of the factors that are expected on the model's times, by the traits of points: fitted to timed points."""
    corrections: Callable[[NDArray[np.float64]], Column]
    """The same for the times that are expected after that and after bounds."""
    added: Column
    """Logarithms of the factors on the expected times of each point that traits do not tell."""
    saved: Column
    """Seconds that each point saves by copying tiles of a constant operand while the work before it still runs; 0 if it waits instead."""
    slows_copies: bool
    """True if corrections that add to the time of a point add to that of one that copies such tiles, too."""
    spec: Callable[..., KernelSpec]
    """The spec of a point, by its place; then True if its kernel may start while the work before it still runs, and True if it does where
    that saves time by copying tiles of a constant operand."""
    bounded: bool = True
    """False if the model's times stand as they are, without the bounds that keep errors from making them too short."""

    def __len__(self) -> int:
        return len(self.features)


def picked(columns: ColumnsT, places: NDArray[np.intp]) -> ColumnsT:
    """Some entries of all columns of a dataclass."""
    chosen = {one.name: getattr(columns, one.name) for one in fields(columns)}
    return replace(columns, **{name: value[places] for name, value in chosen.items() if hasattr(value, "shape")})
