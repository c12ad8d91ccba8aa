"""Public functions have types without ``Any``, and documentation in sections."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gemmgen
from gemmgen import ops

WITHOUT_ERRORS = {
    "gemmgen.ops.compile_in_background",
    "gemmgen.ops.Filter.tap_sums",
    "gemmgen.ops.Filter.ordered",
    "gemmgen.ops.SparseWeight",
    "gemmgen.Kernel",
}
"""Public names that raise nothing of their own."""
SECTION = r"^ *{}\n *-+$"


def public(module: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Names and functions of a package, with the methods of its classes."""
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value):
            yield f"{module.__name__}.{name}", value
            members = vars(value).items()
            yield from (
                (f"{module.__name__}.{name}.{member}", function)
                for member, function in members
                if inspect.isfunction(function) and (not member.startswith("_") or member == "__call__")
            )
        elif inspect.isfunction(value):
            yield f"{module.__name__}.{name}", value


FUNCTIONS = dict([*public(gemmgen), *public(ops)])


def signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function.__init__ if inspect.isclass(function) else function)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_say_what_is_taken_and_given(name: str) -> None:
    found = signature(FUNCTIONS[name])
    annotations = {parameter.name: str(parameter.annotation) for parameter in found.parameters.values() if parameter.name != "self"}
    annotations["return"] = str(found.return_annotation)
    assert [one for one, text in annotations.items() if re.search(r"\bAny\b|_empty", text)] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_documentation_has_every_parameter_result_and_error(name: str) -> None:
    function = FUNCTIONS[name]
    found, text = signature(function), inspect.cleandoc(function.__doc__ or "")
    parameters = [parameter for parameter in found.parameters.values() if parameter.name != "self"]
    words = set(re.findall(r"\w+", " ".join(re.findall(r"^[*\w, ]+$", text, re.MULTILINE))))
    assert [one.name for one in parameters if one.name not in words] == []
    assert bool(re.search(SECTION.format("Parameters"), text, re.MULTILINE)) == bool(parameters)
    returns = found.return_annotation not in ("None", None)
    assert bool(re.search(SECTION.format("Returns"), text, re.MULTILINE)) == returns
    assert bool(re.search(SECTION.format("Raises"), text, re.MULTILINE)) == (name not in WITHOUT_ERRORS)


@pytest.mark.parametrize("name", [name for name in ops.__all__ if name != "register_torch"])
def test_names_of_ops_are_found_when_they_are_first_used(name: str) -> None:
    value = getattr(ops, name)
    assert importlib.import_module(value.__module__).__name__.startswith("gemmgen.ops.")


def test_an_unknown_name_of_ops_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'matmull'"):
        _ = ops.matmull
