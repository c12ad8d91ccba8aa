"""Commands and options that messages name: each is one of the command line's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

import gemmgen
from gemmgen.cli import cli

PACKAGE = Path(gemmgen.__file__).parent
PROSE = re.compile(
    "can|cannot|certificate|does|everywhere|evidence|finds|for|got|holds|installed|is|kernel|made|manifest|reads|rendered|that|turns|with|writes"
)
"""Words behind the program's name that go on with a sentence about it."""
OPTION = re.compile(r"(?<![\w=-])--[a-z][a-z0-9-]*")
COMMAND = re.compile(r"\bgemmgen ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?")
OF_OTHERS = {"--tool", "--option", "--gpu-architecture", "--generate-code", "--gpu-code", "--cudart", "--dryrun", "--no-compress"}


@cache
def commands() -> dict[tuple[str, ...], click.Command]:
    def below(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
        yield path, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from below(found, (*path, name))

    return dict(below(cli, ()))


def options(command: click.Command) -> set[str]:
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}


def texts(source: str) -> list[str]:
    """Literal strings, with ``{}`` where something is put in; documentation of code that is no command's is left out."""
    tree = ast.parse(source)
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in ast.walk(node)} - {id(node)}
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def unknown(text: str) -> list[str]:
    """Everything that a message names and the command line does not have."""
    tree, wrong = commands(), []
    named: list[tuple[int, click.Command]] = []
    for match in COMMAND.finditer(text):
        first, second = match.groups()
        if (first,) not in tree:
            wrong += [] if PROSE.fullmatch(first) else [f"gemmgen {first}"]
            continue
        command = tree[first,]
        if isinstance(command, click.Group) and second is not None:
            wrong += [] if (first, second) in tree else [match[0]]
            command = tree.get((first, second), command)
        named.append((match.start(), command))
    if not named and (text.startswith("-") or " " not in text):
        return wrong  # an argument of another program
    every = set().union(*(options(command) for command in tree.values())) | OF_OTHERS
    for match in OPTION.finditer(text):
        before = [
            command for place, command in named if place < match.start() and not re.search(r"[;.,(] |: ", text[place : match.start()])
        ]
        if match[0] not in (options(before[-1]) | OF_OTHERS if before else every):
            wrong.append(match[0])
    return wrong


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_messages_name_what_there_is(path: Path) -> None:
    assert [(text, wrong) for text in texts(path.read_text()) if (wrong := unknown(text))] == []


def test_help_names_what_there_is() -> None:
    told = {
        path: f"{command.help} {' '.join(str(getattr(one, 'help', '')) for one in command.params)}" for path, command in commands().items()
    }
    assert {path: wrong for path, text in told.items() if (wrong := unknown(text))} == {}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("run it by gemmgen tune --backend emulator", ["--backend"]),
        ("gemmgen library chek shows it", ["gemmgen library chek"]),
        ("gemmgen verfy shows it", ["gemmgen verfy"]),
        ("take --bakend instead", ["--bakend"]),
        ("gemmgen verify --backend emulator runs it", []),
    ],
)
def test_what_there_is_not_is_found(text: str, wrong: list[str]) -> None:
    assert unknown(text) == wrong
