"""Extensions of torch and JAX: Python packages that build with a host compiler alone and hold the layers of a model as operations."""

from __future__ import annotations

import keyword
import pprint
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import SpecError
from gemmgen.core.version import __version__
from gemmgen.dispatch.layers import Layer
from gemmgen.export.images import Bundle
from gemmgen.export.layers import bundle_files, described
from gemmgen.export.text import template

_IMPORTED = frozenset(("torch", "jax", "jaxlib", "numpy", "setuptools", "setup"))
STEPS = ("bias", "residual", "relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")


def torch_package(name: str, layers: Sequence[Layer], bundles: Mapping[str, Bundle]) -> dict[str, str]:
    """Contents of a torch package's files by path. Raises ``SpecError`` for layers that are no product of two matrices."""
    return _package("torch", name, layers, bundles)


def jax_package(name: str, layers: Sequence[Layer], bundles: Mapping[str, Bundle]) -> dict[str, str]:
    """Contents of a JAX package's files by path. Raises ``SpecError`` for layers that are no product of two matrices."""
    return _package("JAX", name, layers, bundles)


def check_package_name(name: str) -> None:
    """Raises ``SpecError`` if Python cannot import a package of this name, or if the package would hide one that it imports."""
    if keyword.iskeyword(name) or name in sys.stdlib_module_names or name in _IMPORTED:
        raise SpecError(f"{name}: Python has this name already, and could not import the package; pass another with --prefix")


def _package(framework: str, name: str, layers: Sequence[Layer], bundles: Mapping[str, Bundle]) -> dict[str, str]:
    check_package_name(name)
    table = {layer.name: _entry(framework, layer) for layer in layers}
    texts = described(layers, bundles)
    zeroed = any(row.plan.sequence.workspace_zero_bytes.text != "0" for layer in layers for row in layer.served)
    shown = pprint.pformat(table, sort_dicts=False, width=120)
    context = {"name": name, "version": __version__, "framework": framework, "layers": texts, "zeroed": zeroed, "table": shown}
    sources = ("glue.c", "handlers.cc") if framework == "JAX" else ("glue.c",)
    files = {f"{name}/{file}": text for file, text in bundle_files(name, layers, bundles).items()}
    files |= {f"{name}/{source}": template(f"{source}.j2", {}).render(context) for source in sources}
    files[f"{name}/__init__.py"] = template(f"{framework.lower()}_package.py.j2", {}).render(context)
    files["setup.py"] = template("setup.py.j2", {}).render(context)
    return files


def _entry(framework: str, layer: Layer) -> dict[str, object]:
    """A layer as the package's table has it."""
    words = layer.problem.split(",")[1:]
    request: Any = layer.request
    flat = all(len(layout.shape) <= 2 for layout in layer.operands.values())
    if {"a", "b", "out"} - layer.operands.keys() or not flat:
        raise SpecError(
            f"{layer.problem}: a {framework} package holds products of two matrices; export others as a bundle, or call gemmgen.ops"
        )
    if any(row.scalars for row in layer.served) or layer.operands.keys() - {"a", "b", "out", "bias", "residual"}:
        raise SpecError(f"{layer.problem}: a {framework} package holds products without numbers or scales; export it as a bundle")
    layouts = {"a": request.a, "b": request.b, "residual": request.residual, "out": request.c}
    own: dict[str, tuple[list[int | None], bool, str]] = {}
    for operand, layout in layer.operands.items():
        if operand == "bias":
            own[operand] = [request.c.shape[-1]], True, ELEMENTS[layout.type].word
            continue
        extents: list[int | None] = list(layouts[operand].shape)
        if operand != "b":
            extents[0] = None
        own[operand] = extents, layouts[operand].strides[-1] == 1, ELEMENTS[layout.type].word
    return {
        "operands": {operand: value for operand, value in own.items() if operand != "out"},
        "out": own["out"],
        "steps": [word for word in words if word in STEPS],
    }
