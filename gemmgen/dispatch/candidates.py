"""The instances to choose from: those of the library, and all other specs that come with gemmgen for what none of them can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gemmgen.core.errors import GemmgenError, SpecError
from gemmgen.core.resources import resource_directory
from gemmgen.kernels.family import KernelSpec
from gemmgen.kernels.manifest import read_manifest
from gemmgen.kernels.naming import spec_digest
from gemmgen.kernels.spec_files import load_spec, read_yaml


@dataclass(frozen=True)
class Candidate:
    """One instance that may be chosen."""

    label: str
    """Its name for people: the name of its spec, ``gemm/v3_double_buffer``."""
    spec: KernelSpec
    certified: frozenset[str] = frozenset()
    """Architectures for which the library holds a certificate."""


@cache
def candidates(kind: str) -> tuple[Candidate, ...]:
    """The instances of a family that the library holds or lists, in the order of their labels; not those for readers alone."""
    listed = _listed()
    to_choose: dict[str, frozenset[str]] = {label: frozenset() for label, for_readers in listed.items() if not for_readers} | _certified()
    return _made(kind, {label: certified for label, certified in to_choose.items() if not listed.get(label)})


@cache
def reserves(kind: str) -> tuple[Candidate, ...]:
    """The other specs of a family that come with gemmgen: for what none of the candidates can do."""
    specs = resource_directory("specs")
    labels = [path.relative_to(specs).with_suffix("").as_posix() for path in specs.rglob("*.yaml")]
    known = {candidate.label for candidate in candidates(kind)}
    certified = _certified()
    return _made(kind, {label: certified.get(label, frozenset()) for label in labels if label not in known})


def _made(kind: str, labels: Mapping[str, frozenset[str]]) -> tuple[Candidate, ...]:
    specs = resource_directory("specs")
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


def _listed() -> dict[str, bool]:
    """Labels of the specs that the library's list names, whether they have been built or not, and whether they are for readers alone."""
    specs = resource_directory("specs")
    try:
        groups = read_yaml(specs / "library.yaml", "a list")["groups"]
        return {
            path.relative_to(specs).with_suffix("").as_posix(): bool(group.get("for_readers"))
            for group in groups
            for pattern in group["specs"]
            for path in specs.glob(f"{pattern}.yaml")
        }
    except (GemmgenError, KeyError, TypeError, AttributeError):
        return {}


def _certified() -> dict[str, frozenset[str]]:
    """For each instance of the library, the label of its spec and the architectures that it is certified for; empty without one."""
    try:
        entries = read_manifest(resource_directory("generated"))["instances"]
        return {str(entry["spec_file"]).removesuffix(".yaml"): frozenset(map(str, entry["certificates"])) for entry in entries}
    except (GemmgenError, FileNotFoundError, KeyError, TypeError):
        return {}
