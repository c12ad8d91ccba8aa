"""Formulas from Python functions: a function is called once on symbols, and its computation becomes a formula's fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from gemmgen.core.errors import SpecError
from gemmgen.kernels.epilogue.expression import OPERATORS, name, nearest, written
from gemmgen.kernels.epilogue.extensions import extension_names
from gemmgen.kernels.epilogue.functions import CASTS, FUNCTIONS, MACROS
from gemmgen.kernels.epilogue.operations import COORDINATES, PRODUCT, VALUE
from gemmgen.kernels.epilogue.symbols import Symbol, node_of, symbol


class Functions:
    """The functions of expressions, for Python functions that become formulas: ``gemmgen.symbols.silu(x)``."""

    def __getattr__(self, function: str) -> Callable[..., Symbol]:
        known = ({*FUNCTIONS} - OPERATORS) | {*MACROS, *CASTS, *extension_names()}
        if function not in known:
            raise AttributeError(f"no function {function!r} of epilogues{nearest(function, known)}")
        return lambda *arguments: symbol(function, *arguments)


class Epilogue(dict[str, Any]):
    """The fields of a formula that a Python function was turned into, in place of a mapping in a spec or in a call of an operation."""


def epilogue(**inputs: Mapping[str, object]) -> Callable[[Callable[..., object]], Epilogue]:
    """A decorator that turns a function into an epilogue.

    The function has parameters with the names of ``inputs``, and any of ``acc`` (the product so far), ``row`` and ``column``. It returns
    the result, or a mapping with the result under ``C`` and further outputs by their names: symbols, or mappings such as
    ``{"value": z, "type": "bf16"}`` and ``{"reduce": "max", "of": abs(y)}``. It is called once, on symbols; ``if`` on a symbol is
    refused, ``select`` chooses.

    Parameters
    ----------
    **inputs
        The properties of each operand by name, as in a formula: ``gate={"per": "element", "type": "bf16"}``.

    Returns
    -------
    Callable
        From a function to an epilogue for a spec or for a call of an operation.

    Raises
    ------
    SpecError
        For parameters that are no inputs, and for expressions that no epilogue has.
    """

    def traced(function: Callable[..., object]) -> Epilogue:
        known = {PRODUCT, VALUE, *COORDINATES, *inputs}
        parameters = list(inspect.signature(function).parameters)
        for parameter in parameters:
            if parameter not in known:
                raise SpecError(f"epilogue {function.__name__}: the parameter {parameter!r} is no input{nearest(parameter, known)}")
        result = function(**{parameter: Symbol(name(parameter)) for parameter in parameters})
        outputs = result if isinstance(result, Mapping) else {VALUE: result}
        return Epilogue({"inputs": dict(inputs), "outputs": {key: _texts(value) for key, value in outputs.items()}})

    return traced


def _texts(value: object) -> Any:
    """An output with symbols as text."""
    if isinstance(value, Mapping):
        return {key: _texts(part) if isinstance(part, Symbol) else part for key, part in value.items()}
    return written(node_of(value))
