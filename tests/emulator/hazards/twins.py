"""Runs a kernel that has a hazard and its twin that has not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemmgen import emulator

from ..helpers import compile_ptx


def check(
    source: str, *args: Any, grid: int = 1, block: int = 64, architecture: str = "compute_80", **kwargs: Any
) -> emulator.LaunchResult:
    """Launches `kernel` of a source with all hazards looked for."""
    whole = source if "__global__" in source else f'extern "C" __global__ void kernel({source}'
    arguments = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
    return emulator.launch(
        compile_ptx(whole, architecture), "kernel", grid=grid, block=block, args=arguments, source=whole, hazards=True, **kwargs
    )


def twins(source: str, remove: str, error: type[emulator.EmulatorError], *args: Any, instead: str = "", **kwargs: Any) -> str:
    """A source is clean; with `remove` replaced it has a hazard by strict rules, whose message is returned."""
    assert remove in source
    check(source, *args, **kwargs)
    with pytest.raises(error) as raised:
        check(source.replace(remove, instead), *args, **kwargs, strict=True)
    return str(raised.value)


def ints(count: int) -> np.ndarray:
    return np.zeros(count, np.int32)


def unwritten(count: int, written: slice | None = None) -> emulator.Buffer:
    """An array of int that nothing has written, or only a part of it."""
    flags = np.zeros(4 * count, np.bool_)
    if written is not None:
        flags.reshape(-1, 4)[written] = True
    return emulator.Buffer(ints(count), name="data", written=flags)
