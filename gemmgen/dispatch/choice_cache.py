"""Choices in the user's cache: a process that meets a problem again plans the kernels that were chosen for it, and no others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gemmgen.core.cache import Cache, cache_key
from gemmgen.core.errors import GemmgenError
from gemmgen.core.resources import resource_directory
from gemmgen.core.version import __version__
from gemmgen.dispatch.candidates import Candidate
from gemmgen.dispatch.model import PARAMETERS
from gemmgen.dispatch.table import Source, Table
from gemmgen.hardware.target import Architecture, Device
from gemmgen.kernels.requests import Request
from gemmgen.kernels.spec_files import load_spec

FORMAT = "choice 1"
FILE = "choice.json"
MAX_OPTIONS = 4
"""Options of a choice that are kept, the fastest: others can serve while the first is compiled."""
SOURCES = ("dispatch", "hardware", "kernels", "perf")
"""Packages whose code and data a choice follows from."""


@dataclass(frozen=True)
class CachedOption:
    """One option of a choice, without its plan."""

    candidate: Candidate
    seconds: float
    source: Source
    margin: float


def choice_key(table: Table | None, request: Request, device: Device, architecture: Architecture | None) -> str:
    """Key of a choice: the problem, the device, the table, and the package's code, specs and costs."""
    target = (device.name, device.sm_count, device.clock_hz, device.memory_roof, (architecture or device.architecture).name)
    return cache_key(FORMAT, __version__, _sources(), PARAMETERS.digest, "" if table is None else table.digest, repr(request), repr(target))


def load_choice(key: str) -> tuple[CachedOption, ...]:
    """The options that are kept under a key, fastest first; none if nothing is, or nothing that can be read."""
    files = Cache(quiet=True).load(key)
    try:
        rows = json.loads(files[FILE]) if files else []
        return tuple(_read_option(row) for row in rows[:MAX_OPTIONS])
    except (GemmgenError, ValueError, KeyError, TypeError, RecursionError):
        return ()


def store_choice(key: str, options: Sequence[CachedOption]) -> None:
    """Keeps the fastest options of a choice."""
    rows = [
        {
            "label": one.candidate.label,
            "name": one.candidate.name,
            "certified": sorted(one.candidate.certified),
            "spec": one.candidate.spec.model_dump(mode="json", exclude_unset=True),
            "seconds": one.seconds,
            "source": one.source,
            "margin": one.margin,
        }
        for one in options[:MAX_OPTIONS]
    ]
    Cache(quiet=True).store(key, {FILE: json.dumps(rows).encode()})


def _read_option(row: dict[str, Any]) -> CachedOption:
    candidate = Candidate(str(row["label"]), load_spec(row["spec"]), frozenset(map(str, row["certified"])), str(row["name"]))
    return CachedOption(candidate, float(row["seconds"]), row["source"], float(row["margin"]))


@cache
def _sources() -> str:
    """Digest of the names, sizes and times of the package's files that choices follow from."""
    package = Path(__file__).resolve().parents[1]
    lines = [line for name in SOURCES for line in _files(package / name)]
    for name in ("specs", "generated"):
        try:
            folder = resource_directory(name)
        except FileNotFoundError:
            continue
        lines += _files(folder) if name == "specs" else _stated(folder / "manifest.json")
    return cache_key(*lines)


def _files(folder: Path) -> Iterator[str]:
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if one != "__pycache__")
        for name in sorted(files):
            yield from _stated(Path(root) / name)


def _stated(path: Path) -> Iterator[str]:
    try:
        state = path.stat()
    except OSError:
        return
    yield f"{path} {state.st_size} {state.st_mtime_ns}"
