"""``gemmgen cache``: the compile cache."""

from __future__ import annotations

from dataclasses import asdict

import click

from gemmgen.cli.help_text import Group
from gemmgen.cli.options import json_option
from gemmgen.cli.output import counted, print_json


@click.group("cache", cls=Group)
def command() -> None:
    """Look at the compile cache, or empty it. GEMMGEN_CACHE_DIR and GEMMGEN_CACHE_LIMIT move and bound it."""


@command.command("info")
@json_option
def info(as_json: bool) -> None:
    """Show the cache's location and contents."""
    from gemmgen.core.cache import Cache

    usage = Cache().info()
    if as_json:
        print_json({**asdict(usage), "directory": str(usage.directory)})
        return
    entries = f"{usage.entries} {'entry' if usage.entries == 1 else 'entries'}"
    click.echo(f"{usage.directory}: {entries}, {usage.size_bytes / 2**20:.1f} of {usage.limit_bytes / 2**20:.0f} MiB")
    if not usage.writable:
        click.echo("it cannot be written, or not by you alone, so kernels are compiled anew each time")


@command.command("clear")
def clear() -> None:
    """Remove every compiled kernel from the cache, and the templates that were compiled for rendering."""
    from gemmgen.codegen.compiled_templates import compiled_templates
    from gemmgen.core.cache import Cache

    compiled_templates().clear()
    click.echo(f"{counted(Cache().clear(), 'compiled kernel')} removed")
