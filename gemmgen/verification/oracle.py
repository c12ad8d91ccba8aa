"""The protocol of verification: problems to try a family's kernels on, data for them, and the results that have to come out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from gemmgen.kernels import family_module
from gemmgen.kernels.family import Case, Expected, InstancePlan

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Oracle(Protocol):
    """The module ``oracle`` of a family. It may have ``deep_cases`` and ``cases_of_several_tiles``, too: those that a certificate
    takes no time for, the latter for launches with few blocks."""

    def cases(self, plan: InstancePlan) -> list[Case]:
        """The problems that a verification runs, small enough for the emulator."""

    def counted_case(self, plan: InstancePlan) -> Case:
        """The problem whose memory traffic and instructions stand for the instance."""

    def fill(self, plan: InstancePlan, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
        """Values for the array argument ``name`` before the launch, as float64 or integers of ``shape``."""

    def reference(self, plan: InstancePlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Expected]:
        """Expected contents of each written array, from the arrays as they are before the launch."""


def oracle_of(kind: str) -> Oracle:
    """The oracle of a family."""
    return cast("Oracle", family_module(kind, "oracle"))
