"""The sweep file: the varied spec, the axes, the constraints, and the stages of each point."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from gemmgen.core.resources import resource_directory
from gemmgen.core.text import close_paths
from gemmgen.kernels.family import Identifier, PlainText, SpecModel
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.kernels.spec_files import validated
from gemmgen.kernels.variants import VARIANTS, split_variant
from gemmgen.kernels.yaml_files import parse_yaml, read_text, read_yaml
from gemmgen.sweep.records import Stage, SweepError

MAX_VALUES = 10_000
"""Values of one axis."""

FieldPath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.\w+)*$", max_length=200)]
"""Path of a field of a spec: ``mainloop.tile.threadblock.k``."""
Number = Annotated[int, Field(strict=True, ge=-(1 << 62), le=1 << 62)]
Sizes = Annotated[tuple[Annotated[int, Field(strict=True, ge=0, le=1 << 40)], ...], Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0, le=1e6)]


class Range(SpecModel):
    """From the first number to the last, that included if a step lands on it: ``{range: [8, 64, 8]}``."""

    range: tuple[Number, Number, Annotated[int, Field(strict=True, ge=1)]]

    @model_validator(mode="after")
    def _require_few(self) -> Self:
        low, high, step = self.range
        count = (high - low) // step + 1
        if count > MAX_VALUES:
            raise ValueError(f"at most {MAX_VALUES:,} values, not {count:,}")
        return self

    def values(self) -> list[Any]:
        low, high, step = self.range
        return list(range(low, high + 1, step))


class PowersOfTwo(SpecModel):
    """The powers of two from the first number to the last: ``{powers_of_two: [8, 64]}``."""

    powers_of_two: tuple[Annotated[int, Field(strict=True, ge=1, le=1 << 62)], Annotated[int, Field(strict=True, ge=1, le=1 << 62)]]

    def values(self) -> list[Any]:
        low, high = self.powers_of_two
        return [1 << exponent for exponent in range(63) if low <= 1 << exponent <= high]


class Together(SpecModel):
    """Several fields at once: ``{together: [{alignment.a: 4, alignment.b: 4}, {alignment.a: 1, alignment.b: 1}]}``."""

    together: Annotated[list[Annotated[dict[FieldPath, Any], Field(min_length=1)]], Field(min_length=1, max_length=MAX_VALUES)]


_FORMS = {"range": Range, "powers_of_two": PowersOfTwo, "together": Together}


def _form(value: object) -> str | None:
    """The form of an axis that a value is meant to be, so that only the mistakes in that form are reported."""
    if isinstance(value, list | tuple):
        return "values"
    if isinstance(value, dict):
        return next((model.__name__ for key, model in _FORMS.items() if key in value), None)
    return type(value).__name__ if type(value) in _FORMS.values() else None


AxisValues = Annotated[
    Annotated[list[Any], Field(min_length=1, max_length=MAX_VALUES), Tag("values")]
    | Annotated[Range, Tag("Range")]
    | Annotated[PowersOfTwo, Tag("PowersOfTwo")]
    | Annotated[Together, Tag("Together")],
    Discriminator(
        _form,
        custom_error_type="axis",
        custom_error_message="a list of values, {range: [first, last, step]}, {powers_of_two: [first, last]} or {together: [...]}",
    ),
]


class Limits(SpecModel):
    """Limits of a point: seconds in each stage, and memory of its process."""

    check: Seconds = 60.0
    """Seconds to check the point."""
    compile: Seconds = 300.0
    """Seconds to compile it."""
    verify: Seconds = 900.0
    """Seconds to verify it."""
    bench: Seconds = 300.0
    """Seconds to time it."""
    memory_gib: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Memory of a point's process, in GiB; None: no limit but the machine's."""

    def of(self, stage: Stage) -> float:
        """The limit of a stage in seconds."""
        return float(getattr(self, stage.value))


class SweepFile(SpecModel):
    """Contents of a sweep file."""

    schema_version: Literal[1] = 1
    name: Identifier
    description: PlainText = ""
    base: str | dict[str, Any]
    """The spec that is varied: one that ships with gemmgen, a file (beside the sweep's, or here), or the spec itself."""
    axes: dict[str, AxisValues] = Field(default_factory=dict)
    """For each field path the values that it takes; every combination is a point. An axis that sets several fields at once
    (``together``) has a separate name instead."""
    constraints: dict[Identifier, str] = Field(default_factory=dict)
    """Expressions over fields of the spec and values of its plan (``plan.shared_bytes``), all of which must hold."""
    sizes: tuple[Sizes, ...] = ()
    """Problems to time, each a list of sizes in the family's order. Only the stage ``bench`` uses them."""
    stages: Literal["check", "compile", "verify", "bench"] = "verify"
    """The last stage that points go through."""
    architectures: tuple[str, ...] = ()
    """Architectures to compile for; empty: the GPU's, or the spec's own without one."""
    cases: Annotated[int, Field(strict=True, ge=1)] | None = None
    """Number of the family's cases that each point is verified on, chosen by the spec's digest; all if not given."""
    limits: Limits = Limits()
    rounds: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 20
    """Rounds in which everybody is timed, in turns."""
    peer: bool = True
    """Time the vendor's library in the same run, if torch is there."""

    def choices(self) -> dict[str, list[dict[str, Any]]]:
        """The settings of each axis, choice by choice: field path -> value."""
        return {
            name: list(values.together)
            if isinstance(values, Together)
            else [{name: value} for value in (values if isinstance(values, list) else values.values())]
            for name, values in self.axes.items()
        }


def load_sweep(argument: str, overrides: Iterable[str] = ()) -> tuple[SweepFile, Path]:
    """The sweep that a file or the name of one that ships with gemmgen holds, and the file's folder.

    ``overrides`` are ``path=value`` texts: for the path of an axis its new values, else a field of the base. Raises ``SpecError``
    and ``SweepError``.
    """
    path = find_sweep(argument)
    text = read_text(path)
    fields = read_yaml(path, "a sweep is a YAML mapping (name: ..., base: ..., axes: ...)", text)
    if "kind" in fields and not {"base", "axes"} & fields.keys():
        raise SweepError(f"{path}: this is a spec, not a sweep; a sweep names it (base: {path.name}) and has axes over its fields")
    sweep: SweepFile = validated(SweepFile, fields, str(path), "not a valid sweep", text)
    axes, more = _with_axes(sweep, overrides)
    if axes != sweep.axes:
        sweep = validated(SweepFile, {**fields, "axes": axes}, str(path), "not a valid sweep")
    try:
        _require_possible(sweep)
    except SweepError as error:
        raise SweepError(f"{path}: axes: {error}") from None
    try:
        base = _base(sweep, path.parent, more)
    except _NoBase as error:
        raise SweepError(f"{path}: {error}") from None
    return sweep.model_copy(update={"base": base}), path.parent


def shipped_sweeps() -> dict[str, Path]:
    """The sweeps that come with gemmgen, by name."""
    return {path.stem: path for path in sorted((resource_directory("specs") / "sweeps").glob("*.yaml"))}


def find_sweep(argument: str) -> Path:
    """The file that ``argument`` names. Raises ``SweepError`` if there is none."""
    path = Path(argument)
    try:
        if argument and path.exists():
            return path
    except (OSError, ValueError) as error:
        raise SweepError(f"{argument!r} cannot be looked up: {getattr(error, 'strerror', None) or error}") from None
    shipped = shipped_sweeps()
    name = argument.removeprefix("specs/").removeprefix("sweeps/").removesuffix(".yaml")
    if name in shipped:
        return shipped[name]
    if name in shipped_specs():
        raise SweepError(f"{argument!r} is a spec, not a sweep; a sweep names it as its base and has axes over its fields")
    close = close_paths(name, shipped)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(shipped)}"
    raise SweepError(f"{argument!r} is neither a file nor a sweep that ships with gemmgen; {hint}")


@dataclass
class _Field:
    """A field that axes set, or that has fields below it which they set."""

    fields: dict[str, _Field] = field(default_factory=dict)
    setter: str = ""
    setters_below: dict[str, None] = field(default_factory=dict)


def _require_possible(sweep: SweepFile) -> None:
    """Raises ``SweepError`` for axes without values, without a field, or that override another axis."""
    root = _Field()
    for name, choices in sweep.choices().items():
        together = isinstance(sweep.axes[name], Together)
        if not together and not all(part.isidentifier() or part.isdecimal() for part in name.split(".")):
            raise SweepError(f"{name!r} is not a field path; write one such as mainloop.stages")
        if not choices:
            raise SweepError(f"{name!r} has no values")
        for path in dict.fromkeys(path for choice in choices for path in choice):
            place = root
            for part in path.split("."):
                place.setters_below[name] = None
                place = place.fields.setdefault(part, _Field())
            if place.setter:
                raise SweepError(f"{place.setter!r} and {name!r} both set {path!r}")
            if other := next((setter for setter in place.setters_below if setter != name), None):
                raise SweepError(f"{name!r} replaces {path!r} whole, including the field that {other!r} sets; put {name!r} first")
            place.setter = name


def _with_axes(sweep: SweepFile, overrides: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """The axes with their overrides applied, and the overrides that are left for the base."""
    axes: dict[str, Any] = dict(sweep.axes)
    setters = {path: name for name, choices in sweep.choices().items() for choice in choices for path in choice}
    more = []
    for override in overrides:
        path, separator, text = override.partition("=")
        if not separator:
            more.append(override)
        elif path in axes and not isinstance(axes[path], Together):
            value = parse_yaml(text, f"--set {path}")
            axes[path] = value if isinstance(value, list | dict) else [value]
        elif setter := next((name for known, name in setters.items() if path == known or path.startswith(f"{known}.")), None):
            raise SweepError(f"--set {override!r}: the axis {setter!r} sets this field; set the values of that axis")
        else:
            more.append(override)
    return axes, more


def _base(sweep: SweepFile, folder: Path, overrides: Iterable[str]) -> dict[str, object]:
    """The base as plain fields, with ``overrides`` applied."""
    from gemmgen.kernels.spec_files import overridden, spec_fields

    if isinstance(sweep.base, dict) and VARIANTS in sweep.base:
        raise _NoBase("base: a table of variants cannot be the base; write the fields of one spec, or name a variant of a file")
    fields = sweep.base if isinstance(sweep.base, dict) else spec_fields(_base_spec(sweep.base, folder))
    for override in overrides:
        fields = overridden(fields, override)
    return fields


class _NoBase(SweepError):
    """The base names no spec."""


def _base_spec(base: str, folder: Path) -> Path:
    shipped = shipped_specs()
    name = base.removeprefix("specs/").removesuffix(".yaml")
    for candidate, within in ((folder / base, folder), (Path(base), Path()), (shipped.get(name), None)):
        try:
            if candidate is not None and (file := split_variant(candidate)[0]).is_file():
                # Another person's sweep must not cause files elsewhere to be read and quoted in messages.
                if within is not None and not file.resolve().is_relative_to(within.resolve()):
                    raise _NoBase(f"base: {base!r} leads out of {str(within)!r}; need a file in that folder or below")
                return candidate
        except (OSError, ValueError):
            continue
    close = close_paths(name, shipped)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise _NoBase(f"base: {base!r} is neither a spec file beside the sweep or here nor a spec that ships with gemmgen{hint}")
