"""Counts of whole launches."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.helpers import compile_ptx, wrap_ptx
from gemmgen import emulator
from gemmgen.emulator.counters import CounterObserver, Counters


def count(source: str, args, grid=1, block=32, entry: str | None = None, **more) -> Counters:
    observer = CounterObserver()
    ptx = source if source.startswith(".version") else compile_ptx(source)
    emulator.launch(ptx, entry, grid=grid, block=block, args=args, observers=[observer], **more)
    return observer.counters(source)


TRANSPOSE = """
extern "C" __global__ void transpose(const float* in, float* out)
{
    __shared__ float tile[32][32 + PAD];
    for (int row = threadIdx.y; row < 32; row += 8)
        tile[row][threadIdx.x] = in[row * 32 + threadIdx.x];
    __syncthreads();
    for (int row = threadIdx.y; row < 32; row += 8)
        out[row * 32 + threadIdx.x] = tile[threadIdx.x][row];
}
"""


@pytest.mark.parametrize(("pad", "wavefronts"), [(0, 32 * 32), (1, 32)])
def test_a_transposition_conflicts_unless_it_is_padded(pad: int, wavefronts: int) -> None:
    source = TRANSPOSE.replace("PAD", str(pad))
    values, out = np.arange(1024, dtype=np.float32), np.zeros(1024, np.float32)
    counters = count(source, [values, out], block=(32, 8))
    loads, stores = counters.total.shared_memory["load"], counters.total.shared_memory["store"]
    assert (loads.requests, loads.wavefronts, loads.conflicts, loads.ideal) == (32, wavefronts, wavefronts - 32, 32)
    assert (stores.requests, stores.wavefronts, stores.conflicts) == (32, 32, 0)
    assert counters.total.global_memory["load"].sectors == counters.total.global_memory["store"].sectors == 128
    assert counters.total.global_memory["load"].efficiency == 1
    assert counters.barriers == 1
    assert counters.total.instructions["barrier"] == 8
    assert counters.total.instructions["load shared"] == 32


def test_counts_belong_to_the_line_that_makes_them() -> None:
    source = TRANSPOSE.replace("PAD", "0")
    counters = count(source, [np.zeros(1024, np.float32), np.zeros(1024, np.float32)], block=(32, 8))
    by_line = {line.line: line for line in counters.lines}
    assert by_line[6].text.startswith("tile[row]")
    assert by_line[6].tally.shared_memory["store"].requests == by_line[6].tally.global_memory["load"].requests == 32
    assert by_line[9].tally.shared_memory["load"].conflicts == 32 * 31
    assert [line.line for line in counters.memory_lines] == [6, 9]
    assert sum(line.tally.total_instructions for line in counters.lines) == counters.total.total_instructions
    assert {site.line for site in counters.sites} == {6, 9}
    assert all(site.ptx.startswith(("ld.", "st.")) for site in counters.sites)


DIVERGENT = """
extern "C" __global__ void divergent(volatile float* out)
{
    if (threadIdx.x % 32 < 8) out[threadIdx.x] = 1.0f;
    else if (threadIdx.x % 32 < 10) out[threadIdx.x] = 2.0f;
}
"""


def test_a_diverged_warp_makes_a_request_for_each_of_its_parts() -> None:
    counters = count(DIVERGENT, [np.zeros(128, np.float32)], block=128)
    stores = counters.total.global_memory["store"]
    assert (stores.requests, stores.sectors, stores.bytes) == (8, 8, 4 * 40)


def test_a_partial_warp_counts_as_a_warp_with_inactive_lanes() -> None:
    source = 'extern "C" __global__ void fill(float* out) { out[threadIdx.x] = 1.0f; }'
    stores = count(source, [np.zeros(40, np.float32)], block=40).total.global_memory["store"]
    assert (stores.requests, stores.sectors, stores.bytes) == (2, 5, 160)


def test_request_needs_active_lane_and_instruction_does_not() -> None:
    ptx = wrap_ptx(
        """.reg .b64 %a; .reg .pred %p; .reg .b32 %t;
        ld.param.u64 %a, [out]; mov.u32 %t, %tid.x; setp.gt.u32 %p, %t, 100;
        @%p st.global.u32 [%a], %t; ret;""",
        ".param .u64 out",
    )
    counters = count(ptx, [np.zeros(1, np.uint32)])
    assert "store" not in counters.total.global_memory
    assert counters.total.instructions == {
        "load param": 1,
        "move": 1,
        "compare and select": 1,
        "store global": 1,
        "branch": 1,
    }
    assert [line.line for line in counters.lines] == [0]


def test_vector_accesses_count_as_one_request() -> None:
    source = """
    extern "C" __global__ void copy(const float4* in, float4* out)
    {
        __shared__ float4 staged[32];
        staged[threadIdx.x] = in[threadIdx.x];
        __syncwarp();
        out[threadIdx.x] = staged[threadIdx.x ^ 1];
    }"""
    total = count(source, [np.zeros(128, np.float32), np.zeros(128, np.float32)]).total
    assert total.global_memory["load"].to_json() == {
        "requests": 1,
        "sectors": 16,
        "ideal": 16,
        "bytes": 512,
        "efficiency": 1.0,
    }
    assert (total.shared_memory["load"].wavefronts, total.shared_memory["store"].wavefronts) == (4, 4)


def test_parameters_and_constants_are_not_global_memory() -> None:
    source = """
    __constant__ float table[4] = {1, 2, 3, 4};
    extern "C" __global__ void look(float* out, int which) { out[threadIdx.x] = table[(which + threadIdx.x) & 3]; }"""
    total = count(source, [np.zeros(32, np.float32), 1]).total
    assert set(total.global_memory) == {"store"}
    assert total.instructions["load const"] == 1


def test_shared_atomics_are_requests() -> None:
    source = """
    extern "C" __global__ void histogram(int* out)
    {
        __shared__ int bins[4];
        if (threadIdx.x < 4) bins[threadIdx.x] = 0;
        __syncthreads();
        atomicAdd(&bins[threadIdx.x & 3], 1);
        __syncthreads();
        if (threadIdx.x < 4) atomicAdd(&out[threadIdx.x], bins[threadIdx.x]);
    }"""
    total = count(source, [np.zeros(4, np.int32)], block=64).total
    assert total.shared_memory["atomic"].requests == 2
    assert total.global_memory["atomic"].requests == 1


def test_launches_and_waves_add_up() -> None:
    source = 'extern "C" __global__ void fill(float* out) { out[blockIdx.x * 32 + threadIdx.x] = 1.0f; }'
    one = count(source, [np.zeros(32 * 7, np.float32)], grid=7)
    many = count(source, [np.zeros(32 * 7, np.float32)], grid=7, lanes_per_wave=64)
    assert one.to_json() == many.to_json()
    assert one.total.global_memory["store"].requests == 7


def test_counting_changes_nothing_about_a_launch() -> None:
    values = np.random.default_rng(0).random(1024, np.float32)
    plain, counted = np.zeros(1024, np.float32), np.zeros(1024, np.float32)
    ptx = compile_ptx(TRANSPOSE.replace("PAD", "1"))
    first = emulator.launch(ptx, grid=1, block=(32, 8), args=[values, plain])
    second = emulator.launch(ptx, grid=1, block=(32, 8), args=[values, counted], observers=[CounterObserver()])
    assert (plain == counted).all()
    assert first == second


ASYNC = """
extern "C" __global__ void copy(const float4* in, float4* out, int bytes)
{
    __shared__ float4 staged[32 * STRIDE];
    unsigned at = (unsigned)__cvta_generic_to_shared(&staged[threadIdx.x * STRIDE]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" :: "r"(at), "l"(in + threadIdx.x), "r"(bytes) : "memory");
    asm volatile("cp.async.commit_group;\\ncp.async.wait_group 0;" ::: "memory");
    out[threadIdx.x] = staged[threadIdx.x * STRIDE];
}
"""


@pytest.mark.parametrize(("stride", "wavefronts"), [(1, 4), (2, 8)])
def test_asynchronous_copies_read_global_and_write_shared_memory(stride: int, wavefronts: int) -> None:
    source = ASYNC.replace("STRIDE", str(stride))
    total = count(source, [np.ones(128, np.float32), np.zeros(128, np.float32), 16]).total
    assert total.global_memory["cp.async"].to_json() == {
        "requests": 1,
        "sectors": 16,
        "ideal": 16,
        "bytes": 512,
        "efficiency": 1.0,
    }
    stores = total.shared_memory["cp.async"]
    assert (stores.requests, stores.wavefronts, stores.conflicts) == (1, wavefronts, wavefronts - 4)
    assert total.instructions["cp.async"] == 1
    assert set(total.shared_memory) == {"cp.async", "load"}


def test_a_copy_with_fewer_bytes_is_still_one_request() -> None:
    source = ASYNC.replace("STRIDE", "1")
    partial = count(source, [np.ones(128, np.float32), np.zeros(128, np.float32), 12]).total
    assert partial.global_memory["cp.async"].to_json() == {
        "requests": 1,
        "sectors": 16,
        "ideal": 12,
        "bytes": 384,
        "efficiency": 0.75,
    }
    empty = count(source, [np.ones(128, np.float32), np.zeros(128, np.float32), 0]).total
    assert "cp.async" not in empty.global_memory
    assert empty.shared_memory["cp.async"].wavefronts == 4


@pytest.mark.parametrize(("begin", "size", "sectors"), [(0, 16, 16), (0, 12, 16), (1, 16, 20), (1, 12, 20)])
def test_an_uncached_copy_merges_sectors_among_eight_lanes(begin: int, size: int, sectors: int) -> None:
    """From the midst of a sector on, each 128 bytes touch five; a lane that takes a part of its bytes touches as many as a whole copy."""
    source = ASYNC.replace("STRIDE", "1").replace(".ca.", ".cg.").replace('"r"(bytes)', '"r"(threadIdx.x == 20 ? bytes : 16)')
    source = source.replace("in + threadIdx.x", f"in + {begin} + threadIdx.x")
    total = count(source, [np.ones(160, np.float32), np.zeros(128, np.float32), size]).total
    assert total.global_memory["cp.async"].sectors == sectors


@pytest.mark.parametrize(("size", "wavefronts"), [("bytes", 8), ("bytes ? 16 : 0", 4), ("16", 4)])
def test_the_form_of_a_copy_is_seen_in_its_number_of_bytes(size: str, wavefronts: int) -> None:
    source = ASYNC.replace("STRIDE", "1").replace(".ca.", ".cg.").replace('"r"(bytes)', f'"r"({size})')
    total = count(source, [np.ones(128, np.float32), np.zeros(128, np.float32), 16]).total
    assert total.shared_memory["cp.async"].wavefronts == wavefronts


@pytest.mark.parametrize(("stride", "wavefronts"), [(1, 4), (2, 8), (8, 32)])
def test_copies_count_the_banks_of_their_sources(stride: int, wavefronts: int) -> None:
    source = ASYNC.replace("STRIDE", "1").replace("in + threadIdx.x", f"in + threadIdx.x * {stride}")
    total = count(source, [np.ones(128 * stride, np.float32), np.zeros(128, np.float32), 16]).total
    assert total.shared_memory["cp.async"].wavefronts == wavefronts


LDMATRIX = """
extern "C" __global__ void load(unsigned* out)
{
    __shared__ __align__(16) unsigned char tile[32 * STRIDE];
    for (int i = threadIdx.x; i < 32 * STRIDE; i += 32) tile[i] = i;
    __syncwarp();
    unsigned at = (unsigned)__cvta_generic_to_shared(&tile[threadIdx.x * STRIDE]), a, b, c, d;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at) : "memory");
    out[threadIdx.x] = a + b + c + d;
}
"""


@pytest.mark.parametrize(("stride", "wavefronts"), [(16, 4), (80, 4), (32, 8), (64, 16), (128, 32)])
def test_each_matrix_of_ldmatrix_is_served_on_its_own(stride: int, wavefronts: int) -> None:
    counters = count(LDMATRIX.replace("STRIDE", str(stride)), [np.zeros(32, np.uint32)])
    loads = counters.total.shared_memory["ldmatrix"]
    assert (loads.requests, loads.wavefronts, loads.conflicts, loads.ideal) == (1, wavefronts, wavefronts - 4, 4)
    assert counters.total.instructions["ldmatrix"] == 1


def test_copies_of_tma_are_requests_of_their_own() -> None:
    source = r"""
extern "C" __global__ void copies(const char* in, char* out)
{
    __shared__ alignas(128) char tile[1024];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned to = (unsigned)__cvta_generic_to_shared(tile), at = (unsigned)__cvta_generic_to_shared(&barrier);
    if (threadIdx.x) return;
    asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(at) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" :: "r"(at) : "memory");
    for (int half = 0; half < 2; ++half)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 512, [%2];"
            :: "r"(to + 512 * half), "l"(in + 512 * half), "r"(at) : "memory");
    asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra W; }" :: "r"(at) : "memory");
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024; cp.async.bulk.commit_group;\n"
        "cp.async.bulk.wait_group 0;" :: "l"(out), "r"(to) : "memory");
}
"""
    data, out = np.arange(1024, dtype=np.uint8), np.zeros(1024, np.uint8)
    ptx = compile_ptx(source, "compute_90")
    counters = count(ptx[ptx.index(".version") :], [data, out], grid=3)
    assert (out == data).all()
    loads, stores = counters.total.global_memory["bulk load"], counters.total.global_memory["bulk store"]
    assert (loads.requests, loads.sectors, loads.bytes) == (6, 96, 3072)
    assert (stores.requests, stores.sectors, stores.bytes) == (3, 96, 3072)


def test_a_prefetched_tensor_map_is_no_traffic() -> None:
    source = r"""
struct __align__(64) CUtensorMap { unsigned long long opaque[16]; };
extern "C" __global__ void prefetches(const __grid_constant__ CUtensorMap map)
{
    if (threadIdx.x == 0) asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
}
"""
    array = np.zeros((8, 16), np.float32)
    ptx = compile_ptx(source, "compute_90")
    counters = count(ptx[ptx.index(".version") :], [emulator.TensorMap("f32", (16, 8), (64,), (16, 8), base=array)])
    assert not counters.total.global_memory
    assert counters.total.instructions["other"] == 1


def test_accesses_within_a_cluster_have_kinds_of_their_own() -> None:
    source = r"""
extern "C" __global__ void passes(float* out)
{
    __shared__ float mine[32];
    unsigned at = (unsigned)__cvta_generic_to_shared(&mine[threadIdx.x]), peer;
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(at), "r"(1 - blockIdx.x));
    asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(peer), "f"(1.f + blockIdx.x) : "memory");
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    out[32 * blockIdx.x + threadIdx.x] = mine[threadIdx.x];
}
"""
    out = np.zeros((2, 32), np.float32)
    ptx = compile_ptx(source, "compute_90")
    counters = count(ptx[ptx.index(".version") :], [out], grid=2, cluster=2)
    assert (out == [[2.0], [1.0]]).all()
    shared = counters.total.shared_memory
    assert (shared["cluster store"].requests, shared["cluster store"].wavefronts, shared["load"].requests) == (2, 2, 2)
    assert "store" not in shared
    assert counters.total.instructions["store cluster"] == 2
    assert (counters.total.shared_loads, counters.total.shared_stores) == (2, 2)
