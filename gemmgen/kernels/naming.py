"""Names and digests of instances, and which architectures a spec can be compiled for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache

from gemmgen.core.errors import Reason
from gemmgen.hardware.target import Architecture, architecture
from gemmgen.kernels.family import KernelSpec

NAME_DIGITS = 8
"""Hexadecimal digits of the spec's digest in a name."""


@lru_cache(maxsize=1024)
def spec_digest(spec: KernelSpec) -> str:
    """SHA-256, in hex, of everything in the spec that decides the kernel; the description does not."""
    return hashlib.sha256(json.dumps(spec.identity(), sort_keys=True).encode()).hexdigest()


def instance_name(prefix: str, parts: Sequence[str], spec: KernelSpec) -> str:
    """A C identifier: the spec's label or ``prefix``, then ``parts``, the oldest architecture and a short digest."""
    architecture_part = spec.architecture.replace("_", "")
    return "_".join([spec.label or prefix, *parts, architecture_part, spec_digest(spec)[:NAME_DIGITS]])


def architecture_reasons(spec: KernelSpec, target: Architecture) -> list[Reason]:
    """Reasons against compiling the spec for ``target``: it is older, or the spec asks for features of one architecture only."""
    oldest = architecture(spec.architecture)
    if oldest.name.endswith("a"):
        fits, need = target.name == oldest.name, f"{oldest.name}; its instructions exist on no other architecture"
    else:
        fits = target.compute_capability >= oldest.compute_capability
        need = f"{oldest.name} or newer"
    return [] if fits else [Reason("architecture", "architecture", target.name, need)]


def launch_reasons(early: bool, spec: KernelSpec, field: str = "early_launch") -> list[Reason]:
    """A reason against launches that come early, where the spec's architecture has none."""
    if not early or architecture(spec.architecture).supports("programmatic_launch"):
        return []
    need, hint = "an architecture with programmatic launches", "architecture: sm_90"
    return [Reason("early_launch", field, f"true on {spec.architecture}", need, hint)]
