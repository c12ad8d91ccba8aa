"""Output of titled sections of (label, text) pairs."""

from __future__ import annotations

from collections.abc import Sequence

from gemmgen.cli.output import print_rich
from gemmgen.kernels.family import Section


def print_sections(name: str, sections: Sequence[Section]) -> None:
    """A heading, then the sections, their labels in one column."""
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [Text(name, style="bold cyan")]
    for section in sections:
        parts += [Text(""), Text(section.title, style="bold")]
        labelled = any(label for label, _ in section.lines)
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=2)
        if labelled:
            grid.add_column(style="cyan", overflow="fold", no_wrap=True)
        grid.add_column(overflow="fold")
        for label, text in section.lines:
            grid.add_row("", *([Text(label)] if labelled else []), Text(text))
        parts.append(grid)
    print_rich(Group(*parts))
