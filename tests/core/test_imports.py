"""Imports of the package: no circle between modules or between packages side by side, in any disguise."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def modules_below(root: Path) -> dict[str, Path]:
    """Every module of the package ``gemmgen`` below ``root``, by its dotted name."""
    paths = {".".join(path.relative_to(root).with_suffix("").parts): path for path in sorted((root / "gemmgen").rglob("*.py"))}
    return {name.removesuffix(".__init__"): path for name, path in paths.items()}


def statements(node: ast.Import | ast.ImportFrom, importer: str, is_package: bool) -> Iterator[str]:
    """Dotted names of an import statement; for a name that is imported from a module, the name itself as well."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    parts = importer.split(".")[: None if is_package else -1]
    start = parts[: len(parts) + 1 - node.level] if node.level else []
    yield from (".".join([*start, *([node.module] if node.module else []), alias.name]) for alias in node.names)


def is_call_of_import(node: ast.AST) -> bool:
    """True for a call that imports the module of a computed name."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
    return name in ("import_module", "__import__")


def beginning(text: ast.JoinedStr, importer: str) -> str:
    """The part of a format string before the first value that is unknown before it runs."""
    found = ""
    for part in text.values:
        if isinstance(part, ast.Constant):
            found += str(part.value)
        elif isinstance(part, ast.FormattedValue) and ast.unparse(part.value) == "__name__":
            found += importer
        else:
            break
    return found.rstrip(".")


def written_names(tree: ast.AST, importer: str) -> Iterator[str]:
    """Modules and packages that a module names in texts: ``gemmgen.room.module:function`` anywhere, any name if it imports by computed
    names, and the beginnings of such names."""
    calls = [node for node in ast.walk(tree) if is_call_of_import(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and str(node.value).startswith("gemmgen.") and (":" in node.value or calls):
            yield str(node.value).partition(":")[0]
    for call in calls:
        yield from (beginning(node, importer) for node in ast.walk(call) if isinstance(node, ast.JoinedStr))


def arrows(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """The modules that each one imports: at its top, within functions, for type checkers, or by a name in a text, which stands for
    all modules of a package that it names."""
    found: dict[str, set[str]] = {}
    for importer, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in statements(node, importer, path.name == "__init__.py")
        }
        targets = {name if name in modules else name.rpartition(".")[0] for name in names}
        for package in written_names(tree, importer):
            targets |= {module for module in modules if f"{module}.".startswith(f"{package}.")}
        found[importer] = targets & set(modules) - {importer}
    return found


def circle(graph: Mapping[str, Set[str]]) -> list[str]:
    """The nodes of one circle, in order; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def side_by_side(graph: Mapping[str, Set[str]], package: str) -> dict[str, set[str]]:
    """Arrows between the members of a package, modules of a package within it counted as that package."""
    depth = package.count(".") + 2

    def child(module: str) -> str:
        return ".".join(module.split(".")[:depth]) if module.startswith(f"{package}.") else ""

    found: dict[str, set[str]] = {}
    for module, targets in graph.items():
        found.setdefault(child(module), set()).update(map(child, targets))
    return {name: targets - {"", name} for name, targets in found.items() if name}


PACKAGES = sorted(name for name, path in modules_below(ROOT).items() if path.name == "__init__.py")


@cache
def graph_of_package() -> dict[str, set[str]]:
    return arrows(modules_below(ROOT))


def test_no_module_imports_itself_by_a_detour() -> None:
    assert len(graph_of_package()) > 400
    assert circle(graph_of_package()) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_side_by_side_forms_a_circle(package: str) -> None:
    assert circle(side_by_side(graph_of_package(), package)) == []


@pytest.mark.parametrize(
    "line",
    [
        "import gemmgen.b",
        "from gemmgen import b",
        "from gemmgen.b import name",
        "from . import b",
        "def late():\n    from .b import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import gemmgen.b",
        "import_module('gemmgen.b')",
        "CALLED = 'gemmgen.b:function'",
        "import_module(f'gemmgen.{name}')",
    ],
)
def test_a_circle_is_found_in_every_disguise(tmp_path: Path, line: str) -> None:
    (tmp_path / "gemmgen").mkdir()
    (tmp_path / "gemmgen" / "a.py").write_text(line)
    (tmp_path / "gemmgen" / "b.py").write_text("from gemmgen.a import other")
    assert set(circle(arrows(modules_below(tmp_path)))) == {"gemmgen.a", "gemmgen.b"}


def test_a_circle_of_packages_is_found() -> None:
    graph = {"gemmgen.a.one": {"gemmgen.b.one"}, "gemmgen.b.one": set[str](), "gemmgen.b.two": {"gemmgen.a.one"}}
    assert circle(graph) == []
    assert set(circle(side_by_side(graph, "gemmgen"))) == {"gemmgen.a", "gemmgen.b"}
