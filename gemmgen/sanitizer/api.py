"""``gemmgen.emulate``: a kernel on arrays, without a GPU, and its errors."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmgen.core.errors import GemmgenError
from gemmgen.sanitizer.arguments import KernelArgument, argument_of, check_arguments, check_count, within_memory
from gemmgen.sanitizer.findings import Finding
from gemmgen.sanitizer.front_end import CompileOptions
from gemmgen.sanitizer.launches import Dimensions, Launch, Run, Settings, run_launches, schedule_difference
from gemmgen.sanitizer.source import Entry, KernelCode, UnusableInput, find_entry, load_kernel, read_kernel_file
from gemmgen.sanitizer.structures import find_layout

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gemmgen.emulator.counters import Counters


class FindingsError(GemmgenError):
    """A launch with findings; `findings` are all of them."""

    exit_code = 1

    def __init__(self, message: str, findings: Sequence[Finding]) -> None:
        super().__init__(message)
        self.findings = tuple(findings)


@dataclass(frozen=True)
class Result:
    """Result of a launch. The arrays that were given are as they were; `arrays` holds the arrays after the launch, by parameter name."""

    entry: str
    """The kernel's name, as people write it."""
    arrays: dict[str, npt.NDArray[Any]] = field(repr=False)
    """Results by parameter name; `s.p` for the array behind a member, `rows[1]` for one of an array of pointers."""
    findings: tuple[Finding, ...]
    """Everything found, the worst first."""
    instructions: int
    """Instructions of threads."""
    counters: Counters | None = field(repr=False)
    """Memory traffic and instructions by source line, if asked for."""
    symbols: dict[str, npt.NDArray[Any]] = field(repr=False, default_factory=dict)
    """The bytes of the module's variables that were given, by their names in PTX."""
    output: str = field(repr=False, default="")
    """Text that the kernel printed."""

    @property
    def clean(self) -> bool:
        """True if there is no error among the findings; warnings and notes are none."""
        return all(finding.severity != "error" for finding in self.findings)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.arrays[name]

    def check(self) -> Result:
        """This result. Raises ``FindingsError`` with all messages if it is not clean."""
        if not self.clean:
            raise FindingsError("\n".join(str(finding) for finding in self.findings), self.findings)
        return self


def emulate(
    source: str | os.PathLike[str],
    entry: str | None = None,
    *,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[object] = (),
    shared_bytes: int = 0,
    cluster: int | Sequence[int] | None = None,
    symbols: Mapping[str, npt.NDArray[np.generic]] | None = None,
    architecture: str | None = None,
    include: Sequence[str | os.PathLike[str]] = (),
    define: Sequence[str] = (),
    options: Sequence[str] = (),
    debug: bool = False,
    strict: bool = False,
    hazards: bool = True,
    schedules: int = 0,
    seed: int = 0,
    counters: bool = False,
    jobs: int = 1,
    name: str | None = None,
    parameter_names: Sequence[str] | None = None,
) -> Result:
    """Runs a kernel on the CPU and reports every access that is wrong. The arrays stay as they are; ``Result.arrays`` has its results.

    Parameters
    ----------
    source
        CUDA or PTX, as a text or as the path of a file.
    entry
        The kernel's name in C++ (``"axpy<float>"``) or in PTX; None for the only one.
    grid, block
        Extents of the grid and of a block.
    args
        A value for each parameter: arrays (NumPy, or anything it can view), numbers, None for a null pointer, a mapping of members for a
        structure, a list of arrays for an array of pointers, bytes, or text as for ``gemmgen emulate --arg``;
        ``gemmgen.emulator.TensorMap`` and ``Texture`` over an array where the kernel takes a CUtensorMap or a texture.
    shared_bytes
        Dynamic shared memory of a block.
    cluster
        Blocks of a cluster.
    symbols
        Values of ``__constant__`` and ``__device__`` variables.
    architecture
        The architecture to compile for.
    include, define, options
        Folders of headers, macros, and further options of the compiler.
    debug
        Compile with debug information.
    strict
        Make errors of warnings and notes.
    hazards
        False: look for no races and no uninitialised reads, for speed.
    schedules, seed
        Also run under this number of random orders of warps, from ``seed`` on, which must leave the same bytes.
    counters
        Count memory traffic and instructions by source line.
    jobs
        Processes (copies of this one, on Linux) that share the blocks of a launch that takes long.
    name
        Name of a text in messages.
    parameter_names
        Names of the parameters, in place of those that PTX has.

    Returns
    -------
    Result
        The arrays after the launch, and the findings; faults of a launch are among these.

    Raises
    ------
    GemmgenError
        If nothing can be launched.
    """
    for what, number, least in (("schedules", schedules, 0), ("seed", seed, 0), ("jobs", jobs, 1), ("shared_bytes", shared_bytes, 0)):
        if _integer(number) is None or number < least:
            raise UnusableInput(f"{what} is {number!r}, need an integer of at least {least}")
    compiling = CompileOptions(architecture, _texts(include), _texts(define), _texts(options), debug)
    code = _load(source, compiling, entry, name)
    kernel = find_entry(code, entry)
    if parameter_names is not None and len(parameter_names) == len(kernel.parameters):
        kernel = replace(kernel, parameter_names=tuple(parameter_names))
    arguments = bind_arguments(code, kernel, args)
    blocks = None if cluster is None else _dimensions("cluster", cluster)
    launch = Launch(kernel, _dimensions("grid", grid), _dimensions("block", block), shared_bytes, kernel.parameter_names, blocks)
    given = dict(zip(kernel.parameter_names, arguments, strict=True))
    settings = Settings(strict=strict, hazards=hazards, counters=counters, jobs=jobs)
    run = run_launches(code, [launch], given, symbols or {}, None, settings)
    findings = run.findings
    if schedules and not run.failed:
        difference = schedule_difference(code, [launch], given, symbols or {}, settings, run, range(seed, seed + schedules))
        if difference:
            findings = (schedule_finding(difference), *findings)
    return _result(kernel.name, run, findings)


def _load(source: str | os.PathLike[str], compiling: CompileOptions, entry: str | None, name: str | None) -> KernelCode:
    if not isinstance(source, str | os.PathLike) or not str(source).strip():
        got = "an empty text" if isinstance(source, str) else type(source).__name__
        raise UnusableInput(f"the source is CUDA or PTX, as a text or as the path of a file; got {got}")
    is_path = isinstance(source, os.PathLike) or ("\n" not in source and "{" not in source and ";" not in source)
    if is_path:
        return read_kernel_file(Path(source), compiling, entry)
    return load_kernel(str(source), name or "kernel.cu", Path.cwd(), compiling, entry)


def bind_arguments(code: KernelCode, entry: Entry, args: Sequence[object]) -> list[KernelArgument]:
    """Arguments for the parameters of a kernel. Raises ``UnusableInput``."""
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise UnusableInput(f"args is a list with one value for each parameter, got {type(args).__name__}")
    check_count(entry.name, entry.parameters, entry.parameter_names, len(args))
    types = [*entry.parameter_types, *[""] * len(args)]
    arguments = within_memory(
        argument_of(value, index, c_type, partial(find_layout, code, c_type))
        for index, (value, c_type) in enumerate(zip(args, types, strict=False))
    )
    check_arguments(entry.name, entry.parameters, entry.parameter_names, arguments, entry.parameter_types)
    return arguments


def schedule_finding(told: str) -> Finding:
    """A result that depends on the order of warps, as a finding."""
    return Finding("schedule-dependent", "result depends on the schedule", "error", told, (), None, 1, told)


def _result(name: str, run: Run, findings: tuple[Finding, ...]) -> Result:
    arrays = {label: argument.value for label, argument in run.arrays().items()}
    return Result(name, arrays, findings, run.instructions, run.counters, run.symbols, run.output)


def _dimensions(name: str, sizes: int | Sequence[int]) -> Dimensions:
    given = sizes if isinstance(sizes, Sequence) and not isinstance(sizes, str) else [sizes]
    extents = [_integer(size) for size in given]
    if None in extents or not 1 <= len(extents) <= 3:
        raise UnusableInput(f"{name} is {sizes!r}, need one to three integers")
    return tuple(size for size in extents if size is not None)


def _integer(value: Any) -> int | None:
    """An integer of any library; None for other objects."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def _texts(values: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    return (str(values),) if isinstance(values, str | os.PathLike) else tuple(map(str, values))
