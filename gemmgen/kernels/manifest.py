"""The manifest of a library: the index of its instances, as plain data."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

from gemmgen.core.errors import GemmgenError
from gemmgen.core.files import MAX_BYTES, read_plain

MANIFEST = "manifest.json"
MANIFEST_FORMAT = "gemmgen manifest"
_TEXTS = ("name", "spec_name", "kind", "group", "description", "source", "certificate")


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
    for number, entry in enumerate(data["instances"]):
        if not _is_entry(entry):
            raise GemmgenError(f"{folder / MANIFEST}: instance {number} is damaged; make it anew with: gemmgen library build")
    return data


def _is_entry(entry: object) -> bool:
    """True for an instance with the fields that its readers need, whose files lie in the library's folder."""
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in _TEXTS):
        return False
    names, digests = entry.get("architectures"), entry.get("digests")
    return (
        isinstance(names, list)
        and bool(names)
        and all(isinstance(name, str) for name in names)
        and isinstance(digests, dict)
        and all(isinstance(digest, str) for digest in digests.values())
        and not any(path.is_absolute() or ".." in path.parts for path in (PurePosixPath(entry[name]) for name in ("source", "certificate")))
    )
