"""From a name, a file or a spec to its plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gemmgen.hardware.cpu import CpuArchitecture, cpu_architecture
from gemmgen.hardware.target import Architecture
from gemmgen.hardware.target import architecture as find_architecture
from gemmgen.kernels import PROCESSOR_KINDS, family_of
from gemmgen.kernels.family import InstancePlan, KernelSpec
from gemmgen.kernels.spec_files import load_spec

SpecSource = KernelSpec | InstancePlan | Mapping[str, object] | str | Path
"""Every way to name an instance: a plan, a checked spec, a mapping of fields, the path of a YAML file, or the name of a
shipped spec."""


def plan(spec: SpecSource, architecture: str | Architecture | CpuArchitecture | None = None, overrides: Iterable[str] = ()) -> Any:
    """Every number of the kernel that ``spec`` describes, for ``architecture`` (the spec's own, if None): a plan of its family's type.

    Raises ``SpecError`` for a spec that cannot be read and ``PlanError``, with all reasons, for one that cannot work.
    """
    if isinstance(spec, InstancePlan):
        if architecture is None or _architecture(spec.spec, architecture) == spec.architecture:
            return spec
        checked: KernelSpec = spec.spec
    else:
        checked = spec if isinstance(spec, KernelSpec) else load_spec(spec, overrides)
    return family_of(checked).plan(checked, _architecture(checked, architecture or checked.architecture))


def _architecture(spec: KernelSpec, architecture: str | Architecture | CpuArchitecture) -> Any:
    if not isinstance(architecture, str):
        return architecture
    return cpu_architecture(architecture) if spec.kind in PROCESSOR_KINDS else find_architecture(architecture)
