"""``gemmgen export``: instances for programs that have no gemmgen."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from gemmgen.cli.compilation import compile_plans
from gemmgen.cli.host import are_for_processors
from gemmgen.cli.options import ALL_ARCHITECTURES, NAMED_PATH, architectures_option, complete_spec, json_option, set_option
from gemmgen.cli.output import print_json
from gemmgen.cli.problem import AskedProblems, problem_options
from gemmgen.cli.selection import PlannedSpec, SpecFile, find_specs, plan_specs, tell_written, write_output
from gemmgen.core.errors import GemmgenError, PlanError, SpecError
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from gemmgen.export.images import Bundle
    from gemmgen.hardware.target import Architecture

FORMATS = {
    "cubin": "cubin",
    "fatbin": "fatbin",
    "header": "h",
    "python": "py",
    "cupy": "py",
    "shared": "so",
    "launch": "json",
    "bundle": "h",
    "torch": "py",
    "jax": "py",
}
"""The formats, and how their files end."""
LAYER_FORMATS = ("bundle", "torch", "jax")
"""Formats of several problems together."""
HOST_FORMATS = ("header", "shared")
"""Formats of specs for processors."""


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Specs, and names of instances of the library."""
    from gemmgen.kernels.manifest import read_manifest
    from gemmgen.library.folder import shipped_folder

    try:
        names = [str(entry["name"]) for entry in read_manifest(shipped_folder().path)["instances"]]
    except GemmgenError:
        names = []
    matching = [CompletionItem(name) for name in names if incomplete and name.startswith(incomplete)]
    return matching or complete_spec(context, parameter, incomplete)


@click.command("export")
@click.argument("names", metavar="[NAME...]", nargs=-1, shell_complete=_complete)
@problem_options(device=True)
@click.option(
    "problem_file",
    "--problems",
    type=NAMED_PATH,
    metavar="FILE",
    help="For a bundle or a package of torch or JAX: the problems of a model, one a line, as gemmgen trace writes them.",
)
@click.option("kind", "--format", type=click.Choice([*FORMATS]), required=True, help="Format of the export.")
@architectures_option(
    "Architecture to compile for, or all that the spec allows. Repeatable. Without it: a cubin for the spec's own, "
    "else the oldest of each generation that the spec allows, which the later ones run too."
)
@click.option(
    "target",
    "-o",
    "--output",
    type=click.Path(),
    metavar="FILE|DIR",
    help="Write this file; or into this directory, if it is one, ends with a slash, or there are several files.",
)
@click.option("--prefix", metavar="NAME", help="Prefix of the functions in a header. Default: the spec's label or kind, and its digest.")
@click.option(
    "--line-info",
    is_flag=True,
    help="Keep line information in the binaries, for profilers; they become about three times as large.",
)
@set_option
@json_option
def command(
    names: Sequence[str],
    asked: AskedProblems,
    problem_file: Path | None,
    kind: str,
    architectures: Sequence[str],
    target: str | None,
    prefix: str | None,
    line_info: bool,
    overrides: Sequence[str],
    as_json: bool,
) -> None:
    """Write kernels in a form that does not need gemmgen: to standard output, or into files.

    A NAME is a SPEC, or the name of a kernel of the library, or the beginning of one.

    \b
    cubin   the binary for one architecture, one file for each
    fatbin  the binaries for several architectures, and PTX for later ones, in one file for the driver
    header  one C or C++ header with the binaries and the functions to check, load and launch them
    python  one Python module with the same, which needs nothing but cuda-python
    cupy    one Python module that launches the kernels on CuPy arrays by RawModule, where they take no structs, tensor maps and clusters
    launch  a cubin and PTX for each architecture, and JSON that says how to launch them: arguments, formulas of grids, workspace
    bundle  of --problems or several --problem: a header for each kernel, and one that chooses between them by size
    torch   of the same: a package that builds with a C compiler and registers an operator for each product
    jax     of the same: a package that builds with a C++ compiler, with a function of JAX for each product
    shared  of a spec for a processor: a shared library with its function, and with cblas_sgemm and sgemm_; header declares them
    """
    from gemmgen.export.text import check_prefix

    if target == "":
        raise click.UsageError("-o needs the name of a file or of a directory")
    if as_json and target is None:
        raise click.UsageError("--json lists the files that were written, and needs -o")
    if kind in LAYER_FORMATS:
        _write_layers(names, asked, problem_file, kind, target, prefix)
        return
    if problem_file is not None:
        raise click.UsageError(f"--problems goes with --format bundle, torch or jax, not with {kind}")
    if prefix is not None:
        if kind != "header":
            raise click.UsageError(f"--prefix names the functions of a header; --format {kind} has none")
        check_prefix(prefix)
    files = [*_find(names), *(asked.files([]) if asked.texts or not names else [])]
    if are_for_processors(files):
        if kind not in HOST_FORMATS or architectures or prefix is not None or line_info:
            raise click.UsageError("specs of processors are exported as --format shared or header, for their own architecture")
        _write_for_processors(plan_specs(files, overrides), kind, target, as_json)
        return
    if kind == "shared":
        raise click.UsageError("--format shared is for specs of processors")
    planned = plan_specs(files, overrides)
    if prefix is not None and len(planned) > 1:
        raise click.UsageError(f"--prefix would give {len(planned)} instances the same functions; name one")
    output = None if target is None else Path(target)
    to_directory = output is not None and target is not None and (target.endswith("/") or _is_directory(output))
    targets = [(item, _targets(item, kind, architectures)) for item in planned]
    count = sum({"cubin": len(each), "launch": len(each) + 2}.get(kind, 1) for _, each in targets)
    if output is None:
        _require_plain_output(kind, count)
    elif count > 1 and not to_directory and (output.is_file() or output.suffix == f".{FORMATS[kind]}"):
        raise click.UsageError(f"{output} would be one file and there are {count} to write; name a directory, {output.with_suffix('')}/")
    bundles = [(item, _bundle(item, each, line_info)) for item, each in targets]
    for item, freshness in bundles:
        click.echo(printable(f"{item.file.label}: the binaries are {freshness.standing}"), err=True)
    file_name = None if output is None or to_directory else output.name
    contents = {name: (item, make) for item, bundle in bundles for name, make in _contents(bundle, kind, prefix, file_name).items()}
    if output is None:
        ((_, make),) = contents.values()
        sys.stdout.flush()
        click.echo(make(), nl=False)
        return
    several = to_directory or count > 1
    made = {output / name if several else output: (item, make()) for name, (item, make) in contents.items()}
    outcome = {path: (item, write_output(path, content)) for path, (item, content) in made.items()}
    if as_json:
        print_json(
            [
                {"spec": item.file.label, "name": item.plan.name, "format": kind, "file": str(path), "changed": changed}
                for path, (item, changed) in outcome.items()
            ]
        )
        return
    for path, (_, changed) in outcome.items():
        tell_written(path, changed)


def _write_layers(
    names: Sequence[str], asked: AskedProblems, problem_file: Path | None, kind: str, target: str | None, prefix: str | None
) -> None:
    """The files of a bundle, or of a package of torch or JAX, into a directory."""
    from gemmgen.dispatch.devices import problem_device
    from gemmgen.dispatch.layers import layers_of
    from gemmgen.dispatch.profiles import read_counted
    from gemmgen.export.framework_packages import check_package_name, jax_package, torch_package
    from gemmgen.export.layers import bundle_files
    from gemmgen.export.text import check_prefix
    from gemmgen.hardware.target import device as find_device

    problems = [*asked.texts, *(one.problem for one in (read_counted(problem_file) if problem_file is not None else ()))]
    if names or not problems:
        raise click.UsageError(f"--format {kind} takes problems: --problems FILE, or --problem gemm:512,512,512,nt")
    if target is None:
        raise click.UsageError(f"--format {kind} writes several files: -o DIR")
    if asked.spec_output is not None or asked.baked is not None:
        raise click.UsageError("--spec and --bake are for one problem, and a bundle has several")
    name = prefix or re.sub(r"\W+", "_", (problem_file.stem if problem_file is not None else "model").lower())
    try:
        check_prefix(name)
        if kind != "bundle":
            check_package_name(name)
    except GemmgenError as error:
        if prefix is not None or problem_file is None:
            raise
        raise SpecError(f"{problem_file}: no name for the exported kernels: pass one with --prefix ({error})") from None
    device = find_device(asked.device_name) if asked.device_name else problem_device(None)
    layers = layers_of(problems, device)
    plans = {row.plan.name: row.plan for layer in layers for row in layer.served}
    items = [PlannedSpec(SpecFile(row.label, Path(row.label)), row.plan) for layer in layers for row in layer.served]
    for line_info in (True, False):
        compile_plans([*plans.values()], line_info=line_info)  # all at once, in parallel; below they come from the cache
    bundles = {item.plan.name: _bundle(item, [item.plan.architecture], False) for item in {item.plan.name: item for item in items}.values()}
    assert bundles.keys() == plans.keys()
    for layer in layers:
        for row in layer.served:
            click.echo(printable(f"{layer.problem}: {layer.first} from {row.least} to {row.most}: {row.label}"), err=True)
    files = {"bundle": bundle_files, "torch": torch_package, "jax": jax_package}[kind](name, layers, bundles)
    for file, content in files.items():
        path = Path(target) / file
        tell_written(path, write_output(path, content))


def _write_for_processors(planned: Sequence[PlannedSpec], kind: str, target: str | None, as_json: bool) -> None:
    """A library lib NAME.so, or a header NAME.h, for each spec: into a directory, or one into a file."""
    from gemmgen.export.blas import c_header, shared_library

    if target is None:
        _require_plain_output(kind, len(planned))
        sys.stdout.flush()
        click.echo(c_header(planned[0].plan) if kind == "header" else shared_library(planned[0].plan), nl=False)  # type: ignore[arg-type]
        return
    output = Path(target)
    several = target.endswith("/") or _is_directory(output) or len(planned) > 1
    outcome = []
    for item in planned:
        content = c_header(item.plan) if kind == "header" else shared_library(item.plan)  # type: ignore[arg-type]
        name = f"{item.plan.name}.h" if kind == "header" else f"lib{item.plan.name}.so"
        path = output / name if several else output
        outcome.append((item, path, write_output(path, content)))
    if as_json:
        print_json(
            [
                {"spec": item.file.label, "name": item.plan.name, "format": kind, "file": str(path), "changed": changed}
                for item, path, changed in outcome
            ]
        )
        return
    for _, path, changed in outcome:
        tell_written(path, changed)


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a path that cannot be looked up cannot be written either, which is reported then
        return False


def _find(names: Sequence[str]) -> list[SpecFile]:
    """The specs that the names mean: specs themselves, else instances of the library."""
    by_path: dict[Path, SpecFile] = {}
    errors = []
    for name in names:
        try:
            files = find_specs([name])
        except SpecError as error:
            files = _find_in_library(name)
            if not files:
                stop = "" if str(error).endswith("?") else "."
                errors.append(f"{error}{stop} No instance of the library has a name with this prefix.")
        for file in files:
            by_path.setdefault(file.path.resolve(), file)
    if errors:
        raise SpecError("\n".join(errors))
    return list(by_path.values())


def _find_in_library(name: str) -> list[SpecFile]:
    """The spec of the instance that the name means; none if it means none. ``GemmgenError`` if it means several."""
    from gemmgen.library.folder import choose
    from gemmgen.library.listing import read_listing

    instances = {instance.name: instance for instance in read_listing().instances}
    if not name or not any(known.startswith(name) for known in instances):
        return []
    return [SpecFile(instances[chosen].label, instances[chosen].path) for chosen in choose([name], ((known, known) for known in instances))]


def _bundle(item: PlannedSpec, targets: Sequence[Architecture], line_info: bool) -> Bundle:
    """The instance, compiled for all that was asked for.

    Without ``line_info`` the binaries are those without the lines of the source, wherever their machine code is the one that is
    certified. ptxas may allocate registers differently from run to run where a kernel spills; such a binary keeps its lines.
    """
    from gemmgen.export.images import bundle, plans_for, same_machine_code
    from gemmgen.library.certification import standing

    try:
        plans = plans_for(item.plan, targets)
    except PlanError as error:
        raise SpecError(f"{item.file.label}: {error}") from None
    binaries = compile_plans(plans)
    if not line_info:
        smaller = compile_plans(plans, line_info=False)
        binaries = [small if same_machine_code(small, large) else large for small, large in zip(smaller, binaries, strict=True)]
    evidence = standing(plans[0], [binary.architecture for binary in binaries], binaries[0].nvrtc_version)
    return bundle(plans[0], binaries, str(evidence))


def _targets(item: PlannedSpec, kind: str, architectures: Sequence[str]) -> list[Architecture]:
    from gemmgen.export.images import allowed_architectures, portable_architectures
    from gemmgen.hardware.target import architecture

    if ALL_ARCHITECTURES in architectures:
        return allowed_architectures(item.plan)
    if architectures:
        return [architecture(name) for name in dict.fromkeys(architectures)]
    return [item.plan.architecture] if kind == "cubin" else portable_architectures(allowed_architectures(item.plan))


def _contents(bundle: Bundle, kind: str, prefix: str | None, file_name: str | None) -> dict[str, Callable[[], str | bytes]]:
    """The names of an instance's files, and the functions that write their contents."""
    from gemmgen.export.cupy_module import render_cupy
    from gemmgen.export.fatbin import make_fatbin
    from gemmgen.export.header import render_header
    from gemmgen.export.launch_json import launch_files
    from gemmgen.export.python_module import render_module

    name = bundle.plan.name
    match kind:
        case "launch":
            return launch_files(bundle)
        case "cubin":
            return {f"{name}.{image.label}.cubin": _constant(image.data) for image in bundle.cubins}
        case "fatbin":
            return {f"{name}.fatbin": lambda: make_fatbin(bundle)}
        case "cupy":
            return {f"{name}_cupy.py": lambda: render_cupy(bundle)}
        case "header":
            return {f"{prefix or name}.h": lambda: render_header(bundle, prefix)}
    stem = Path(file_name or name).stem
    importable = stem.isidentifier() and not keyword.iskeyword(stem)
    return {f"{name}.py": lambda: render_module(bundle, stem if importable else name)}


def _constant(data: bytes) -> Callable[[], bytes]:
    return lambda: data


def _require_plain_output(kind: str, count: int) -> None:
    if count > 1:
        raise click.UsageError(f"{count} files do not fit into one output: name one instance and one --arch, or -o DIR")
    if kind in ("cubin", "fatbin", "shared") and sys.stdout.isatty():
        raise click.UsageError(f"a {kind} is binary and this is a terminal; send it to a file or a pipe, or use -o FILE")
