"""``gemmgen emulate``: any kernel of the user's own, run on the emulator, with a report of every error."""

from __future__ import annotations

import io
import re
import signal
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from gemmgen.cli import exit_codes
from gemmgen.cli.counters import print_counters, terminal_width
from gemmgen.cli.emulation_progress import EmulationProgress
from gemmgen.cli.options import Number, complete_architecture, json_option, parse_dimensions, usable_processors
from gemmgen.cli.output import count, counted, print_json
from gemmgen.cli.selection import write_output
from gemmgen.core.errors import TimeIsUp
from gemmgen.core.text import printable
from gemmgen.sanitizer.arguments import KernelArgument, argument_of, has_parts, parse_argument
from gemmgen.sanitizer.findings import Finding, findings_report
from gemmgen.sanitizer.front_end import COMPILERS, CompileOptions
from gemmgen.sanitizer.launches import Dimensions, Launch, Run, Settings, run_launches, schedule_difference
from gemmgen.sanitizer.source import KernelCode, UnusableInput, find_entry, read_kernel_file

if TYPE_CHECKING:
    import numpy.typing as npt

    from gemmgen.sanitizer.field import Other

_SHORT_SECONDS = 5.0
MAX_SCHEDULES = 1_000_000
"""Random interleavings of one command."""
DEFAULT_SECONDS = 120
"""Time of one command: a loop without end takes this long if its registers change with every turn."""
SHOWN_ELEMENTS = 16
"""Default number of elements that --print shows."""


@contextmanager
def _time_limit(running: Sequence[str], seconds: float) -> Iterator[None]:
    """Raises ``TimeIsUp`` in the body after so many seconds, and again every second, so that no handler on the way keeps it. The last of
    ``running`` is the kernel's file. Signals reach the main thread alone, so that others have no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise TimeIsUp(f"{running[-1]} had not come to its end after {seconds:g} s; --seconds S allows S seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _complete_finding(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from gemmgen.sanitizer.explanations import EXPLANATIONS

    return [CompletionItem(code) for code in EXPLANATIONS if code.startswith(incomplete)]


def _explain(context: click.Context, parameter: click.Parameter, code: str | None) -> None:
    if code is None or context.resilient_parsing:
        return
    from gemmgen.sanitizer.explanations import explain

    click.echo(explain(code))
    context.exit()


def _existing(context: click.Context, parameter: click.Parameter, file: Path) -> Path:
    """The file, if there is one; for a spec of gemmgen's, an error that names the right command."""
    if not file.exists():
        from gemmgen.kernels.shipped import shipped_specs

        spec = str(file).removesuffix(".yaml")
        hint = f"; gemmgen verify {spec} runs that spec on the emulator" if spec in shipped_specs() else ""
        raise click.BadParameter(f"File {str(file)!r} does not exist{hint}.", context, parameter)
    if file.is_dir():
        raise click.BadParameter(f"File {str(file)!r} is a directory.", context, parameter)
    return file


@click.command("emulate")
@click.argument("file", type=click.Path(path_type=Path), callback=_existing)
@click.option(
    "entry_name",
    "--entry",
    "--kernel",
    metavar="NAME",
    help="Name of the kernel in C++ ('axpy<float>') or PTX; not needed if there is only one.",
)
@click.option("--grid", metavar="X,Y,Z", callback=parse_dimensions, help="Number of blocks of the launch.")
@click.option("--block", metavar="X,Y,Z", callback=parse_dimensions, help="Number of threads of a block.")
@click.option("--cluster", metavar="X,Y,Z", callback=parse_dimensions, help="Number of blocks of a cluster.")
@click.option(
    "argument_texts",
    "--arg",
    metavar="ARG",
    multiple=True,
    help="One for each parameter, in order: f32[1024]=random, f32[4] (unwritten), i32=7, null, {p=f32[8]=zeros, n=8}, "
    "tensormap[bf16, 64x128, box 64x64, swizzle 128B]=random. Repeatable.",
)
@click.option("--shared", "shared_bytes", type=click.IntRange(min=0), default=0, metavar="BYTES", help="Dynamic shared memory of a block.")
@click.option(
    "symbol_texts", "--symbol", metavar="NAME=VALUE", multiple=True, help="A __constant__ or __device__ variable: c=@c.npy, n=i32=4."
)
@click.option(
    "launch_file",
    "--launches",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE.yaml",
    help="Several launches on the same arrays, in place of --grid, --block and --arg.",
)
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
    "compiler_options", "--option", metavar="OPTION", multiple=True, help="An option for the compiler: --option=--fmad=false. Repeatable."
)
@click.option(
    "--compiler",
    type=click.Choice(COMPILERS),
    default="auto",
    help="NVRTC, or nvcc with the host compiler; auto tries nvcc where NVRTC fails.  [default: auto]",
)
@click.option("--debug", is_flag=True, help="Compile without optimisation, so that no store is optimised away.")
@click.option(
    "--schedules",
    type=click.IntRange(min=0, max=MAX_SCHEDULES),
    default=0,
    metavar="N",
    help="Also run N random interleavings of warps; the results must be equal.",
)
@click.option("--seed", type=click.IntRange(min=0, max=2**62), default=0, metavar="SEED", help="The first of the random interleavings.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes for the blocks of a long launch, and for random interleavings.  [default: one for each CPU]",
)
@click.option(
    "--seconds",
    type=Number(0.1, 1e6),
    default=DEFAULT_SECONDS,
    show_default=True,
    metavar="S",
    help="Give up after S seconds, with exit code 2.",
)
@click.option("--progress", "always_progress", is_flag=True, help="Report progress on standard error even if it is not a terminal.")
@click.option("--strict", is_flag=True, help="Warnings and notes are errors.")
@click.option("--no-hazards", is_flag=True, help="Do not look for races and uninitialised reads; faster.")
@click.option("want_counters", "--counters", is_flag=True, help="Show memory traffic and instructions, by line.")
@click.option(
    "counters_file",
    "--counters-html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the counters beside the source, as HTML.",
)
@click.option("printed", "--print", metavar="ARRAY[:COUNT]", multiple=True, help="Print an array afterwards, by name or position.")
@click.option("saved", "--save", metavar="ARRAY=FILE.npy", multiple=True, help="Save an array afterwards. Repeatable.")
@click.option(
    "expected",
    "--expect",
    metavar="ARRAY=VALUE",
    multiple=True,
    help="Expected contents of an array after the launch: @file.npy, zeros, file.py:function.",
)
@click.option(
    "--field",
    metavar="FILE[:ENTRY]|ARRAY=EXPRESSION",
    help="Also compare the kernel, over a finite field, with a second kernel of the same arguments, or an array with a NumPy expression of "
    "the parameters' names: 'c=a.reshape(64,32)@b.reshape(32,48)'.",
)
@click.option("--field-grid", callback=parse_dimensions, metavar="X[,Y[,Z]]", help="Grid of the second kernel, if another.")
@click.option("--field-block", callback=parse_dimensions, metavar="X[,Y[,Z]]", help="Block of the second kernel, if another.")
@click.option("--rtol", type=Number(min=0), default=0.0, help="Relative difference that --expect allows.")
@click.option("--atol", type=Number(min=0), default=0.0, help="Absolute difference that --expect allows.")
@click.option("sarif_file", "--sarif", type=click.Path(dir_okay=False, path_type=Path), help="Write the findings as SARIF.")
@click.option("junit_file", "--junit", type=click.Path(dir_okay=False, path_type=Path), help="Write the findings as JUnit XML.")
@click.option("annotate", "--annotations", "--github", is_flag=True, help="Print the findings as annotations of GitHub's workflows too.")
@click.option(
    "--explain",
    metavar="CODE",
    is_eager=True,
    expose_value=False,
    callback=_explain,
    shell_complete=_complete_finding,
    help="Explain a finding, or all: --explain all.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    file: Path,
    entry_name: str | None,
    grid: Dimensions | None,
    block: Dimensions | None,
    cluster: Dimensions | None,
    argument_texts: Sequence[str],
    shared_bytes: int,
    symbol_texts: Sequence[str],
    launch_file: Path | None,
    architecture: str | None,
    include_directories: Sequence[str],
    definitions: Sequence[str],
    compiler_options: Sequence[str],
    compiler: str,
    debug: bool,
    schedules: int,
    seed: int,
    jobs: int | None,
    seconds: float,
    always_progress: bool,
    strict: bool,
    no_hazards: bool,
    want_counters: bool,
    counters_file: Path | None,
    printed: Sequence[str],
    saved: Sequence[str],
    expected: Sequence[str],
    field: str | None,
    field_grid: Dimensions | None,
    field_block: Dimensions | None,
    rtol: float,
    atol: float,
    sarif_file: Path | None,
    junit_file: Path | None,
    annotate: bool,
    as_json: bool,
) -> None:
    """Run a kernel of FILE (CUDA or PTX) without a GPU, and report every access that is wrong.

    An array is TYPE[LENGTH], and starts unwritten unless =zeros, =ones, =random, =range or =@file.npy fills it; a scalar is
    TYPE=VALUE; a structure {member=VALUE, ...}; pointers to arrays [ARRAY, ARRAY, ...]. Types: f64 f32 f16 bf16, and i or s, and
    u, with 8, 16, 32 or 64 bits. A tensor map is tensormap[TYPE, SHAPE, box SHAPE, ...], with swizzle, interleave, strides (bytes),
    steps, fill, promote, and for im2col lower, upper, channels, pixels; shapes are written outermost axis first. Host code in the
    file is ignored.

    Exits with 0 if the kernel is clean (warnings and notes are reported), 1 if it is not, 2 if it could not be run.

    \b
    gemmgen emulate saxpy.cu --grid 4 --block 256 \\
        --arg i32=1000 --arg f32=2.5 --arg 'f32[1000]=random' --arg 'f32[1000]=zeros' --print 3:8
    """
    running = [str(file)]
    context.with_resource(_time_limit(running, seconds))
    options = CompileOptions(
        architecture, tuple(include_directories), tuple(definitions), tuple(compiler_options), debug, compiler=compiler
    )
    if launch_file is not None and (grid or block or cluster or argument_texts):
        raise click.UsageError("--launches gives grids, blocks and arguments; leave out --grid, --block and --arg")
    if launch_file is None and (grid is None or block is None):
        raise click.UsageError(f"Missing option '{'--grid' if grid is None else '--block'}'.")
    if launch_file is not None:
        from gemmgen.sanitizer.launch_file import bind_launches, read_launch_file

        listed = read_launch_file(launch_file)
        code = read_kernel_file(file, options, entry_name, *(launch.entry for launch in listed.launches))
        launches, given = bind_launches(listed, code, entry_name)
    else:
        from gemmgen.sanitizer.api import bind_arguments

        code = read_kernel_file(file, options, entry_name)
        assert grid is not None and block is not None
        # Invalid arguments are reported before a kernel is looked for.
        for index, text in enumerate(argument_texts):
            if not has_parts(text):
                parse_argument(text, index, filled=False)
        entry = find_entry(code, entry_name)
        launches = [Launch(entry, grid, block, shared_bytes, entry.parameter_names, cluster)]
        given = dict(zip(entry.parameter_names, bind_arguments(code, entry, argument_texts), strict=True))
    names = {name: array for label, argument in given.items() for name, array in argument.arrays(label)}
    entry_label = ", ".join(dict.fromkeys(launch.entry.name for launch in launches))
    shown = [_parse_print(text, entry_label, given, names) for text in printed]
    files = [_parse_save(text, entry_label, given, names) for text in saved]
    wanted = [_parse_expect(text, entry_label, given, names) for text in expected]
    symbols = dict(_parse_symbol(text, index) for index, text in enumerate(symbol_texts))
    began = time.perf_counter()
    progress = EmulationProgress(always_progress)
    settings = Settings(
        strict=strict,
        hazards=not no_hazards,
        counters=want_counters or counters_file is not None,
        jobs=jobs or usable_processors(),
        progress=progress,
    )
    try:
        run = run_launches(code, launches, given, symbols, None, settings)
    finally:
        progress.close()
    if run.output and not as_json:
        # On a separate line, so that no annotation begins within it.
        click.echo(printable(run.output, len(run.output)), nl=not run.output.endswith("\n"))
    findings = list(run.findings)
    if not run.failed and schedules:
        from gemmgen.sanitizer.api import schedule_finding

        # Processes that start afresh take longer than short launches do.
        short = (time.perf_counter() - began) * schedules < _SHORT_SECONDS
        workers = jobs or (1 if short else usable_processors())
        told = schedule_difference(code, launches, given, symbols, settings, run, range(seed, seed + schedules), workers)
        if told:
            findings.insert(0, schedule_finding(told))
    arrays = run.arrays()
    if not run.failed:
        from gemmgen.sanitizer.expectations import compare

        findings[:0] = [difference for name, value in wanted if (difference := compare(name, arrays, names, value, rtol, atol)) is not None]
    for name, path in files:
        _save(arrays[name], path)
    answer = None
    if field is not None and not run.failed:
        from gemmgen.sanitizer.field import compare_over_field

        other = _field_other(field, launches, options, field_grid, field_block, names)
        answer = compare_over_field(code, launches, given, symbols, replace(settings, progress=None), other, on_run=running.append)
        if answer.outcome == "different":
            told = f"over a finite field: {answer.text}"
            findings.insert(0, Finding("wrong-result", "wrong result", "error", told, (), None, 1, told))
    failed = any(finding.severity == "error" for finding in findings)
    _write_reports(file, entry_label, findings, sarif_file, junit_file, annotate)
    if counters_file is not None and run.counters is not None:
        from gemmgen.sanitizer.counters_page import counters_page

        write_output(counters_file, counters_page(run.counters, code.text_of, f"{entry_label} in {file}"))
    if as_json:
        answered = {"field": {"outcome": answer.outcome, "text": answer.text}} if answer is not None else {}
        print_json(_to_json(code, launches, run, findings, [(name, limit) for name, limit in shown]) | answered)
    else:
        _print_run(file, entry_label, launches, run, findings, schedules, seed)
        if answer is not None and answer.outcome != "different":
            click.echo(printable(f"field: {answer.outcome}: {answer.text}"))
        for name, limit in shown:
            _print_array(name, arrays[name], limit)
        if run.counters is not None and want_counters:
            click.echo()
            print_counters(run.counters)
    if failed:
        context.exit(exit_codes.FAILED)


def _field_other(
    text: str,
    launches: Sequence[Launch],
    options: CompileOptions,
    grid: Dimensions | None,
    block: Dimensions | None,
    names: Mapping[str, KernelArgument],
) -> Other | dict[str, str]:
    """A second kernel, launched as the first one is but for its grid and block, or an expression for an array."""
    from gemmgen.sanitizer.field import Other

    name, equals, expression = text.partition("=")
    if equals and name.strip() in names:
        return {name.strip(): expression}
    path, _, entry_name = text.partition(":") if not Path(text).is_file() else (text, "", "")
    if not Path(path).is_file():
        raise click.UsageError(f"--field {text!r}: neither a file nor ARRAY=EXPRESSION for one of {', '.join(names) or 'no arrays'}")
    if len(launches) != 1:
        raise click.UsageError("--field with a second kernel takes one launch")
    code = read_kernel_file(Path(path), options, entry_name or None)
    entry = find_entry(code, entry_name or None)
    first = launches[0]
    if len(entry.parameter_names) != len(first.arguments):
        raise click.UsageError(
            f"--field: {entry.name} has {len(entry.parameter_names)} parameters, the first kernel {len(first.arguments)}"
        )
    return Other(code, (replace(first, entry=entry, grid=grid or first.grid, block=block or first.block),))


def _write_reports(file: Path, entry: str, findings: Sequence[Finding], sarif: Path | None, junit: Path | None, annotate: bool) -> None:
    if sarif is None and junit is None and not annotate:
        return
    from gemmgen.sanitizer import reports

    if sarif is not None:
        write_output(sarif, reports.sarif(findings))
    if junit is not None:
        write_output(junit, reports.junit(f"{file}: {entry}", findings))
    if annotate:
        for line in reports.workflow_commands(findings):
            click.echo(line)


def _find_array(what: str, token: str, entry: str, given: Mapping[str, KernelArgument], arrays: Mapping[str, KernelArgument]) -> str:
    names = list(given)
    if token in arrays:
        return token
    name = names[int(token)] if re.fullmatch(r"[0-9]{1,9}", token) and int(token) < len(names) else token
    if name in arrays:
        return name
    if name not in given:
        there = ", ".join(dict.fromkeys([*names, *arrays])) or "none"
        raise UnusableInput(f"{what}: {entry} has no parameter {token!r}; it has {there}, counted from 0")
    raise UnusableInput(f"{what}: {token} is no array but {given[name].text!r}")


def _parse_print(text: str, entry: str, given: Mapping[str, KernelArgument], arrays: Mapping[str, KernelArgument]) -> tuple[str, int]:
    token, _, limit = text.partition(":")
    if limit and not re.fullmatch(r"[0-9]{1,18}", limit):
        raise click.UsageError(f"--print {text!r}: {limit!r} is no number of elements")
    return _find_array(f"--print {text!r}", token, entry, given, arrays), int(limit) if limit else SHOWN_ELEMENTS


def _parse_save(text: str, entry: str, given: Mapping[str, KernelArgument], arrays: Mapping[str, KernelArgument]) -> tuple[str, Path]:
    token, _, name = text.partition("=")
    if not name:
        raise click.UsageError(f"--save {text!r}: expected ARRAY=FILE.npy, for example 2=out.npy")
    return _find_array(f"--save {text!r}", token, entry, given, arrays), Path(name)


def _parse_expect(text: str, entry: str, given: Mapping[str, KernelArgument], arrays: Mapping[str, KernelArgument]) -> tuple[str, Any]:
    from gemmgen.sanitizer.expectations import parse_expectation

    token, _, value = text.partition("=")
    if not value:
        raise click.UsageError(f"--expect {text!r}: expected ARRAY=VALUE, for example y=@reference.npy")
    name = _find_array(f"--expect {text!r}", token, entry, given, arrays)
    return name, parse_expectation(value, arrays[name])


def _parse_symbol(text: str, index: int) -> tuple[str, npt.NDArray[Any]]:
    import numpy as np

    name, _, value = text.partition("=")
    if not value:
        raise click.UsageError(f"--symbol {text!r}: expected NAME=VALUE, for example weights=@weights.npy or n=i32=4")
    try:
        argument = argument_of(value, index)
    except UnusableInput as error:
        raise UnusableInput(str(error).replace("--arg ", f"--symbol {name}: ", 1)) from None
    if argument.value is None or argument.pointers:
        raise click.UsageError(f"--symbol {text!r}: a variable takes numbers")
    content = argument.value if isinstance(argument.value, bytes) else np.asarray(argument.value).tobytes()
    return name, np.frombuffer(content, np.uint8)


def _save(argument: KernelArgument, path: Path) -> None:
    import numpy as np

    stream = io.BytesIO()
    np.save(stream, argument.value, allow_pickle=False)
    write_output(path, stream.getvalue())


def _print_run(
    file: Path, entry: str, launches: Sequence[Launch], run: Run, findings: Sequence[Finding], schedules: int, seed: int
) -> None:
    failed = any(finding.severity == "error" for finding in findings)
    where = printable(f"{entry} in {file}")
    if failed:
        click.echo(f"{click.style('not clean', fg='red', bold=True)}  {where}\n")
    else:
        seeds = f", seeds {seed} to {seed + schedules - 1}," if schedules > 1 else f", seed {seed},"
        agree = f"; {counted(schedules, 'random schedule')}{seeds if seed else ''} gave the same result" if schedules else ""
        click.echo(f"{click.style('clean', fg='green')}  {where}{agree}")
        for result in run.results:
            grid, block = (",".join(map(str, size)) for size in (result.grid, result.block))
            summary = (
                f"grid ({grid}), block ({block}), {count(result.shared_bytes)} bytes of shared memory, "
                f"{counted(result.total_instructions, 'instruction')} of threads"
            )
            width = terminal_width()
            click.echo(summary if width is None else textwrap.fill(summary, max(width, 20), subsequent_indent="  "))
        if findings:
            click.echo()
    for finding in findings:
        click.echo(printable(finding.text))
    if findings:
        click.echo(f"  more  gemmgen emulate --explain {findings[0].code}")


def _print_array(name: str, argument: KernelArgument, limit: int) -> None:
    numbers = argument.numbers().reshape(-1)
    rest = f", ... {count(numbers.size - limit)} more" if numbers.size > limit else ""
    kind = f"{argument.type}[{','.join(map(str, argument.value.shape))}]"
    click.echo(f"{name} ({kind}): {', '.join(str(number) for number in numbers[:limit])}{rest}")


def _to_json(
    code: KernelCode, launches: Sequence[Launch], run: Run, findings: Sequence[Finding], shown: Sequence[tuple[str, int]]
) -> dict[str, object]:
    arrays = run.arrays()
    last = run.results[-1] if run.results else None
    return {
        "file": code.name,
        "entry": launches[-1].entry.symbol,
        "architecture": code.architecture,
        **findings_report(findings),
        "output": run.output,
        "grid": last.grid if last is not None else None,
        "block": last.block if last is not None else None,
        "instructions": run.instructions if last is not None else None,
        "arrays": {name: arrays[name].numbers().reshape(-1)[:limit].tolist() for name, limit in shown},
        "counters": run.counters.to_json() if run.counters is not None else None,
    }
