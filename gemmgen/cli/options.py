"""Arguments and options that several commands have in common."""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Function], Function]


class Number(click.FloatRange):
    """A finite number within bounds, in ASCII."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. ``nan`` and ``inf``, which comparisons let through, are none."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number) or not str(value).isascii():
            self.fail(f"{value!r} is no number", param, ctx)
        return number


def complete_spec(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of gemmgen's own specs and YAML files that match the typed text; else the shell completes a path."""
    from gemmgen.kernels.shipped import shipped_specs

    folder = Path(incomplete if incomplete.endswith("/") else incomplete.rpartition("/")[0] or ".")
    names = [str(path) for path in sorted(folder.glob("*.yaml"))]
    names = [name for name in [*names, *shipped_specs()] if name.startswith(incomplete)]
    return [CompletionItem(name) for name in names] or [CompletionItem(incomplete, type="file")]


def complete_architecture(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of architectures."""
    from gemmgen.hardware.target import ARCHITECTURES

    names = [*ARCHITECTURES, ALL_ARCHITECTURES] if parameter.multiple else [*ARCHITECTURES]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_device(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of devices."""
    from gemmgen.hardware.target import DEVICES

    return [CompletionItem(name) for name in DEVICES if name.lower().startswith(incomplete.lower())]


def complete_override(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Paths of fields of the specs that are named, and their values."""
    return complete_field(_kinds(named_specs(context)), incomplete)


def complete_field(kinds: list[str], incomplete: str) -> list[CompletionItem]:
    """Paths of fields, ``mainloop.stages=``, and after the equals sign the values that a field lists; of all kinds if none is said."""
    from gemmgen.core.schema_fields import field_paths
    from gemmgen.kernels.spec_files import json_schema

    fields = field_paths(json_schema(), kinds)
    path, equals, value = incomplete.partition("=")
    if equals:
        return [CompletionItem(f"{path}={choice}") for choice in fields.get(path, ()) if choice.startswith(value)]
    return [CompletionItem(f"{known}=") for known in fields if known.startswith(incomplete)]


def named_specs(context: click.Context) -> list[str]:
    """The specs on a command line that is not complete: click leaves the words before an option without a value in ``args``."""
    params = context.params
    for given in (params.get("specs"), [params.get("spec")], [params.get("first")], context.args, params.get("names")):
        if given and given[0]:
            return list(given)
    return []


def _kinds(specs: Iterable[str]) -> list[str]:
    """Kinds of the specs that a command line names so far; empty if that cannot be said, and then all are meant."""
    from gemmgen.cli.selection import find_specs
    from gemmgen.core.errors import GemmgenError
    from gemmgen.kernels.spec_files import spec_fields

    try:
        return list(dict.fromkeys(str(spec_fields(file.path).get("kind")) for file in find_specs(specs)))
    except GemmgenError:
        return []


class NamedPath(click.Path):
    """A path with a name: an empty one, of an unset variable say, would mean the current folder."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        if value == "":
            self.fail("expected the name of a file or a directory, got an empty one", parameter, context)
        return super().convert(value, parameter, context)


NAMED_PATH = NamedPath(path_type=Path)

ALL_ARCHITECTURES = "all"

specs_argument: Decorator[Any] = click.argument("specs", metavar="SPEC...", nargs=-1, required=True, shell_complete=complete_spec)
specs_or_problem_argument: Decorator[Any] = click.argument("specs", metavar="[SPEC...]", nargs=-1, shell_complete=complete_spec)
set_option: Decorator[Any] = click.option(
    "overrides",
    "--set",
    metavar="PATH=VALUE",
    multiple=True,
    shell_complete=complete_override,
    help="Replace one field of the specs, for example mainloop.stages=1. Repeatable.",
)
json_option: Decorator[Any] = click.option("as_json", "--json", is_flag=True, help="Print JSON instead of a table.")


def architecture_option(help_text: str) -> Decorator[Any]:
    """``--arch`` with one value."""
    return click.option("architecture", "--arch", metavar="ARCH", shell_complete=complete_architecture, help=help_text)


def architectures_option(help_text: str) -> Decorator[Any]:
    """``--arch``, repeatable, with ``all``."""
    return click.option("architectures", "--arch", metavar="ARCH", multiple=True, shell_complete=complete_architecture, help=help_text)


MAX_SIZE = 2**62
"""Largest dimension that is parsed. Every kernel has a lower limit, and reports it itself."""


def _ascii_integer(text: str) -> int:
    """An integer of ASCII digits: ``int`` takes those of every script. Raises ``ValueError``."""
    if not text.isascii():
        raise ValueError
    return int(text)


def parse_size(text: str) -> tuple[int, ...]:
    """The numbers of ``4096,4096,64``. Raises ``UsageError``."""
    try:
        sizes = tuple(map(_ascii_integer, text.split(",")))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 0 or max(sizes) > MAX_SIZE:
        need = f"sizes must be whole numbers from 0 to {MAX_SIZE}, separated by commas, for example 4096,4096,4096"
        raise click.UsageError(f"--size {reprlib.repr(text)}: {need}")
    return sizes


def parse_dimensions(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """One to three sizes of a grid or a block, as a callback of an option."""
    if text is None:
        return None
    try:
        sizes = tuple(map(_ascii_integer, text.split(",")))
    except ValueError:
        sizes = ()
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise click.BadParameter(f"{text!r}: expected one to three positive numbers separated by commas, such as 4 or 4,2,1")
    return sizes


def usable_processors() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
