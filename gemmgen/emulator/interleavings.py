"""One launch under several interleavings of warps and blocks: a correct kernel gives the same bits under all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gemmgen.emulator.buffers import Buffer, maps_of
from gemmgen.emulator.errors import EmulatorError
from gemmgen.emulator.launch import LaunchResult, launch
from gemmgen.emulator.program import link
from gemmgen.emulator.ptx.syntax import Instruction
from gemmgen.emulator.schedule import RandomCrowds

_WAVES = (1, 512, 2048, 8192)
_FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")


class ScheduleDependent(EmulatorError):
    """The result depends on the order in which warps and blocks happen to run."""

    title = "result depends on the schedule"


def launch_interleaved(ptx: str, entry: str | None = None, *, schedules: int, args: Sequence[Any] = (), **kwargs: Any) -> LaunchResult:
    """`launch`, repeated until it has run under `schedules` interleavings, the first one the usual one.

    The arrays hold the first run's results. Raises ScheduleDependent if another run differs in any byte, or the error of a run."""
    if schedules == 1:
        return launch(ptx, entry, args=args, **kwargs)
    bases = [each.base for arg in args for each in maps_of(arg)]
    buffers = [Buffer(arg) if isinstance(arg, np.ndarray) else arg for arg in (*args, *bases)]
    arrays = [buffer.array for buffer in buffers if isinstance(buffer, Buffer)]
    written = [buffer.written for buffer in buffers if isinstance(buffer, Buffer)]
    names = [buffer.name or f"argument {index}" for index, buffer in enumerate(buffers) if isinstance(buffer, Buffer)]
    before = [array.copy() for array in arrays]
    written_before = [None if flags is None else flags.copy() for flags in written]
    result = launch(ptx, entry, args=args, **kwargs)
    after = [array.copy() for array in arrays]
    for seed in range(1, schedules):
        for array, content in zip(arrays, before, strict=True):
            if array.flags.writeable:
                array[...] = content
        for flags, old_flags in zip(written, written_before, strict=True):
            if flags is not None and old_flags is not None:
                flags[...] = old_flags
        random = np.random.default_rng(seed)
        lanes = int(_WAVES[int(random.integers(len(_WAVES)))])
        launch(ptx, entry, args=args, **{**kwargs, "schedule": RandomCrowds(seed), "lanes_per_wave": lanes})
        for name, array, expected in zip(names, arrays, after, strict=True):
            _compare(ptx, entry, seed, name, expected, array)
    return result


def _compare(ptx: str, entry: str | None, seed: int, name: str, expected: np.ndarray, got: np.ndarray) -> None:
    width = expected.itemsize
    different = np.flatnonzero(
        (
            np.ascontiguousarray(expected).view(np.uint8).reshape(-1, width) != np.ascontiguousarray(got).view(np.uint8).reshape(-1, width)
        ).any(axis=1)
    )
    if not len(different):
        return
    first = int(different[0])
    message = (
        f"{name}[{first}] is {expected.ravel()[first]} in one order of warps and {got.ravel()[first]} in another (seed {seed}); "
        f"{len(different)} of {expected.size} elements differ"
    )
    adder = _float_atomic(ptx, entry)
    if adder is not None:
        message += "; floating-point atomic additions round differently in each order"
    raise ScheduleDependent(message, instruction=adder)


def _float_atomic(ptx: str, entry: str | None) -> Instruction | None:
    """An atomic operation whose result depends on the order in which threads come."""
    for block in link(ptx, entry).blocks:
        for inst in block.body:
            if inst.opcode in ("atom", "red") and inst.has("add") and inst.first_of(_FLOATS) is not None:
                return inst
    return None
