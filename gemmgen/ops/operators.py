"""The protocol of the operations: the name of a family's function, and calls of it as requests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol, cast

from gemmgen.kernels import FAMILIES, part
from gemmgen.kernels.requests import Interpretation, Layout


class Operator(Protocol):
    """The module ``operator`` of a family."""

    NAMES: tuple[str, ...]
    """The functions of ``gemmgen.ops`` that the family's instances serve; which one is called, its operands tell."""

    def interpret(self, operands: Mapping[str, Layout], options: Mapping[str, Any]) -> Interpretation:
        """The request that a call makes, and what it returns; raises ``LaunchError``."""


@cache
def operator_called(name: str) -> Operator:
    """The operator of that name; ``KeyError`` if there is none."""
    operators = [cast("Operator", part(kind, "operator")) for kind in FAMILIES]
    return {served: operator for operator in operators for served in operator.NAMES}[name]
