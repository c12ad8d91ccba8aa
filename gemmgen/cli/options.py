"""Arguments and options that several commands have in common."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Function], Function]


def complete_spec(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of gemmgen's own specs and YAML files beside what was typed; else the shell completes a path."""
    from gemmgen.cli.selection import shipped_specs

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


class NamedPath(click.Path):
    """A path with a name: an empty one, of an unset variable say, would mean the current folder."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        if value == "":
            self.fail("expected the name of a file or a directory, got an empty one", parameter, context)
        return super().convert(value, parameter, context)


NAMED_PATH = NamedPath(path_type=Path)

ALL_ARCHITECTURES = "all"

specs_argument: Decorator[Any] = click.argument("specs", metavar="SPEC...", nargs=-1, required=True, shell_complete=complete_spec)
set_option: Decorator[Any] = click.option(
    "overrides", "--set", metavar="PATH=VALUE", multiple=True,
    help="Replace one field of the specs, for example mainloop.stages=1. Repeatable.",
)  # fmt: skip
json_option: Decorator[Any] = click.option("as_json", "--json", is_flag=True, help="Print JSON instead of a table.")


def architecture_option(help_text: str) -> Decorator[Any]:
    """``--arch`` with one value."""
    return click.option("architecture", "--arch", metavar="ARCH", shell_complete=complete_architecture, help=help_text)


def architectures_option(help_text: str) -> Decorator[Any]:
    """``--arch``, repeatable, with ``all``."""
    return click.option("architectures", "--arch", metavar="ARCH", multiple=True, shell_complete=complete_architecture, help=help_text)


LARGEST_SIZE = 2**62
"""Of a dimension: far beyond what any kernel takes, which then says so itself."""


def parse_size(text: str) -> tuple[int, ...]:
    """The numbers of ``4096,4096,64``. Raises ``UsageError``."""
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 0 or max(sizes) > LARGEST_SIZE:
        need = f"expected numbers up to {LARGEST_SIZE} separated by commas, for example 4096,4096,4096"
        raise click.UsageError(f"--size {reprlib.repr(text)}: {need}")
    return sizes
