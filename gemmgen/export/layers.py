"""A bundle: the kernels of a model's layers as C headers, and one header that chooses between them by size."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.version import __version__
from gemmgen.dispatch.layers import Layer, Served
from gemmgen.export.header import default_prefix, model, render_header
from gemmgen.export.images import Bundle
from gemmgen.export.text import c_name, check_prefix, template


@dataclass(frozen=True)
class Row:
    """A kernel for a range of sizes, as C."""

    place: int
    prefix: str
    label: str
    least: int
    most: int
    fields: tuple[tuple[str, str], ...]
    """Fields of the kernel's problem, and their values over the layer's first size."""
    arguments: str
    has_workspace: bool

    @property
    def least_literal(self) -> str:
        return f"INT64_C({self.least})"

    @property
    def most_literal(self) -> str:
        return f"INT64_C({self.most})"


def bundle_files(name: str, layers: Sequence[Layer], bundles: Mapping[str, Bundle]) -> dict[str, str]:
    """Contents of a bundle's files by name: a header for each kernel, and ``NAME.h``. ``bundles``: compiled kernels by their names."""
    check_prefix(name)
    prefixes = {kernel: default_prefix(bundle.plan) for kernel, bundle in bundles.items()}
    files = {f"{prefixes[kernel]}.h": render_header(bundle, prefixes[kernel]) for kernel, bundle in bundles.items()}
    own = list(dict.fromkeys(prefixes.values()))
    text: str = template("bundle.h.j2", {}).render(name=name, version=__version__, layers=described(layers, bundles), prefixes=own)
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    return {**files, f"{name}.h": re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"}


def described(layers: Sequence[Layer], bundles: Mapping[str, Bundle]) -> list[dict[str, object]]:
    """The layers as templates read them."""
    prefixes = {kernel: default_prefix(bundle.plan) for kernel, bundle in bundles.items()}
    return [_described(layer, prefixes, bundles) for layer in layers]


def _described(layer: Layer, prefixes: Mapping[str, str], bundles: Mapping[str, Bundle]) -> dict[str, object]:
    numbers = list(dict.fromkeys(number for row in layer.served for number in row.scalars.values()))
    arguments = []
    for operand, layout in layer.operands.items():
        written = operand in layer.written
        kind = f"{'' if written else 'const '}{ELEMENTS[layout.type].stdint} *"
        arguments.append({"type": kind, "name": c_name(operand), "written": written})
    parameters = [f"{argument['type']}{argument['name']}" for argument in arguments]
    parameters += [f"float {c_name(number)}_number" for number in numbers]
    return {
        "name": layer.name,
        "problem": layer.problem,
        "first": layer.first,
        "rows": [_row(place, layer, row, prefixes[row.plan.name], bundles[row.plan.name]) for place, row in enumerate(layer.served)],
        "arguments": arguments,
        "parameters": ", ".join(parameters),
        "names": ", ".join(parameter.rpartition(" ")[2].lstrip("*") for parameter in parameters),
        "zeroed": any(row.plan.sequence.workspace_zero_bytes.text != "0" for row in layer.served),
        "meaning": ", ".join([f"{operand} {list(layout.shape)}" for operand, layout in layer.operands.items()]),
    }


def _row(place: int, layer: Layer, served: Served, prefix: str, bundle: Bundle) -> Row:
    header = model(bundle, prefix)
    fields = []
    for dimension in header.dimensions:
        constant, factor = served.dimensions[dimension.name]
        moving = "" if not factor else layer.first if factor == 1 else f"{factor} * {layer.first}"
        value = " + ".join(filter(None, [moving, f"INT64_C({constant})" if constant or not factor else ""]))
        fields.append((header.names[dimension.name], value))
    pointers = [c_name(served.arrays[pointer.name]) for pointer in header.pointers]
    numbers = [f"{c_name(served.scalars.get(scalar.name, scalar.name))}_number" for scalar in header.scalars]
    workspace = ["workspace"] if header.workspace is not None else []
    arguments = ", ".join([*pointers, *numbers, *workspace])
    return Row(place, prefix, served.label, served.least, served.most, tuple(fields), arguments, bool(workspace))
