"""The instances to choose from: those of the library, or all specs that come with gemmgen where no library was built."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gemmgen.errors import SpecError
from gemmgen.families.base import KernelSpec
from gemmgen.families.naming import spec_digest
from gemmgen.resources import resource_directory
from gemmgen.specs import load_spec


@dataclass(frozen=True)
class Candidate:
    """One instance that may be chosen."""

    label: str
    """What people call it: the name of its spec, ``gemm/v3_double_buffer``."""
    spec: KernelSpec
    certified: frozenset[str] = frozenset()
    """Architectures for which the library holds a certificate."""


@cache
def candidates(kind: str) -> tuple[Candidate, ...]:
    """All instances of a family, in the order of their labels."""
    specs, certified = resource_directory("specs"), _certified()
    labels = certified or {path.relative_to(specs).with_suffix("").as_posix(): frozenset[str]() for path in specs.rglob("*.yaml")}
    found: dict[str, Candidate] = {}
    for label in sorted(labels):
        spec = _read(specs / f"{label}.yaml")
        if spec is not None and spec.kind == kind:
            found.setdefault(spec_digest(spec), Candidate(label, spec, labels[label]))
    return tuple(found.values())


def _read(path: Path) -> KernelSpec | None:
    """The spec in a file; None for other YAML files that lie among the specs."""
    try:
        return load_spec(path)
    except SpecError:
        return None


def _certified() -> dict[str, frozenset[str]]:
    """For each instance of the library, the label of its spec and the architectures that it is certified for."""
    try:
        manifest: Any = json.loads((resource_directory("generated") / "manifest.json").read_text())
    except (OSError, ValueError):
        return {}
    found: dict[str, frozenset[str]] = {}
    entries = manifest.get("instances", []) if isinstance(manifest, Mapping) else []
    for entry in entries.values() if isinstance(entries, Mapping) else entries:
        if isinstance(entry, Mapping) and isinstance(entry.get("spec"), str):
            found[entry["spec"]] = frozenset(map(str, entry.get("architectures", ())))
    return found
