"""A machine's part in a sweep: its compiler, and the GPU or the emulator that points run on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gemmgen.core.errors import EnvironmentMissing
from gemmgen.runtime.targets import PROCESSOR, target_of
from gemmgen.sweep.evaluation import Conditions
from gemmgen.sweep.file import SweepFile
from gemmgen.sweep.records import Stage, SweepError
from gemmgen.sweep.space import Space

if TYPE_CHECKING:
    from gemmgen.runtime.cuda import GpuDevice

EMULATOR = "PTX emulator on the CPU"


@dataclass(frozen=True)
class Machine:
    """Conditions that decide results besides the points."""

    compiler: str = ""
    backend: str = ""
    device: str = ""
    driver: str = ""
    architecture: str | None = None
    """The GPU's."""


def describe(request: tuple[str, Stage, str], enter: Callable[[Stage], None] = lambda stage: None) -> Machine:
    """This machine, for a backend (``auto``, ``gpu``, ``emulator``), a last stage and the kind of the specs.

    Raises ``EnvironmentMissing`` if the stage needs a missing tool or device.
    """
    backend, stage, kind = request
    enter(Stage.CHECK)
    if target_of(kind) is PROCESSOR:
        return _processor(backend, stage)
    device = _device(backend, stage)
    compiler = ""
    if stage is not Stage.CHECK:
        from gemmgen.toolchain.nvrtc import nvrtc_version

        compiler = "NVRTC {}.{}".format(*nvrtc_version())
    if stage.number < Stage.VERIFY.number:
        return Machine(compiler)
    if device is None:
        return Machine(compiler, "emulator", EMULATOR)
    if device.architecture is None:
        raise EnvironmentMissing(f"{device} is of an architecture that gemmgen does not know")
    return Machine(compiler, "gpu", device.name, str(device), device.architecture.name)


def _processor(backend: str, stage: Stage) -> Machine:
    from gemmgen.hardware.cpu import host_name
    from gemmgen.toolchain.host import find_compiler

    if backend != "auto":
        raise SweepError(f"--backend {backend} is for kernels of GPUs; these are for processors and run on this one")
    compiler = "" if stage is Stage.CHECK else find_compiler().version
    if stage.number < Stage.VERIFY.number:
        return Machine(compiler)
    return Machine(compiler, PROCESSOR.name, host_name())


@cache
def code_version() -> str:
    """The version of gemmgen with a digest of its code and templates: equal where the same spec has the same result."""
    from hashlib import sha256

    from gemmgen.core.resources import resource_directory
    from gemmgen.core.version import __version__

    digest = sha256()
    for folder, pattern in ((Path(__file__).parents[1], "*.py"), (resource_directory("templates"), "*.j2")):
        for path in sorted(folder.rglob(pattern)):
            digest.update(f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return f"{__version__} ({digest.hexdigest()[:12]})"


def conditions_of(space: Space, machine: Machine) -> Conditions:
    """Raises ``SweepError`` if the sweep's architectures do not exist or the GPU does not run them."""
    from gemmgen.hardware.cpu import cpu_architecture
    from gemmgen.hardware.target import architecture

    on_processor = target_of(space.kind) is PROCESSOR
    for name in space.file.architectures:
        if on_processor:
            cpu_architecture(name)
            continue
        chosen = architecture(name)
        if machine.architecture is not None and not architecture(machine.architecture).runs_cubins_of(chosen):
            raise SweepError(
                f"architectures: the {machine.device} ({machine.architecture}) does not run kernels compiled for {name}; "
                "sweep up to --stages compile, or with --backend emulator"
            )
    file: SweepFile = space.file
    return Conditions(
        space.stage,
        space.constraints,
        machine.compiler,
        machine.backend,
        machine.device,
        machine.driver,
        machine.architecture,
        file.cases,
        file.rounds,
        file.peer,
        () if space.stage is Stage.BENCH else tuple(map(tuple, file.sizes)),
    )


def gpu_environments() -> tuple[Mapping[str, str], ...]:
    """For each GPU like the first, the setting that makes a process see it alone."""
    from gemmgen.runtime.cuda import list_gpus

    devices = list_gpus()
    visible = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
    chosen = [device for device in devices if (device.name, device.sm_count) == (devices[0].name, devices[0].sm_count)]
    return tuple({"CUDA_VISIBLE_DEVICES": visible[device.ordinal] if visible else str(device.ordinal)} for device in chosen)


def _device(backend: str, stage: Stage) -> GpuDevice | None:
    """The GPU to run on; None: the emulator, or nothing runs."""
    if stage.number < Stage.VERIFY.number:
        return None
    if stage is Stage.BENCH and backend == "emulator":
        raise SweepError("the emulator does not tell how fast a kernel is: take --stages verify, or another --backend")
    if backend == "emulator":
        return None
    from gemmgen.runtime.cuda import gpu, gpu_available

    if backend == "auto" and stage is not Stage.BENCH and not gpu_available():
        return None
    try:
        return gpu()
    except EnvironmentMissing as error:
        hint = "; without one, a sweep can go up to --stages verify" if stage is Stage.BENCH else ""
        raise EnvironmentMissing(f"{error}{hint}") from None
