"""The protocols of the operations: the names of a family's functions, calls of them as requests, and functions that need no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol, cast

from gemmgen.kernels import FAMILIES, has_part, part
from gemmgen.kernels.requests import Interpretation, Layout


class Operator(Protocol):
    """The module ``operator`` of a family."""

    NAMES: tuple[str, ...]
    """The functions of ``gemmgen.ops`` that the family's instances serve; which one is called, its operands tell."""

    def interpret(self, operands: Mapping[str, Layout], options: Mapping[str, Any]) -> Interpretation:
        """The request that a call makes, and its results; raises ``LaunchError``."""


@cache
def operator_called(name: str) -> Operator:
    """The operator of that name; ``KeyError`` if there is none."""
    operators = [cast("Operator", part(kind, "operator")) for kind in FAMILIES]
    return {served: operator for operator in operators for served in operator.NAMES}[name]


class FamilyCall(Protocol):
    """The module ``call`` of a family, by which ``gemmgen.ops`` gets a function without a separate line."""

    NAME: str
    OPERANDS: tuple[str, ...]
    RESULTS: tuple[str, ...]
    NUMBERS: tuple[str, ...]
    OPTIONS: tuple[str, ...]
    IN_PLACE: tuple[str, ...]
    """Operands that a result may be."""
    keeps_type: Callable[[tuple[Any, ...]], bool]
    """From a call's options: True if the result has the type of the first operand."""
    arguments: Callable[..., Any]
    """The function's signature and docstring; gives arrays, options, numbers and the stream, as ``engine.Operator.call`` takes them."""
    traced: Callable[..., tuple[tuple[Any, ...], bool]]
    """From the same arguments: those of torch's operator, and True if it can stand for the call."""


class FamilyTorchOperator(Protocol):
    """The module ``torch_operator`` of a family that has a module ``call``."""

    SCHEMA: str
    call: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]
    """From the operator's arguments to those of the function."""
    result: Callable[..., Any]
    """From the operator's arguments to an empty tensor like its result."""
    save: Callable[..., None]
    """``setup_context`` of torch's autograd."""
    backward: Callable[..., tuple[Any, ...]]


@cache
def family_calls() -> Mapping[str, FamilyCall]:
    """Functions that families offer by themselves."""
    calls = [cast("FamilyCall", part(kind, "call")) for kind in FAMILIES if has_part(kind, "call")]
    return {call.NAME: call for call in calls}


@cache
def family_torch_operators() -> Mapping[str, FamilyTorchOperator]:
    """Operators of torch that families offer by themselves."""
    return {part(kind, "call").NAME: part(kind, "torch_operator") for kind in FAMILIES if has_part(kind, "torch_operator")}
