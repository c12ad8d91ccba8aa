"""A Python module that launches an instance's kernels on CuPy arrays by ``cupy.RawModule``, without gemmgen."""

from __future__ import annotations

import base64
import bz2
import textwrap
from collections.abc import Sequence

from gemmgen.codegen.rendering import spec_lines
from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import GemmgenError
from gemmgen.core.formulas import Formula
from gemmgen.core.version import __version__
from gemmgen.export.images import Bundle
from gemmgen.kernels.launch import Argument, ArrayArgument, HostArgument, KernelLaunch, ScalarArgument, TensorMapArgument

_LINE = 110
_HELPERS = {
    "ceil_div": "def ceil_div(numerator, denominator):\n    return -(-numerator // denominator)",
    "round_up": "def round_up(value, multiple):\n    return -(-value // multiple) * multiple",
    "ceil_log2": "def ceil_log2(value):\n    return max(value - 1, 0).bit_length()",
    "select": "def select(condition, yes, no):\n    return yes if condition else no",
}
"""Functions of formulas that Python does not have."""


def render_cupy(bundle: Bundle) -> str:
    """The module of an instance. Raises ``GemmgenError`` for kernels with parameters that ``RawKernel`` does not pass: structs, tensor maps
    and clusters."""
    plan, sequence = bundle.plan, bundle.plan.sequence
    for argument in sequence.arguments:
        if isinstance(argument, HostArgument | TensorMapArgument):
            kind = "a tensor map" if isinstance(argument, TensorMapArgument) else "a struct"
            raise GemmgenError(f"{plan.name} takes {kind}, {argument.name}, which CuPy's RawKernel does not pass: use --format python")
    if any(launch.cluster != (1, 1, 1) or launch.programmatic for launch in sequence.launches):
        raise GemmgenError(f"{plan.name} is launched in clusters or early, as CuPy's RawKernel does not: use --format python")
    arrays = [argument for argument in sequence.arrays if argument.role != "workspace"]
    dimensions = {dimension.name: dimension for dimension in sequence.dimensions}
    given = [*(array.name for array in arrays)]
    given += [f"{one.name}=None" if one.default is None else f"{one.name}={one.default!r}" for one in sequence.scalars]
    given += [f"{name}=None" for name in dimensions]
    texts = [str(formula) for formula in _formulas(bundle)]
    helpers = [text for name, text in _HELPERS.items() if any(f"{name}(" in text_ for text_ in texts)]
    lines = [
        f'"""{plan.name}, launched on CuPy arrays. Made by gemmgen {__version__}; needs CuPy and NumPy alone.',
        "",
        *(f"    {line}".replace("\\", "\\\\").replace('"""', "'''") for line in spec_lines(plan.spec)),
        '"""',
        "",
        "import base64",
        "import bz2",
        "import os",
        "import tempfile",
        "from functools import lru_cache",
        "",
        "import cupy",
        "import numpy",
        "",
        "",
        *"\n\n\n".join(helpers).splitlines(),
        *(["", ""] if helpers else []),
        f"def {_function(plan.name)}({', '.join([*given[: len(arrays)], '*', *given[len(arrays) :]])}):",
        '    """Launches on CuPy\'s current stream. Dimensions that no array determines are given by name; strides count elements."""',
    ]
    lines += [f"    {line}" for line in _bindings(arrays, [*dimensions])]
    for dimension in sequence.dimensions:
        if dimension.default is not None:
            lines += [f"    if {dimension.name} is None:", f"        {dimension.name} = {dimension.default}"]
    for name in (*dimensions, *(scalar.name for scalar in sequence.scalars)):
        lines += [f"    if {name} is None:", f'        raise ValueError("{name} is missing")']
    for array in arrays:
        lines += _checks(array)
    for constraint in sequence.constraints:
        lines += [f"    if not ({constraint.condition}):", f"        raise ValueError({constraint.explanation!r})"]
    spaces = [argument.name for argument in sequence.arrays if argument.role == "workspace"]
    if spaces:
        lines.append(f"    {' = '.join(spaces)} = cupy.zeros(max({sequence.workspace_bytes}, 1), numpy.uint8)")
    for launch in sequence.launches:
        lines += _launch(launch, sequence.arguments)
    lines += ["", "", *_loading(bundle)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _function(name: str) -> str:
    return "launch" if not name.isidentifier() else name


def _formulas(bundle: Bundle) -> list[Formula]:
    sequence = bundle.plan.sequence
    formulas = [sequence.workspace_bytes, *(one.default for one in sequence.dimensions if one.default is not None)]
    formulas += [constraint.condition for constraint in sequence.constraints]
    formulas += [formula for array in sequence.arrays for formula in (*array.shape, *array.strides)]
    return formulas + [formula for launch in sequence.launches for formula in (*launch.grid_of_device, launch.dynamic_shared_bytes)]


def _bindings(arrays: Sequence[ArrayArgument], dimensions: Sequence[str]) -> list[str]:
    """Statements that take dimensions from arrays' shapes and strides, unless they are given."""
    lines = []
    for array in arrays:
        for axis, extent in enumerate(array.shape):
            if str(extent) in dimensions:
                lines.append(f"{extent} = {array.name}.shape[{axis}] if {extent} is None else {extent}")
    for array in arrays:
        size = ELEMENTS[array.type].bytes
        for axis, stride in enumerate(array.strides):
            if str(stride) in dimensions:
                value = f"{array.name}.strides[{axis}] // {size}"
                lines.append(f"if {stride} is None and {array.name}.shape[{axis}] > 1:")
                lines.append(f"    {stride} = {value}")
    return lines


def _checks(array: ArrayArgument) -> list[str]:
    size = ELEMENTS[array.type].bytes
    shape = ", ".join(map(str, array.shape))
    message = f"{array.name} needs shape [{shape}], elements of {size} bytes and an address that is a multiple of {array.alignment}"
    comma = "," if len(array.shape) == 1 else ""
    wrong = f"tuple({array.name}.shape) != ({shape}{comma}) or {array.name}.dtype.itemsize != {size}"
    lines = [f"    if {wrong} or {array.name}.data.ptr % {array.alignment}:", f"        raise ValueError({message!r})"]
    for axis, (extent, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
        lines += [
            f"    if {extent} > 1 and {array.name}.strides[{axis}] != {size} * ({stride}):",
            f'        raise ValueError("{array.name} has other strides along axis {axis} than the kernel reads")',
        ]
    return lines


def _launch(launch: KernelLaunch, arguments: Sequence[Argument]) -> list[str]:
    kinds = {argument.name: argument for argument in arguments}
    passed = []
    for name in launch.arguments:
        argument = kinds[name]
        word = f"numpy.{ELEMENTS[argument.type].word}({name})" if isinstance(argument, ScalarArgument) else name
        passed.append(word)
    grid = ", ".join(map(str, launch.grid_of_device))
    asks = ['    multiprocessors = cupy.cuda.Device().attributes["MultiProcessorCount"]'] if launch.blocks_of_device is not None else []
    return [
        *asks,
        f"    grid = ({grid})",
        "    if 0 not in grid:",
        f"        shared = {launch.dynamic_shared_bytes}",
        f'        kernel = _kernel("{launch.entry}", cupy.cuda.Device().compute_capability)',
        "        if shared > 48 * 1024:",
        "            kernel.max_dynamic_shared_size_bytes = shared",
        f"        kernel(grid, {launch.block}, ({', '.join(passed)},), shared_mem=shared)",
    ]


def _loading(bundle: Bundle) -> list[str]:
    """The images, and the function that loads the one for a device."""
    lines = ["_IMAGES = ("]
    for image in bundle.images:
        data = base64.b85encode(bz2.compress(image.data)).decode()
        lines.append(f'    ("{image.kind}", {image.compute_capability}, (')
        lines += [f'        "{part}"' for part in textwrap.wrap(data, _LINE)]
        lines.append("    )),")
    return [
        *lines,
        ")",
        "",
        "",
        "@lru_cache(maxsize=None)",
        "def _kernel(entry, capability):",
        '    """A kernel for devices of a compute capability, "90" say: from the cubin of the same generation, else from PTX."""',
        "    major, minor = int(capability[:-1]), int(capability[-1])",
        '    cubins = [(has, data) for kind, has, data in _IMAGES if kind == "cubin" and has[0] == major and has[1] <= minor]',
        '    older = [(has, data) for kind, has, data in _IMAGES if kind == "ptx" and tuple(has) <= (major, minor)]',
        "    if not cubins and not older:",
        '        raise RuntimeError(f"no image for devices of compute capability {major}.{minor}")',
        '    suffix = ".cubin" if cubins else ".ptx"',
        "    _, data = max(cubins or older)",
        "    handle, path = tempfile.mkstemp(suffix)",
        "    try:",
        '        with os.fdopen(handle, "wb") as file:',
        "            file.write(bz2.decompress(base64.b85decode(data)))",
        "        return cupy.RawModule(path=path).get_function(entry)",
        "    finally:",
        "        os.unlink(path)",
    ]
