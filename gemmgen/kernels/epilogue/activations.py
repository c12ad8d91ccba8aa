"""The operations of an ``activation`` that a call names: a name, a formula, a mapping as in a spec, or several of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, get_args

import pydantic

from gemmgen.core.errors import LaunchError
from gemmgen.core.text import printable
from gemmgen.kernels.epilogue.expression import nearest
from gemmgen.kernels.epilogue.extensions import operation_of
from gemmgen.kernels.epilogue.functions import known_functions
from gemmgen.kernels.epilogue.operations import NAMED_FORMS, OPERATIONS, PRODUCT, VALUE, AnyOperation, Operation, known_fields
from gemmgen.kernels.epilogue.options import written_out

NAMES = frozenset(get_args(one.model_fields["op"].annotation)[0] for one in OPERATIONS) - {"formula"}
"""Names of gemmgen's own operations."""


@cache
def _adapter() -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(AnyOperation)


def operation(fields: Mapping[str, object]) -> Operation:
    """An operation of the epilogue from its fields. Raises ``pydantic.ValidationError``."""
    made: Operation = _adapter().validate_python(fields)
    return made


def operations_named(call: str, wanted: object, names: Iterable[str]) -> list[Operation]:
    """The operations that an argument of a call, ``elementwise: operation`` say, is. ``names``: the names that its messages list. Raises
    ``LaunchError``."""
    wanted = written_out(wanted)
    return [] if wanted is None else _named(call, wanted, names)


def _named(call: str, wanted: object, names: Iterable[str]) -> list[Operation]:
    if isinstance(wanted, list):
        return [operation for part in wanted for operation in _named(call, part, names)]
    fields = _fields(wanted)
    if fields is None:
        hint = nearest(wanted, {*NAMES, *names}) if isinstance(wanted, str) else ""
        need = f"need one of {', '.join(names)}, a formula such as 'min(value, 6)', or a mapping such as {{'op': 'clamp', 'high': 6}}{hint}"
        raise LaunchError(printable(f"{call} is {wanted!r}, {need}", 1000))
    try:
        return [operation(fields)]
    except pydantic.ValidationError as error:
        if unknown := unknown_operation(error):
            raise LaunchError(f"{call}: {unknown}") from None
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"] if part != "formula")
        said = first["msg"].removeprefix("Value error, ")
        raise LaunchError(printable(f"{call} {wanted!r}: {place + ': ' if place else ''}{said}", 1000)) from None


def unknown_operation(error: pydantic.ValidationError) -> str:
    """The message about an operation that there is not; nothing if the first error is another."""
    first = error.errors(include_url=False)[0]
    if first["type"] != "union_tag_invalid":
        return ""
    word, known = str(first["ctx"]["tag"]), re.findall(r"'([^']*)'", str(first["ctx"]["expected_tags"]))
    hint = f"; {word} is a function of formulas" if word in known_functions() else nearest(word, known)
    return f"no operation {printable(word, 40)!r}, need one of {', '.join(known)}{hint}"


def activations(operation: str, wanted: object, names: Iterable[str]) -> list[Operation]:
    """The operations of the ``activation`` of a call of this operation, which read the value alone. Raises ``LaunchError``."""
    named = operations_named(f"{operation}: activation", wanted, names)
    for one in named:
        if one.operands() or one.extra_outputs:
            raise LaunchError(
                printable(
                    f"{operation}: activation is {written_out(wanted)!r}, need one of {', '.join(names)}, or a mapping that reads nothing "
                    "else; epilogue= takes operands",
                    1000,
                )
            )
    return named


def _fields(wanted: object) -> Mapping[str, Any] | None:
    """The fields of one operation; None if there is none of the name."""
    if isinstance(wanted, Mapping):
        fields: Mapping[str, Any] = known_fields(wanted) if "op" in wanted else {"op": "formula", **wanted}
        return fields
    if not isinstance(wanted, str):
        return None
    if wanted in NAMED_FORMS:
        return NAMED_FORMS[wanted]
    if wanted in NAMES:
        return {"op": wanted}
    if "(" in wanted or VALUE in wanted or PRODUCT in wanted:
        return {"op": "formula", "value": wanted}
    return operation_of(wanted)
