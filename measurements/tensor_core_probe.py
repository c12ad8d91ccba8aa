"""Tensor cores at the edges of their arithmetic: each operand vector on a GPU, beside the emulator.

    python measurements/tensor_core_probe.py --out DIR      measures, writes DIR/tensor_core_probe.npz, prints the differences
    python measurements/tensor_core_probe.py --emulate      runs the same kernels on the emulator

Of each experiment the file holds `NAME_form`, `NAME_a` (cases, 64, bytes of k), `NAME_b` (cases, 8, bytes of k), `NAME_c` and `NAME_d`
(cases, 64, 8), all as bits. Asked are: sums beyond the largest float32, signs of zero, fp8 pairs of different types, fp8 with float16
accumulators, and wrap and saturation of int32 accumulators.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gemmgen import emulator
from gemmgen.runtime.cuda import driver
from gemmgen.runtime.cuda.driver import LoadedBinary
from gemmgen.toolchain.nvrtc import Binary, compile_source

CASES = 32
ROW_BYTES = 32
SHAPES = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}

KERNEL = """
typedef unsigned long long uint64_t; typedef unsigned uint32_t;

// One block multiplies a [64, k] by b [8, k], rows of 32 bytes, and adds c [64, 8]; d and c are 32-bit words, one a result.
extern "C" __global__ void __launch_bounds__(128) probe(const uint4* a, const uint4* b, const uint32_t* c, uint32_t* d)
{
    __shared__ __align__(128) uint4 tile_a[128], tile_b[16];
    int thread = threadIdx.x, lane = thread % 32, row = thread / 32 * 16 + lane / 4, column = lane % 4 * 2;
    // Chunks of 16 bytes: eight rows of one half of k, then eight rows of the other.
    tile_a[thread / 16 * 16 + thread % 2 * 8 + thread / 2 % 8] = a[blockIdx.x * 128 + thread];
    if (thread < 16) tile_b[thread % 2 * 8 + thread / 2] = b[blockIdx.x * 16 + thread];
    c += blockIdx.x * 512;
    d += blockIdx.x * 512;
    uint32_t sums[4] = {c[row * 8 + column], c[row * 8 + column + 1], c[(row + 8) * 8 + column], c[(row + 8) * 8 + column + 1]};
    PACK
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    MULTIPLY
    UNPACK
    d[row * 8 + column] = sums[0];
    d[row * 8 + column + 1] = sums[1];
    d[(row + 8) * 8 + column] = sums[2];
    d[(row + 8) * 8 + column + 1] = sums[3];
}
"""
WGMMA = """
    uint64_t at_a = (uint32_t)__cvta_generic_to_shared(tile_a) >> 4, at_b = (uint32_t)__cvta_generic_to_shared(tile_b) >> 4;
    at_a |= uint64_t(8) << 16 | uint64_t(16) << 32;
    at_b |= uint64_t(8) << 16 | uint64_t(16) << 32;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("wgmma.mma_async.sync.aligned.FORM {RESULTS}, %A, %B, 1TAIL;" : OUTPUTS : "l"(at_a), "l"(at_b));
    asm volatile("wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;" : OUTPUTS :: "memory");
"""
MMA = """
    // Words 0 to 3 of a row are the first half of k, 4 to 7 the second; each half is a chunk.
    const uint32_t* words_a = (const uint32_t*)(tile_a + thread / 32 * 32);
    const uint32_t* words_b = (const uint32_t*)tile_b;
    uint32_t a0 = words_a[lane], a1 = words_a[64 + lane], a2 = words_a[32 + lane], a3 = words_a[96 + lane];
    uint32_t b0 = words_b[lane], b1 = words_b[32 + lane];
    asm volatile("mma.sync.aligned.FORM {RESULTS}, {%0A, %1A, %2A, %3A}, {%0B, %1B}, {RESULTS};"
        : OUTPUTS : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
"""


@dataclass(frozen=True)
class Experiment:
    """One instruction, `wgmma` or `mma`, and the operands it is asked about: bits, drawn by case."""

    name: str
    instruction: str
    types: tuple[str, str, str]
    """Types of the accumulators, of A and of B."""
    operands: Callable[[np.random.Generator, tuple[str, str, str]], tuple[np.ndarray, np.ndarray, np.ndarray]]
    saturates: bool = False

    @property
    def form(self) -> str:
        """The instruction behind its opcode."""
        sums, a, b = self.types
        k, saturation = SHAPES[a], ".satfinite" if self.saturates else ""
        if self.instruction == "wgmma":
            return f"m64n8k{k}{saturation}.{sums}.{a}.{b}"
        return f"m16n8k{k}.row.col{saturation}.{sums}.{a}.{b}.{sums}"

    @property
    def source(self) -> str:
        """The kernel."""
        half, wgmma = self.types[0] == "f16", self.instruction == "wgmma"
        count = 2 if half else 4
        letter, name = ("r", "packed") if half else ("r", "sums")
        if self.types[0] == "f32":
            letter, name = "f", "floats"
        pack = {
            "packed": "uint32_t packed[2] = {sums[0] | sums[1] << 16, sums[2] | sums[3] << 16};",
            "floats": "float floats[4]; for (int i = 0; i < 4; ++i) floats[i] = __uint_as_float(sums[i]);",
        }.get(name, "")
        unpack = {
            "packed": "for (int i = 0; i < 4; ++i) sums[i] = packed[i / 2] >> 16 * (i % 2) & 0xffff;",
            "floats": "for (int i = 0; i < 4; ++i) sums[i] = __float_as_uint(floats[i]);",
        }.get(name, "")
        multiply = (WGMMA if wgmma else MMA).replace("FORM", self.form).replace("RESULTS", ", ".join(f"%{i}" for i in range(count)))
        multiply = multiply.replace("OUTPUTS", ", ".join(f'"+{letter}"({name}[{i}])' for i in range(count)))
        for i in range(4):
            multiply = multiply.replace(f"%{i}A", f"%{count + i}").replace(f"%{i}B", f"%{count + 4 + i}")
        majors = ", 0, 0" if self.types[1] in ("f16", "bf16") else ""
        tail = "" if self.types[0] == "s32" else f", 1, 1{majors}"
        multiply = multiply.replace("%A", f"%{count}").replace("%B", f"%{count + 1}").replace("TAIL", tail)
        return KERNEL.replace("UNPACK", unpack).replace("PACK", pack).replace("MULTIPLY", multiply)


def _random_bits(rng: np.random.Generator, type_name: str, shape: tuple[int, ...], extreme: bool = False) -> np.ndarray:
    """Finite numbers of a type, as bits of the type's width; extreme ones have every exponent."""
    width = {"f16": 16, "bf16": 16, "tf32": 32}.get(type_name, 8)
    exponents = {"f16": 5, "bf16": 8, "tf32": 8, "e4m3": 4, "e5m2": 5}.get(type_name, 0)
    bits = rng.integers(0, 1 << width, shape, np.uint64)
    if exponents:
        mantissa = {"f16": 10, "bf16": 7, "tf32": 23, "e4m3": 3, "e5m2": 2}[type_name]
        field = bits >> np.uint64(mantissa) & np.uint64((1 << exponents) - 1)
        middle = (1 << (exponents - 1)) - 1
        wanted = np.minimum(field, (1 << exponents) - 2) if extreme else middle - 3 + field % np.uint64(7)
        keep = ~(((1 << exponents) - 1) << mantissa) & ((1 << width) - 1)
        bits = bits & np.uint64(keep) | wanted.astype(np.uint64) << np.uint64(mantissa)
    return bits.astype({8: np.uint8, 16: np.uint16, 32: np.uint32}[width])


def _float_sums(rng: np.random.Generator, sums: str, scale: float) -> np.ndarray:
    values = rng.normal(size=(CASES, 64, 8)) * scale
    if sums == "f16":
        return values.astype(np.float16).view(np.uint16).astype(np.uint32)
    return values.astype(np.float32).view(np.uint32)


def ordinary(rng: np.random.Generator, types: tuple[str, str, str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Operands of middling size; half of the cases with every exponent."""
    parts = []
    for type_name, rows in zip(types[1:], (64, 8), strict=True):
        shape = (CASES // 2, rows, SHAPES[type_name])
        parts.append(np.concatenate([_random_bits(rng, type_name, shape, extreme) for extreme in (False, True)]))
    return parts[0], parts[1], _float_sums(rng, types[0], 1.0)


def overflowing(rng: np.random.Generator, types: tuple[str, str, str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """bf16 operands whose sums cross 2**128 in both directions."""
    a, b = (np.ldexp(rng.normal(size=(CASES, rows, 16)), 63).astype(np.float32).view(np.uint32) >> np.uint32(16) for rows in (64, 8))
    c = np.ldexp(rng.choice([-1.0, 1.0], (CASES, 64, 8)) * rng.uniform(1, 2 - 2.0**-23, (CASES, 64, 8)), 127).astype(np.float32)
    return a.astype(np.uint16), b.astype(np.uint16), c.view(np.uint32)


def vanishing(rng: np.random.Generator, types: tuple[str, str, str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Zeros of both signs, sums that cancel, and sums below the smallest float32."""
    a, b = (rng.choice(np.array([0x0000, 0x8000, 0x3F80, 0xBF80, 0x0040], np.uint16), (CASES, rows, 16)) for rows in (64, 8))
    a[: CASES // 2], b[: CASES // 2] = a[: CASES // 2] & 0x8000, b[: CASES // 2] & 0x8000
    a[-4:], b[-4:] = rng.choice(np.array([0x0001, 0x8001], np.uint16), a[-4:].shape), np.uint16(0x1A00)
    return a, b, rng.choice(np.array([0, 0x80000000, 0x3F800000, 0xBF800000], np.uint32), (CASES, 64, 8))


def integral(rng: np.random.Generator, types: tuple[str, str, str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bytes, with accumulators near both ends of int32."""
    a, b = (_random_bits(rng, type_name, (CASES, rows, 32)) for type_name, rows in zip(types[1:], (64, 8), strict=True))
    ends = np.array([-(2**31), 2**31 - 1])[rng.integers(0, 2, (CASES, 64, 8))]
    return a, b, (ends - np.sign(ends) * rng.integers(0, 1 << 19, (CASES, 64, 8))).astype(np.int32).view(np.uint32)


def experiments() -> Iterator[Experiment]:
    """All of them."""
    for instruction in ("wgmma", "mma"):
        yield Experiment(f"overflow_{instruction}", instruction, ("f32", "bf16", "bf16"), overflowing)
        yield Experiment(f"zero_{instruction}", instruction, ("f32", "bf16", "bf16"), vanishing)
        for pair in (("e4m3", "e5m2"), ("e5m2", "e4m3")):
            yield Experiment(f"{'_'.join(pair)}_{instruction}", instruction, ("f32", *pair), ordinary)
        for pair in (("e4m3", "e4m3"), ("e5m2", "e5m2"), ("e4m3", "e5m2")):
            yield Experiment(f"half_{'_'.join(pair)}_{instruction}", instruction, ("f16", *pair), ordinary)
        for pair in (("s8", "s8"), ("u8", "u8"), ("s8", "u8"), ("u8", "s8")):
            for saturates in (False, True):
                name = f"{'_'.join(pair)}_{'saturated' if saturates else 'wrapped'}_{instruction}"
                yield Experiment(name, instruction, ("s32", *pair), integral, saturates)


def on_gpu(binary: Binary, arrays: list[np.ndarray]) -> np.ndarray:
    """The results of a launch on the first GPU."""
    loaded = LoadedBinary(binary.cubin, "sm_90a", 0)
    d = np.zeros_like(arrays[2])
    with driver.current_device(0):
        function = driver.call("cuModuleGetFunction", loaded.module, b"probe")
        pointers = []
        for array in (*arrays, d):
            pointer = driver.call("cuMemAlloc", array.nbytes)
            driver.call("cuMemcpyHtoD", pointer, array.ctypes.data, array.nbytes)
            pointers.append(pointer)
        values = tuple(int(pointer) for pointer in pointers)
        kinds: tuple[Any, ...] = (np.ctypeslib.ctypes.c_void_p,) * 4
        driver.call("cuLaunchKernel", function, CASES, 1, 1, 128, 1, 1, 0, 0, (values, kinds), 0)
        driver.call("cuCtxSynchronize")
        driver.call("cuMemcpyDtoH", d.ctypes.data, pointers[3], d.nbytes)
        for pointer in pointers:
            driver.release("cuMemFree", pointer)
    loaded.unload()
    return d


def on_emulator(binary: Binary, arrays: list[np.ndarray]) -> np.ndarray:
    """The results of a launch on the emulator."""
    d = np.zeros_like(arrays[2])
    emulator.launch(binary.ptx, "probe", grid=CASES, block=128, args=[*arrays, d], hazards=True)
    return d


def main() -> None:
    """Prints one line for each experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for tensor_core_probe.npz")
    parser.add_argument("--emulate", action="store_true", help="run on the emulator alone")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if not options.emulate:
        print(driver.gpu(0))
    for number, experiment in enumerate(experiments()):
        arrays = [np.ascontiguousarray(x) for x in experiment.operands(np.random.default_rng(number), experiment.types)]
        binary = compile_source(experiment.source, architecture="sm_90a", name=f"{experiment.name}.cu")
        expected = on_emulator(binary, arrays)
        if options.emulate:
            print(f"{experiment.name:32} {experiment.form:40} runs on the emulator")
            continue
        measured = on_gpu(binary, arrays)
        different = np.argwhere(measured != expected)
        first = ""
        if len(different):
            place = tuple(different[0])
            first = f": first {place}, measured 0x{measured[place]:08x}, emulated 0x{expected[place]:08x}, c 0x{arrays[2][place]:08x}"
        print(f"{experiment.name:32} {experiment.form:40} {len(different)} of {measured.size} differ{first}")
        found |= {f"{experiment.name}_{key}": value for key, value in zip("abcd", (*arrays, measured), strict=True)}
        found[f"{experiment.name}_form"] = experiment.form
    if options.out is not None and found:
        options.out.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(options.out / "tensor_core_probe.npz", **found)


if __name__ == "__main__":
    main()
