"""Kernels around one wgmma, and operands laid out in shared memory by the canonical layouts of the PTX ISA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
SUM_DTYPES = {"f32": np.float32, "f16": np.float16, "s32": np.int32}
MODES = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
SPANS = {"none": 16, "128B": 128, "64B": 64, "32B": 32}

HELPERS = """
typedef unsigned long long uint64_t; typedef unsigned uint32_t;
__device__ __forceinline__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int n> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(n) : "memory"); }
__device__ __forceinline__ void proxy_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ __forceinline__ uint64_t matrix(const void* p, uint64_t leading, uint64_t stride, uint64_t mode)
{
    return (uint64_t(shared_address(p)) & 0x3FFFF) >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | mode << 62;
}
"""


def wrapper(name: str, form: str, sums: str, registers: int, immediates: str = "1, 1, 0, 0", a_registers: bool = False) -> str:
    """A device function around one wgmma: (accumulators, A, B, scale_d)."""
    letter, kind = {"f32": ("f", "float"), "s32": ("r", "int"), "f16": ("r", "uint32_t")}[sums]
    d = ", ".join(f"%{i}" for i in range(registers))
    outputs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(registers))
    n = registers
    if a_registers:
        a, a_inputs, a_parameter = (
            f"{{%{n}, %{n + 1}, %{n + 2}, %{n + 3}}}",
            ", ".join(f'"r"(a[{i}])' for i in range(4)),
            "uint32_t (&a)[4]",
        )
        n += 4
    else:
        a, a_inputs, a_parameter = f"%{n}", '"l"(a)', "uint64_t a"
        n += 1
    tail = f", {immediates}" if immediates else ""
    return f"""__device__ __forceinline__ void {name}({kind} (&d)[{registers}], {a_parameter}, uint64_t b, int scale_d)
{{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{n + 1}, 0;\\n"
        "wgmma.mma_async.sync.aligned.{form} {{{d}}}, {a}, %{n}, p{tail};\\n}}\\n"
        : {outputs} : {a_inputs}, "l"(b), "r"(scale_d));
}}
"""


@dataclass(frozen=True)
class Layout:
    """Where an operand's elements lie: a mode, a major order and the two offsets of its descriptor."""

    mode: str = "128B"
    k_major: bool = True
    leading: int = 16
    stride: int = 1024

    def place(self, row: np.ndarray, k: np.ndarray, element_bytes: int) -> np.ndarray:
        """Byte of element (row, k), by the canonical layouts; `t` elements make 16 bytes."""
        t = 16 // element_bytes
        span, leading, stride = SPANS[self.mode] // element_bytes, self.leading // element_bytes, self.stride // element_bytes
        if self.k_major:
            if self.mode == "none":
                at = row % 8 * t + row // 8 * stride + k % t + k // t * leading
            else:
                at = row % 8 * span + row // 8 * stride + k
        elif self.mode == "none":
            at = row % t + row // t * stride + k % 8 * t + k // 8 * leading
        else:
            at = row % span + row // span * leading + k % 8 * span + k // 8 * stride
        byte = at * element_bytes
        chunks = SPANS[self.mode] // 16
        return byte ^ (byte // 128 % chunks) * 16

    def image(self, matrix: np.ndarray, size: int) -> np.ndarray:
        """`size` bytes of shared memory that hold a matrix [rows, k] of unsigned integers."""
        rows, depth = matrix.shape
        element = matrix.dtype.itemsize
        places = self.place(*np.meshgrid(np.arange(rows), np.arange(depth), indexing="ij"), element)
        image = np.zeros(size, np.uint8)
        for byte in range(element):
            image[places + byte] = (matrix >> np.array(8 * byte, matrix.dtype)).astype(np.uint8)
        return image

    def descriptor(self, address: str) -> str:
        return f"matrix({address}, {self.leading}, {self.stride}, {MODES[self.mode]})"


IMAGE_BYTES = 32768


def kernel(
    form: str, sums: str, columns: int, a: Layout, b: Layout, immediates: str, a_registers: bool = False, body: str | None = None
) -> str:
    """One wgmma a block on given images of shared memory: D and C are fragments, one row of registers a thread."""
    registers = columns // (4 if sums == "f16" else 2)
    kind = {"f32": "float", "s32": "int", "f16": "uint32_t"}[sums]
    body = (
        body
        or """
    wgmma_fence();
    mma(d, A, B, scale_d);
    wgmma_commit();
    wgmma_wait<0>();"""
    )
    fragment = "uint32_t fragment[4]; for (int i = 0; i < 4; ++i) fragment[i] = in_a[threadIdx.x * 4 + i];" if a_registers else ""
    body = body.replace("A,", "fragment," if a_registers else f"{a.descriptor('a')},").replace("B,", f"{b.descriptor('b')},")
    return (
        HELPERS
        + wrapper("mma", form, sums, registers, immediates, a_registers)
        + f"""
extern "C" __global__ void __launch_bounds__(128) kernel(
    const uint32_t* in_a, const uint32_t* in_b, const {kind}* c, {kind}* out, int scale_d)
{{
    __shared__ __align__(1024) unsigned char a[{IMAGE_BYTES // 2}];
    __shared__ __align__(1024) unsigned char b[{IMAGE_BYTES}];
    for (int i = threadIdx.x; i < {IMAGE_BYTES // 8}; i += 128) ((uint32_t*)a)[i] = {"0" if a_registers else "in_a[i]"};
    for (int i = threadIdx.x; i < {IMAGE_BYTES // 4}; i += 128) ((uint32_t*)b)[i] = in_b[i];
    {fragment}
    {kind} d[{registers}];
    for (int i = 0; i < {registers}; ++i) d[i] = c[threadIdx.x * {registers} + i];
    proxy_fence();
    __syncthreads();
    {body}
    for (int i = 0; i < {registers}; ++i) out[threadIdx.x * {registers} + i] = d[i];
}}
"""
    )


# PTX ISA, "Register Fragments" of wgmma: (row, column) of element i of a thread.
THREADS = np.arange(128)


def accumulator_place(i: int) -> tuple[np.ndarray, np.ndarray]:
    lane, warp = THREADS % 32, THREADS // 32
    return 16 * warp + lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2


def a_place(per_register: int) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """Of A, with so many elements in a register."""

    def place(i: int) -> tuple[np.ndarray, np.ndarray]:
        lane, warp = THREADS % 32, THREADS // 32
        register, element = divmod(i, per_register)
        return 16 * warp + lane // 4 + 8 * (register % 2), per_register * (lane % 4) + element + 4 * per_register * (register // 2)

    return place


def fragments(matrix: np.ndarray, place: Callable[[int], tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """[128, elements a thread]."""
    count = matrix.size // 128
    return np.ascontiguousarray(np.stack([matrix[place(i)] for i in range(count)], axis=1))


def from_fragments(values: np.ndarray, columns: int) -> np.ndarray:
    result = np.zeros((64, columns), values.dtype)
    for i in range(values.shape[1]):
        result[accumulator_place(i)] = values[:, i]
    return result
