"""Kernel files as sides of a comparison: files rendered by gemmgen, edited or not, and any other CUDA kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemmgen.cli.selection import KERNEL_SUFFIXES
from gemmgen.core.errors import EnvironmentMissing, GemmgenError, SpecError
from gemmgen.core.files import read_plain_text

if TYPE_CHECKING:
    from gemmgen.hardware.target import Architecture, Device
    from gemmgen.perf.analysis.machine_code import KernelCode as MachineCode
    from gemmgen.present.comparison import Side
    from gemmgen.sanitizer.source import Entry, KernelCode


@dataclass(frozen=True)
class FileLaunch:
    """The kernel of a file that is meant, and a launch of it, whose counters are compared; without a grid it is not launched."""

    entry: str | None = None
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    shared_bytes: int = 0
    arguments: tuple[str, ...] = ()


def is_file_of_kernels(name: str) -> bool:
    """True of the name of a file of CUDA or PTX."""
    return Path(name).suffix in KERNEL_SUFFIXES


def file_side(name: str, launch: FileLaunch, target: Architecture, device: Device) -> Side:
    """The side of a file. One that gemmgen rendered has its spec in its head: it is compared like the spec, by the text that it has now."""
    path = Path(name)
    try:
        text = read_plain_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{name}: {getattr(error, 'strerror', None) or 'is not text'}") from None
    if path.suffix == ".cu":
        from gemmgen.codegen.rendering import spec_fields_in

        fields = spec_fields_in(text)
        if fields is not None:
            return _rendered_side(name, text, fields, target, device)
    return _other_side(path, text, launch, target)


def _rendered_side(name: str, text: str, fields: dict[str, object], target: Architecture, device: Device) -> Side:
    import gemmgen
    from gemmgen.core.cache import Cache
    from gemmgen.dispatch.prediction import predicted_seconds
    from gemmgen.kernels.family import KernelPlan
    from gemmgen.perf.analysis.report import analyse
    from gemmgen.present.comparison import instance_side
    from gemmgen.toolchain.compilation import COMPILE_OPTIONS
    from gemmgen.toolchain.nvrtc import compile_source

    plan = gemmgen.plan(fields, target)
    if not isinstance(plan, KernelPlan):
        raise click.UsageError("diff compares kernels of GPUs; gemmgen analyze shows those of processors")
    binary = compile_source(text, architecture=target.name, options=COMPILE_OPTIONS, name=Path(name).name, cache=Cache())
    missing = [launch.entry for launch in plan.sequence.launches if launch.entry not in binary.resources]
    if missing:
        raise SpecError(
            f"{name}: the spec in its head launches {missing[0]}, which the file does not have; rename it back, or remove the head"
        )
    rendered = gemmgen.render(plan).text
    # The model knows specs, not manual changes.
    seconds = predicted_seconds(plan, device) if text == rendered else None
    return instance_side(name, analyse(plan, binary, device), seconds, text)


def _other_side(path: Path, text: str, launch: FileLaunch, target: Architecture) -> Side:
    from gemmgen.present.comparison import Side, loop_of, mix_of
    from gemmgen.sanitizer.front_end import CompileOptions
    from gemmgen.sanitizer.source import find_entry, read_kernel_file

    assembled = path.suffix == ".cu"
    code = read_kernel_file(path, CompileOptions(target.name, assemble=True) if assembled else CompileOptions(), launch.entry)
    entry = find_entry(code, launch.entry)
    machine: dict[str, MachineCode] = {}
    missing = "" if assembled else f"{path} is PTX, which is not assembled"
    if assembled:
        from gemmgen.perf.analysis.machine_code import analyse_functions
        from gemmgen.toolchain.sass import disassemble, parse

        try:
            functions = analyse_functions(parse(disassemble(code.cubin, line_info=False)), target)
            machine = {name: one for name, one in functions.items() if name == entry.symbol}
        except EnvironmentMissing as error:
            missing = str(error)
    counters, case = _counted(code, entry, launch)
    return Side(
        label=str(path),
        name=entry.name,
        source=text,
        resources=_resources(code, entry, launch, target) | loop_of(machine.get(entry.symbol)),
        mix=mix_of(machine),
        counters=counters,
        case=case,
        missing=missing,
    )


def _resources(code: KernelCode, entry: Entry, launch: FileLaunch, target: Architecture) -> dict[str, float]:
    import math

    from gemmgen.hardware.target import occupancy
    from gemmgen.present.comparison import residency_of

    used = code.resources.get(entry.symbol)
    if used is None:
        return {}
    shared = used.static_shared_bytes + launch.shared_bytes
    threads = math.prod(launch.block) if launch.block else None
    fits = occupancy(target, threads, used.registers, shared) if threads else None
    return residency_of(used.registers, used.spill_stores + used.spill_loads, shared, threads, fits)


def _counted(code: KernelCode, entry: Entry, launch: FileLaunch) -> tuple[dict[str, float], str]:
    """Counters of the launch on the emulator, and the launch in words."""
    from gemmgen.present.comparison import counters_of
    from gemmgen.sanitizer.api import bind_arguments
    from gemmgen.sanitizer.launches import Launch, Settings, run_launches

    if launch.grid is None or launch.block is None:
        return {}, "not counted: --grid, --block and --arg launch it"
    given = dict(zip(entry.parameter_names, bind_arguments(code, entry, launch.arguments), strict=True))
    one = Launch(entry, launch.grid, launch.block, launch.shared_bytes, entry.parameter_names)
    run = run_launches(code, [one], given, {}, None, Settings(hazards=False, counters=True))
    if run.failed or run.counters is None:
        message = next((finding.message for finding in run.findings if finding.severity == "error"), "it cannot be launched")
        raise GemmgenError(f"{code.name}: {message.splitlines()[0]}\nfor details, run gemmgen emulate {code.name} with the same launch")
    return counters_of(run.counters), f"grid {_sizes(launch.grid)}, block {_sizes(launch.block)}"


def _sizes(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))
