"""Arguments of any kernel as a user writes them: ``f32[1024]=random``, ``f32[4]``, ``i32=7``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import click

from gemmgen.core.elements import ELEMENTS, FLOATS, to_elements, to_numbers

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gemmgen.emulator.ptx.syntax import Variable

_MORE_INTEGERS = {"s16": "int16", "u64": "uint64", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64"}
TYPES = {name: element.holder for name, element in ELEMENTS.items()} | _MORE_INTEGERS
"""Each type and the NumPy type that holds it. A kernel from elsewhere may have integers that gemmgen's own have not."""

FILLS = ("zeros", "ones", "random", "range", "@file.npy")
POISON = 0xFF
"""Every byte of an array that starts unwritten; as a float it is a NaN."""

_FORM = re.compile(r"(?P<type>\w+)(?:\[(?P<shape>[^\]]*)\])?(?:=(?P<value>.*))?", re.DOTALL)
_HELP = "an array such as f32[1024]=random or f32[4], or a scalar such as i32=7"


@dataclass(frozen=True)
class KernelArgument:
    """One argument: what the user wrote, and its value: an array, a NumPy scalar, or None for a null pointer."""

    text: str
    type: str
    value: Any
    initialised: bool = True
    """Whether an array was filled."""

    @property
    def is_array(self) -> bool:
        import numpy as np

        return isinstance(self.value, np.ndarray)

    def fresh(self) -> KernelArgument:
        """The same argument in memory of its own."""
        value = self.value.copy() if self.is_array else self.value
        return KernelArgument(self.text, self.type, value, self.initialised)

    def numbers(self) -> npt.NDArray[Any]:
        """An array's elements as numbers."""
        return to_numbers(self.type, self.value)


def parse_argument(text: str, index: int) -> KernelArgument:
    """The argument that ``text`` describes; random values depend on ``index`` only. Raises ``UsageError``."""
    if text == "null":
        return KernelArgument(text, "null", None)
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise _wrong(text, f"expected {_HELP}")
    kind, shape, value = match["type"], match["shape"], match["value"]
    if kind not in TYPES:
        raise _wrong(text, f"{kind!r} is no type; the types are {', '.join(TYPES)}")
    try:
        if shape is not None:
            return KernelArgument(text, kind, _array(text, kind, shape, value, index), value is not None)
        if value is None:
            raise _wrong(text, f"a scalar needs a value, {kind}=7 for example; an array needs a length, {kind}[1024]")
        return KernelArgument(text, kind, _scalar(text, kind, value))
    except (MemoryError, OverflowError):
        raise _wrong(text, "this is more than fits into memory") from None


def _array(text: str, kind: str, shape: str, fill: str | None, index: int) -> npt.NDArray[Any]:
    import numpy as np

    dtype = np.dtype(TYPES[kind])
    from_file = fill is not None and fill.startswith("@")
    if not shape.strip() and from_file:
        extents = None
    else:
        try:
            extents = tuple(int(part) for part in shape.split(","))
        except ValueError:
            raise _wrong(text, f"[{shape}] is no length; expected a number, or several separated by commas") from None
        if min(extents) < 0:
            raise _wrong(text, "a length cannot be negative")
        if prod(extents) * dtype.itemsize > 1 << 40:
            raise _wrong(text, "this is more than fits into memory")
    if fill is not None and from_file:
        return _from_file(text, fill[1:], dtype, extents)
    assert extents is not None
    size = prod(extents)
    if fill is None:
        return np.full(size * dtype.itemsize, POISON, np.uint8).view(dtype).reshape(extents)
    values: npt.NDArray[Any]
    match fill:
        case "zeros":
            values = np.zeros(size)
        case "ones":
            values = np.ones(size)
        case "range":
            values = np.arange(size)
        case "random":
            values = _random(kind, size, np.random.default_rng(index))
        case _:
            raise _wrong(text, f"{fill!r} fills no array; it may be {', '.join(FILLS)}, or left out: unwritten")
    return _elements(kind, values).reshape(extents)


def _from_file(text: str, name: str, dtype: np.dtype[Any], extents: tuple[int, ...] | None) -> npt.NDArray[Any]:
    import numpy as np

    try:
        values = np.load(name, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _wrong(text, f"{name}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(values, np.ndarray):
        raise _wrong(text, f"{name} holds several arrays; expected a .npy file with one")
    if values.dtype != dtype:
        raise _wrong(text, f"{name} holds {values.dtype}, this type needs {dtype}")
    if extents is not None and values.size != prod(extents):
        raise _wrong(text, f"{name} holds {values.size} elements, not {prod(extents)}")
    return np.ascontiguousarray(values if extents is None else values.reshape(extents))


def _random(kind: str, size: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Reals from -1 to 1; integers from -100 to 100, or from 0 where there is no sign."""
    if kind in FLOATS:
        return rng.uniform(-1.0, 1.0, size)
    return rng.integers(0 if kind[0] == "u" else -100, 101, size)


def _scalar(text: str, kind: str, value: str) -> Any:
    import numpy as np

    dtype = np.dtype(TYPES[kind])
    try:
        number = float(value) if kind in FLOATS else int(value, 0)
    except ValueError:
        raise _wrong(text, f"{value!r} is no value of type {kind}") from None
    if isinstance(number, int):
        limits = np.iinfo(dtype)
        if not limits.min <= number <= limits.max:
            raise _wrong(text, f"{value} does not fit; {kind} holds {limits.min} to {limits.max}")
    return _elements(kind, np.array([number], np.float64 if isinstance(number, float) else dtype))[0]


def _elements(kind: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    import numpy as np

    if kind in FLOATS:
        return to_elements(kind, values)
    with np.errstate(over="ignore"):
        return values.astype(TYPES[kind])


def _wrong(text: str, why: str) -> click.UsageError:
    return click.UsageError(f"--arg {text!r}: {why}")


def check_arguments(entry: str, parameters: Sequence[Variable], names: Sequence[str], arguments: Sequence[KernelArgument]) -> None:
    """Raises ``UsageError``, with the kernel's signature, if the arguments cannot be passed to the parameters."""
    problem = ""
    if len(arguments) != len(parameters):
        problem = f"{entry} takes {len(parameters)} arguments, got {len(arguments)}"
    else:
        for index, (parameter, name, argument) in enumerate(zip(parameters, names, arguments, strict=True)):
            if argument.is_array or argument.value is None:
                wrong = parameter.size != 8 or parameter.type[0] == "f"
                given = "an array" if argument.is_array else "a null pointer"
            else:
                wrong = parameter.size != argument.value.itemsize
                given = f"{argument.value.itemsize} bytes"
            if wrong:
                problem = f"argument {index} ({name}) of {entry} is {_describe(parameter)}; {argument.text!r} is {given}"
                break
    if problem:
        raise click.UsageError(f"{problem}\n{signature(entry, parameters, names)}")


def signature(entry: str, parameters: Sequence[Variable], names: Sequence[str]) -> str:
    """The parameters of a kernel, one a line."""
    lines = [f"  --arg {index}: {name}, {_describe(p)}" for index, (p, name) in enumerate(zip(parameters, names, strict=True))]
    return "\n".join([f"{entry} takes{' no arguments' if not lines else ':'}", *lines])


def _describe(parameter: Variable) -> str:
    if parameter.count != 1:
        return f"a struct of {parameter.size} bytes"
    if parameter.type[0] == "f":
        return f"a {parameter.size * 8}-bit float"
    if parameter.size == 8:
        return "a pointer or a 64-bit value"
    return f"a {parameter.size * 8}-bit value"
