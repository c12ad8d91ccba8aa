"""``gemmgen emulate``: any kernel of the user's own, run on the emulator, with every error told."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemmgen.cli.counters import print_counters
from gemmgen.cli.kernel_arguments import KernelArgument, check_arguments, parse_argument
from gemmgen.cli.kernel_file import Entry, KernelFile, find_entry, read_kernel_file
from gemmgen.cli.options import complete_architecture, json_option
from gemmgen.cli.output import count, counted, print_json
from gemmgen.cli.selection import write_output
from gemmgen.core.errors import GemmgenError

if TYPE_CHECKING:
    from gemmgen.emulator import EmulatorError, LaunchResult, Schedule
    from gemmgen.emulator.counters import Counters

SHOWN_ELEMENTS = 16
"""How many elements --print shows unless told."""

Dimensions = tuple[int, ...]


def _parse_dimensions(context: click.Context, parameter: click.Parameter, text: str) -> Dimensions:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise click.BadParameter(f"{text!r}: expected one to three positive numbers separated by commas, such as 4 or 4,2,1")
    return sizes


@dataclass(frozen=True)
class _Run:
    """How one schedule ended: with a result, or with the error that stopped it."""

    arguments: list[KernelArgument]
    result: LaunchResult | None
    error: EmulatorError | None
    counters: Counters | None


@click.command("emulate")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("entry_name", "--entry", metavar="NAME", help="The kernel, as the source or the PTX calls it; else the only one.")
@click.option("--grid", required=True, metavar="X,Y,Z", callback=_parse_dimensions, help="Blocks of the launch.")
@click.option("--block", required=True, metavar="X,Y,Z", callback=_parse_dimensions, help="Threads of a block.")
@click.option(
    "argument_texts",
    "--arg",
    metavar="ARG",
    multiple=True,
    help="One for each parameter, in order: f32[1024]=random, f32[4] (unwritten), i32=7, null. Repeatable.",
)
@click.option("--shared", "shared_bytes", type=click.IntRange(min=0), default=0, metavar="BYTES", help="Dynamic shared memory of a block.")
@click.option(
    "--arch",
    "architecture",
    metavar="ARCH",
    shell_complete=complete_architecture,
    help="Architecture to compile CUDA for.  [default: sm_80]",
)
@click.option(
    "--include",
    "include_directories",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="Folder of headers. Repeatable; the file's own and the CUDA toolkit's are searched anyway.",
)
@click.option("--define", "definitions", metavar="NAME[=VALUE]", multiple=True, help="Define a macro. Repeatable.")
@click.option(
    "--schedules",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Also run N random interleavings of warps; the results must be equal.",
)
@click.option("--strict", is_flag=True, help="Warnings and notes are errors.")
@click.option("want_counters", "--counters", is_flag=True, help="Show memory traffic and instructions, by line.")
@click.option("printed", "--print", metavar="ARRAY[:COUNT]", multiple=True, help="Print an array afterwards, by name or position.")
@click.option("saved", "--save", metavar="ARRAY=FILE.npy", multiple=True, help="Save an array afterwards. Repeatable.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    file: Path,
    entry_name: str | None,
    grid: Dimensions,
    block: Dimensions,
    argument_texts: Sequence[str],
    shared_bytes: int,
    architecture: str | None,
    include_directories: Sequence[str],
    definitions: Sequence[str],
    schedules: int,
    strict: bool,
    want_counters: bool,
    printed: Sequence[str],
    saved: Sequence[str],
    as_json: bool,
) -> None:
    """Run a kernel of FILE (CUDA or PTX) without a GPU, and report every access that is wrong.

    An array is TYPE[LENGTH], and starts unwritten unless =zeros, =ones, =random, =range or =@file.npy fills it; a scalar is
    TYPE=VALUE. Types: f64 f32 f16 bf16, and i or s, and u, with 8, 16, 32 or 64 bits.

    Exits with 0 if the kernel is clean, 1 if it is not, 2 if it could not be run.

    \b
    gemmgen emulate saxpy.cu --grid 4 --block 256 \\
        --arg i32=1000 --arg f32=2.5 --arg 'f32[1000]=random' --arg 'f32[1000]=zeros' --print 3:8
    """  # fmt: skip
    from gemmgen.emulator import BadLaunch, EmulatorError, ParseError, RandomWarps, UnknownInstruction

    arguments = [parse_argument(text, index) for index, text in enumerate(argument_texts)]
    kernel = read_kernel_file(file, architecture, include_directories, definitions)
    try:
        entry = find_entry(kernel, entry_name)
        check_arguments(entry.name, entry.parameters, entry.parameter_names, arguments)
        shown = [_parse_print(text, entry, arguments) for text in printed]
        files = [_parse_save(text, entry, arguments) for text in saved]
        run = _launch(kernel, entry, grid, block, shared_bytes, arguments, None, strict, want_counters)
        problem = str(run.error) if run.error is not None else ""
        for seed in range(schedules if not problem else 0):
            other = _launch(kernel, entry, grid, block, shared_bytes, arguments, RandomWarps(seed), strict, False)
            problem = _compare(run, other, entry, seed)
            if problem:
                break
    except (BadLaunch, ParseError, UnknownInstruction) as error:
        raise GemmgenError(f"{file}: {error}") from None
    except EmulatorError as error:
        raise AssertionError("an error of a launch is part of its run") from error
    for index, path in files:
        _save(run.arguments[index], path)
    if as_json:
        print_json(_to_json(kernel, entry, run, problem, [(index, limit) for index, limit in shown]))
    else:
        _print_run(file, entry, run, problem, schedules)
        for index, limit in shown:
            _print_array(entry.parameter_names[index], run.arguments[index], limit)
        if run.counters is not None:
            click.echo()
            print_counters(run.counters)
    if problem:
        context.exit(1)


def _launch(
    kernel: KernelFile, entry: Entry, grid: Dimensions, block: Dimensions, shared_bytes: int, given: Sequence[KernelArgument],
    schedule: Schedule | None, strict: bool, want_counters: bool,
) -> _Run:  # fmt: skip
    """One launch on memory of its own. Raises what says that the launch itself is impossible."""
    from gemmgen import emulator
    from gemmgen.emulator.counters import CounterObserver
    from gemmgen.emulator.launch import SHARED_LIMIT
    from gemmgen.hardware.target import ARCHITECTURES

    arguments = [argument.fresh() for argument in given]
    observer = CounterObserver() if want_counters else None
    known = ARCHITECTURES.get(kernel.architecture)
    result = error = None
    try:
        result = emulator.launch(
            kernel.ptx,
            entry.symbol,
            grid=grid,
            block=block,
            shared_bytes=shared_bytes,
            args=[_value(argument, name) for argument, name in zip(arguments, entry.parameter_names, strict=True)],
            source=kernel.source,
            observers=[observer] if observer is not None else [],
            schedule=schedule,
            shared_limit=known.shared_bytes_per_block if known is not None else SHARED_LIMIT,
            hazards=True,
            strict=strict,
        )
    except (emulator.BadLaunch, emulator.ParseError, emulator.UnknownInstruction):
        raise
    except emulator.EmulatorError as caught:
        error = caught
    return _Run(arguments, result, error, observer.counters(kernel.source or "") if observer is not None else None)


def _value(argument: KernelArgument, name: str) -> Any:
    import numpy as np

    from gemmgen.emulator import Buffer

    if not argument.is_array:
        return argument.value
    written = None if argument.initialised else np.zeros(argument.value.nbytes, np.bool_)
    return Buffer(argument.value, offset_bytes=0, name=name, written=written)


def _compare(first: _Run, other: _Run, entry: Entry, seed: int) -> str:
    """How a run under another schedule differs; empty if it does not."""
    import numpy as np

    if other.error is not None:
        return f"under schedule {seed}: {other.error}"
    for name, left, right in zip(entry.parameter_names, first.arguments, other.arguments, strict=True):
        if not left.is_array:
            continue
        bits = f"u{left.value.itemsize}"
        differs = np.flatnonzero(left.value.reshape(-1).view(bits) != right.value.reshape(-1).view(bits))
        if len(differs):
            at = int(differs[0])
            one, two = left.numbers().reshape(-1)[at], right.numbers().reshape(-1)[at]
            return (
                f"the result depends on the order of warps: {name}[{at}] is {one} in program order and {two} under schedule "
                f"{seed}; {len(differs)} of {left.value.size} elements differ"
            )
    return ""


def _find_array(what: str, token: str, entry: Entry, arguments: Sequence[KernelArgument]) -> int:
    names = list(entry.parameter_names)
    if token in names:
        index = names.index(token)
    elif token.isdecimal() and int(token) < len(names):
        index = int(token)
    else:
        raise click.UsageError(f"{what}: {entry.name} has no parameter {token!r}; it has {', '.join(names) or 'none'}, counted from 0")
    if not arguments[index].is_array:
        raise click.UsageError(f"{what}: {token} is no array but {arguments[index].text!r}")
    return index


def _parse_print(text: str, entry: Entry, arguments: Sequence[KernelArgument]) -> tuple[int, int]:
    token, _, limit = text.partition(":")
    if limit and not limit.isdecimal():
        raise click.UsageError(f"--print {text!r}: {limit!r} is no number of elements")
    return _find_array(f"--print {text!r}", token, entry, arguments), int(limit) if limit else SHOWN_ELEMENTS


def _parse_save(text: str, entry: Entry, arguments: Sequence[KernelArgument]) -> tuple[int, Path]:
    token, _, name = text.partition("=")
    if not name:
        raise click.UsageError(f"--save {text!r}: expected ARRAY=FILE.npy, for example 2=out.npy")
    return _find_array(f"--save {text!r}", token, entry, arguments), Path(name)


def _save(argument: KernelArgument, path: Path) -> None:
    import numpy as np

    stream = io.BytesIO()
    np.save(stream, argument.value, allow_pickle=False)
    write_output(path, stream.getvalue())


def _print_run(file: Path, entry: Entry, run: _Run, problem: str, schedules: int) -> None:
    if problem:
        click.echo(f"{click.style('not clean', fg='red', bold=True)}  {entry.name} in {file}\n")
        click.echo(problem)
        return
    assert run.result is not None
    grid, block = (",".join(map(str, size)) for size in (run.result.grid, run.result.block))
    agree = f"; {counted(schedules, 'random schedule')} gave the same result" if schedules else ""
    click.echo(f"{click.style('clean', fg='green')}  {entry.name} in {file}{agree}")
    click.echo(
        f"grid ({grid}), block ({block}), {count(run.result.shared_bytes)} bytes of shared memory, "
        f"{counted(run.result.total_instructions, 'instruction')} of threads"
    )
    for finding in run.result.findings:
        click.echo(f"\n{finding}")


def _print_array(name: str, argument: KernelArgument, limit: int) -> None:
    numbers = argument.numbers().reshape(-1)
    rest = f", ... {count(numbers.size - limit)} more" if numbers.size > limit else ""
    kind = f"{argument.type}[{','.join(map(str, argument.value.shape))}]"
    click.echo(f"{name} ({kind}): {', '.join(str(number) for number in numbers[:limit])}{rest}")


def _to_json(kernel: KernelFile, entry: Entry, run: _Run, problem: str, shown: Sequence[tuple[int, int]]) -> dict[str, Any]:
    error = run.error
    location = error.location if error is not None else None
    return {
        "file": str(kernel.path),
        "entry": entry.symbol,
        "architecture": kernel.architecture,
        "clean": not problem,
        "problem": problem or None,
        "kind": error.title if error is not None else None,
        "source_line": location.line if location is not None else None,
        "ptx_line": error.ptx_line if error is not None else None,
        "threads": error.threads if error is not None else None,
        "findings": [_finding(found) for found in _all_findings(run)],
        "grid": run.result.grid if run.result is not None else None,
        "block": run.result.block if run.result is not None else None,
        "instructions": run.result.total_instructions if run.result is not None else None,
        "arrays": {entry.parameter_names[index]: run.arguments[index].numbers().reshape(-1)[:limit].tolist() for index, limit in shown},
        "counters": run.counters.to_json() if run.counters is not None else None,
    }


def _all_findings(run: _Run) -> list[EmulatorError]:
    if run.error is None:
        return list(run.result.findings) if run.result is not None else []
    return [run.error, *getattr(run.error, "also", ())]


def _finding(found: EmulatorError) -> dict[str, Any]:
    """A finding as data."""
    places = [
        {
            "file": location.file if location is not None else None,
            "line": location.line if location is not None else None,
            "column": location.column if location is not None else None,
            "ptx_line": inst.line,
            "ptx": inst.text,
            "threads": threads,
        }
        for inst, threads in ((found.instruction, found.threads), (found.other, found.other_threads))
        if inst is not None
        for location in (inst.location,)
    ]
    return {
        "kind": found.title,
        "severity": getattr(found, "severity", "error"),
        "message": found.message,
        "element": getattr(found, "place", "") or None,
        "count": getattr(found, "count", 1),
        "places": places,
    }
