"""The stations as functions: ``load_spec``, ``plan``, ``render``, ``compile``, ``verify``. The command line is made of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gemmgen.codegen.rendering import Source
from gemmgen.codegen.rendering import render as _render
from gemmgen.hardware.target import Architecture
from gemmgen.hardware.target import architecture as find_architecture
from gemmgen.kernels import family_of
from gemmgen.kernels.family import Case, KernelPlan, KernelSpec
from gemmgen.kernels.spec_files import load_spec

if TYPE_CHECKING:
    from gemmgen.runtime.backend import Backend
    from gemmgen.runtime.kernel import Kernel
    from gemmgen.toolchain.nvrtc import Binary
    from gemmgen.verification.runner import CaseResult, VerificationReport

__all__ = ["compile", "compile_plan", "find_backend", "load_spec", "plan", "render", "verify"]

SpecSource = KernelSpec | KernelPlan | Mapping[str, Any] | str | Path
"""Whatever names an instance: a plan, a checked spec, a mapping of fields, or the path of a YAML file."""

BackendName = Literal["auto", "emulator", "gpu"]


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


def render(spec: SpecSource) -> Source:
    """The CUDA source of an instance, one self-contained file. It is the same for every architecture."""
    return _render(plan(spec))


def compile(spec: SpecSource, architecture: str | Architecture | None = None) -> Kernel:
    """The instance, compiled for ``architecture`` and ready to be launched on arrays. Needs no GPU.

    Raises ``CompileError`` with the compiler's own words if it rejects the source.
    """
    from gemmgen.runtime.kernel import Kernel

    planned = plan(spec, architecture)
    return Kernel(planned.sequence, compile_plan(planned))


COMPILE_OPTIONS = ("--fmad=false",)
"""Multiplications and additions are fused only where the source says so, so that every backend computes the same bits."""


def compile_plan(planned: KernelPlan) -> Binary:
    """The binary of a plan, for the plan's architecture, through the user's compile cache."""
    from gemmgen.core.cache import Cache
    from gemmgen.toolchain.nvrtc import compile_source

    source = _render(planned)
    return compile_source(
        source.text,
        architecture=planned.architecture.name,
        options=COMPILE_OPTIONS,
        name=source.file_name,
        cache=Cache(),
    )


def verify(
    spec: SpecSource,
    backend: BackendName = "auto",
    architecture: str | Architecture | None = None,
    cases: Sequence[Case] | None = None,
    progress: Callable[[CaseResult], None] | None = None,
    counters: bool = False,
) -> VerificationReport:
    """Runs the family's cases of an instance and compares every element with its reference.

    ``backend``: ``auto`` takes the GPU if there is one, else the emulator. On a GPU the architecture is the device's.
    ``progress`` is called after each case; ``counters`` adds what one case costs to the report. Raises
    ``EnvironmentMissing`` if a GPU is asked for and there is none.
    """
    from gemmgen.verification.runner import verify_binary

    chosen = find_backend(backend)
    planned = plan(spec, architecture or chosen.architecture)
    return verify_binary(planned, compile_plan(planned), chosen, cases=cases, progress=progress, counters=counters)


def find_backend(name: BackendName = "auto", schedules: int = 1) -> Backend:
    """The backend of that name; ``auto``: the GPU if there is one, else the emulator.

    ``schedules``: the emulator runs every launch under so many interleavings of warps and blocks, which must agree.
    """
    from gemmgen.runtime.emulation import EmulatorBackend

    if name != "emulator":
        from gemmgen.runtime.cuda import GpuBackend, gpu_available

        if name == "gpu" or gpu_available():
            return GpuBackend()
    return EmulatorBackend(schedules=schedules)


def _architecture(architecture: str | Architecture) -> Architecture:
    return architecture if isinstance(architecture, Architecture) else find_architecture(architecture)
