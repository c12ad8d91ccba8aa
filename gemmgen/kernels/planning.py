"""From whatever names an instance to its plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gemmgen.hardware.target import Architecture
from gemmgen.hardware.target import architecture as find_architecture
from gemmgen.kernels import family_of
from gemmgen.kernels.family import KernelPlan, KernelSpec
from gemmgen.kernels.spec_files import load_spec

SpecSource = KernelSpec | KernelPlan | Mapping[str, Any] | str | Path
"""Whatever names an instance: a plan, a checked spec, a mapping of fields, or the path of a YAML file."""


def plan(spec: SpecSource, architecture: str | Architecture | None = None, overrides: Iterable[str] = ()) -> KernelPlan:
    """Every number of the kernel that ``spec`` describes, for ``architecture`` (the spec's own, if None).

    Raises ``SpecError`` for a spec that cannot be read and ``PlanError``, with all reasons, for one that cannot work.
    """
    if isinstance(spec, KernelPlan):
        if architecture is None or _architecture(architecture) == spec.architecture:
            return spec
        checked: KernelSpec = spec.spec
    else:
        checked = spec if isinstance(spec, KernelSpec) else load_spec(spec, overrides)
    return family_of(checked).plan(checked, _architecture(architecture or checked.architecture))


def _architecture(architecture: str | Architecture) -> Architecture:
    return architecture if isinstance(architecture, Architecture) else find_architecture(architecture)
