"""The protocol of performance analysis: the work of a family's problems, and a vendor's library that does the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from gemmgen.kernels import family_module
from gemmgen.kernels.family import Cost, Fetch, InstancePlan, Peer, Work


class CostModel(Protocol):
    """The module ``cost_model`` of a family."""

    def cost(self, plan: InstancePlan, problem: Mapping[str, int]) -> Cost:
        """Least operations and bytes of one problem."""

    def fetches(self, plan: InstancePlan, problem: Mapping[str, int]) -> tuple[Fetch, ...]:
        """Arrays of one problem, and how often the division into tiles brings each."""

    def executed_operations(self, plan: InstancePlan, problem: Mapping[str, int]) -> float:
        """The operations of ``cost`` with those on padding, where tiles that reach beyond the problem are computed whole."""

    def work(self, plan: InstancePlan, problem: Mapping[str, int]) -> tuple[Work, ...]:
        """Work of one problem's launches."""

    def peer(
        self, plan: InstancePlan, problem: Mapping[str, int], arrays: Mapping[str, object], scalars: Mapping[str, float]
    ) -> Peer | str:
        """A vendor's library on torch tensors that hold the data; the reason, in words, if there is none."""


def cost_model_of(kind: str) -> CostModel:
    """The cost model of a family."""
    return cast("CostModel", family_module(kind, "cost_model"))
