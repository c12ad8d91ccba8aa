"""Reads the list of the library: which instances, for which architectures, made by which release of the compiler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from gemmgen.codegen.rendering import Source, render_with_templates
from gemmgen.core.errors import LaunchError, PlanError, SpecError
from gemmgen.core.resources import resource_directory
from gemmgen.hardware.target import architecture
from gemmgen.kernels import family_of
from gemmgen.kernels.family import KernelPlan, KernelSpec, SpecModel
from gemmgen.kernels.launch import MAX_WORKSPACE
from gemmgen.kernels.spec_files import load_spec, validated
from gemmgen.kernels.variants import matching, spec_name, split_variant
from gemmgen.kernels.yaml_files import read_text, read_yaml

_STRATEGIES = {"naive": "simt", "tiled": "simt"}
"""Folders of the library for templates whose specs lie in no folder of a strategy."""

Pattern = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_*./-]*$", max_length=200)]


class Group(SpecModel):
    """Instances that belong together."""

    title: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    specs: Annotated[tuple[Pattern, ...], Field(min_length=1)]
    """Names of specs below the folder of the list, without ``.yaml``; ``*`` stands for anything but a slash. The name of a file takes all
    its variants."""
    sizes: tuple[tuple[Annotated[int, Field(ge=0, strict=True)], ...], ...] = ()
    """Sizes that the instances are timed on, in their family's order; without any, their typical one."""
    for_readers: bool = False
    """True for kernels to learn from, which are chosen for a problem only where no other kernel of the library takes it."""
    generated: bool = True
    """False for kernels that are chosen for problems as the others are, but have neither files nor certificates in the library."""


class ListFile(SpecModel):
    """Contents of the list's file."""

    schema_version: Literal[1] = 1
    compiler: Annotated[str, StringConstraints(pattern=r"^\d+\.\d+$")]
    """Release of NVRTC that makes the binaries which the certificates describe."""
    architectures: Annotated[tuple[str, ...], Field(min_length=1)]
    groups: Annotated[tuple[Group, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Instance:
    """One instance of the library, planned for every architecture that it can be compiled for."""

    label: str
    """The name of its spec below the folder of the list."""
    path: Path
    group: Group
    plans: Mapping[str, KernelPlan]
    """By architecture, in the order of the list; never empty."""

    @property
    def plan(self) -> KernelPlan:
        """The plan for the first of the architectures."""
        return next(iter(self.plans.values()))

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def spec(self) -> KernelSpec:
        checked: KernelSpec = self.plan.spec
        return checked

    @property
    def source(self) -> Source:
        """The source, which is the same for every architecture."""
        return self._rendered[0]

    @property
    def templates(self) -> str:
        """The text of the templates and macros that the source was rendered from."""
        return self._rendered[1]

    @cached_property
    def _rendered(self) -> tuple[Source, str]:
        return render_with_templates(self.plan)

    @property
    def stem(self) -> str:
        """Path of the instance's files below the library's folder, without a suffix: ``gemm/wgmma/bf16_128x256``."""
        family, *folders, last = self.label.split("/")
        if split_variant(self.path)[1] is not None:
            *folders, head = folders
            last = f"{head}_{last}"
        template = PurePosixPath(self.plan.template).name.partition(".")[0]
        strategy = folders[0] if folders else _STRATEGIES.get(template, template)
        return "/".join([family, strategy, "_".join([*folders[1:], last])])

    @property
    def source_file(self) -> str:
        return f"{self.stem}{self.source.suffix}"

    @property
    def certificate_file(self) -> str:
        return f"{self.stem}.json"

    def problems(self) -> list[dict[str, int]]:
        """All dimensions of the problems that stand for the instance: those of its group that it takes, or its typical one
        if the group names none."""
        family, plan = family_of(self.spec), self.plan
        typical = family.instance_sizes(plan)
        taken = []
        for sizes in self.group.sizes or [tuple(typical.values())]:
            if len(sizes) != len(typical):
                continue
            try:
                problem = family.problem(plan, sizes)
            except LaunchError:
                continue
            if takes(plan, problem):
                taken.append(problem)
        return taken


@dataclass(frozen=True)
class Listing:
    """The library as it should be."""

    path: Path
    compiler: tuple[int, int]
    architectures: tuple[str, ...]
    instances: tuple[Instance, ...]
    """In the order of their names."""

    @property
    def release(self) -> str:
        """The compiler's release, ``13.0`` say."""
        return ".".join(map(str, self.compiler))

    def targets(self) -> Iterator[tuple[Instance, str, KernelPlan]]:
        """Every instance on every architecture that it can be compiled for."""
        for instance in self.instances:
            for name, plan in instance.plans.items():
                yield instance, name, plan


def takes(plan: KernelPlan, problem: Mapping[str, int]) -> bool:
    """True if the instance can be launched on the problem, without a workspace out of proportion."""
    sequence = plan.sequence
    holds = all(constraint.condition.evaluate(problem) for constraint in sequence.constraints)
    return holds and sequence.workspace_bytes.evaluate(problem) <= MAX_WORKSPACE


def default_list() -> Path:
    """The list of the library that comes with gemmgen."""
    return resource_directory("specs") / "library.yaml"


def read_listing(path: Path | None = None) -> Listing:
    """The library that a list describes; gemmgen's own without ``path``.

    Raises ``SpecError`` with all that is wrong: patterns that match nothing, specs that are listed twice, that cannot be
    read, or that cannot work on any of the architectures.
    """
    file = default_list() if path is None else path
    text = read_text(file)
    fields = read_yaml(file, "a list of the library is a YAML mapping (compiler, architectures, groups)", text)
    checked: ListFile = validated(ListFile, fields, str(file), "not a valid list of the library", text)
    for name in checked.architectures:
        try:
            architecture(name)
        except SpecError as error:
            raise SpecError(f"{file}: architectures: {error}") from None
    errors: list[str] = []
    groups = {spec_path: group for spec_path, group in _find(file, checked, errors).items() if group.generated}
    instances: dict[str, Instance] = {}
    for spec_path, group in groups.items():
        label = spec_name(spec_path, file.parent)
        try:
            instance = Instance(label, spec_path, group, _plans(label, load_spec(spec_path), checked.architectures))
        except SpecError as error:
            errors.append(str(error))
            continue
        other = instances.setdefault(instance.name, instance)
        if other is not instance:
            errors.append(f"{other.label} and {label} have the same name {instance.name}; list one of them, or give one a label")
    stems: dict[str, Instance] = {}
    for instance in instances.values():
        other = stems.setdefault(instance.stem, instance)
        if other is not instance:
            errors.append(f"{other.label} and {instance.label} would have the same files {instance.stem}.*; rename one of them")
    if errors:
        raise SpecError("\n".join([f"{file}: the library cannot be built from this list:", *(f"  - {error}" for error in errors)]))
    major, minor = map(int, checked.compiler.split("."))
    ordered = tuple(instances[name] for name in sorted(instances))
    return Listing(file, (major, minor), tuple(dict.fromkeys(checked.architectures)), ordered)


def _find(file: Path, checked: ListFile, errors: list[str]) -> dict[Path, Group]:
    """The specs of all groups, each with its group."""
    groups: dict[Path, Group] = {}
    for group in checked.groups:
        for pattern in group.specs:
            if ".." in pattern.split("/"):
                errors.append(f"{pattern!r} leaves the folder of the list")
                continue
            if "**" in pattern:
                errors.append(f"{pattern!r}: * stands for a part of a name, and ** for nothing")
                continue
            paths = [path for path in matching(file.parent, pattern) if path != file]
            if not paths:
                errors.append(f"{pattern!r} ({group.title}) matches no spec below {file.parent}")
            for path in paths:
                other = groups.setdefault(path, group)
                if other is not group:
                    errors.append(f"{spec_name(path, file.parent)} is listed twice, in {other.title!r} and in {group.title!r}")
    return groups


def _plans(label: str, spec: KernelSpec, architectures: tuple[str, ...]) -> dict[str, KernelPlan]:
    """The plans for those of ``architectures`` that the spec works on, features of a single chip only where it asks for them;
    ``SpecError`` if there is none, or if they differ."""
    plans: dict[str, KernelPlan] = {}
    rejected: dict[str, Any] = {}
    for name in architectures:
        if name.endswith("a") and spec.architecture != name:
            continue  # a single chip's own features, for those that ask for them
        try:
            plans[name] = family_of(spec).plan(spec, architecture(name))
        except PlanError as error:
            rejected[name] = error.reasons[0] if error.reasons else error
    if not plans:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in rejected.items())
        raise SpecError(f"{label} works on none of the architectures: {reasons}")
    return plans
