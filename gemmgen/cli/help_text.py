"""Help at any width: long lines that click does not wrap, such as examples and lists, continue on further lines."""

from __future__ import annotations

import re
import textwrap

import click

CONTINUATION = 6
"""Columns by which the continuation of an example is indented."""


class HelpFormatter(click.HelpFormatter):
    """click's formatter, with a hanging indent for long lines of lists and a backslash at the ends of long commands."""

    def write_text(self, text: str) -> None:
        inner = click.HelpFormatter(width=self.width)
        inner.current_indent = self.current_indent
        inner.write_text(text)
        for line in inner.getvalue().splitlines():
            self.write("\n".join(continued(line, self.width)) + "\n")


class HelpContext(click.Context):
    """Context of a command whose help is written by ``HelpFormatter``."""

    formatter_class = HelpFormatter


class Group(click.Group):
    """A group whose help shows the whole summary of each command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit=1000)) for name, command in sorted(self.commands.items())])


def continued(line: str, width: int) -> list[str]:
    """A line in pieces of at most ``width`` columns, as far as its words allow."""
    if len(line) <= width:
        return [line]
    indent = len(line) - len(line.lstrip())
    if line.strip().startswith(("gemmgen ", "--")):
        return _command(re.split(r" (?=--)", line.strip()), indent, width)
    entry = re.match(r"\s*\S+\s{2,}", line)
    hanging = entry.end() if entry is not None else indent
    return textwrap.wrap(line.strip(), width, initial_indent=" " * indent, subsequent_indent=" " * hanging, break_long_words=False)


def _command(options: list[str], indent: int, width: int) -> list[str]:
    """A command in lines that a shell takes as one; it is divided before options only, never within quotes."""
    beginning = indent + (0 if options[0].startswith("--") else CONTINUATION - 2)
    lines = [" " * indent + options[0]]
    for option in options[1:]:
        if len(lines[-1]) + 1 + len(option) <= width - 2:
            lines[-1] += f" {option}"
        else:
            lines.append(" " * beginning + option)
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]
