"""Expected contents of an array after a launch."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmgen.sanitizer.arguments import KernelArgument, parse_argument
from gemmgen.sanitizer.array_files import load_array
from gemmgen.sanitizer.findings import Finding
from gemmgen.sanitizer.source import UnusableInput

if TYPE_CHECKING:
    import numpy.typing as npt

Expectation = Any
"""An array of numbers, or a function from the arrays that were given, by name, to one."""


def parse_expectation(text: str, array: KernelArgument) -> Expectation:
    """`@file.npy`, a filling such as `zeros`, or `file.py:function`. Raises ``UnusableInput``."""
    if text.startswith("@"):
        try:
            return load_array(text[1:])
        except ValueError as error:
            raise UnusableInput(f"--expect {text!r}: {error}") from None
    file, _, name = text.rpartition(":")
    if file.endswith(".py"):
        if not Path(file).is_file():
            raise UnusableInput(f"--expect {text!r}: there is no file {file}")
        function = runpy.run_path(file).get(name)
        if not callable(function):
            raise UnusableInput(f"--expect {text!r}: {file} has no function {name}")
        return function
    shape = ",".join(map(str, array.value.shape))
    return parse_argument(f"{array.type}[{shape}]={text}", 0).numbers()


def compare(
    name: str, arrays: Mapping[str, KernelArgument], given: Mapping[str, KernelArgument], wanted: Expectation, rtol: float, atol: float
) -> Finding | None:
    """The finding that an array is not what it should be; None if it is."""
    import numpy as np

    if callable(wanted):
        wanted = _call(wanted, given)
    expected = np.asarray(wanted)
    got = arrays[name].numbers()
    if expected.size != got.size:
        raise UnusableInput(f"--expect: {name} has {got.size} elements, the expected array {expected.size}")
    flat, reference = got.reshape(-1), expected.reshape(-1)
    wrong = np.flatnonzero(~np.isclose(flat, reference, rtol=rtol, atol=atol, equal_nan=True))
    if not wrong.size:
        return None
    first = int(wrong[0])
    message = f"{name}[{first}] is {flat[first]}, expected {reference[first]}; {wrong.size} of {flat.size} elements differ"
    return Finding("wrong-result", "wrong result", "error", message, (), f"{name}[{first}]", int(wrong.size), f"wrong result: {message}")


def _call(function: Callable[..., Any], given: Mapping[str, KernelArgument]) -> npt.NDArray[Any]:
    import numpy as np

    return np.asarray(function({name: argument.numbers() for name, argument in given.items()}))
