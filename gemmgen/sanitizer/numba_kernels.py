"""Kernels of numba-cuda on the emulator: `@cuda.jit` functions, without a GPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from gemmgen.core.errors import EnvironmentMissing
from gemmgen.sanitizer.api import Result, emulate
from gemmgen.sanitizer.front_end import DEFAULT_ARCHITECTURE


def emulate_numba(
    kernel: Callable[..., object],
    *,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any] = (),
    architecture: str = DEFAULT_ARCHITECTURE,
    **settings: Any,
) -> Result:
    """Compiles a kernel, a `@cuda.jit` function or a plain one, for these arguments, and runs it as ``gemmgen.emulate`` does.

    Results and findings call arrays by the names of the function's parameters, and lines by the Python file. `settings` are those
    of ``gemmgen.emulate``. Raises EnvironmentMissing without numba-cuda.
    """
    try:
        cuda: Any = import_module("numba.cuda")
        numba: Any = import_module("numba")
    except ImportError as error:
        raise EnvironmentMissing("numba-cuda was not found; install it with: pip install numba-cuda") from error
    function = getattr(kernel, "py_func", kernel)
    signature = numba.void(*(numba.typeof(value) for value in args))
    major, minor = divmod(int("".join(filter(str.isdigit, architecture))), 10)
    ptx, _ = cuda.compile(function, signature, device=False, cc=(major, minor), output="ptx", abi="numba", lineinfo=True)
    flat: list[Any] = []
    names: list[str] = []
    for name, value in zip(inspect.signature(function).parameters, args, strict=True):
        for part, content in _flattened(name, value):
            names.append(part)
            flat.append(content)
    return emulate(ptx, grid=grid, block=block, args=flat, parameter_names=names, name=f"{function.__name__}.ptx", **settings)


def _flattened(name: str, value: object) -> list[tuple[str, Any]]:
    """The values that numba passes for an argument: an array is its owner twice, elements, bytes of one, address, shape and strides."""
    import numpy as np

    if not isinstance(value, np.ndarray):
        if isinstance(value, bool):
            return [(name, np.uint8(value))]
        return [(name, np.int64(value) if isinstance(value, int) else np.float64(value) if isinstance(value, float) else value)]
    parts: list[tuple[str, Any]] = [(f"{name}.meminfo", np.int64(0)), (f"{name}.parent", np.int64(0))]
    parts += [(f"{name}.size", np.int64(value.size)), (f"{name}.itemsize", np.int64(value.itemsize)), (name, value)]
    parts += [(f"{name}.shape[{axis}]", np.int64(extent)) for axis, extent in enumerate(value.shape)]
    parts += [(f"{name}.strides[{axis}]", np.int64(stride)) for axis, stride in enumerate(value.strides)]
    return parts
