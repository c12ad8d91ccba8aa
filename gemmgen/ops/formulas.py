"""Products with an epilogue of the caller's: formulas whose operands and further outputs are arguments of the call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pydantic

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.calls import number, written_out
from gemmgen.kernels.epilogue.expression import nearest
from gemmgen.kernels.epilogue.operations import Operation, Operations
from gemmgen.ops.engine import Operator

_OPTIONS = ("scaled", "accumulates", "epilogue", "precision", "backend", "output")


@lru_cache(maxsize=1)
def _adapter() -> pydantic.TypeAdapter[tuple[Operation, ...]]:
    return pydantic.TypeAdapter(Operations)


@lru_cache(maxsize=64)
def _parsed(epilogue: Any) -> tuple[Operation, ...]:
    try:
        found = _adapter().validate_python(written_out(epilogue))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"] if part != "formula")
        raise LaunchError(f"matmul: epilogue{f' {place}' if place else ''}: {first['msg'].removeprefix('Value error, ')}") from None
    listed = [one.op for one in found if one.op != "formula" and one.operands()]
    if listed:
        raise LaunchError(f"matmul: epilogue: {listed[0]} reads an operand, need a formula, which names it")
    return found


@lru_cache(maxsize=64)
def _operator(arrays: tuple[str, ...], written: tuple[str, ...], numbers: tuple[str, ...]) -> Operator:
    """The operator of products with arrays and numbers of these names."""
    return Operator("matmul", ("a", "b", *arrays, *written), ("out",), ("alpha", "beta", *numbers), _OPTIONS, written, 2)


def matmul_with(
    a: Any,
    b: Any,
    epilogue: Any,
    given: Mapping[str, Any],
    out: Any,
    factors: tuple[float, float],
    output: str | None,
    precision: str,
    backend: str,
    stream: Any,
) -> Any:
    """The product of two matrices, finished by ``epilogue``, whose operands and further outputs are ``given`` by name; ``factors``: alpha
    and beta. Raises ``LaunchError``."""
    operations = _parsed(epilogue)
    operands = [operand for operation in operations for operand in operation.operands()]
    arrays = tuple(operand.name for operand in operands if operand.per != "all")
    written = tuple(name for operation in operations for name in operation.further_outputs)
    numbers = {operand.name: operand.default for operand in operands if operand.per == "all"}
    for name in given:
        if name not in (*arrays, *written, *numbers):
            raise LaunchError(f"matmul: the epilogue has no {name!r}{nearest(name, (*arrays, *written, *numbers))}")
    for name in (*arrays, *written, *(name for name, default in numbers.items() if default is None)):
        if given.get(name) is None:
            kind = "output" if name in written else "operand"
            raise LaunchError(f"matmul: the epilogue has the {kind} {name}, pass operands={{{name!r}: ...}}")
    alpha, beta = factors
    values = tuple(number("matmul", name, given.get(name, default)) for name, default in numbers.items())
    options = (alpha != 1, beta != 0, operations, precision, backend, output)
    every = (a, b, *(given[name] for name in (*arrays, *written)), out)
    return _operator(arrays, written, tuple(numbers)).call(every, options, (alpha, beta, *values), stream)[0]
