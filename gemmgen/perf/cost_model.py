"""The protocol of performance analysis: the work of a family's problems, and a vendor's library that does the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from gemmgen.kernels import part
from gemmgen.kernels.family import Cost, Work


class CostModel(Protocol):
    """The module ``cost_model`` of a family."""

    def cost(self, plan: Any, problem: Mapping[str, int]) -> Cost:
        """Least operations and bytes of one problem."""

    def executed_operations(self, plan: Any, problem: Mapping[str, int]) -> float:
        """The operations of ``cost`` with those on padding, where tiles that reach beyond the problem are computed whole."""

    def work(self, plan: Any, problem: Mapping[str, int]) -> tuple[Work, ...]:
        """Work of one problem's launches."""

    def peer(self, plan: Any, arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> tuple[str, Callable[[], Any]] | None:
        """A vendor library's name and a callable that does the same work on torch tensors; None if there is none."""


def cost_model_of(kind: str) -> CostModel:
    """The cost model of a family."""
    return cast("CostModel", part(kind, "cost_model"))
