"""Kernels that read as many bytes as a product by a weight moves, and do nothing else: the time that a product might take.

``measurements.formats`` times them beside the products, in graphs of the same kind. Each launch depends on the one before: rows of A are
read and results written after that has ended. *Alone*, launches do not overlap. *Early*, the next launch begins once all weights of this
one were read. *Overlapped*, it begins at once, and reads its own weights meanwhile: only a kernel that does nothing with weights can,
because a product needs rows of A first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any

from gemmgen.runtime.cuda.driver import bindings, call
from gemmgen.toolchain.nvrtc import compile_source

ALONE, EARLY, OVERLAPPED = KINDS = ("alone", "early", "overlapped")
FORMS = tuple((threads, blocks) for threads, blocks in product((256, 512, 1024), (1, 2, 4)) if 512 <= threads * blocks <= 2048)
"""Threads of a block, and blocks of an SM."""
VECTOR_BYTES = 16
SOURCE = r"""
extern "C" __global__ void __launch_bounds__(kThreads) read(
    const uint4* __restrict__ weights, long long weight_vectors, const uint4* rows, int row_vectors, unsigned* results, int words)
{
    constexpr int kAtOnce = 4;
    const long long threads = static_cast<long long>(gridDim.x) * kThreads;
    const long long first = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
    unsigned sum = 0;
    if (kOverlapped)
        asm volatile("griddepcontrol.launch_dependents;");
    for (long long at = first; at < weight_vectors; at += kAtOnce * threads) {
        uint4 vectors[kAtOnce];
        #pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            vectors[i] = at + i * threads < weight_vectors ? __ldcs(weights + at + i * threads) : make_uint4(0, 0, 0, 0);
        #pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            sum ^= vectors[i].x ^ vectors[i].y ^ vectors[i].z ^ vectors[i].w;
    }
    if (kEarly)
        asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    for (int at = first; at < row_vectors; at += threads) {
        const uint4 vector = __ldcg(rows + at);
        sum ^= vector.x ^ vector.y ^ vector.z ^ vector.w;
    }
    for (int at = first; at < words; at += threads)
        results[at] = sum;
}
"""


@cache
def function_of(kind: str, threads: int, architecture: str) -> Any:
    """The kernel of a kind, with so many threads in a block."""
    constants = {"kThreads": threads, "kOverlapped": int(kind == OVERLAPPED), "kEarly": int(kind == EARLY)}
    head = "".join(f"constexpr int {name} = {value};\n" for name, value in constants.items())
    module = call("cuModuleLoadData", compile_source(head + SOURCE, architecture=architecture).cubin)
    return call("cuModuleGetFunction", module, b"read")


def reads(torch: Any, weights: Sequence[Sequence[Any]], a: Any, out: Any, architecture: str) -> dict[str, Callable[[int], Any]]:
    """A call for each kind and form, which reads the set of arrays of its index, all of ``a``, and overwrites ``out``."""
    driver, sms = bindings(), torch.cuda.get_device_properties(a.device).multi_processor_count
    joined = [torch.cat([array.view(torch.uint8).flatten() for array in arrays]) for arrays in weights]
    vectors, row_vectors, words = joined[0].numel() // VECTOR_BYTES, a.numel() * a.element_size() // VECTOR_BYTES, out.numel() // 2

    def launched(kind: str, threads: int, blocks: int) -> Callable[[int], Any]:
        function = function_of(kind, threads, architecture)

        def launch(index: int) -> None:
            config = driver.CUlaunchConfig()
            config.gridDimX, config.gridDimY, config.gridDimZ = sms * blocks, 1, 1
            config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
            config.hStream = torch.cuda.current_stream().cuda_stream
            if kind != ALONE:
                attribute = driver.CUlaunchAttribute()
                attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
                attribute.value.programmaticStreamSerializationAllowed = 1
                config.attrs, config.numAttrs = [attribute], 1
            values = (joined[index].data_ptr(), vectors, a.data_ptr(), row_vectors, out.data_ptr(), words)
            types = (ctypes.c_void_p, ctypes.c_longlong, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
            call("cuLaunchKernelEx", config, function, (values, types), 0)

        return launch

    return {f"{kind} {threads} {blocks}": launched(kind, threads, blocks) for kind, (threads, blocks) in product(KINDS, FORMS)}


def fastest(times: dict[str, float]) -> dict[str, float]:
    """The least time of each kind."""
    found = {kind: [time for name, time in times.items() if name.split()[0] == kind] for kind in KINDS}
    return {kind: min(of_kind) for kind, of_kind in found.items() if of_kind}
