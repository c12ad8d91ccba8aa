"""Specs that a command line names: files, directories of them, and specs that come with gemmgen."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemmgen.core.errors import GemmgenError, SpecError
from gemmgen.core.resources import resource_directory
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from gemmgen.hardware.target import Architecture
    from gemmgen.kernels.family import KernelPlan, KernelSpec


_AUTO = re.compile(rb"""mainloop["']?\s*:\s*["']?auto\b""")
KERNEL_SUFFIXES = (".cu", ".ptx")
"""Ends of names of files of kernels."""


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A spec's file, and the name that the user gave."""

    label: str
    path: Path
    spec: KernelSpec | None = None
    """The spec of a kernel that was chosen for a problem, which no file needs to hold."""
    architecture: str | None = None
    """The architecture that it was chosen for."""
    problem: Mapping[str, int] | None = None
    """Every dimension of the problem that it was chosen for."""

    @property
    def kind(self) -> object:
        """The value of ``kind``, of any type. Raises ``SpecError`` for a file that cannot be read."""
        from gemmgen.kernels.spec_files import spec_fields

        return self.spec.kind if self.spec is not None else spec_fields(self.path).get("kind")


@dataclass(frozen=True, slots=True)
class PlannedSpec:
    """A spec's file and its plan."""

    file: SpecFile
    plan: KernelPlan

    @property
    def problem(self) -> dict[str, int] | None:
        """The problem that the kernel was chosen for, if it was and ``--set`` left its dimensions alone."""
        asked = self.file.problem
        return None if asked is None or set(asked) != {d.name for d in self.plan.sequence.dimensions} else dict(asked)


def find_specs(arguments: Iterable[str]) -> list[SpecFile]:
    """The files that ``arguments`` name, in order, each once. Raises ``SpecError`` that lists all that name none."""
    by_path: dict[Path, SpecFile] = {}
    errors = []
    for argument in arguments:
        try:
            for file in _find(argument):
                by_path.setdefault(file.path.resolve(), file)
        except SpecError as error:
            errors.append(str(error))
    if errors:
        raise SpecError("\n".join(errors))
    return [_resolved(file) for file in by_path.values()]


def _resolved(file: SpecFile) -> SpecFile:
    """The file with the kernel that is chosen, where its spec leaves that open. A file that cannot be read is left alone; its reader
    reports the error later."""
    from gemmgen.kernels.variants import split_variant
    from gemmgen.kernels.yaml_files import read_text

    try:
        text = read_text(split_variant(file.path)[0])
    except SpecError:
        return file
    if _AUTO.search(text) is None:
        return file
    from gemmgen.dispatch.auto_specs import auto_spec_in

    auto = auto_spec_in(file.path)
    if auto is None:
        return file
    spec, chosen = auto
    return replace(file, spec=spec, architecture=chosen.plan.architecture.name, problem=dict(chosen.dimensions))


def plan_specs(
    files: Sequence[SpecFile], overrides: Sequence[str] = (), architecture: str | Architecture | None = None
) -> list[PlannedSpec]:
    """The plans of all ``files``, or an error that lists the errors of every one."""
    from gemmgen.core.errors import PlanError
    from gemmgen.kernels.planning import plan

    planned, errors = [], []
    for file in files:
        try:
            source = file.path if file.spec is None else file.spec if not overrides else file.spec.model_dump(mode="json")
            planned.append(PlannedSpec(file, plan(source, architecture or file.architecture, overrides)))
        except PlanError as error:
            errors.append(f"{file.label}: {error}")
        except SpecError as error:
            errors.append(str(error))
    if errors:
        raise SpecError("\n".join(dict.fromkeys(errors)))
    return planned


def sized_problem(item: PlannedSpec, sizes: Sequence[int] | None) -> dict[str, int]:
    """The problem of these sizes, which a command line names in the family's order; without any, the one that the kernel was chosen for.
    Raises ``UsageError`` that says the order."""
    from gemmgen.kernels import family_of

    family = family_of(item.plan.spec)
    names = family.instance_sizes(item.plan)
    if sizes is None:
        if item.problem is None:
            raise click.UsageError(f"{item.file.label}: missing option '--size', {len(names)} numbers: {','.join(names)}")
        return item.problem
    if len(sizes) != len(names):
        given, need = ",".join(map(str, sizes)), f"{len(names)} numbers: {','.join(names)}"
        raise click.UsageError(f"--size {given}: {item.file.label} needs {need}")
    return family.problem(item.plan, sizes)


def _find(argument: str) -> Iterator[SpecFile]:
    # Commands that read no spec, such as emulate, start without the families and their schemas.
    from gemmgen.kernels.shipped import find_shipped, shipped_specs
    from gemmgen.kernels.variants import expanded, split_variant

    if not argument:
        raise SpecError("an empty name is no spec; name a file, a directory, or a spec that comes with gemmgen")
    path = Path(argument)
    try:
        is_directory, exists = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:
        raise SpecError(f"{argument!r} cannot be looked up: {getattr(error, 'strerror', None) or error}") from None
    if is_directory:
        own, specs = resource_directory("specs"), {split_variant(spec)[0].resolve() for spec in shipped_specs().values()}
        try:
            paths = sorted(path.rglob("*.yaml"))
            files = [file for file in paths if own not in file.resolve().parents or file.resolve() in specs]
        except OSError as error:  # a folder that was removed meanwhile, or that may not be read
            raise SpecError(f"{error.filename or argument}: cannot be searched: {error.strerror or error}") from None
        if not files:
            raise SpecError(f"{argument}: the directory holds no .yaml file")
        yield from (SpecFile(str(spec), spec) for file in files for spec in expanded(file))
    elif exists and path.suffix in KERNEL_SUFFIXES:
        raise SpecError(
            f"{argument}: this is a file of kernels, not a spec; gemmgen emulate runs it, gemmgen diff compares it with another"
        )
    elif exists:
        yield from (SpecFile(str(spec), spec) for spec in expanded(path))
    elif split_variant(path)[1] is not None:
        yield SpecFile(argument, path)
    else:
        yield from (SpecFile(name, path) for name, path in find_shipped(argument).items())


def writable(option: str, name: str) -> Path:
    """The path, checked before hours are spent on its contents. Raises ``GemmgenError`` if it cannot be written."""
    path = Path(name)
    try:
        if path.is_dir():
            raise GemmgenError(f"{option} {name!r}: is a directory; name the file to write")
        folder = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    except (OSError, ValueError) as error:
        raise GemmgenError(f"{option} {name!r}: cannot be written: {getattr(error, 'strerror', None) or error}") from None
    if not folder.is_dir():
        raise GemmgenError(f"{option} {name!r}: cannot be written: {folder.name} is not a directory")
    if not os.access(folder, os.W_OK):
        raise GemmgenError(f"{option} {name!r}: cannot be written: no permission to write in {folder}")
    return path


def tell_written(path: Path, changed: bool, *, err: bool = False) -> None:
    """Says of an output whether it changed."""
    click.echo(f"{'written  ' if changed else 'unchanged'}  {printable(str(path))}", err=err)


def write_output(path: Path, content: str | bytes) -> bool:
    """Writes a file atomically; whether it changed. Raises ``GemmgenError`` if it cannot be written."""
    from gemmgen.core.files import write_atomically

    try:
        return write_atomically(path, content)
    except (OSError, ValueError) as error:
        raise GemmgenError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from None
