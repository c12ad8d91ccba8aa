"""The stations as functions: ``load_spec``, ``plan``, ``render``, ``compile``, ``verify``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gemmgen.codegen.rendering import Source
from gemmgen.codegen.rendering import render as _render
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.family import Case, InstancePlan, KernelPlan, KernelSpec
from gemmgen.kernels.planning import SpecSource, is_for_processors, plan
from gemmgen.kernels.spec_files import load_spec

if TYPE_CHECKING:
    from gemmgen.runtime.backends import BackendName
    from gemmgen.runtime.kernel import Kernel
    from gemmgen.verification.runner import CaseResult, VerificationReport

__all__ = ["compile", "load_spec", "plan", "render", "verify"]


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
    ``progress`` is called after each case; ``counters`` adds what one case costs to the report. Raises
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
