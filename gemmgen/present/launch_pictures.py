"""Pictures of a plan on a device: its blocks in waves over the multiprocessors, the limits of residency, and roofs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from gemmgen.core.errors import GemmgenError
from gemmgen.hardware.target import WARP_THREADS, Device, occupancy
from gemmgen.kernels import family_of
from gemmgen.kernels.family import InstancePlan, KernelPlan
from gemmgen.kernels.launch import KernelLaunch
from gemmgen.kernels.pictures import LaunchWaves, OccupancyPicture, Picture, Roof, RoofPicture, RoofPoint, TapStep, TapWalk, WavePicture
from gemmgen.perf.analysis.roofline import roofline
from gemmgen.perf.cost_model import cost_model_of
from gemmgen.present.explanation import illustration_of
from gemmgen.toolchain.nvrtc import KernelResources

_NAMES = {"warps": "warps", "blocks": "blocks", "registers": "registers", "shared": "shared memory"}
_MIN_ENLARGED = 8
"""Extents below this, such as filters, are kept where a larger problem is asked for."""


def all_pictures(
    plan: InstancePlan, device: Device, sizes: Sequence[int] = (), compiled: Mapping[str, KernelResources] | None = None
) -> list[Picture]:
    """The pictures of a plan's family, and those of its launches on ``device`` if it is for a GPU.

    ``sizes``: the problem, in the family's order; else a typical one. ``compiled``: the resources of its compiled kernels by entry; without
    them, registers are the plan's estimates, and the pictures say so.
    """
    pictures = illustration_of(plan.spec.kind).pictures(plan)
    if not isinstance(plan, KernelPlan):
        return pictures
    return [
        *pictures,
        *increment_pictures(plan, sizes),
        *launch_pictures(plan, device, sizes, compiled),
        *roof_pictures(plan, device, sizes),
    ]


def increment_pictures(plan: KernelPlan, sizes: Sequence[int] = ()) -> list[Picture]:
    """The table of steps that the host computes for a convolution; none where the kernel takes no such table."""
    family = family_of(plan.spec)
    typical = family.instance_sizes(plan)
    tables = [part for argument in plan.sequence.host_arguments for part in argument.fields if part.name == "increment"]
    try:
        problem = family.problem(plan, tuple(sizes) or tuple(typical.values()))
    except GemmgenError:
        return []
    pictures: list[Picture] = []
    for table in tables:
        rows, columns = problem["r"], problem["s"]
        values = [table.value.evaluate({**problem, "i": entry}) for entry in range(table.count.evaluate(problem))]
        steps = tuple(
            TapStep(entry // (rows * columns), entry // columns % rows, entry % columns, value) for entry, value in enumerate(values)
        )
        named = ", ".join(f"{name}={problem[name]}" for name in typical)
        notes = (
            f"{named}. The host computes {len(steps)} steps, {4 * len(steps)} bytes of the kernel's parameters, which all lanes read at "
            "once; they repeat, so that the loop adds one to its pointer and divides nothing.",
            "A pixel takes 32 bytes, a row of the image w pixels, and a block of channels h rows; behind the last tap comes the first of "
            "the next block.",
        )
        pictures.append(TapWalk("Steps of the pointer into x, from the host", rows, columns, steps, notes))
    return pictures


@dataclass(frozen=True)
class _Resident:
    """Resources of a multiprocessor that one launch of a problem needs."""

    blocks: int
    threads: int
    registers: int
    shared_bytes: int
    persistent: bool


def launch_pictures(
    plan: KernelPlan, device: Device, sizes: Sequence[int] = (), compiled: Mapping[str, KernelResources] | None = None
) -> list[Picture]:
    """Waves and occupancy, by the resources of ``compiled`` kernels, else by the plan's estimates. None where nothing can be launched or
    nothing fits."""
    family = family_of(plan.spec)
    typical = family.instance_sizes(plan)
    try:
        problem = family.problem(plan, tuple(sizes) or tuple(typical.values()))
    except GemmgenError:
        return []
    launches = [resident for resident in _residents(plan, problem, tuple(typical), compiled) if resident.blocks > 0]
    fitting = [
        (resident, occupancy(device.architecture, resident.threads, resident.registers, resident.shared_bytes)) for resident in launches
    ]
    if not fitting or any(resident.blocks_per_sm == 0 for _, resident in fitting):
        return []
    named = ", ".join(f"{name}={problem[name]}" for name in typical)
    drawn = tuple(
        LaunchWaves(
            "blocks" if len(fitting) == 1 else f"kernel {number}", one.blocks, device.sm_count, resident.blocks_per_sm, one.persistent
        )
        for number, (one, resident) in enumerate(fitting, 1)
    )
    notes = [f"{named}. A wave is as many blocks as the {device.name} holds at once; hatched: places that stay empty in the last one."]
    if any(one.persistent for one in drawn):
        notes.append("The number of persistent blocks does not follow the problem: they take several tiles each, or share out k.")
    waves = WavePicture(f"Blocks in waves over the {device.name}", drawn, tuple(notes))
    return [waves, _occupancy(max(fitting, key=lambda each: each[0].blocks)[0], device, compiled is not None)]


def _residents(
    plan: KernelPlan, problem: Mapping[str, int], sizes: Sequence[str], compiled: Mapping[str, KernelResources] | None
) -> list[_Resident]:
    larger = {**problem, **{name: 16 * problem[name] for name in sizes if problem[name] >= _MIN_ENLARGED}}
    works = cost_model_of(plan.spec.kind).work(plan, problem)
    residents = []
    for launch, work in zip(plan.sequence.launches, works, strict=True):
        dynamic = launch.dynamic_shared_bytes.evaluate(problem)
        used = compiled[launch.entry] if compiled is not None else None
        registers, shared = (work.registers, work.shared_bytes) if used is None else (used.registers, used.static_shared_bytes + dynamic)
        persistent = work.blocks > 1 and larger != problem and _blocks(launch, larger) == work.blocks
        residents.append(_Resident(work.blocks, work.threads, registers, shared, persistent))
    return residents


def _blocks(launch: KernelLaunch, problem: Mapping[str, int]) -> int:
    return prod(extent.evaluate(problem) for extent in launch.grid)


def roof_pictures(plan: KernelPlan, device: Device, sizes: Sequence[int] = ()) -> list[Picture]:
    """The roofs over a problem; none where one of the device's is not known, or nothing is computed."""
    family = family_of(plan.spec)
    typical = family.instance_sizes(plan)
    model = cost_model_of(plan.spec.kind)
    try:
        problem = family.problem(plan, tuple(sizes) or tuple(typical.values()))
    except GemmgenError:
        return []
    roofs = roofline(model.cost(plan, problem), device)
    cost, compute, memory = roofs.cost, roofs.compute_roof, roofs.memory_roof
    if compute is None or memory is None or not cost.operations or not cost.bytes:
        return []
    shown = [Roof(f"arithmetic ({compute.origin})", compute.value), Roof(f"memory ({memory.origin})", memory.value, sloped=True)]
    if cost.special:
        shown.append(Roof(f"special functions ({roofs.special_roof.origin})", cost.operations / roofs.special_seconds))
    points = [RoofPoint("each array once", cost.operations / cost.bytes, cost.operations / roofs.least_seconds)]
    moved = sum(fetch.moved for fetch in model.fetches(plan, problem))
    if moved > cost.bytes:
        l2 = device.l2_roof
        shown.append(Roof(f"L2 ({l2.origin}{', at most' if l2.origin == 'theory' else ''})", l2.value, sloped=True))
        fed = min(compute.value, cost.operations / moved * l2.value)
        points.append(RoofPoint("including data that tiles fetch again, from the L2", cost.operations / moved, fed))
    named = ", ".join(f"{name}={problem[name]}" for name in typical)
    unit = "OP" if cost.unit.startswith("int8") else "FLOP"
    return [RoofPicture(f"Roofs of the {device.name}", unit, tuple(shown), tuple(points), (f"{named}; both axes logarithmic.",))]


def _occupancy(work: _Resident, device: Device, compiled: bool) -> OccupancyPicture:
    chip = device.architecture
    warps = -(-work.threads // WARP_THREADS)
    unlimited = occupancy(chip, WARP_THREADS, 0, 0).blocks_per_sm
    limits = {
        "warps": chip.warps_per_sm // warps,
        "blocks": chip.blocks_per_sm,
        "registers": occupancy(chip, WARP_THREADS, work.registers, 0).warps // warps,
        "shared": occupancy(chip, WARP_THREADS, 0, work.shared_bytes).blocks_per_sm if work.shared_bytes else unlimited,
    }
    computed = occupancy(chip, work.threads, work.registers, work.shared_bytes)
    notes = (
        f"{work.threads} threads a block, "
        + (f"{work.registers} registers a thread, " if compiled else f"about {work.registers} registers a thread (the plan's estimate), ")
        + f"{work.shared_bytes:,} bytes of shared memory a block.",
    )
    by_name = tuple((_NAMES[name], max(limit, computed.blocks_per_sm)) for name, limit in limits.items())
    return OccupancyPicture(f"Occupancy of the {device.name}", by_name, computed.blocks_per_sm, warps, chip.warps_per_sm, notes)
