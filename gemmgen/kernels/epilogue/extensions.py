"""Functions and epilogues that other packages bring, as entry points of the group ``gemmgen.epilogues``.

An entry point names a Python function on symbols, which becomes a function of expressions, or a mapping with the fields of a formula,
such as ``gemmgen.epilogue`` makes, which becomes an operation. They are loaded when a spec first uses a name that gemmgen does not
know.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from gemmgen.core.errors import SpecError
from gemmgen.kernels.epilogue.expression import OPERATORS, Node, name, parse, written
from gemmgen.kernels.epilogue.functions import CASTS, FUNCTIONS, MACROS
from gemmgen.kernels.epilogue.symbols import Symbol, node_of

GROUP = "gemmgen.epilogues"
"""The group of entry points."""


@lru_cache(maxsize=1)
def _found() -> Mapping[str, EntryPoint]:
    own = {*FUNCTIONS, *MACROS, *CASTS, *CASTS.values()}
    return {point.name: point for point in entry_points(group=GROUP) if point.name.isidentifier() and point.name not in own}


def extension_names() -> frozenset[str]:
    """Names that other packages bring. Nothing of them is loaded."""
    return frozenset(_found())


@lru_cache(maxsize=64)
def _loaded(word: str) -> Any:
    point = _found()[word]
    try:
        return point.load()
    except Exception as error:
        raise SpecError(f"the epilogue {word} of {point.value} cannot be loaded: {type(error).__name__}: {error}") from None


@lru_cache(maxsize=64)
def macro_of(word: str) -> tuple[tuple[str, ...], Node] | None:
    """Parameters and body of a function that is short for an expression; None if there is none of this name. Raises ``SpecError``."""
    if word in MACROS:
        parameters, text = MACROS[word]
        return parameters, parse(text)
    if word not in _found() or not callable(_loaded(word)):
        return None
    try:
        parameters = tuple(inspect.signature(_loaded(word)).parameters)
        body = node_of(_loaded(word)(*(Symbol(name(parameter)) for parameter in parameters)))
        parse(written(body))
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"the epilogue {word} of {_found()[word].value} fails on symbols: {type(error).__name__}: {error}") from None
    unknown = [node.function for node in body.walk() if node.function and node.function not in {*FUNCTIONS, *MACROS, *CASTS, *OPERATORS}]
    if unknown:
        raise SpecError(f"the epilogue {word} of {_found()[word].value} calls {unknown[0]}, need functions of gemmgen")
    return parameters, body


def operation_of(word: str) -> dict[str, object] | None:
    """The fields of the formula that an operation of this name is short for; None if no package brings it. Raises ``SpecError``."""
    if word not in _found():
        return None
    extension = _loaded(word)
    if isinstance(extension, Mapping):
        return {**extension, "op": "formula"}
    macro = macro_of(word)
    if macro is None or len(macro[0]) != 1:
        raise SpecError(
            f"the epilogue {word} of {_found()[word].value} is no operation: need a formula's fields or a function of one value"
        )
    return {"op": "formula", "value": f"{word}(value)"}
