"""The stations as functions: ``load_spec``, ``plan``, ``render``, ``compile``, ``verify``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmgen.codegen.rendering import Source
from gemmgen.codegen.rendering import render as _render
from gemmgen.core.errors import LaunchError, SpecError
from gemmgen.hardware.cpu import CpuArchitecture
from gemmgen.hardware.target import Architecture, Device
from gemmgen.hardware.target import architecture as find_architecture
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels import family_of
from gemmgen.kernels.family import Case, InstancePlan, KernelPlan, KernelSpec
from gemmgen.kernels.planning import SpecSource, is_for_processors
from gemmgen.kernels.planning import plan as _plan
from gemmgen.kernels.shipped import spec_path
from gemmgen.kernels.spec_files import load_spec as _load_spec

if TYPE_CHECKING:
    from gemmgen.dispatch.chosen import ChosenKernel
    from gemmgen.runtime.backends import BackendName
    from gemmgen.runtime.kernel import Kernel
    from gemmgen.verification.runner import CaseResult, VerificationReport

__all__ = ["choose", "compile", "for_problem", "load_spec", "plan", "render", "verify"]


def for_problem(problem: str, device: str | Device | None = None, architecture: str | Architecture | None = None) -> InstancePlan:
    """Plan of the kernel that operations would launch for ``problem``, such as ``gemm:4096,11008,4096,nt,bf16,silu``: to render, verify,
    export or launch.

    ``device``: the GPU's name, or a description of one; else this machine's, or an H200. Raises ``SpecError`` for a text that is no
    problem, ``LaunchError``, with the nearest problem that is served, if no kernel serves it.
    """
    return choose(problem, device, architecture).plan


def choose(problem: str, device: str | Device | None = None, architecture: str | Architecture | None = None) -> ChosenKernel:
    """As ``for_problem``, with the dimensions of the launch and the choice that the kernel came out of."""
    from gemmgen.dispatch.chosen import ChosenKernel, choose_kernel
    from gemmgen.dispatch.devices import problem_device
    from gemmgen.dispatch.problems import read_problem

    asked = read_problem(problem)
    if asked.for_processor:
        if device is not None or architecture is not None:
            raise SpecError(f"{asked.text} is chosen for this machine's processor, without a device or an architecture")
        from gemmgen.ops.native import native_plan

        planned = native_plan(asked.request)
        if planned is None:
            raise LaunchError(f"no kernel for processors serves {asked.text}: they multiply float32, without groups; nearest: gemm:")
        return ChosenKernel(asked, planned, family_of(planned.spec).problem(planned, asked.request.sizes))
    target = find_architecture(architecture) if isinstance(architecture, str) else architecture
    chosen_device = find_device(device) if isinstance(device, str) else device or problem_device(target)
    return choose_kernel(asked, chosen_device, target)


def load_spec(source: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> KernelSpec:
    """A checked spec from a YAML file, from the name of one that ships with gemmgen (``gemm/v0_naive``), or from a mapping. With
    ``mainloop: auto``, that of the kernel that is chosen for the spec's problem.

    ``overrides`` are ``path=value`` texts such as ``mainloop.tile.threadblock.k=16``, the value in YAML. Raises ``SpecError`` with
    every mistake that was found.
    """
    from gemmgen.dispatch.auto_specs import auto_spec_in

    found = auto_spec_in(source if isinstance(source, Mapping) else spec_path(source))
    return _load_spec(source, overrides) if found is None else _load_spec(found[0].model_dump(mode="json"), overrides)


def plan(spec: SpecSource, architecture: str | Architecture | CpuArchitecture | None = None, overrides: Iterable[str] = ()) -> Any:
    """Every number of the kernel that ``spec`` describes, for ``architecture`` (the spec's own, if None): a plan of its family's type.

    Raises ``SpecError`` for a spec that cannot be read and ``PlanError``, with all reasons, for one that cannot work.
    """
    return _plan(spec if isinstance(spec, KernelSpec | InstancePlan) else load_spec(spec, overrides), architecture)


def render(spec: SpecSource) -> Source:
    """The source of an instance, one self-contained file. CUDA is the same for every architecture."""
    return _render(plan(spec))


def compile(spec: SpecSource, architecture: str | Architecture | None = None) -> Kernel:
    """The instance, compiled for ``architecture`` and ready to be launched on arrays. Needs no GPU; for a processor, a C compiler.

    Raises ``CompileError`` with the compiler's own words if it rejects the source.
    """
    from gemmgen.runtime.kernel import Kernel
    from gemmgen.toolchain.compilation import compile_host_plan, compile_plan

    planned = plan(spec, architecture)
    if not isinstance(planned, KernelPlan):
        from gemmgen.runtime.native import NativeKernel

        return NativeKernel(planned.sequence, compile_host_plan(planned))
    return Kernel(planned.sequence, compile_plan(planned))


def verify(
    spec: SpecSource,
    backend: BackendName = "auto",
    architecture: str | Architecture | None = None,
    cases: Sequence[Case] | None = None,
    progress: Callable[[CaseResult], None] | None = None,
    counters: bool = False,
) -> VerificationReport:
    """Runs the family's cases of an instance, and further ones if ``cases`` is None, and compares every element with its reference.

    ``backend``: ``auto`` takes the GPU if there is one, else the emulator. On a GPU the architecture is the device's. Instances for a
    processor run on this one, whatever ``backend`` says.
    ``progress`` is called after each case; ``counters`` adds the cost of one case to the report. Raises
    ``EnvironmentMissing`` if a GPU is asked for and there is none.
    """
    from gemmgen.runtime.backends import find_backend
    from gemmgen.toolchain.compilation import compile_host_plan, compile_plan
    from gemmgen.verification.runner import verify_binary

    checked = spec if isinstance(spec, InstancePlan | KernelSpec) else load_spec(spec)
    if is_for_processors(checked.spec if isinstance(checked, InstancePlan) else checked):
        from gemmgen.runtime.native import NativeBackend

        planned = plan(checked, architecture)
        return verify_binary(planned, compile_host_plan(planned), NativeBackend(), cases=cases, progress=progress)
    chosen = find_backend(backend)
    planned = plan(checked, architecture or chosen.architecture)
    return verify_binary(planned, compile_plan(planned), chosen, cases=cases, progress=progress, counters=counters, further=cases is None)
