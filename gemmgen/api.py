"""The stations as functions: ``load_spec``, ``plan``, ``render``, ``compile``, ``verify``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

from gemmgen.codegen.rendering import Source
from gemmgen.codegen.rendering import render as _render
from gemmgen.core.errors import LaunchError, SpecError
from gemmgen.hardware.cpu import CpuArchitecture
from gemmgen.hardware.target import Architecture, Device
from gemmgen.hardware.target import architecture as find_architecture
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels import family_of
from gemmgen.kernels.family import Case, InstancePlan, KernelSpec
from gemmgen.kernels.planning import SpecSource
from gemmgen.kernels.planning import plan as _plan
from gemmgen.kernels.shipped import spec_path
from gemmgen.kernels.spec_files import load_spec as _load_spec

if TYPE_CHECKING:
    from gemmgen.dispatch.chosen import ChosenKernel
    from gemmgen.kernels.conv2d.results import FinishingPlan
    from gemmgen.kernels.conv2d.spec import Conv2dSpec
    from gemmgen.kernels.cpu_gemm.plan import CpuGemmPlan
    from gemmgen.kernels.cpu_gemm.spec import CpuGemmSpec
    from gemmgen.kernels.elementwise.plan import ElementwisePlan
    from gemmgen.kernels.elementwise.spec import ElementwiseSpec
    from gemmgen.kernels.gemm.plan import GemmPlan
    from gemmgen.kernels.gemm.spec import GemmSpec
    from gemmgen.kernels.reduction.plan import ReductionPlan
    from gemmgen.kernels.reduction.spec import ReductionSpec
    from gemmgen.runtime.backends import BackendName
    from gemmgen.runtime.kernel import Kernel
    from gemmgen.verification.runner import CaseResult, VerificationReport

__all__ = ["choose", "compile", "for_problem", "load_spec", "plan", "render", "verify"]


def for_problem(problem: str, device: str | Device | None = None, architecture: str | Architecture | None = None) -> InstancePlan:
    """Plan of the kernel that operations would launch for a problem: to render, verify, export or launch.

    Parameters
    ----------
    problem
        The problem in words, such as ``gemm:4096,11008,4096,nt,bf16,silu``.
    device
        The GPU's name, or a description of one; by default this machine's, or an H200.
    architecture
        The architecture to plan for; by default the device's.

    Returns
    -------
    InstancePlan
        A plan of the family's type.

    Raises
    ------
    SpecError
        If the text is not a valid problem.
    LaunchError
        If no kernel serves the problem; the message names the nearest problem that is served.
    """
    return choose(problem, device, architecture).plan


def choose(problem: str, device: str | Device | None = None, architecture: str | Architecture | None = None) -> ChosenKernel:
    """The kernel of ``for_problem``, with the dimensions of the launch and the record of the choice."""
    from gemmgen.dispatch.chosen import ChosenKernel, choose_kernel
    from gemmgen.dispatch.devices import problem_device
    from gemmgen.dispatch.problems import read_problem

    asked = read_problem(problem)
    if asked.for_processor:
        if device is not None or architecture is not None:
            raise SpecError(f"{asked.text} is chosen for this machine's processor, without a device or an architecture")
        from gemmgen.ops.native import native_plan

        planned = native_plan(asked.request)
        if asked.request.is_empty:
            raise SpecError(f"{asked.text}: the result is empty, so no kernel is launched")
        if planned is None:
            gpu = asked.text.replace("cpu:", "gemm:", 1)
            raise LaunchError(
                f"no kernel for processors serves {asked.text}: they multiply matrices of float32, one product in a launch, "
                f"without groups and scales; nearest: {gpu} on a GPU"
            )
        return ChosenKernel(asked, planned, family_of(planned.spec).problem(planned, asked.request.sizes))
    target = find_architecture(architecture) if isinstance(architecture, str) else architecture
    chosen_device = find_device(device) if isinstance(device, str) else device or problem_device(target)
    return choose_kernel(asked, chosen_device, target)


def load_spec(source: str | Path | Mapping[str, object], overrides: Iterable[str] = ()) -> KernelSpec:
    """A checked spec. With ``mainloop: auto``, that of the kernel that is chosen for the spec's problem.

    Parameters
    ----------
    source
        A YAML file, the name of a spec that ships with gemmgen (``gemm/v0_naive``), or a mapping of fields.
    overrides
        Texts ``path=value`` such as ``mainloop.tile.threadblock.k=16``, the value in YAML.

    Returns
    -------
    KernelSpec
        A spec of its family's type.

    Raises
    ------
    SpecError
        If the spec is invalid; the message lists every mistake.
    """
    from gemmgen.dispatch.auto_specs import auto_spec_in

    auto = auto_spec_in(source if isinstance(source, Mapping) else spec_path(source))
    return _load_spec(source, overrides) if auto is None else _load_spec(auto[0].model_dump(mode="json"), overrides)


@overload
def plan(spec: GemmSpec, architecture: str | Architecture | None = None, overrides: Iterable[str] = ()) -> GemmPlan: ...


@overload
def plan(spec: ReductionSpec, architecture: str | Architecture | None = None, overrides: Iterable[str] = ()) -> ReductionPlan: ...


@overload
def plan(spec: ElementwiseSpec, architecture: str | Architecture | None = None, overrides: Iterable[str] = ()) -> ElementwisePlan: ...


@overload
def plan(spec: Conv2dSpec, architecture: str | Architecture | None = None, overrides: Iterable[str] = ()) -> FinishingPlan: ...


@overload
def plan(spec: CpuGemmSpec, architecture: str | CpuArchitecture | None = None, overrides: Iterable[str] = ()) -> CpuGemmPlan: ...


@overload
def plan(
    spec: SpecSource, architecture: str | Architecture | CpuArchitecture | None = None, overrides: Iterable[str] = ()
) -> InstancePlan: ...


def plan(spec: SpecSource, architecture: str | Architecture | CpuArchitecture | None = None, overrides: Iterable[str] = ()) -> InstancePlan:
    """Every number of the kernel that a spec describes.

    Parameters
    ----------
    spec
        A spec, or an argument of ``load_spec``; or a plan, which is planned again if ``architecture`` differs from its own.
    architecture
        The architecture to plan for; by default the spec's own.
    overrides
        Texts ``path=value`` that change fields, as for ``load_spec``.

    Returns
    -------
    InstancePlan
        A plan of the family's type.

    Raises
    ------
    SpecError
        If the spec is invalid.
    PlanError
        If no kernel can be planned; the message lists every reason.
    """
    checked: KernelSpec | InstancePlan = spec if isinstance(spec, KernelSpec | InstancePlan) else load_spec(spec, overrides)
    planned: InstancePlan = _plan(checked, architecture)
    return planned


def render(spec: SpecSource) -> Source:
    """The source of an instance, one self-contained file. CUDA is the same for every architecture.

    Parameters
    ----------
    spec
        A spec or plan, as for ``plan``.

    Returns
    -------
    Source
        The text, and the file's name.

    Raises
    ------
    SpecError
        If the spec is invalid.
    PlanError
        If no kernel can be planned; the message lists every reason.
    """
    return _render(plan(spec))


def compile(spec: SpecSource, architecture: str | Architecture | None = None) -> Kernel:
    """The instance, compiled and ready to be launched on arrays. Needs no GPU; for a processor, a C compiler.

    Parameters
    ----------
    spec
        A spec or plan, as for ``plan``.
    architecture
        The architecture to compile for; by default the spec's own.

    Returns
    -------
    Kernel
        The compiled kernel, which is called on arrays.

    Raises
    ------
    SpecError
        If the spec is invalid.
    PlanError
        If no kernel can be planned; the message lists every reason.
    CompileError
        If the compiler rejects the source; the message contains its output.
    """
    from gemmgen.runtime.targets import target_of

    planned = plan(spec, architecture)
    return target_of(planned.spec.kind).load(planned)


def verify(
    spec: SpecSource,
    backend: BackendName = "auto",
    architecture: str | Architecture | None = None,
    cases: Sequence[Case] | None = None,
    progress: Callable[[CaseResult], None] | None = None,
    counters: bool = False,
) -> VerificationReport:
    """Runs the cases of an instance and compares every element with its reference.

    Parameters
    ----------
    spec
        A spec or plan, as for ``plan``.
    backend
        ``auto`` takes the GPU if there is one, else the emulator. Instances for a processor run on this machine's processor, regardless of
        ``backend``.
    architecture
        The architecture to verify; by default that of the backend, which on a GPU is the device's.
    cases
        The cases; by default the family's, and further ones.
    progress
        Called after each case.
    counters
        Adds the cost of one case to the report.

    Returns
    -------
    VerificationReport
        The result of each case.

    Raises
    ------
    SpecError
        If the spec is invalid.
    PlanError
        If no kernel can be planned; the message lists every reason.
    EnvironmentMissing
        If a GPU is requested and this machine has none.
    """
    from gemmgen.runtime.targets import target_of
    from gemmgen.verification.runner import verify_binary

    checked = spec if isinstance(spec, InstancePlan | KernelSpec) else load_spec(spec)
    target = target_of(checked.spec.kind if isinstance(checked, InstancePlan) else checked.kind)
    chosen = target.backend(backend)
    planned = plan(checked, architecture or chosen.architecture)
    binary = target.compile(planned)
    return verify_binary(planned, binary, chosen, cases=cases, progress=progress, counters=counters, extra=cases is None)
