"""Products with an epilogue of the caller's: formulas whose operands and further outputs are arguments of the call."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pydantic

from gemmgen.core.errors import LaunchError
from gemmgen.core.text import printable
from gemmgen.kernels.calls import integer, number
from gemmgen.kernels.epilogue.activations import unknown_operation
from gemmgen.kernels.epilogue.expression import nearest
from gemmgen.kernels.epilogue.operations import Formula, Operation, Operations
from gemmgen.kernels.epilogue.options import written_out
from gemmgen.ops.arrays import is_truth, same_place, type_word
from gemmgen.ops.engine import Operator, numpy_array


@lru_cache(maxsize=1)
def _adapter() -> pydantic.TypeAdapter[tuple[Operation, ...]]:
    return pydantic.TypeAdapter(Operations)


@lru_cache(maxsize=64)
def parsed(operation: str, epilogue: object, argument: str = "epilogue") -> tuple[Operation, ...]:
    """The operations of an epilogue, or of another ``argument`` of a call. Raises ``LaunchError``."""
    try:
        operations = _adapter().validate_python(written_out(epilogue))
    except pydantic.ValidationError as error:
        if unknown := unknown_operation(error):
            raise LaunchError(f"{operation}: {argument}: {unknown}") from None
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"] if part != "formula")
        raise LaunchError(
            f"{operation}: {argument}{f' {printable(place, 100)}' if place else ''}: {first['msg'].removeprefix('Value error, ')}"
        ) from None
    listed = [one.op for one in operations if one.op != "formula" and one.operands()]
    if listed:
        raise LaunchError(f"{operation}: {argument}: {listed[0]} reads an operand, need a formula, which names it")
    return operations


@dataclass(frozen=True)
class Operands:
    """The operands and further outputs of an epilogue in a call."""

    arrays: tuple[str, ...]
    written: tuple[str, ...]
    """Further outputs."""
    numbers: tuple[str, ...]
    values: tuple[float, ...]
    """Values of the numbers."""


def given_operands(
    operation: str, operations: tuple[Operation, ...], given: Mapping[str, object], own: Collection[str], whole: str = "epilogue"
) -> Operands:
    """The operands of the operations among those that are ``given`` by name; ``own``: names that the call has itself; ``whole``: the word
    for the operations in messages. Raises ``LaunchError``."""
    operands = [operand for one in operations for operand in one.operands()]
    arrays = tuple(operand.name for operand in operands if operand.per != "all")
    for operand in operands:
        array = given.get(operand.name)
        if operand.stored == "bool" and operand.per != "all" and not (is_truth(array) or getattr(array, "dtype", None) is None):
            raise LaunchError(f"{operation}: {operand.name} has elements {type_word(array)}, need bool, as the {whole} says")
    written = tuple(name for one in operations for name in one.extra_outputs)
    numbers = {operand.name: operand for operand in operands if operand.per == "all"}
    for name in (*arrays, *written, *numbers):
        if name in own:
            raise LaunchError(f"{operation}: the {whole} has the operand {name}, a name that the call has itself: choose another")
    for name in given:
        if name not in (*arrays, *written, *numbers):
            raise LaunchError(f"{operation}: the {whole} has no {name!r}{nearest(name, (*arrays, *written, *numbers))}")
    for name in (*arrays, *written, *(name for name, operand in numbers.items() if operand.default is None)):
        if given.get(name) is None:
            kind = "output" if name in written else "operand"
            raise LaunchError(f"{operation}: the {whole} has the {kind} {name}, pass operands={{{name!r}: ...}}")
    values = tuple(
        (integer if operand.stored == "s64" else number)(operation, name, given.get(name, operand.default))
        for name, operand in numbers.items()
    )
    return Operands(arrays, written, tuple(numbers), values)


@lru_cache(maxsize=64)
def operator_with(
    base: Operator,
    arrays: tuple[str, ...],
    written: tuple[str, ...],
    numbers: tuple[str, ...],
    required: int,
    in_place: tuple[str, ...] = (),
) -> Operator:
    """An operator with further arrays and numbers, and an epilogue among its options; ``in_place``: operands that are the result."""
    options = (*base.options, "epilogue")
    operands = (*base.operands, *arrays, *written)
    return Operator(base.name, operands, base.results, (*base.numbers, *numbers), options, written, required, in_place)


def in_place_of(
    out: Any, operations: tuple[Operation, ...], given: Mapping[str, object], emulated: bool
) -> tuple[tuple[Operation, ...], dict[str, object], tuple[str, ...]]:
    """The operations of a call, which may read the array that it writes, ``out``; the operands that are ``given``; and the names of those
    that are ``out``. Kernels for processors do not read what they write: they have copies of such operands."""
    names = tuple(
        operand.name
        for one in operations
        for operand in one.operands()
        if operand.like_output and out is not None and same_place(given[operand.name], out)
    )
    if names and type(out) is numpy_array() and not emulated:
        return operations, {**given, **dict.fromkeys(names, out.copy())}, ()
    return tuple(_reading_result(one, names) if isinstance(one, Formula) else one for one in operations), dict(given), names


def _reading_result(formula: Formula, names: tuple[str, ...]) -> Formula:
    """A formula whose operands of these names may be the result's array."""
    inputs = {word: one.model_copy(update={"in_place": True}) if word in names else one for word, one in formula.inputs.items()}
    return formula.model_copy(update={"inputs": inputs}) if names else formula


@lru_cache(maxsize=64)
def _product(name: str, factors: tuple[str, ...], options: tuple[str, ...]) -> Operator:
    """The operator of products of these factors."""
    return Operator(name, factors, ("out",), ("alpha", "beta"), options)


def finished(
    operation: str,
    factors: Mapping[str, object],
    epilogue: object,
    given: Mapping[str, object],
    out: object,
    scalars: tuple[float, float],
    choices: Mapping[str, object],
    stream: object,
) -> Any:
    """The product of ``factors``, finished by ``epilogue``, whose operands and further outputs are ``given`` by name; ``scalars``: alpha
    and beta; ``choices``: the operation's other options. Raises ``LaunchError``."""
    operations = parsed(operation, epilogue)
    named = given_operands(operation, operations, given, (*factors, "alpha", "beta"))
    operations, given, in_place = in_place_of(out, operations, given, choices.get("backend") == "emulator")
    alpha, beta = scalars
    options = {"scaled": alpha != 1, "accumulates": beta != 0} | dict(choices)
    every = (*factors.values(), *(given[name] for name in (*named.arrays, *named.written)), out)
    base = _product(operation, tuple(factors), tuple(options))
    operator = operator_with(base, named.arrays, named.written, named.numbers, 2 if operation == "matmul" else 3, in_place)
    return operator.call(every, (*options.values(), operations), (alpha, beta, *named.values), stream)[0]
