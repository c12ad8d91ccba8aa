"""Pictures of a GEMM's accesses to shared memory: in its layout, and in the plain one that padding or a swizzle spares."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.hardware.shared_memory import BANK_BYTES, shared_access_cost
from gemmgen.kernels.gemm.simt.exchange import FLOAT_BYTES, Exchange, exchange_accesses, first_offsets
from gemmgen.kernels.gemm.simt.loop import TiledLoop
from gemmgen.kernels.gemm.simt.operand import CHUNK_BYTES, Operand, every_load, every_store, shared_offset
from gemmgen.kernels.gemm.simt.plan import SimtPlan
from gemmgen.kernels.pictures import BankMap, BankMaps, SharedAccess, SharedLayout


def bank_maps(plan: SimtPlan, loop: TiledLoop) -> BankMaps:
    """Stores and loads of both tiles, and of the epilogue's exchange if there is one."""
    maps = []
    for operand, accesses in ((loop.a, loop.accesses[:2]), (loop.b, loop.accesses[2:])):
        for access in accesses:
            layouts = [_layout(operand, store=access.store)]
            if operand.swizzle is not None or operand.padding:
                plain = replace(operand, swizzle=None, padding=0)
                layouts.insert(0, replace(_layout(plain, store=access.store), chosen=False))
            times = f"The costliest of the {access.per_step} that a warp makes" if access.per_step > 1 else "The only one that a warp makes"
            total = (
                f"{times} for each {loop.tile_k} of k, {access.width_bytes} bytes a lane; "
                f"together {access.wavefronts} wavefronts, {access.conflicts} conflicts."
            )
            name = f"{'store' if access.store else 'load'}-{operand.suffix}"
            maps.append(BankMap(name, _sentence(access.what), tuple(layouts), total, (_arrangement(operand),), _unit(layouts)))
    if plan.exchange is not None:
        maps += _exchange_maps(plan.exchange, loop)
    return BankMaps("Banks of shared memory", tuple(maps))


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _unit(layouts: list[SharedLayout]) -> int:
    """Bytes of the narrowest access, or of a 4-byte word if that is more."""
    return max(BANK_BYTES, min(layout.access.width for layout in layouts))


def _arrangement(operand: Operand) -> str:
    row, column = ("k", operand.axis) if operand.mn_major else (operand.axis, "k")
    text = f"Bold: the words of the access, with lane numbers. One color: the same {column}; each row of the tile has one {row}."
    if operand.swizzle is None:
        return text
    swizzle = operand.swizzle
    bits = f"{row} >> {swizzle.row_shift} & {(1 << swizzle.bits) - 1}" if swizzle.row_shift else f"{row} & {(1 << swizzle.bits) - 1}"
    shifted = f"(({bits}) << {swizzle.chunk_shift})" if swizzle.chunk_shift else f"({bits})"
    return f"{text} The swizzle puts vector v of a row, {CHUNK_BYTES} bytes, where vector v ^ {shifted} would be."


def _title(operand: Operand) -> str:
    if operand.swizzle is not None:
        return "XOR swizzle, as here"
    return f"{operand.padding} of padding a row, as here" if operand.padding else "plain rows"


def _layout(operand: Operand, *, store: bool) -> SharedLayout:
    """The operand's tile with the costliest of its stores or loads."""
    width = (operand.store_width if store else operand.load_width) * operand.shared_bytes
    warps = (every_store if store else every_load)(operand)
    accesses = [SharedAccess.of(offsets, width, store=store) for warp in warps for offsets in warp]
    costliest = max(accesses, key=lambda access: shared_access_cost(access.offsets, width, store=store).wavefronts)
    rows, pitch = operand.shared_shape
    colors = {}
    for row in range(rows):
        for column in range(pitch - operand.padding):
            offset = shared_offset(operand, row, column)
            if offset % BANK_BYTES == 0:
                colors[offset] = column * operand.shared_bytes // CHUNK_BYTES
    return SharedLayout(_title(operand), rows * pitch * operand.shared_bytes, colors, costliest)


def _exchange_maps(exchange: Exchange, loop: TiledLoop) -> list[BankMap]:
    positions = tuple(zip(loop.major.lane_positions, loop.minor.lane_positions, strict=True))
    variants = [exchange] if exchange.padding == 0 else [replace(exchange, padding=0), exchange]
    maps = []
    for place, access in enumerate(exchange_accesses(exchange, positions)):
        layouts = []
        for variant in variants:
            width = (variant.load_width if place else variant.store_width) * FLOAT_BYTES
            offsets = first_offsets(variant, positions)[place]
            rows, pitch = variant.copy.rows, variant.pitch
            colors = {(row * pitch + column) * FLOAT_BYTES: row for row in range(rows) for column in range(variant.copy.columns)}
            title = f"{variant.padding} of padding a row, as here" if variant.padding else "plain rows"
            shown = SharedAccess.of(offsets, width, store=access.store)
            layouts.append(SharedLayout(title, rows * pitch * FLOAT_BYTES, colors, shown, variant is exchange))
        slabs = f"the {loop.major.fragment.extent} slabs of a warp's results"
        total = (
            f"One of {access.per_step} for each of {slabs}, {access.width_bytes} bytes a lane; "
            f"together {access.wavefronts} wavefronts, {access.conflicts} conflicts."
        )
        note = "Bold: the words of the access, with lane numbers. One color: a row of the slab."
        name = "load-slab" if place else "store-slab"
        maps.append(BankMap(name, f"{_sentence(access.what)} of the epilogue", tuple(layouts), total, (note,), _unit(layouts)))
    return maps
