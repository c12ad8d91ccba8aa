"""Helpers of the emulator's tests: CUDA to PTX, single instructions on arrays, and an exact rounding oracle."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from math import floor

import numpy as np
from cuda.bindings import nvrtc

from gemmgen import emulator

DTYPES = {
    "u8": np.uint8,
    "s8": np.int8,
    "u16": np.uint16,
    "s16": np.int16,
    "u32": np.uint32,
    "s32": np.int32,
    "u64": np.uint64,
    "s64": np.int64,
    "f32": np.float32,
    "f64": np.float64,
    "b16": np.uint16,
    "b32": np.uint32,
    "b64": np.uint64,
}


@lru_cache(maxsize=256)
def compile_ptx(source: str, architecture: str = "compute_80", *options: str) -> str:
    """CUDA to PTX with line information."""
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    arguments = [f"--gpu-architecture={architecture}".encode(), b"-lineinfo", b"--std=c++17", *(o.encode() for o in options)]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(arguments), arguments)
    if int(result):
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise AssertionError(log.decode())
    _, size = nvrtc.nvrtcGetPTXSize(program)
    ptx = b" " * size
    nvrtc.nvrtcGetPTX(program, ptx)
    nvrtc.nvrtcDestroyProgram(program)
    return ptx.decode().rstrip("\0")


def run_cuda(source: str, entry: str, grid, block, args, architecture: str = "compute_80", **kwargs):
    """Compiles and launches; errors quote the source."""
    return emulator.launch(compile_ptx(source, architecture), entry, grid=grid, block=block, args=args, source=source, **kwargs)


def wrap_ptx(body: str, parameters: str = "", name: str = "kernel", declarations: str = "") -> str:
    """A module with one entry around PTX statements."""
    return f".version 8.0\n.target sm_90\n.address_size 64\n{declarations}\n.visible .entry {name}({parameters})\n{{\n{body}\n}}\n"


def run_instruction(statement: str, result: str, *operands: tuple[str, np.ndarray], predicated: bool = False) -> np.ndarray:
    """One instruction on arrays: `d` is the result of type `result`; a, b, c, e, f are the operands, with their types.

    With `predicated`, `p` is a predicate that the statement writes and `d` its value as 0 or 1.
    """
    length = len(operands[0][1])
    names = "abcef"[: len(operands)]
    lines = [
        ".reg .b64 %addr, %index; .reg .b32 %t; .reg .pred %p, %q, %end;",
        ".reg .b16 %h<4>;",
        "mov.u32 %t, %ctaid.x; mad.lo.u32 %t, %t, 256, 0; .reg .b32 %t2; mov.u32 %t2, %tid.x; add.u32 %t, %t, %t2;",
        f"setp.ge.u32 %end, %t, {length}; @%end ret;",
    ]

    def register_type(name: str) -> str:
        return f"b{max(np.dtype(DTYPES[name]).itemsize, 2) * 8}"

    def address(parameter: str, name: str) -> list[str]:
        size = np.dtype(DTYPES[name]).itemsize
        return [f"ld.param.u64 %addr, [{parameter}]; mul.wide.u32 %index, %t, {size}; add.s64 %addr, %addr, %index;"]

    for name, (type_name, _) in zip(names, operands, strict=True):
        lines.append(f".reg .{register_type(type_name)} %{name};")
        lines += address(f"p_{name}", type_name)
        lines.append(f"ld.global.{type_name} %{name}, [%addr];")
    lines.append(f".reg .{register_type(result)} %d;")
    lines.append(statement)
    if predicated:
        lines.append("selp.b32 %d, 1, 0, %p;")
    lines += address("p_d", result)
    lines.append(f"st.global.{result} [%addr], %d; ret;")
    parameters = ", ".join([f".param .u64 p_{name}" for name in names] + [".param .u64 p_d"])
    out = np.zeros(length, DTYPES[result])
    arrays = [
        np.ascontiguousarray(
            np.asarray(value).view(DTYPES[t])
            if np.asarray(value).dtype.itemsize == np.dtype(DTYPES[t]).itemsize
            else np.asarray(value, DTYPES[t])
        )
        for t, value in operands
    ]
    emulator.launch(wrap_ptx("\n".join(lines), parameters), grid=-(-length // 256), block=256, args=[*arrays, out])
    return out


# -- an independent oracle for rounding --------------------------------------------------------------------------

FORMATS = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127), "f64": (53, -1022, 1023)}


def round_exact(value: Fraction, format_name: str, mode: str = "rn") -> Fraction | float:
    """An exact value rounded to a binary format; infinities come back as floats."""
    precision, minimum, maximum = FORMATS[format_name]
    if value == 0:
        return Fraction(0)
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    exponent = max(exponent, minimum)
    unit = Fraction(2) ** (exponent - precision + 1)
    scaled = value / unit
    below = floor(scaled)
    rest = scaled - below
    if mode == "rn":
        whole = below + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and below % 2 == 1))
    elif mode == "rz":
        whole = below + (rest > 0 and value < 0)
    else:
        whole = below + (mode == "rp" and rest > 0)
    result = whole * unit
    largest = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** maximum
    if abs(result) > largest:
        toward_zero = mode == "rz" or (mode == "rm" and value > 0) or (mode == "rp" and value < 0)
        return (largest if value > 0 else -largest) if toward_zero else float("inf") * (1 if value > 0 else -1)
    return result


def bits_to_f32(bits: np.ndarray) -> np.ndarray:
    return np.asarray(bits, np.uint32).view(np.float32)


AWKWARD_F32 = bits_to_f32(
    np.array(
        [
            0x00000000,
            0x80000000,
            0x00000001,
            0x80000001,
            0x007FFFFF,
            0x00800000,
            0x00800001,
            0x3F800000,
            0x3F800001,
            0x3F7FFFFF,
            0xBF800000,
            0x33800000,
            0x33000000,
            0x34000000,
            0x7F7FFFFF,
            0xFF7FFFFF,
            0x7F800000,
            0xFF800000,
            0x7FC00000,
            0x7F800001,
            0xFFC12345,
            0x4B800000,
            0x4B7FFFFF,
            0x4B000001,
            0x20000000,
            0x1F800000,
            0x60000000,
            0x3FFFFFFF,
            0x3F000000,
            0x3EAAAAAB,
            0x7F000000,
            0x73000000,
            0x00FFFFFF,
            0x0C800000,
            0x3F800003,
        ]
    )
)


def all_pairs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.meshgrid(values, values, indexing="ij")
    return first.ravel(), second.ravel()


Oracle = Callable[..., object]
