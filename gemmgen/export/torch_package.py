"""A torch extension: a Python package that builds with a C compiler alone and registers the layers of a model as operators."""

from __future__ import annotations

import pprint
from collections.abc import Mapping, Sequence
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import SpecError
from gemmgen.core.version import __version__
from gemmgen.dispatch.layers import Layer
from gemmgen.export.images import Bundle
from gemmgen.export.layers import bundle_files, described
from gemmgen.export.text import template

STEPS = ("bias", "residual", "relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
_SETUP = '''"""Builds the kernels of {name}: python -m pip install . in this folder, with a C compiler and cuda.h (CUDA_HOME, or the
wheel nvidia-cuda-runtime)."""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

folders = [Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
folders += [folder for entry in sys.path for folder in Path(entry or ".").glob("nvidia/*/include")]
folders += sorted(Path("/usr/local").glob("cuda*/include"))
includes = [str(folder) for folder in folders if (folder / "cuda.h").is_file()][:1]
libraries = [] if os.environ.get("{upper}_WITHOUT_DRIVER") else ["cuda"]
stubs = [str(folder.parent / "lib64" / "stubs") for folder in folders]
kernels = Extension("{name}._kernels", ["{name}/glue.c"], include_dirs=["{name}", *includes], libraries=libraries, library_dirs=stubs)
setup(name="{name}", version="1.0", packages=["{name}"], ext_modules=[kernels], install_requires=["torch>=2.4"], zip_safe=False)
'''


def torch_package(name: str, layers: Sequence[Layer], bundles: Mapping[str, Bundle]) -> dict[str, str]:
    """Contents of the package's files by path. Raises ``SpecError`` for layers that are no product of two matrices."""
    table = {layer.name: _entry(layer) for layer in layers}
    found = described(layers, bundles)
    zeroed = any(row.plan.sequence.workspace_zero_bytes.text != "0" for layer in layers for row in layer.served)
    shown = pprint.pformat(table, sort_dicts=False, width=120)
    context = {"name": name, "version": __version__, "layers": found, "zeroed": zeroed, "table": shown}
    files = {f"{name}/{file}": text for file, text in bundle_files(name, layers, bundles).items()}
    files[f"{name}/glue.c"] = template("glue.c.j2", {}).render(context)
    files[f"{name}/__init__.py"] = template("torch_package.py.j2", {}).render(context)
    files["setup.py"] = _SETUP.format(name=name, upper=name.upper())
    return files


def _entry(layer: Layer) -> dict[str, object]:
    """A layer as the package's table has it."""
    words = layer.problem.split(",")[1:]
    request: Any = layer.request
    flat = all(len(layout.shape) <= 2 for layout in layer.operands.values())
    if {"a", "b", "out"} - layer.operands.keys() or not flat:
        raise SpecError(f"{layer.problem}: a torch package holds products of two matrices; export others as a bundle, or call gemmgen.ops")
    if any(row.scalars for row in layer.served) or layer.operands.keys() - {"a", "b", "out", "bias", "residual"}:
        raise SpecError(f"{layer.problem}: a torch package holds products without numbers or scales of the call; export it as a bundle")
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
