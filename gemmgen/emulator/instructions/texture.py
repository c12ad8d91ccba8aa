"""Textures: tex and tld4, with point and linear filtering, in one to three dimensions, with layers and faces; surfaces: suld and sust."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.errors import OutOfBounds, UnknownInstruction
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.instructions.warp import by_lanes, value_at
from gemmgen.emulator.memory import GLOBAL_BASE, Access
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Address, Instruction, Operand, Register, Vector
from gemmgen.emulator.textures import HANDLE_BASE, PlacedTexture, as_numbers, face_of, gathered, taps

_AXES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2, "cube": 3, "acube": 3}
_LAYERED = ("a1d", "a2d", "acube")
_CHANNELS = ("r", "g", "b", "a")


def _form(inst: Instruction, place: Operand) -> tuple[str, Address, tuple[Operand, ...]]:
    """The geometry, the address operand and the coordinates, a layer in front of them."""
    geometry = next((word for word in inst.modifiers if word in _AXES), None)
    if geometry is None or not isinstance(place, Address) or len(place.extra) != 1:
        raise UnknownInstruction(f"{'.'.join((inst.opcode, *inst.modifiers))} is not implemented", instruction=inst)
    extra = place.extra[0]
    words = extra.elements if isinstance(extra, Vector) else (extra,)
    return geometry, place, words[: _AXES[geometry] + (geometry in _LAYERED)]


def _by_handle(inst: Instruction, binder: Binder, handles: Source, what: str, use: Callable[[PlacedTexture, Lanes], None]) -> Operation:
    def run(lanes: Lanes) -> None:
        known = value_at(handles, lanes).astype(np.int64) - HANDLE_BASE
        for handle in np.unique(known).tolist():
            chosen = lanes[known == handle]
            if not 0 <= handle < len(binder.textures):
                binder.fail(OutOfBounds, f"0x{handle + HANDLE_BASE:x} is no {what} of this launch", inst, chosen)
            use(binder.textures[handle], chosen)

    return by_lanes(binder, run)


@instruction("tex", "tld4")
def sample(inst: Instruction, binder: Binder) -> Operation:
    """The texel at a place, the mean of its neighbours, or one channel of the four around it."""
    results = inst.operands[0]
    geometry, source, words = _form(inst, inst.operands[1])
    axes, layered = _AXES[geometry], geometry in _LAYERED
    gathers = inst.opcode == "tld4"
    if not isinstance(results, Vector) or (gathers and geometry != "2d"):
        raise UnknownInstruction(f"{'.'.join((inst.opcode, *inst.modifiers))} is not implemented", instruction=inst)
    result_type, coordinate_type = inst.types
    # Textures have one level of detail, which .level and .grad always choose.
    layers = binder.source(inst, words[0], "u32") if layered else None
    coordinates = [binder.source(inst, operand, coordinate_type) for operand in words[layered:]]
    targets = [binder.target(inst, operand, result_type) for operand in results.elements]
    accesses: dict[int, Access] = {}

    def read(texture: PlacedTexture, lanes: Lanes, numbers: np.ndarray) -> np.ndarray:
        """All channels of the texels of these numbers."""
        size = texture.dtype.itemsize
        access = accesses.setdefault(size, Access(inst, "load", size, size))
        columns = []
        for channel in range(texture.texture.channels):
            addresses = (texture.offsets(numbers) + (GLOBAL_BASE + channel * size)).astype(np.uint64)
            columns.append(binder.spaces.global_.units[size][binder.spaces.global_.locate(access, lanes, addresses)].view(texture.dtype))
        return np.stack(columns, axis=1)

    def fetch(texture: PlacedTexture, lanes: Lanes) -> None:
        places = [value_at(each, lanes) for each in coordinates]
        layer = value_at(layers, lanes) if layers is not None else None
        if geometry in ("cube", "acube"):
            face, *places = face_of(*places)
            if not texture.texture.normalized:
                places = [place * extent for place, extent in zip(places, texture.extents[:2], strict=True)]
            layer = face if layer is None else layer.astype(np.int64) * 6 + face
        if len(texture.extents) != len(places) + (layer is not None):
            binder.fail(OutOfBounds, f"a fetch in {axes} dimensions from a texture of {len(texture.extents)}", inst, lanes)
        if gathers:
            channel = next(_CHANNELS.index(word) for word in inst.modifiers if word in _CHANNELS)
            for target, (number, there, _) in zip(targets, gathered(texture, places), strict=True):
                if target is not None:
                    texels = as_numbers(read(texture, lanes, number), texture.texture.as_float)
                    chosen = texels[:, channel] if channel < texels.shape[1] else np.zeros(len(texels), texels.dtype)
                    target[lanes] = _wide(np.where(there, chosen, chosen.dtype.type(0))).view(target.dtype)
            return
        total: np.ndarray | None = None
        for number, there, weight in taps(texture, places, layer):
            texels = as_numbers(read(texture, lanes, number), texture.texture.as_float)
            texels = np.where(there[:, None], texels, texels.dtype.type(0))
            if texture.texture.filter == "linear" and texels.dtype.kind == "f" and places[0].dtype.kind == "f":
                texels = texels.astype(np.float64) * weight[:, None]
            total = texels if total is None else total + texels
        assert total is not None
        for channel, target in enumerate(targets):
            if target is None:
                continue
            if channel < total.shape[1]:
                target[lanes] = _wide(total[:, channel]).view(target.dtype)
            else:
                target[lanes] = np.array(channel == 3, np.float32 if texture.dtype.kind == "f" else np.uint32).view(target.dtype)

    return _by_handle(inst, binder, binder.source(inst, source.base, "u64"), "texture", fetch)


def _wide(values: np.ndarray) -> np.ndarray:
    """Texels as registers of 32 bits."""
    wide = np.float32 if values.dtype.kind == "f" else np.int32 if values.dtype.kind == "i" else np.uint32
    return values.astype(wide)


@instruction("suld", "sust")
def surface(inst: Instruction, binder: Binder) -> Operation:
    """Bytes of a surface: x counts bytes, y and z rows and slices, and a layer comes first."""
    stores = inst.opcode == "sust"
    place, data = (inst.operands[0], inst.operands[1]) if stores else (inst.operands[1], inst.operands[0])
    geometry, source, words = _form(inst, place)
    if not inst.has("b"):
        raise UnknownInstruction(f"{'.'.join((inst.opcode, *inst.modifiers))} is not implemented", instruction=inst)
    elements = data.elements if isinstance(data, Vector) else (data,)
    size = TYPE_BYTES[inst.type]
    raw = f"b{size * 8}"
    access = Access(inst, "store" if stores else "load", size, size)
    coordinates = [binder.source(inst, word, "s32") for word in words]
    if geometry in _LAYERED:
        coordinates = [*coordinates[1:], coordinates[0]]
    sources = [binder.source(inst, e, raw if isinstance(e, Register) else inst.type) for e in elements] if stores else []
    targets = [] if stores else [binder.target(inst, e, raw) for e in elements]

    def move(placed: PlacedTexture, lanes: Lanes) -> None:
        places = [value_at(each, lanes).astype(np.int64) for each in coordinates]
        if len(places) != len(placed.extents):
            binder.fail(OutOfBounds, f"an access in {len(places)} dimensions to a surface of {len(placed.extents)}", inst, lanes)
        limits = [placed.extents[0] * placed.texel_bytes - size * len(elements) + 1, *placed.extents[1:]]
        there = np.ones(len(lanes), np.bool_)
        for coordinate, limit in zip(places, limits, strict=True):
            there &= (coordinate >= 0) & (coordinate < limit)
        if not there.all() and not (inst.has("zero") or inst.has("clamp")):
            first = int(np.flatnonzero(~there)[0])
            text = ", ".join(str(int(each[first])) for each in places)
            shape = f"{' x '.join(str(e) for e in placed.extents)} texels of {placed.texel_bytes} bytes"
            binder.fail(OutOfBounds, f"access to ({text}) of a surface of {shape}; x counts bytes", inst, lanes[~there])
        places = [np.clip(coordinate, 0, limit - 1) for coordinate, limit in zip(places, limits, strict=True)]
        row, stride = np.zeros(len(lanes), np.int64), 1
        for coordinate, extent in zip(places[1:], placed.extents[1:], strict=True):
            row += coordinate * stride
            stride *= extent
        start = row * (placed.pitch or placed.extents[0] * placed.texel_bytes) + places[0] + (placed.base + GLOBAL_BASE)
        chosen = there if stores and inst.has("zero") else np.ones(len(lanes), np.bool_)
        if not chosen.any():
            return
        for index in range(len(elements)):
            addresses = (start[chosen] + index * size).astype(np.uint64)
            at = binder.spaces.global_.locate(access, lanes[chosen], addresses)
            units = binder.spaces.global_.units[size]
            if stores:
                units[at] = value_at(sources[index], lanes)[chosen].view(units.dtype)
            elif (target := targets[index]) is not None:
                values = units[at]
                target[lanes] = (np.where(there, values, values.dtype.type(0)) if inst.has("zero") else values).view(target.dtype)

    return _by_handle(inst, binder, binder.source(inst, source.base, "u64"), "surface", move)
