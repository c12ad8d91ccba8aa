"""An instance as one Python module: the binary, and a function that launches it with cuda-python alone."""

from __future__ import annotations

import ast
import base64
import bz2
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import GemmgenError
from gemmgen.core.formulas import Formula
from gemmgen.core.version import __version__
from gemmgen.export.images import Bundle, Image
from gemmgen.export.tensor_maps import Modes, modes
from gemmgen.export.text import parameter_list, template
from gemmgen.kernels.launch import (
    PORTABLE_CLUSTER,
    ArrayArgument,
    Constraint,
    Dimension,
    HostArgument,
    LaunchSequence,
    ScalarArgument,
    TensorMapArgument,
)

_FUNCTIONS = ("ceil_div", "round_up", "ceil_log2", "select")
_LINE = 120


@dataclass(frozen=True)
class ArrayText:
    """Template's view of an array."""

    argument: ArrayArgument

    @property
    def typestrs(self) -> tuple[str, ...]:
        """``__cuda_array_interface__`` codes that its elements may have. There is none for bfloat16 and the 8-bit floats: they are
        seen as bytes without meaning or as their bits."""
        element = ELEMENTS[self.argument.type]
        own = (element.typestr, f"<{element.typestr[1:]}") if element.bytes == 1 else (element.typestr,)
        return own if element.holder == element.word else (f"<V{element.bytes}", f"|V{element.bytes}", *own)

    @property
    def item_bytes(self) -> int:
        return ELEMENTS[self.argument.type].bytes

    @property
    def shape_names(self) -> tuple[str | None, ...]:
        return tuple(str(extent) if extent.is_name else None for extent in self.argument.shape)

    @property
    def stride_names(self) -> tuple[str | None, ...]:
        return tuple(str(stride) if stride.is_name else None for stride in self.argument.strides)

    @property
    def shape_reads(self) -> list[str]:
        return names_of(self.argument.shape)

    @property
    def stride_reads(self) -> list[str]:
        return names_of(self.argument.strides)


@dataclass(frozen=True)
class LaunchText:
    """Template's view of a launch."""

    entry: str
    grid: tuple[Formula, Formula, Formula]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared: Formula
    programmatic: bool
    parameters: tuple[str, ...]

    @property
    def reads(self) -> list[str]:
        return names_of(self.grid)

    @property
    def quoted_parameters(self) -> list[str]:
        return [f'"{name}"' for name in self.parameters]

    @property
    def shared_reads(self) -> list[str]:
        return names_of([self.shared])


@dataclass(frozen=True)
class FieldText:
    """Template's view of a part of a struct."""

    letter: str
    capacity: int
    count: Formula
    value: Formula

    @property
    def reads(self) -> list[str]:
        return sorted({*self.value.names, "i"})


@dataclass(frozen=True)
class StructText:
    """Template's view of a struct."""

    name: str
    fields: tuple[FieldText, ...]


@dataclass(frozen=True)
class MapText:
    """Template's view of a tensor map."""

    argument: TensorMapArgument

    @property
    def modes(self) -> Modes:
        return modes(self.argument)

    @property
    def steps(self) -> tuple[Formula, ...]:
        return self.argument.element_strides or (Formula("1"),) * len(self.argument.extents)

    @property
    def corners(self) -> tuple[Formula, ...]:
        """Lower corners, then upper ones."""
        walk = self.argument.im2col
        return () if walk is None else (*walk.lower, *walk.upper)

    @property
    def reads(self) -> list[str]:
        return names_of(self.argument.formulas)


@dataclass(frozen=True)
class ModuleText:
    """Values of the template."""

    name: str
    import_name: str
    version: str
    compiler: str
    standing: str
    """Relation to the library's certificates."""
    labels: str
    summary: Sequence[str]
    spec_lines: Sequence[str]
    example: str
    dimensions: Sequence[Dimension]
    constraints: Sequence[Constraint]
    arrays: Sequence[ArrayText]
    launches: Sequence[LaunchText]
    structs: Sequence[StructText]
    maps: Sequence[MapText]
    parameter_types: Mapping[str, str]
    functions: frozenset[str]
    keywords: Sequence[str]
    argument_lines: Sequence[str]
    dimension_pairs: Sequence[str]
    scalar_pairs: str
    workspace: ArrayArgument | None
    workspace_names: tuple[str, ...]
    workspace_bytes: Formula
    zero_bytes: Formula | None
    images: Sequence[Image]
    asks_device: bool
    """True if a grid depends on the number of the device's multiprocessors."""

    @property
    def has_large_clusters(self) -> bool:
        """True if the driver has to be asked for clusters of that size."""
        return any(prod(launch.cluster) > PORTABLE_CLUSTER for launch in self.launches)

    @property
    def array_names(self) -> list[str]:
        return [array.argument.name for array in self.arrays]

    @property
    def workspace_reads(self) -> list[str]:
        return names_of([self.workspace_bytes])

    @property
    def zero_reads(self) -> list[str]:
        return [] if self.zero_bytes is None else names_of([self.zero_bytes])


def names_of(formulas: Sequence[Formula]) -> list[str]:
    """The names that formulas read, sorted."""
    return sorted({name for formula in formulas for name in formula.names})


def render_module(bundle: Bundle, import_name: str | None = None) -> str:
    """The module of an instance; ``import_name``: the name of its file, by default the instance's name."""
    filters: dict[str, Callable[..., Any]] = {
        "python_string": _python_string,
        "tuple_text": _tuple_text,
        "formulas": _formulas,
        "packed": packed,
        "plain": _plain,
        "array_pair": lambda name: f'"{name}": {name}',
        "untyped": lambda name: f"{name}: Any",
        "parameter_list": parameter_list,
    }
    text: str = template("module.py.j2", filters).render(module=model(bundle, import_name or bundle.plan.name))
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\n{4,}", "\n\n\n", text).strip("\n") + "\n"
    try:
        ast.parse(text)
    except SyntaxError as error:
        raise GemmgenError(f"{bundle.plan.name} cannot be written as a Python module: {error}") from None
    return text


def packed(image: Image) -> str:
    """The bytes of an image as lines of text. bzip2, because its output for the same bytes is the same everywhere."""
    data = image.data + b"\0" if image.kind == "ptx" else image.data
    return "\n".join(textwrap.wrap(base64.b85encode(bz2.compress(data)).decode(), _LINE))


def model(bundle: Bundle, import_name: str) -> ModuleText:
    """All parts of the module of an instance, as Python."""
    from gemmgen.codegen.rendering import spec_lines
    from gemmgen.codegen.summary import summary

    plan, sequence = bundle.plan, bundle.plan.sequence
    arrays = [ArrayText(argument) for argument in sequence.arrays if argument.role != "workspace"]
    workspaces = [argument for argument in sequence.arrays if argument.role == "workspace"]
    dimensions = [dimension.name for dimension in sequence.dimensions]
    scalars = sequence.scalars
    keywords = [_keyword(scalar) for scalar in scalars]
    keywords += [f"{name}: int | None = None" for name in dimensions]
    formulas = _all_formulas(sequence)
    zero = sequence.workspace_zero_bytes
    return ModuleText(
        name=plan.name,
        import_name=import_name,
        version=__version__,
        compiler="NVRTC {}.{}".format(*bundle.nvrtc_version),
        standing=bundle.standing,
        labels=", ".join(image.label for image in bundle.images),
        summary=summary(plan),
        spec_lines=spec_lines(plan.spec),
        example=", ".join([*(array.argument.name for array in arrays), *(f"{s.name}={s.name}" for s in scalars if s.default is None)]),
        dimensions=sequence.dimensions,
        constraints=sequence.constraints,
        arrays=arrays,
        launches=[
            LaunchText(x.entry, x.grid_of_device, x.block, x.cluster, x.dynamic_shared_bytes, x.programmatic, x.arguments)
            for x in sequence.launches
        ],
        structs=[
            StructText(h.name, tuple(FieldText("i" if f.type == "s32" else "I", f.capacity, f.count, f.value) for f in h.fields))
            for h in sequence.host_arguments
        ],
        maps=[MapText(argument) for argument in sequence.tensor_maps],
        parameter_types={argument.name: _parameter_type(argument) for argument in sequence.arguments},
        functions=frozenset(name for name in _FUNCTIONS if any(f"{name}(" in str(formula) for formula in formulas)),
        keywords=keywords,
        argument_lines=_argument_lines(sequence),
        dimension_pairs=[f'"{name}": {name}' for name in dimensions],
        scalar_pairs=", ".join(f'"{scalar.name}": {scalar.name}' for scalar in scalars),
        workspace=max(workspaces, key=lambda argument: argument.alignment, default=None),
        workspace_names=tuple(argument.name for argument in workspaces),
        workspace_bytes=sequence.workspace_bytes,
        zero_bytes=zero if workspaces and str(zero) != "0" else None,
        images=bundle.images,
        asks_device=any(launch.blocks_of_device is not None for launch in sequence.launches),
    )


def _all_formulas(sequence: LaunchSequence) -> list[Formula]:
    formulas = [sequence.workspace_bytes, sequence.workspace_zero_bytes]
    formulas += [dimension.default for dimension in sequence.dimensions if dimension.default is not None]
    formulas += [constraint.condition for constraint in sequence.constraints]
    formulas += [formula for argument in sequence.arrays for formula in (*argument.shape, *argument.strides)]
    formulas += [formula for launch in sequence.launches for formula in (*launch.grid_of_device, launch.dynamic_shared_bytes)]
    formulas += [formula for argument in sequence.tensor_maps for formula in argument.formulas]
    return formulas + [formula for host in sequence.host_arguments for part in host.fields for formula in (part.count, part.value)]


def _parameter_type(argument: object) -> str:
    if isinstance(argument, HostArgument | TensorMapArgument):
        return "None"
    return f"ctypes.{ELEMENTS[argument.type].ctypes_name}" if isinstance(argument, ScalarArgument) else "ctypes.c_void_p"


def _argument_lines(sequence: LaunchSequence) -> list[str]:
    """Meaning of each argument, for the documentation of the function."""
    lines = []
    for argument in sequence.arrays:
        if argument.role != "workspace":
            shape = ", ".join(_plain(extent) for extent in argument.shape)
            strides = ", ".join(_plain(stride) for stride in argument.strides)
            needed = f"; read only if {argument.needed} is not 0" if argument.needed else ""
            lines.append(
                f"``{argument.name}``: {argument.role}, {argument.type}[{shape}], strides ({strides}) in elements, aligned to "
                f"{argument.alignment} bytes: {argument.meaning}{needed}"
            )
    lines += [f"``{scalar.name}``: {scalar.type}: {scalar.meaning}" for scalar in sequence.scalars]
    for dimension in sequence.dimensions:
        default = "" if dimension.default is None else f"; by default {_plain(dimension.default)}"
        lines.append(f"``{dimension.name}``: {dimension.meaning}{default}")
    wrapped = [textwrap.wrap(line, _LINE - 8, subsequent_indent="    ", break_long_words=False) for line in lines]
    return [part.replace("\\", "\\\\").replace('"""', "'''") for line in wrapped for part in line]


def _plain(formula: Formula) -> str:
    return ast.unparse(ast.parse(str(formula).strip(), mode="eval"))


def _keyword(scalar: ScalarArgument) -> str:
    kind = "float" if ELEMENTS[scalar.type].is_float else "int"
    return f"{scalar.name}: {kind}" if scalar.default is None else f"{scalar.name}: {kind} = {scalar.default}"


def _python_string(text: str, indent: int = 0) -> str:
    """A string literal, in several pieces where it is long."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    pieces = textwrap.wrap(escaped, _LINE - indent - 2, break_long_words=False, break_on_hyphens=False, drop_whitespace=False)
    literals = ("\n" + " " * indent).join(f'"{piece}"' for piece in pieces or [""])
    return f"({literals})" if len(pieces) > 1 else literals


def _tuple_text(values: Sequence[object]) -> str:
    texts = ["None" if value is None else f'"{value}"' for value in values]
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


def _formulas(formulas: Sequence[Formula]) -> str:
    texts = [_plain(formula) for formula in formulas]
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
