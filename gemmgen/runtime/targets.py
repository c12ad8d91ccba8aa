"""Targets: GPUs and the host's processor, and all that lies between a plan and its results and differs between the two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from gemmgen.core.cache import Cache
from gemmgen.core.errors import CompileError
from gemmgen.kernels import PROCESSOR_KINDS

if TYPE_CHECKING:
    from gemmgen.hardware.cpu import CpuArchitecture
    from gemmgen.kernels.family import InstancePlan, KernelPlan
    from gemmgen.runtime.backend import Backend
    from gemmgen.runtime.backends import BackendName
    from gemmgen.runtime.kernel import Kernel


class Target(Protocol):
    """Compiles, loads and runs the instances of the kinds that are made for it."""

    @property
    def name(self) -> str:
        """``GPU`` or ``processor``."""

    def compile(self, plan: InstancePlan) -> Any:
        """The binary of a plan, through the user's cache. Raises ``CompileError``, or ``EnvironmentMissing`` without a compiler."""

    def compile_all(
        self, plans: Sequence[InstancePlan], line_info: bool = True, on_finished: Callable[[], None] | None = None
    ) -> list[Any]:
        """For each plan its binary or its ``CompileError``; ``on_finished`` is called after each one."""

    def load(self, plan: InstancePlan) -> Kernel:
        """The compiled instance, which is called on arrays."""

    def backend(self, name: BackendName = "auto", schedules: int = 1, progress: Callable[[int, int], None] | None = None) -> Backend:
        """The runner of the binaries; ``name``, ``schedules`` and ``progress`` choose among those for GPUs, as ``find_backend`` says."""

    def require(self, label: str, plan: InstancePlan) -> None:
        """Raises ``EnvironmentMissing`` that begins with ``label`` if no backend on this machine can run a plan's instance."""


class _Gpus:
    name = "GPU"

    def compile(self, plan: InstancePlan) -> Any:
        from gemmgen.toolchain.compilation import compile_plan

        return compile_plan(cast("KernelPlan", plan))

    def compile_all(
        self, plans: Sequence[InstancePlan], line_info: bool = True, on_finished: Callable[[], None] | None = None
    ) -> list[Any]:
        from gemmgen.codegen.rendering import render
        from gemmgen.toolchain.compilation import COMPILE_OPTIONS
        from gemmgen.toolchain.nvrtc import CompileJob, compile_many

        jobs = []
        for plan in plans:
            source = render(plan)
            jobs.append(CompileJob(source.text, plan.architecture.name, COMPILE_OPTIONS, source.file_name, line_info))
        return list(compile_many(jobs, cache=Cache(), on_finished=on_finished))

    def load(self, plan: InstancePlan) -> Kernel:
        from gemmgen.runtime.kernel import Kernel

        return Kernel(plan.sequence, self.compile(plan))

    def backend(self, name: BackendName = "auto", schedules: int = 1, progress: Callable[[int, int], None] | None = None) -> Backend:
        from gemmgen.runtime.backends import find_backend

        return find_backend(name, schedules, progress)

    def require(self, label: str, plan: InstancePlan) -> None:
        pass  # the emulator runs code for every architecture


class _Processor:
    name = "processor"

    def compile(self, plan: InstancePlan) -> Any:
        from gemmgen.toolchain.compilation import compile_host_plan

        return compile_host_plan(plan)

    def compile_all(
        self, plans: Sequence[InstancePlan], line_info: bool = True, on_finished: Callable[[], None] | None = None
    ) -> list[Any]:
        results = []
        for plan in plans:
            try:
                results.append(self.compile(plan))
            except CompileError as error:
                results.append(error)
            if on_finished is not None:
                on_finished()
        return results

    def load(self, plan: InstancePlan) -> Kernel:
        from gemmgen.runtime.native import NativeKernel

        return NativeKernel(plan.sequence, self.compile(plan))

    def backend(self, name: BackendName = "auto", schedules: int = 1, progress: Callable[[int, int], None] | None = None) -> Backend:
        from gemmgen.runtime.native import NativeBackend

        return NativeBackend()

    def require(self, label: str, plan: InstancePlan) -> None:
        from gemmgen.runtime.native import require_host

        require_host(label, cast("CpuArchitecture", plan.architecture))


GPUS: Target = _Gpus()
PROCESSOR: Target = _Processor()


def target_of(kind: object) -> Target:
    """The target of a kind of spec; GPUs for a kind that does not exist."""
    return PROCESSOR if kind in PROCESSOR_KINDS else GPUS
