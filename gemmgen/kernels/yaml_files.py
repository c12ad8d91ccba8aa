"""YAML files as plain data; each mistake in one becomes a readable message."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from gemmgen.core import yaml_text
from gemmgen.core.errors import SpecError
from gemmgen.core.files import read_plain

_KINDS_OF_YAML = {"list": "list", "str": "line of text"}

_KEPT_TEXTS = 256
"""Parsed texts that are kept, because every variant of a table reads the same one."""


def read_yaml(path: Path, expected: str = "a spec is a YAML mapping (kind: gemm, ...)", text: bytes | None = None) -> dict[str, Any]:
    """The mapping that a YAML file holds; ``expected`` states the required contents, ``text`` is its text if that was read.

    Callers must not change the mapping. Raises ``SpecError`` if the file cannot be read or holds something else.
    """
    loaded = parse_yaml(read_text(path) if text is None else text, str(path))
    if not isinstance(loaded, dict):
        kind = "is empty" if loaded is None else f"holds a {_KINDS_OF_YAML.get(type(loaded).__name__, 'number')}"
        raise SpecError(f"{path}: {expected}, but this file {kind}")
    return loaded


def read_text(path: Path) -> bytes:
    """Content of a YAML file. Raises ``SpecError`` if it cannot be read."""
    try:
        if path.is_dir():
            raise SpecError(f"{path}: is a directory; name the YAML files in it")
        data = read_plain(path, yaml_text.MAX_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpecError(f"{path}: cannot be read: {reason}") from None
    if len(data) > yaml_text.MAX_BYTES:
        raise SpecError(f"{path}: larger than {yaml_text.MAX_BYTES} bytes, which no spec is")
    return data


def parse_yaml(data: bytes | str, name: str) -> Any:
    """Contents of a YAML text. Raises ``SpecError`` that begins with ``name`` if it is not valid, or has keys twice or aliases."""
    try:
        return _parsed(data)
    except yaml_text.YamlTextError as error:
        raise SpecError(f"{name}: {error}") from None


@lru_cache(_KEPT_TEXTS)
def _parsed(data: bytes | str) -> Any:
    return yaml_text.parse(data)


@lru_cache(8)
def positions(text: bytes) -> dict[tuple[str | int, ...], tuple[int, int]]:
    """Line and column of every value of a YAML text, see ``yaml_text.positions``."""
    return yaml_text.positions(text)
