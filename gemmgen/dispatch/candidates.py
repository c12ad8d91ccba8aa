"""The instances to choose from: those of the library, and the other shipped specs for problems that none of them serves."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gemmgen.core.errors import GemmgenError, SpecError
from gemmgen.core.resources import resource_directory
from gemmgen.kernels.family import KernelSpec
from gemmgen.kernels.manifest import read_manifest
from gemmgen.kernels.naming import spec_digest
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.kernels.spec_files import load_spec
from gemmgen.kernels.variants import matching, spec_name, split_variant
from gemmgen.kernels.yaml_files import read_yaml

POINT = "point/"
"""Beginning of the labels of points."""
_KIND = re.compile(r"^kind: (?P<kind>\w+)\s*(#.*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Candidate:
    """One instance that may be chosen."""

    label: str
    """Readable name, that of its spec: ``gemm/v3_double_buffer``."""
    spec: KernelSpec
    certified: frozenset[str] = frozenset()
    """Architectures for which the library holds a certificate."""
    name: str = ""
    """Name of its instance, if the library holds it as the spec is now."""

    @property
    def is_point(self) -> bool:
        """True for a point of a space, which no file lists."""
        return self.label.startswith(POINT)


@dataclass(frozen=True)
class _Built:
    """An instance of the library, as its manifest tells it."""

    name: str
    digest: str
    """Digest of the instance's spec."""
    architectures: frozenset[str]


@cache
def candidates(kind: str) -> tuple[Candidate, ...]:
    """The instances of a family that the library holds or lists, in the order of their labels; not those for readers alone."""
    listed = _listed()
    return _made(kind, {label for label in listed.keys() | _built().keys() if not listed.get(label)})


@cache
def reserves(kind: str) -> tuple[Candidate, ...]:
    """The other shipped specs of a family, for problems that none of the candidates serves."""
    known = {candidate.label for candidate in candidates(kind)}
    return _made(kind, shipped_specs().keys() - known)


def _made(kind: str, labels: Collection[str]) -> tuple[Candidate, ...]:
    shipped, built = shipped_specs(), {instance.digest: instance for instance in _built().values()}
    by_label: dict[str, Candidate] = {}
    for label in sorted(labels):
        spec = _read(shipped[label], kind) if label in shipped else None
        if spec is not None:
            digest = spec_digest(spec)
            instance = built.get(digest, _Built("", "", frozenset()))
            by_label.setdefault(digest, Candidate(label, spec, instance.architectures, instance.name))
    return tuple(by_label.values())


def _read(path: Path, kind: str) -> KernelSpec | None:
    """The spec in a file; None for those of other kinds, and for those that cannot be read."""
    try:
        # Most files state it on one line; the others are parsed completely.
        said = _KIND.search(split_variant(path)[0].read_text())
        spec = load_spec(path) if said is None or said["kind"] == kind else None
    except (OSError, ValueError, SpecError):
        return None
    return spec if spec is not None and spec.kind == kind else None


def _listed() -> dict[str, bool]:
    """Labels of the specs that the library's list names, whether they have been built or not, and whether they are for readers alone."""
    specs = resource_directory("specs")
    try:
        groups = read_yaml(specs / "library.yaml", "a list")["groups"]
        return {
            spec_name(path, specs): bool(group.get("for_readers"))
            for group in groups
            for pattern in group["specs"]
            for path in matching(specs, pattern)
        }
    except (GemmgenError, KeyError, TypeError, AttributeError):
        return {}


@cache
def _built() -> dict[str, _Built]:
    """For each instance of the library, by the label of its spec, its entry in the manifest; empty without one."""
    try:
        entries = read_manifest(resource_directory("generated"))["instances"]
        return {
            str(entry["spec_name"]): _Built(str(entry["name"]), str(entry["digests"]["spec"]), frozenset(map(str, entry["architectures"])))
            for entry in entries
        }
    except (GemmgenError, FileNotFoundError, KeyError, TypeError):
        return {}
