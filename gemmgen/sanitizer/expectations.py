"""Expected contents of an array after a launch."""

from __future__ import annotations

import runpy
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmgen.core.text import printable
from gemmgen.sanitizer.arguments import KernelArgument, parse_argument
from gemmgen.sanitizer.array_files import load_array
from gemmgen.sanitizer.findings import Finding
from gemmgen.sanitizer.source import UnusableInput

if TYPE_CHECKING:
    import numpy.typing as npt

Expectation = Any
"""An array of numbers, or a function from the arrays that were given, by name, to one."""

_SHOWN = 400
"""Longest quotation of an error in the user's code, in characters."""


def parse_expectation(text: str, array: KernelArgument) -> Expectation:
    """`@file.npy`, a filling such as `zeros`, or `file.py:function`, whose file is run. Raises ``UnusableInput``."""
    if text.startswith("@"):
        try:
            return load_array(text[1:])
        except ValueError as error:
            raise UnusableInput(f"--expect {text!r}: {error}") from None
    file, _, name = text.rpartition(":")
    if file.endswith(".py"):
        function = _run(text, file).get(name)
        if not callable(function):
            raise UnusableInput(f"--expect {text!r}: {file} has no function {name}")
        return function
    shape = ",".join(map(str, array.value.shape))
    return parse_argument(f"{array.type}[{shape}]={text}", 0).numbers()


def _run(text: str, file: str) -> dict[str, Any]:
    """Names that a Python file defines. Raises ``UnusableInput`` with any error of the file."""
    try:
        if not Path(file).is_file():
            raise UnusableInput(f"--expect {text!r}: there is no file {file}")
        return runpy.run_path(file)
    except UnusableInput:
        raise
    except (Exception, SystemExit) as error:
        raise UnusableInput(f"--expect {text!r}: {file} cannot be run: {_told(error, file)}") from None


def compare(
    name: str, arrays: Mapping[str, KernelArgument], given: Mapping[str, KernelArgument], wanted: Expectation, rtol: float, atol: float
) -> Finding | None:
    """The finding that an array has an unexpected value; None if it is. Raises ``UnusableInput``."""
    import numpy as np

    expected = _call(wanted, given) if callable(wanted) else np.asarray(wanted)
    got = arrays[name].numbers()
    if expected.dtype.kind not in "biufc":
        raise UnusableInput(f"--expect: {name} is expected to hold {expected.dtype}; need numbers")
    if expected.size != got.size:
        raise UnusableInput(f"--expect: {name} has {got.size} elements, the expected array {expected.size}")
    flat, reference = got.reshape(-1), expected.reshape(-1)
    wrong = np.flatnonzero(~np.isclose(flat, reference, rtol=rtol, atol=atol, equal_nan=True))
    if not wrong.size:
        return None
    first = int(wrong[0])
    message = f"{name}[{first}] is {flat[first]}, expected {reference[first]}; {wrong.size} of {flat.size} elements differ"
    return Finding("wrong-result", "wrong result", "error", message, (), f"{name}[{first}]", int(wrong.size), f"wrong result: {message}")


def _call(function: Callable[..., object], given: Mapping[str, KernelArgument]) -> npt.NDArray[Any]:
    """Result of the user's function as an array. Raises ``UnusableInput`` with any error of the function."""
    import numpy as np

    try:
        result = function({name: argument.numbers() for name, argument in given.items()})
        if isinstance(result, np.ma.MaskedArray):
            raise ValueError("it gave a masked array; give filled() with a value")
        return np.asarray(result)
    except (Exception, SystemExit) as error:
        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        raise UnusableInput(f"--expect: {getattr(function, '__name__', 'the function')} failed: {_told(error, file)}") from None


def _told(error: BaseException, file: str) -> str:
    """A user's own error in a line, with the line of the user's file where it arose."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    for frame, number in traceback.walk_tb(error.__traceback__):
        line = number if frame.f_code.co_filename == file else line
    where = f"line {line}: " if line else ""
    return printable(f"{where}{type(error).__name__}: {error}", _SHOWN)
