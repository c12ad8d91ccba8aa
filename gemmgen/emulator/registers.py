"""The register file: one row a register, one column a lane, one array a width."""

from __future__ import annotations

import numpy as np

from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.program import Program, register_class
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Register

DTYPES: dict[str, type[np.generic]] = {
    "pred": np.bool_,
    "b8": np.uint8,
    "u8": np.uint8,
    "s8": np.int8,
    "b16": np.uint16,
    "u16": np.uint16,
    "s16": np.int16,
    "f16": np.float16,
    "bf16": np.uint16,
    "b32": np.uint32,
    "u32": np.uint32,
    "s32": np.int32,
    "f32": np.float32,
    "f16x2": np.uint32,
    "bf16x2": np.uint32,
    "b64": np.uint64,
    "u64": np.uint64,
    "s64": np.int64,
    "f64": np.float64,
    "f32x2": np.uint64,
}
"""NumPy types of the lanes of a PTX type; bfloat16 as its bits, packed types as the bits of the pair."""

_CLASS_DTYPES = {"pred": np.bool_, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64}


class RegisterFile:
    """Rows for every register of a program."""

    def __init__(self, program: Program, lanes: int) -> None:
        self.lanes = lanes
        self.arrays: dict[str, np.ndarray] = {}
        self.carry = np.zeros(lanes, np.bool_)
        """The carry flag CC.CF of each lane."""
        self._rows: dict[str, tuple[str, int]] = {}
        for name, group in program.registers.items():
            width = 2 if name == "b128" else 1
            dtype = _CLASS_DTYPES.get(name, np.uint64)
            self.arrays[name] = np.zeros((len(group) * width, lanes), dtype)
            for row, register in enumerate(group):
                self._rows[register.name] = (name, row * width)
                if width == 2:
                    for part in (0, 1):
                        self._rows[half_of(register, part).name] = (name, row * width + part)

    def clear(self, lanes: Lanes | None = None) -> None:
        """All registers of lanes (None: all) zero, so that a register nobody wrote reads the same every time."""
        chosen = slice(None) if lanes is None else lanes
        for array in self.arrays.values():
            array[..., chosen] = 0
        self.carry[chosen] = False

    @staticmethod
    def bytes_per_lane(program: Program) -> int:
        """Bytes of register file that one lane takes."""
        sizes = {"pred": 1, "b16": 2, "b32": 4, "b64": 8, "b128": 16}
        return sum(sizes[name] * len(group) for name, group in program.registers.items())

    def place(self, register: Register) -> tuple[str, int]:
        """The class and the row of a register."""
        return self._rows[register.name]

    def row(self, register: Register, type_name: str) -> np.ndarray:
        """A register seen as a type; a narrower type is the low part of each lane, as a strided view."""
        name, row = self._rows[register.name]
        line: np.ndarray = self.arrays[name][row]
        dtype = np.dtype(DTYPES[type_name])
        if dtype.itemsize < line.dtype.itemsize:
            low: np.ndarray = line.view(dtype)[:: line.dtype.itemsize // dtype.itemsize]
            return low
        if dtype.itemsize > line.dtype.itemsize:
            raise ValueError(f"{register.name} is narrower than .{type_name}")
        same: np.ndarray = line.view(dtype)
        return same

    def width(self, register: Register) -> int:
        """Bytes of a register."""
        return {"pred": 1, "b16": 2, "b32": 4, "b64": 8, "b128": 16}[register_class(register.type)]


def half_of(register: Register, part: int) -> Register:
    """The lower (0) or upper (1) 64 bits of a register of 128."""
    return Register(f"{register.name}:{part}", "b64")


def widened(type_name: str, register_bytes: int) -> str:
    """The integer type of a register's width with the signedness of a narrower type: `s8` in 4 bytes is `s32`."""
    if TYPE_BYTES[type_name] >= register_bytes:
        return type_name
    return f"{'s' if type_name[0] == 's' else 'u'}{register_bytes * 8}"
