"""Textures: tex, with point and linear filtering, in one to three dimensions."""

from __future__ import annotations

import numpy as np

from gemmgen.emulator.binding import Binder
from gemmgen.emulator.errors import OutOfBounds, UnknownInstruction
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.instructions.warp import by_lanes, value_at
from gemmgen.emulator.memory import GLOBAL_BASE, Access
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Address, Instruction, Vector
from gemmgen.emulator.textures import HANDLE_BASE, PlacedTexture, as_numbers, taps

_AXES = {"1d": 1, "2d": 2, "3d": 3}


@instruction("tex")
def sample(inst: Instruction, binder: Binder) -> Operation:
    """The texel at a place, or the mean of its neighbours."""
    axes = next((_AXES[word] for word in inst.modifiers if word in _AXES), None)
    source, results = inst.operands[1], inst.operands[0]
    if axes is None or not isinstance(source, Address) or len(source.extra) != 1 or not isinstance(results, Vector):
        raise UnknownInstruction(f"{'.'.join((inst.opcode, *inst.modifiers))} is not implemented", instruction=inst)
    result_type, coordinate_type = inst.types
    place = source.extra[0]
    coordinates = [
        binder.source(inst, operand, coordinate_type) for operand in (place.elements if isinstance(place, Vector) else (place,))[:axes]
    ]
    handles = binder.source(inst, source.base, "u64")
    targets = [binder.target(inst, operand, result_type) for operand in results.elements]
    accesses: dict[int, Access] = {}

    def read(texture: PlacedTexture, lanes: Lanes, numbers: np.ndarray) -> np.ndarray:
        """All channels of the texels of these numbers."""
        size, channels = texture.dtype.itemsize, texture.texture.channels
        access = accesses.setdefault(size, Access(inst, "load", size, size))
        columns = []
        for channel in range(channels):
            addresses = (numbers * (size * channels) + (texture.base + GLOBAL_BASE + channel * size)).astype(np.uint64)
            columns.append(binder.spaces.global_.units[size][binder.spaces.global_.locate(access, lanes, addresses)].view(texture.dtype))
        return np.stack(columns, axis=1)

    def fetch(texture: PlacedTexture, lanes: Lanes) -> None:
        if len(texture.extents) != axes:
            binder.fail(OutOfBounds, f"a fetch in {axes} dimensions from a texture of {len(texture.extents)}", inst, lanes)
        total: np.ndarray | None = None
        for number, there, weight in taps(texture, [value_at(each, lanes) for each in coordinates]):
            texels = as_numbers(read(texture, lanes, number), texture.texture.as_float)
            texels = np.where(there[:, None], texels, texels.dtype.type(0))
            if texture.texture.filter == "linear" and texels.dtype.kind == "f" and coordinates[0].dtype.kind == "f":
                texels = texels.astype(np.float64) * weight[:, None]
            total = texels if total is None else total + texels
        assert total is not None
        for channel, target in enumerate(targets):
            if target is None:
                continue
            if channel < total.shape[1]:
                values = total[:, channel]
                wide = np.float32 if values.dtype.kind == "f" else np.int32 if values.dtype.kind == "i" else np.uint32
                target[lanes] = values.astype(wide).view(target.dtype)
            else:
                target[lanes] = np.array(channel == 3, np.float32 if texture.dtype.kind == "f" else np.uint32).view(target.dtype)

    def run(lanes: Lanes) -> None:
        known = value_at(handles, lanes).astype(np.int64) - HANDLE_BASE
        for handle in np.unique(known).tolist():
            chosen = lanes[known == handle]
            if not 0 <= handle < len(binder.textures):
                binder.fail(OutOfBounds, f"0x{handle + HANDLE_BASE:x} is no texture of this launch", inst, chosen)
            fetch(binder.textures[handle], chosen)

    return by_lanes(binder, run)
