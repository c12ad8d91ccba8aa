"""The protocol by which families turn calls of operations into requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from gemmgen.kernels import EXTRA_OPERATIONS, OPERATIONS, WITHOUT_TORCH_OPERATOR, family_module
from gemmgen.kernels.requests import Interpretation, Layout


class Operator(Protocol):
    """The module ``operator`` of a family."""

    def interpret(self, operands: Mapping[str, Layout], options: Mapping[str, object]) -> Interpretation:
        """The request that a call makes, and its results; which of the family's operations is called, its operands tell. Raises
        ``LaunchError``."""


def operator_called(name: str) -> Operator:
    """The operator of an operation's family; ``KeyError`` if there is no such operation."""
    return cast("Operator", family_module((OPERATIONS | WITHOUT_TORCH_OPERATOR | EXTRA_OPERATIONS)[name], "operator"))
