"""Runs of a foreign kernel on the emulator, and the properties of proofs that they contradict."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import cast

import numpy as np

from gemmgen.cli.proof_files import ForeignKernel, _length
from gemmgen.core.elements import ELEMENTS, numpy_type
from gemmgen.core.errors import GemmgenError
from gemmgen.emulator.errors import EmulatorError
from gemmgen.emulator.program import link
from gemmgen.kernels.launch import ArrayArgument
from gemmgen.runtime.backend import HostBuffer
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.nvrtc import Binary
from tests.proof.agreement import Trace

PROBLEMS = (0, 1, 2, 3, 5, 16, 17, 33, 64, 65, 130)
VIOLATES = {
    "memory": ("out-of-bounds", "misaligned", "read-only", "invalid-address", "unallocated"),
    "races": ("shared-race", "in-flight"),
    "progress": ("divergent-barrier", "deadlock", "divergent-warp"),
}
"""Beginnings of the codes of findings that contradict a property."""
MAX_LAUNCH_THREADS = 4096
STEP_LIMIT = 20_000
"""Basic blocks of a run, after which a loop is taken to be endless and the run is not looked at."""


def contradictions(kernel: ForeignKernel, numbers: random.Random, runs: int) -> dict[str, str]:
    """Properties that runs on drawn problems contradict, each with the contradiction."""
    found: dict[str, str] = {}
    for _ in range(runs):
        problem = {dimension.name: numbers.choice(PROBLEMS) for dimension in kernel.sequence.dimensions}
        if all(constraint.condition.evaluate(problem) for constraint in kernel.sequence.constraints):
            found = {**found, **contradicted(kernel, problem)}
    return found


def contradicted(kernel: ForeignKernel, problem: Mapping[str, int]) -> dict[str, str]:
    """Properties that one run contradicts."""
    found: dict[str, str] = {}
    for finding in kernel.faults(problem, STEP_LIMIT):
        for name, starts in VIOLATES.items():
            if finding.code.startswith(starts):
                found[name] = f"{problem}: {finding.message}"
        if finding.code.startswith("uninitiali") and not re.search(r"\bglobal\b", finding.message):
            found["initialised"] = f"{problem}: {finding.message}"
    if found:
        return found
    stores = _stores(kernel, problem)
    if stores is None:
        return found
    for argument in kernel.sequence.arguments:
        if not isinstance(argument, ArrayArgument) or not argument.writes:
            continue
        rows = stores.get(argument.name, np.zeros((0, 4), np.int64))
        size = ELEMENTS[argument.type].bytes
        owners: dict[int, tuple[int, int]] = {}
        for block, thread, offset, width in rows.tolist():
            for element in range(offset // size, (offset + width) // size):
                if element in owners:
                    found["once"] = f"{problem}: {argument.name}[{element}] by {owners[element]} and {(block, thread)}"
                owners[element] = block, thread
        missing = set(_elements(argument, problem)) - set(owners)
        if missing:
            found["complete"] = f"{problem}: {argument.name}[{min(missing)}] is not stored"
    return found


def _elements(argument: ArrayArgument, problem: Mapping[str, int]) -> Iterator[int]:
    places = np.zeros(1, np.int64)
    for extent, stride in zip(argument.shape, argument.strides, strict=True):
        steps = np.arange(max(0, extent.evaluate(problem))) * stride.evaluate(problem)
        places = (places[:, None] + steps[None, :]).ravel()
    return iter(places.tolist())


def _stores(kernel: ForeignKernel, problem: Mapping[str, int]) -> dict[str, np.ndarray] | None:
    """Block, thread, offset and bytes of each store, by array; None where the problem is not run."""
    launch = kernel.sequence.launches[0]
    try:
        grid = launch.grid_of(problem)
        if grid[0] * grid[1] * grid[2] * launch.threads > MAX_LAUNCH_THREADS:
            return None
        trace = Trace(link(kernel.code.ptx, launch.entry))
        memory = {
            argument.name: HostBuffer(np.ones(_length(argument, problem), numpy_type(argument.type)))
            for argument in kernel.sequence.arguments
            if isinstance(argument, ArrayArgument)
        }
        if 0 not in grid:
            binary = cast(Binary, SimpleNamespace(ptx=kernel.code.ptx, architecture=kernel.code.architecture))
            EmulatorBackend([trace], hazards=False, step_limit=STEP_LIMIT).run(binary, kernel.sequence, problem, {}, memory)
    except (GemmgenError, EmulatorError):
        return None
    found: dict[str, list[np.ndarray]] = defaultdict(list)
    for (_, kind, space, name), rows in trace.rows.items():
        if space == "global" and kind == "store":
            found[name] += [each[:, :4] for each in rows]
    return {name: np.concatenate(rows) for name, rows in found.items()}
