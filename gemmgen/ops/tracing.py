"""The problems that a script computes with torch, noted while it runs."""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gemmgen.core.errors import EnvironmentMissing, SpecError
from gemmgen.dispatch.profiles import MAX_EVENTS, Call, Counted, counted

_NAMES = {
    "torch.float32": "float",
    "torch.float16": "c10::Half",
    "torch.bfloat16": "c10::BFloat16",
    "torch.float64": "double",
    "torch.int8": "signed char",
    "torch.uint8": "unsigned char",
    "torch.float8_e4m3fn": "c10::Float8_e4m3fn",
    "torch.float8_e5m2": "c10::Float8_e5m2",
}


def traced(script: Path, arguments: Sequence[str]) -> list[Counted]:
    """The problems of the operations that a script calls, with the time that their calls took on the host. The script's own errors stay
    its own.

    Raises ``EnvironmentMissing`` without torch, ``SpecError`` if the script cannot be read or computes nothing that is a problem.
    """
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        raise EnvironmentMissing("gemmgen trace runs scripts with torch, which is not installed: pip install torch") from None
    if not script.is_file():
        raise SpecError(f"{script}: is no script that can be read")
    calls: list[Call] = []

    class Noting(TorchDispatchMode):  # type: ignore[misc]
        """Notes every operation below autograd."""

        def __torch_dispatch__(self, function: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
            started = time.perf_counter()
            result = function(*args, **(kwargs or {}))
            if len(calls) < MAX_EVENTS:
                calls.append(_call(function, args, (time.perf_counter() - started) * 1e6))
            return result

    before, path = sys.argv, list(sys.path)
    sys.argv, sys.path = [str(script), *arguments], [str(script.parent.absolute()), *sys.path]
    try:
        with Noting():
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path = before, path
    requests = counted(calls)
    if not requests:
        raise SpecError(f"{script}: computed no product, reduction or map of elements that a problem describes")
    return requests


def _call(function: object, arguments: Sequence[Any], microseconds: float) -> Call:
    shapes, strides, types = [], [], []
    for one in arguments:
        tensor = hasattr(one, "shape") and hasattr(one, "stride")
        shapes.append(tuple(map(int, one.shape)) if tensor else ())
        strides.append(tuple(map(int, one.stride())) if tensor else ())
        types.append(_NAMES.get(str(one.dtype), "") if tensor else "")
    name = str(function).partition(".")[2].partition(".")[0] if str(function).startswith("aten.") else str(function)
    return Call(f"aten::{name}", tuple(shapes), tuple(strides), tuple(types), tuple(map(_plain, arguments)), microseconds)


def _plain(value: object) -> str:
    """Numbers and lists of numbers as text; nothing of tensors, whose text would read their elements."""
    items = value if isinstance(value, list | tuple) else (value,)
    return str(value)[:200] if all(isinstance(one, int | float) for one in items) else ""
