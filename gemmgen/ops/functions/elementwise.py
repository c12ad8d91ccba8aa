"""``gemmgen.ops.elementwise``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from numbers import Real
from typing import Any

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.calls import Operations, by_name, integer_or_number, is_plain_number
from gemmgen.kernels.epilogue.options import hashable
from gemmgen.ops import torch_state
from gemmgen.ops.arrays import assigned, converted, type_word, wider_type
from gemmgen.ops.engine import ASKED, Operator, handle_of, with_kernel
from gemmgen.runtime.arrays.protocols import Array, ArrayT, Stream

OPERANDS = ("x", "bias", "bias2", "z", "z2", "f", "f2")
NUMBERS = ("bias", "bias2", "gamma", "gamma2")
# The result may be an operand: a thread reads all inputs of an element before it writes it.
OPERATOR = Operator("elementwise", OPERANDS, ("out",), NUMBERS, ("operations", "fractions", "numbers"), in_place=OPERANDS)


@with_kernel
def elementwise(
    x: ArrayT,
    operations: Operations = (),
    *,
    bias: Array | float | None = None,
    bias2: Array | float | None = None,
    z: Array | None = None,
    z2: Array | None = None,
    gamma: float = 1.0,
    gamma2: float = 1.0,
    f: Array | None = None,
    f2: Array | None = None,
    operands: Mapping[str, Array | float] | None = None,
    out: Array | None = None,
    stream: Stream | None = None,
) -> ArrayT:
    """Applies operations to every element of ``x``, in order.

    All arrays have x's type and broadcast by NumPy's rules; arrays with negative strides, or with more than four axes that cannot
    be merged, are copied first. With integer arrays, numbers must be integers. ``docs/operations.md`` lists the types.

    Parameters
    ----------
    x
        The array.
    operations
        Names (``relu``, ``gelu``, ``exp``, ``square`` ...), or mappings as in a spec (``{"op": "scale", "factor": 2.0}``,
        ``{"op": "cast", "type": "float16"}``), or several of them. Without operations, the result is a copy.
    bias, bias2
        A number or an array, which the first and the second operation ``bias`` add.
    z, z2
        Arrays that the first and the second operation ``residual`` add.
    gamma, gamma2
        Factors of ``z`` and ``z2``.
    f, f2
        Arrays that the first and the second operation ``multiply`` multiply by.
    operands
        Operands and further outputs of formulas among the operations by name, of the types that the formulas declare. Arrays per row
        have one axis, or a second axis of extent 1 for the columns; arrays per element broadcast. Formulas with operands have no
        derivatives.
    out
        Array that receives the result and decides its type; it may be an operand. By default, the result has x's type, or the type of
        the last cast.
    stream
        The CUDA stream, as for ``Kernel``.

    Returns
    -------
    ArrayT
        ``out``, or a new array of x's library.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    if operands is not None:
        others = (bias, bias2, z, z2, f, f2)
        if any(one is not None for one in others):
            raise LaunchError("elementwise: operands beside bias, z or f, need all of them among operands")
        return _with_operands(x, operations, by_name("elementwise", operands), out, stream)
    arrays_given = (x, bias, bias2, z, z2, f, f2)
    if torch_state.compiling is not None and (torch_state.compiling() or torch_state.recording(*arrays_given, out)):
        names = tuple(operations) if isinstance(operations, list | tuple) else (operations,)
        plain = all(isinstance(name, str) for name in names) and bias2 is z2 is f2 is None and not isinstance(bias, Real)
        arguments = (x, " ".join(map(str, names)), bias, z, f, gamma)
        return torch_state.by_operator("elementwise", arguments, plain and out is None and stream is None)
    numbers = [0, 0, integer_or_number("elementwise", "gamma", gamma), integer_or_number("elementwise", "gamma2", gamma2)]
    biases = [bias, bias2]
    for place, given in enumerate(biases):
        if given is not None and is_plain_number(given):
            biases[place], numbers[place] = None, integer_or_number("elementwise", NUMBERS[place], given)
    wanted = operations if operations.__class__ is str else hashable(operations)
    fractions = tuple(name for name, value in zip(NUMBERS, numbers, strict=True) if not isinstance(value, int))
    added = tuple(name for name, given, array in zip(NUMBERS, (bias, bias2), biases, strict=False) if given is not None and array is None)
    arrays, options = (x, *biases, z, z2, f, f2, out), (wanted, fractions, added)
    if wider_type(x):
        return _computed_widely(arrays, options, tuple(numbers), stream)
    return OPERATOR.call(arrays, options, tuple(numbers), stream)[0]


def _with_operands(x: object, operations: object, given: Mapping[str, object], out: object, stream: object) -> Any:
    """The result of formulas whose operands and further outputs are ``given`` by name."""
    from gemmgen.ops.formulas import given_operands, parsed

    if torch_state.compiling is not None and (torch_state.compiling() or torch_state.recording(x, *given.values(), out)):
        raise LaunchError("elementwise: formulas with operands have no derivatives, and are not traced; need tensors without requires_grad")
    steps = parsed("elementwise", hashable(operations), "operations")
    named = given_operands("elementwise", steps, given, ("x", "out"), "formula")
    operator = _operator(named.arrays, named.written, named.numbers)
    every = (x, *(given[name] for name in (*named.arrays, *named.written)), out)
    return operator.call(every, (steps, True), named.values, stream)[0]


@lru_cache(maxsize=64)
def _operator(arrays: tuple[str, ...], written: tuple[str, ...], numbers: tuple[str, ...]) -> Operator:
    """The operator of formulas with these operands."""
    names = ("x", *arrays, *written)
    return Operator("elementwise", names, ("out",), numbers, ("operations", "named"), written, in_place=("x", *arrays))


def _computed_widely(arrays: tuple[object, ...], options: tuple[object, ...], numbers: tuple[float, ...], stream: object) -> Any:
    """The result of an operation whose operands are converted to a wider type first; it is converted back if no operation is a cast."""
    *operands, out = arrays
    word, own = wider_type(operands[0]), _plain_word(operands[0])
    for name, operand in zip(OPERATOR.operands, operands, strict=True):
        if operand is not None and _plain_word(operand) != own:
            raise LaunchError(f"{OPERATOR.name}: {name} has elements {type_word(operand)}, need x's, {own}")
    handle = handle_of(stream)
    operands = [converted(operand, word, handle) for operand in operands]
    if out is not None and type_word(out) not in (own, word):
        return OPERATOR.call((*operands, out), options, numbers, stream)[0]
    result = OPERATOR.call((*operands, None), options, numbers, stream)[0]
    if stream is ASKED:
        return result
    result = converted(result, own, handle) if _keeps_type(options[0]) else result
    return result if out is None else assigned(OPERATOR.name, out, result, handle)


def _plain_word(array: Any) -> str:
    """Name of an array's type of elements in the machine's byte order."""
    return getattr(array.dtype, "name", "") or type_word(array)


def _keeps_type(operations: object) -> bool:
    """True if the result has x's type because no operation is a cast."""
    from gemmgen.kernels.elementwise.operator import parse_operations

    return all(operation.op != "cast" for operation in parse_operations(operations))
