"""The manifest of a library: the index of its instances, as plain data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gemmgen.core.errors import GemmgenError
from gemmgen.core.files import MAX_BYTES, read_plain

MANIFEST = "manifest.json"
MANIFEST_FORMAT = "gemmgen manifest"


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if it is missing or damaged."""
    try:
        return json.loads(read_plain(path, MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of the library in a folder. ``GemmgenError`` if there is none, or something else in its place."""
    data = read_json(folder / MANIFEST)
    if data is None:
        raise GemmgenError(f"{folder} holds no library: {MANIFEST} is missing or damaged; make it with: gemmgen library build")
    if not isinstance(data, dict) or data.get("format") != MANIFEST_FORMAT or not isinstance(data.get("instances"), list):
        raise GemmgenError(f"{folder / MANIFEST} is not a manifest of gemmgen's; make it anew with: gemmgen library build")
    return data
