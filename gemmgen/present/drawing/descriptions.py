"""Description of a picture, for its title and for screen readers."""

from __future__ import annotations

from gemmgen.hardware.shared_memory import SharedAccessCost, shared_access_cost
from gemmgen.kernels.pictures import (
    BankMaps,
    Fragments,
    LaneOrders,
    LoopCode,
    LoopNest,
    OccupancyPicture,
    Packing,
    Picture,
    RegisterBanks,
    RoofPicture,
    SharedAccess,
    TapWalk,
    TileHierarchy,
    Timeline,
    WavePicture,
)


def title_of(picture: Picture) -> str:
    """The heading; where there is one access to shared memory, it is named."""
    if isinstance(picture, BankMaps) and len(picture.maps) == 1:
        title = picture.maps[0].title
        return f"{picture.title}: {title[0].lower()}{title[1:]}"
    return picture.title


def cost_of(access: SharedAccess) -> SharedAccessCost:
    """Cost of one access, by the measured rule."""
    return shared_access_cost(access.offsets, access.width, store=access.store)


def describe(picture: Picture) -> str:
    """A few sentences with the picture's numbers."""
    if isinstance(picture, TileHierarchy):
        levels = [f"{level.title} of {level.rows} × {level.columns} {level.row_axis} × {level.column_axis}" for level in picture.levels]
        return f"{picture.title}: {', '.join(levels)}."
    if isinstance(picture, Fragments):
        c = picture.c
        return " ".join([f"{picture.title}, {c.rows} × {c.columns} {c.row_axis} × {c.column_axis}.", *picture.notes])
    if isinstance(picture, LaneOrders):
        orders = []
        for order in picture.orders:
            costs = " and ".join(f"{cost_of(access).wavefronts} wavefronts to read {name}" for name, access in order.reads)
            orders.append(f"{order.title}: {costs}")
        return f"{picture.title}. {'; '.join(orders)}."
    if isinstance(picture, BankMaps):
        maps = []
        for one in picture.maps:
            layouts = [f"{layout.title}: {cost_of(layout.access).wavefronts} wavefronts" for layout in one.layouts]
            maps.append(f"{one.title}, {'; '.join(layouts)}.")
        return " ".join(maps)
    if isinstance(picture, Timeline):
        return " ".join([f"{picture.title}, {', '.join(picture.rows)}.", *picture.notes])
    if isinstance(picture, WavePicture):
        launches = [
            f"{one.title}: {one.blocks}{' persistent ones' if one.persistent else ''} on {one.multiprocessors} multiprocessors, "
            f"{one.blocks_per_multiprocessor} on each"
            for one in picture.launches
        ]
        return " ".join([f"{picture.title}: {'; '.join(launches)}.", *picture.notes])
    if isinstance(picture, OccupancyPicture):
        limits = ", ".join(f"{limit} by {name}" for name, limit in picture.limits)
        return " ".join([f"{picture.title}: {picture.blocks} blocks; {limits}.", *picture.notes])
    if isinstance(picture, RoofPicture):
        points = "; ".join(f"{point.title}, {point.intensity:.4g} {picture.unit} a byte" for point in picture.points)
        return " ".join([f"{picture.title}: {points}.", *picture.notes])
    if isinstance(picture, RegisterBanks):
        conflicts = sum(one.conflict for one in picture.instructions)
        return " ".join([f"{picture.title}: {len(picture.instructions)} multiply-adds, {conflicts} with a conflict.", *picture.notes])
    if isinstance(picture, LoopCode):
        return " ".join([f"{picture.title}: {len(picture.slots)} instructions, {picture.bytes} bytes.", *picture.notes])
    if isinstance(picture, TapWalk):
        steps = ", ".join(str(step.increment) for step in picture.steps)
        return " ".join([f"{picture.title}: {steps} bytes.", *picture.notes])
    if isinstance(picture, LoopNest):
        return " ".join([f"{picture.title}: {'; '.join(loop.title for loop in picture.loops)}.", *picture.notes])
    if isinstance(picture, Packing):
        blocks = [f"{one.name} in panels of {one.panel} {one.line_axis}, {one.lines} by {one.depth} k" for one in picture.operands]
        return f"{picture.title}: {'; '.join(blocks)}."
    steps = ", ".join(f"{step.title} by {len(step.workers)} threads" for step in picture.steps)
    return " ".join([f"{picture.title}, {picture.threads} threads: {steps}.", *picture.notes])
