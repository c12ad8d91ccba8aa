"""Formulas from Python functions: a function is called once on symbols, and its computation becomes a formula's fields."""

from __future__ import annotations

import inspect
import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, overload

from gemmgen.core.errors import SpecError
from gemmgen.kernels.epilogue.expression import MAX_CHARACTERS, MAX_DEPTH, OPERATORS, Node, name, nearest, written
from gemmgen.kernels.epilogue.extensions import extension_names
from gemmgen.kernels.epilogue.functions import CASTS, FUNCTIONS, MACROS
from gemmgen.kernels.epilogue.operations import COORDINATES, MAX_NAMES, PRODUCT, VALUE
from gemmgen.kernels.epilogue.symbols import Symbol, node_of, symbol


class Functions:
    """The functions of expressions, for Python functions that become formulas: ``gemmgen.symbols.silu(x)``."""

    def __getattr__(self, function: str) -> Callable[..., Symbol]:
        known = ({*FUNCTIONS} - OPERATORS) | {*MACROS, *CASTS, *extension_names()}
        if function not in known:
            raise AttributeError(f"no function {function!r} of epilogues{nearest(function, known)}")

        def made(*arguments: object, **named: object) -> Symbol:
            if named:
                raise SpecError(
                    f"an epilogue's function calls {function} with {', '.join(named)}=: need values without names, in their order"
                )
            return symbol(function, *arguments)

        return made


class Epilogue(dict[str, Any]):
    """The fields of a formula that a Python function was turned into, in place of a mapping in a spec or in a call of an operation."""


@overload
def epilogue(function: Callable[..., object], /) -> Epilogue: ...
@overload
def epilogue(**inputs: Mapping[str, object]) -> Callable[[Callable[..., object]], Epilogue]: ...
def epilogue(
    function: Callable[..., object] | None = None, /, **inputs: Mapping[str, object]
) -> Epilogue | Callable[[Callable[..., object]], Epilogue]:
    """A decorator that turns a function into an epilogue, with inputs or, ``@gemmgen.epilogue``, without.

    The function has parameters with the names of ``inputs``, and any of ``acc`` (the product so far), ``row`` and ``column``. If neither
    ``acc`` nor ``value`` is among them, a first parameter of another name is the product so far. The function returns
    the result, or a mapping with the result under ``C`` and further outputs by their names: symbols, or mappings such as
    ``{"value": z, "type": "bf16"}`` and ``{"reduce": "max", "of": abs(y)}``. It is called once, on symbols; ``if`` on a symbol is
    refused, ``select`` chooses. Values that the function uses several times become intermediate values of the formula.

    Parameters
    ----------
    function
        A function whose parameters, but for the first, are among ``acc``, ``value``, ``row`` and ``column``.
    **inputs
        The properties of each operand by name, as in a formula: ``gate={"per": "element", "type": "bf16"}``.

    Returns
    -------
    Epilogue or Callable
        An epilogue for a spec or for a call of an operation; of inputs, the decorator that makes one.

    Raises
    ------
    SpecError
        For parameters that are no inputs, and for expressions that no epilogue has.
    """

    def traced(function: Callable[..., object]) -> Epilogue:
        known = {PRODUCT, VALUE, *COORDINATES, *inputs}
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            raise SpecError(f"epilogue {name_of(function)}: no signature that Python knows; write a function with parameters") from None
        words = {word: word for word in signature.parameters}
        first = next(iter(words), VALUE)
        if first not in known and not {PRODUCT, VALUE} & words.keys() and not nearest(first, known):
            words[first] = VALUE
        for parameter in signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise SpecError(f"epilogue {name_of(function)}: got the parameter {parameter}, need parameters with a name each")
            if words[parameter.name] not in known:
                word = parameter.name
                hint = nearest(word, known) or f": declare it, as in gemmgen.epilogue({word}={{'per': 'column'}})"
                raise SpecError(f"epilogue {name_of(function)}: the parameter {word!r} is no input{hint}")
        bound = inspect.BoundArguments(signature, OrderedDict((word, Symbol(name(meant))) for word, meant in words.items()))
        result = function(*bound.args, **bound.kwargs)
        outputs = result if isinstance(result, Mapping) else {VALUE: result}
        return Epilogue(_formula(inputs, {str(key): value for key, value in outputs.items()}))

    return traced if function is None else traced(function)


def name_of(function: Callable[..., object]) -> str:
    """The name of a function, or of the class of a callable object."""
    return str(getattr(function, "__name__", type(function).__name__))


def _formula(inputs: Mapping[str, Mapping[str, object]], outputs: Mapping[str, object]) -> dict[str, object]:
    """The fields of the formula of a function's results."""
    fields: dict[str, dict[str, Any]] = {
        key: dict(value) if isinstance(value, Mapping) else {VALUE: value} for key, value in outputs.items()
    }
    roots = {key: {part: node_of(one) for part, one in parts.items() if isinstance(one, Symbol)} for key, parts in fields.items()}
    for key, value in outputs.items():
        if not isinstance(value, Mapping):
            roots[key] = {VALUE: node_of(value)}
    writer = _Writer([node for parts in roots.values() for node in parts.values()], {*inputs, *outputs})
    texts = {
        key: {**fields[key], **{part: written(writer.rewritten[id(node)]) for part, node in parts.items()}} for key, parts in roots.items()
    }
    made = {key: texts[key] if isinstance(value, Mapping) else texts[key][VALUE] for key, value in outputs.items()}
    return {"inputs": dict(inputs), **({"let": writer.let} if writer.let else {}), "outputs": made}


class _Writer:
    """Trees as expressions: a part that several others use, or that is deep or long, is named under ``let``."""

    def __init__(self, roots: list[Node], taken: set[str]) -> None:
        self.let: dict[str, str] = {}
        self.rewritten: dict[int, Node] = {}
        uses: dict[int, int] = {}
        order: list[Node] = []
        pending: list[tuple[Node, bool]] = [(root, False) for root in reversed(roots)]
        for root in roots:
            uses[id(root)] = uses.get(id(root), 0) + 1
        while pending:
            node, done = pending.pop()
            if done:
                order.append(node)
            elif id(node) not in self.rewritten:
                self.rewritten[id(node)] = node
                pending.append((node, True))
                for argument in reversed(node.arguments):
                    uses[id(argument)] = uses.get(id(argument), 0) + 1
                    pending.append((argument, False))
        depths: dict[int, int] = {}
        free = (word for count in itertools.count(1) if (word := f"t{count}") not in taken)
        for node in order:
            if not node.arguments:
                depths[id(node)] = 0
                continue
            made = Node(-1, node.function, tuple(self.rewritten[id(argument)] for argument in node.arguments))
            depths[id(node)] = 1 + max(depths[id(argument)] for argument in node.arguments)
            text = written(made)
            if uses[id(node)] > 1 or depths[id(node)] >= MAX_DEPTH // 2 or len(text) > MAX_CHARACTERS // 4:
                word = next(free)
                if len(self.let) == MAX_NAMES:
                    raise SpecError(f"an epilogue's function computes more than {MAX_NAMES} intermediate values: need at most {MAX_NAMES}")
                self.let[word], made, depths[id(node)] = text, name(word), 0
            self.rewritten[id(node)] = made
