"""A model of the time of an instance on a device: roofline, tiles and waves, latencies, and the cost of dividing k.

The roofs are those of ``gemmgen.hardware.target``. Blocks are spread over the SMs in waves; a wave that does not fill the device takes
as long as its fullest SM does (tile and wave quantisation, NVIDIA's "Matrix Multiplication Background User's Guide"). On an SM,
a step of the resident blocks takes as long as the slowest of arithmetic, shared memory and L2, but no less than the latency
of memory over the steps that are in flight (Little's law). Arithmetic reaches its peak only as far as there are warps to hide
latencies and issue slots to spare (Volkov, Understanding Latency Hiding on GPUs, 2016).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import TYPE_CHECKING, Any

from gemmgen.hardware.target import WARP_THREADS, Device, Figure, occupancy
from gemmgen.kernels.family import Work

if TYPE_CHECKING:
    from gemmgen.kernels.points import Column, Works

MODEL_VERSION = 6
"""Counts changes of the formulas, in this module and in the families' ``work``."""
SCHEDULERS = 4
"""Schedulers of an SM; each issues one instruction a cycle."""


@dataclass(frozen=True)
class Parameters:
    """Figures of the machine that no data sheet states. Seconds, clock cycles, or bytes a clock cycle.

    Calibrated on SGEMM of an H200, 25 shapes with 6 to 700 instances each. Calibrated on half of the shapes, the instance that the
    model picks takes 6.7% longer on the other half than the best that was measured, on average.
    """

    launch_seconds: float = 1.1e-6
    """From one launch of a graph to the next, around a kernel with nothing to do."""
    follow_seconds: float = 1.1e-6
    """Cost that a second kernel of a sequence adds."""
    early_seconds: float = 0.7e-6
    """Cost that a second kernel adds where it is launched while the first one runs."""
    memory_latency_seconds: float = 0.45e-6
    """From a load to its data, from memory."""
    step_clocks: float = 65.0
    """Cost of a barrier and the loop around it in each step."""
    warps_to_hide: float = 0.35
    """Warps of a scheduler at which it reaches half of the peak."""
    issue_weight: float = 0.9
    """Share of the instructions beside the arithmetic that takes slots from it."""
    l2_bytes_per_clock: float = 25.0
    """Bytes a cycle that an SM gets from the L2."""
    memory_efficiency: float = 0.9
    """Part of the memory's roof that kernels reach."""
    turn_seconds: float = 1.8e-6
    """From one block's result to the next block that adds to it."""
    sms_to_draw: float = 0.9
    """Part of the SMs that draw all that the memory gives: 64 blocks got 1.7 TB/s of 4.5 on an H200."""
    begin_seconds: float = 1.0e-6
    """Before a block of a further wave multiplies on tensor cores: its barriers, tensor maps and first copies. 139992 x 8 x 8, in six
    waves of short blocks, took 17 us on an H200."""
    sharpness: float = 3.0
    """Exponent of the norm that takes the place of a maximum: limits that are close to one another add up a little."""

    @property
    def digest(self) -> str:
        """Key that tells one set of figures from another, and from a model that uses them in another way."""
        return f"{MODEL_VERSION}:" + hashlib.sha256(repr(self).encode()).hexdigest()[:12]


PARAMETERS = Parameters()


def model_seconds(works: Sequence[Work], device: Device, parameters: Parameters = PARAMETERS) -> float:
    """Time of a launch sequence, from one launch of it to the next; infinite if a kernel does not fit on an SM."""
    return sum(_launch_seconds(work, device, parameters) for work in works)


def resident_blocks(work: Work, device: Device) -> int:
    """Blocks that fit on an SM."""
    return occupancy(device.architecture, work.threads, work.registers, work.shared_bytes).blocks_per_sm


@dataclass(frozen=True)
class _Maths:
    """Functions for which a number and a column of numbers need different ones."""

    least: Callable[[Any, Any], Any]
    most: Callable[[Any, Any], Any]
    some: Callable[[Any], bool]
    """True if any number is not 0."""


_NUMBERS = _Maths(min, max, bool)


@cache
def _columns() -> _Maths:
    import numpy as np

    return _Maths(np.minimum, np.maximum, lambda column: bool(column.any()))


def seconds_of_many(works: Works, device: Device, parameters: Parameters = PARAMETERS) -> Column:
    """Time of each of many launches, as ``model_seconds`` has it."""
    seconds: Column = _fitting_seconds(works, device, parameters, works.fitting, _columns())
    return seconds


def _launch_seconds(work: Work, device: Device, p: Parameters) -> float:
    fitting = resident_blocks(work, device)
    if fitting == 0:
        return float("inf")
    if work.blocks <= 0:
        return float(_overhead(work, p))
    return float(_fitting_seconds(work, device, p, fitting, _NUMBERS))


def _overhead(work: Any, p: Parameters) -> Any:
    """Seconds of a launch beside its work; of a column of launches, a column."""
    late = p.follow_seconds if work.follows else p.launch_seconds
    return late + (p.early_seconds - late) * work.early


def _fitting_seconds(work: Any, device: Device, p: Parameters, fitting: Any, maths: _Maths) -> Any:
    """Seconds of a launch, or of a column of launches, ``fitting`` blocks of which an SM holds at a time."""
    at_once = device.sm_count * fitting
    waves, rest = work.blocks // at_once, work.blocks % at_once
    fullest = maths.most(-(-rest // device.sm_count), 1)
    clocks = waves * _wave_clocks(work, device, p, fitting, device.sm_count, maths) if maths.some(waves) else 0.0
    clocks = clocks + (rest > 0) * _wave_clocks(work, device, p, fullest, maths.least(rest, device.sm_count), maths)
    seconds = clocks / device.clock_hz
    if work.unit != "fp32":
        seconds = seconds + waves * p.begin_seconds * work.costs.begin
    seconds = seconds + (work.turns - 1) * p.turn_seconds
    # A few SMs cannot draw all that the memory gives.
    drawn = maths.least(1.0, work.blocks / device.sm_count / (p.sms_to_draw * work.costs.draw))
    bandwidth = memory_bandwidth(device) * p.memory_efficiency * drawn
    return _overhead(work, p) + _norm((seconds, work.memory_bytes * work.costs.memory / bandwidth), p.sharpness, maths)


def _wave_clocks(work: Any, device: Device, p: Parameters, blocks: Any, sms: Any, maths: _Maths) -> Any:
    """Clock cycles that an SM needs for ``blocks`` blocks at a time, while ``sms`` SMs work."""
    costs = work.costs
    warps = blocks * work.threads / WARP_THREADS / SCHEDULERS
    used = maths.least(1.0, warps) * warps / (warps + p.warps_to_hide * costs.hide)
    rate = operation_rate(device, work.unit).value / device.sm_count / device.clock_hz
    arithmetic = blocks * work.operations / rate * costs.arithmetic * (1 + (work.issue - 1) * p.issue_weight) / used
    alone = 1 - maths.least(1.0, sms / device.sm_count)
    loads = blocks * work.loaded_bytes * costs.loads * (1 - costs.crowd * alone) / p.l2_bytes_per_clock
    busy = _norm((arithmetic, blocks * work.shared_clocks * costs.shared, loads), p.sharpness, maths) + p.step_clocks * costs.barriers
    latency = p.memory_latency_seconds * device.clock_hz
    step = _norm((busy, latency * costs.latency / work.in_flight), p.sharpness, maths)
    store = blocks * work.stored_bytes * costs.stores / p.l2_bytes_per_clock
    finish = blocks * work.finishing_clocks
    return latency * (1 + costs.idle + costs.pause * (work.results - 1)) + step * work.steps + store + finish


def _norm(values: Sequence[object], exponent: float, maths: _Maths) -> Any:
    largest = reduce(maths.most, values)
    scale = maths.most(largest, 1e-30)
    parts = [value / scale for value in values]
    # Products make cubes of a column in a tenth of the time of a power.
    powers = [part * part * part for part in parts] if exponent == 3 else [part**exponent for part in parts]
    return largest * sum(powers) ** (1 / exponent)


def operation_rate(device: Device, unit: str) -> Figure:
    """Operations per second of a unit of the device; where its rate is not known, that of the FMA lanes."""
    return device.roof(unit) or device.fp32_roof


def memory_bandwidth(device: Device) -> float:
    """Bytes per second; where the device's is not known, as much for each operation as an A100 has."""
    roof = device.memory_roof
    return roof.value if roof is not None else device.fp32_roof.value / 10


def binding_limit(works: Sequence[Work], device: Device, parameters: Parameters = PARAMETERS) -> str:
    """Bottleneck of the longest launch, in words."""
    work = max(works, key=lambda one: _launch_seconds(one, device, parameters))
    fitting = max(1, min(resident_blocks(work, device), -(-work.blocks // device.sm_count)))
    p = parameters
    rate = operation_rate(device, work.unit).value / device.sm_count / device.clock_hz
    waves = work.blocks / (device.sm_count * fitting)
    clock = device.clock_hz
    shares = {
        "arithmetic": waves * work.steps * fitting * work.operations / rate / clock,
        "shared memory": waves * work.steps * fitting * work.shared_clocks / clock,
        "L2": waves * work.steps * fitting * work.loaded_bytes / p.l2_bytes_per_clock / clock,
        "memory": work.memory_bytes / (memory_bandwidth(device) * p.memory_efficiency),
        "latency of memory": waves * work.steps * p.memory_latency_seconds / work.in_flight,
        "the launch itself": p.launch_seconds,
    }
    return max(shares, key=lambda name: shares[name])
