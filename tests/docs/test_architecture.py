"""The architecture page is true: the names on it exist, and its picture shows the contract of layers."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()


def named_modules(text: str) -> list[str]:
    """Modules and attributes of gemmgen between backquotes."""
    return sorted(set(re.findall(r"`(gemmgen(?:\.\w+)+)`", text)))


def named_paths(text: str) -> list[str]:
    """Files and folders of the repository between backquotes; those with a placeholder are left out."""
    return sorted(set(re.findall(r"`((?:gemmgen|templates|specs|tests|docs|measurements|generated)/[\w./-]*)`", text)))


def exists(name: str) -> bool:
    """True if a dotted name is a module, or an attribute of one."""
    try:
        if importlib.util.find_spec(name) is not None:
            return True
    except ModuleNotFoundError:
        pass
    module, _, attribute = name.rpartition(".")
    return hasattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", named_modules(PAGE))
def test_a_named_module_exists(name: str) -> None:
    assert exists(name)


@pytest.mark.parametrize("path", named_paths(PAGE) + named_paths(GUIDE))
def test_a_named_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_every_package_has_a_paragraph() -> None:
    packages = {path.parent.name for path in (ROOT / "gemmgen").glob("*/__init__.py")}
    assert {name for name in packages if f"**`gemmgen/{name}`**" not in PAGE} == set()


def test_the_picture_shows_the_contract() -> None:
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "docs" / "rooms.py")
    assert spec is not None and spec.loader is not None
    rooms = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rooms)
    assert rooms.picture() == (ROOT / "docs" / "rooms.svg").read_text(), "python docs/rooms.py draws it anew"
