"""Clusters: ranks, memory of other blocks, barriers of the cluster, multicast."""

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator import TensorMap

from .prelude import run
from .test_hazards import twins

SHAPE = """
#define READ(index, name) { u32 v; asm volatile("mov.u32 %0, %%" name ";" : "=r"(v)); out[12 * block + index] = v; }
KERNEL(u32* out) {
    u32 block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    READ(0, "cluster_ctaid.x") READ(1, "cluster_ctaid.y") READ(2, "cluster_ctaid.z") READ(3, "cluster_nctaid.x")
    READ(4, "cluster_nctaid.y") READ(5, "cluster_ctarank") READ(6, "cluster_nctarank") READ(7, "clusterid.x")
    READ(8, "clusterid.y") READ(9, "nclusterid.x") READ(10, "nclusterid.y")
    asm volatile("{.reg .pred p; mov.pred p, %%is_explicit_cluster; selp.u32 %0, 1, 0, p;}" : "=r"(out[12 * block + 11]));
}"""


def test_special_registers_tell_the_cluster():
    out = np.zeros((6, 4, 12), np.uint32)
    run(SHAPE, out, grid=(4, 6), block=1, cluster=(2, 3))
    for y in range(6):
        for x in range(4):
            assert out[y, x].tolist() == [x % 2, y % 3, 0, 2, 3, x % 2 + y % 3 * 2, 6, x // 2, y // 3, 2, 2, 1]


def test_without_a_cluster_each_block_is_one():
    out = np.zeros((2, 12), np.uint32)
    run(SHAPE, out, grid=2, block=1)
    assert out.tolist() == [[0, 0, 0, 1, 1, 0, 1, x, 0, 2, 1, 0] for x in range(2)]


NEIGHBOUR = """KERNEL(float* out) {
    __shared__ float mine[64];
    mine[threadIdx.x] = 100.f * blockIdx.x + threadIdx.x;
    cluster_sync();
    u32 peer = (rank() + 1) % 4; float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(peer_address(&mine[threadIdx.x ^ 1], peer)) : "memory");
    cluster_sync();
    mine[threadIdx.x] = -1;
    out[64 * blockIdx.x + threadIdx.x] = v;
}"""


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_blocks_read_each_other(seed):
    schedule = {} if seed is None else {"schedule": emulator.RandomCrowds(seed)}
    out = np.zeros((8, 64), np.float32)
    run(NEIGHBOUR, out, grid=8, block=64, cluster=4, hazards=True, **schedule)
    blocks = np.arange(8)
    peers = blocks // 4 * 4 + (blocks + 1) % 4
    np.testing.assert_array_equal(out, 100 * peers[:, None] + (np.arange(64) ^ 1))


BITS_OF_RANK = """KERNEL(u32* out) {
    __shared__ u32 mine[32];
    mine[threadIdx.x] = 10 * blockIdx.x + threadIdx.x;
    cluster_sync();
    u32 own = (u32)__cvta_generic_to_shared(mine), leader = own & 0xFEFFFFFF, value;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(leader + 4 * threadIdx.x) : "memory");
    u32 named; asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(named) : "r"(leader));
    u32* to = out + 5 * (32 * blockIdx.x + threadIdx.x);
    to[0] = own >> 24; to[1] = value; to[2] = named; to[3] = peer_address(mine, 3) - own; to[4] = __isShared(mine);
    cluster_sync();
}"""


def test_addresses_hold_the_rank_in_their_upper_byte():
    out = np.zeros((8, 32, 5), np.uint32)
    run(BITS_OF_RANK, out, grid=8, block=32, cluster=4, hazards=True)
    rank, lane = np.arange(8)[:, None] % 4, np.arange(32)
    leader = np.arange(8)[:, None] // 2 * 2
    assert (out[..., 0] == rank).all() and (out[..., 1] == 10 * leader + lane).all() and (out[..., 2] == rank // 2 * 2).all()
    assert (out[..., 3] == (3 - rank) * (1 << 24)).all() and (out[..., 4] == 1).all()


OUT = np.zeros(512, np.float32)


def test_the_peer_has_to_have_started():
    message = twins(NEIGHBOUR, "cluster_sync();\n    u32", emulator.ClusterMisuse, OUT, instead="u32", grid=8, block=64, cluster=4)
    assert "need not have started" in message


def test_a_barrier_of_the_block_orders_nothing_in_the_cluster():
    started = NEIGHBOUR.replace("mine[threadIdx.x] = 100.f", "cluster_sync(); mine[threadIdx.x] = 100.f")
    assert "shared memory race" in twins(
        started, "cluster_sync();\n    u32", emulator.SharedRace, OUT, instead="__syncthreads(); u32", grid=8, block=64, cluster=4
    )
    assert "shared memory race" in twins(
        started, "cluster_sync();\n    mine", emulator.SharedRace, OUT, instead="mine", grid=8, block=64, cluster=4
    )


def test_a_relaxed_arrival_orders_nothing():
    body = NEIGHBOUR.replace("cluster_sync();\n    u32", 'asm volatile("barrier.cluster.arrive.aligned;"); cluster_wait();\n    u32')
    assert "shared memory race: read of shared mine[1]" in twins(
        body, "arrive.aligned", emulator.SharedRace, OUT, instead="arrive.relaxed.aligned", grid=8, block=64, cluster=4
    )


def test_a_block_must_not_end_while_others_read_it():
    body = NEIGHBOUR.replace("mine[threadIdx.x] = -1;\n", "")
    with pytest.raises(emulator.EmulatorError, match=r"may have ended|has ended"):
        run(
            body.replace("cluster_sync();\n    \n", "")
            .replace("cluster_sync();\n    out", "out")
            .replace("cluster_sync();\n        out", "out"),
            OUT,
            grid=8,
            block=64,
            cluster=4,
            hazards=True,
        )


def test_arriving_twice_and_waiting_for_nothing():
    with pytest.raises(emulator.ClusterMisuse, match="has not waited"):
        run("KERNEL() { cluster_arrive(); cluster_arrive(); cluster_wait(); }", grid=2, block=32, cluster=2)
    with pytest.raises(emulator.ClusterMisuse, match="has not arrived"):
        run("KERNEL() { cluster_wait(); }", grid=2, block=32, cluster=2)


def test_a_cluster_waits_for_all_its_living_threads():
    run("KERNEL() { if (threadIdx.x >= 32) return; cluster_sync(); }", grid=2, block=64, cluster=2)
    with pytest.raises(emulator.Deadlock, match="barrier of the cluster, where thread"):
        run(
            "KERNEL() { __shared__ u64 bar; if (threadIdx.x == 0 && rank() == 1) { init(&bar, 1); wait(&bar, 0); } __syncwarp();"
            "cluster_sync(); }",
            grid=2,
            block=64,
            cluster=2,
        )


GENERIC = """KERNEL(int* out) {
    __shared__ int count, slot[4];
    if (threadIdx.x < 4) slot[threadIdx.x] = 0;
    if (threadIdx.x == 0) count = 0;
    cluster_sync();
    u64 leader, cell; u32 owner;
    asm volatile("mapa.u64 %0, %1, 0;" : "=l"(leader) : "l"((u64)&count));
    asm volatile("mapa.u64 %0, %1, 3;" : "=l"(cell) : "l"((u64)&slot[rank()]));
    asm volatile("getctarank.u64 %0, %1;" : "=r"(owner) : "l"(cell));
    atomicAdd((int*)leader, 1);
    if (threadIdx.x == 0) *(volatile int*)cell = 10 * rank() + owner;
    cluster_sync();
    if (threadIdx.x == 0 && rank() == 0) out[4] = count;
    if (threadIdx.x < 4 && rank() == 3) out[threadIdx.x] = slot[threadIdx.x];
}"""


def test_generic_addresses_and_atomics_reach_other_blocks():
    out = np.zeros(5, np.int32)
    run(GENERIC, out, grid=4, block=64, cluster=4, hazards=True)
    assert out.tolist() == [3, 13, 23, 33, 256]


def test_there_is_no_block_beyond_the_cluster():
    with pytest.raises(emulator.ClusterMisuse, match="no block of rank 4"):
        run(GENERIC.replace(", 3;", ", 4;"), np.zeros(5, np.int32), grid=4, block=64, cluster=4)


MULTICAST = """KERNEL(const __grid_constant__ CUtensorMap map, float* out, int mask) {
    __shared__ __align__(1024) float tile[256]; __shared__ u64 full;
    if (threadIdx.x == 0) { init(&full, 1); fence_init(); }
    cluster_sync();
    if (threadIdx.x == 0) {
        arrive_expect(&full, 1024);
        if (rank() == 0)
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                         "[%0], [%1, {%3, %4}], [%2], %5;" :: "r"(shared_address(tile)), "l"(&map), "r"(shared_address(&full)),
                         "r"(0), "r"(8 * (int)(blockIdx.x / 4)), "h"((u16)mask) : "memory");
    }
    wait(&full, 0);
    out[256 * blockIdx.x + threadIdx.x] = tile[threadIdx.x];
    out[256 * blockIdx.x + 128 + threadIdx.x] = tile[128 + threadIdx.x];
}"""
ROWS = np.random.default_rng(6).integers(0, 100, (16, 32)).astype(np.float32)


def rows_map() -> TensorMap:
    return TensorMap("f32", (32, 16), (128,), (32, 8), base=ROWS)


def test_multicast_reaches_every_block_of_the_mask():
    out = np.zeros((8, 256), np.float32)
    run(MULTICAST, rows_map(), out, 15, grid=8, block=128, cluster=4, hazards=True)
    np.testing.assert_array_equal(out, ROWS.reshape(2, 256).repeat(4, axis=0))


def test_multicast_that_leaves_one_out_lets_it_wait_for_ever():
    with pytest.raises(emulator.Deadlock, match="1024 bytes still to come"):
        run(MULTICAST, rows_map(), np.zeros((8, 256), np.float32), 7, grid=8, block=128, cluster=4)


def test_multicast_to_a_block_that_is_not_there():
    with pytest.raises(emulator.ClusterMisuse, match="no block of rank 4"):
        run(MULTICAST, rows_map(), np.zeros((8, 256), np.float32), 31, grid=8, block=128, cluster=4)


def test_multicast_before_the_others_have_initialised():
    body = MULTICAST.replace("cluster_sync();", "__syncthreads();")
    with pytest.raises(emulator.ClusterMisuse, match="need not have started"):
        run(body, rows_map(), np.zeros((8, 256), np.float32), 15, grid=8, block=128, cluster=4)


REMOTE_RING = """KERNEL(const __grid_constant__ CUtensorMap map, float* out, int steps) {
    __shared__ __align__(1024) float tile[256]; __shared__ u64 full, empty;
    if (threadIdx.x == 0) { init(&full, 1); init(&empty, 2); fence_init(); }
    cluster_sync();
    float sum = 0;
    for (int k = 0; k < steps; ++k) {
        if (threadIdx.x == 0) {
            if (rank() == 0) wait(&empty, (k & 1) ^ 1);
            arrive_expect(&full, 1024);
            if (rank() == 0)
                asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                             "[%0], [%1, {%3, %4}], [%2], %5;" :: "r"(shared_address(tile)), "l"(&map),
                             "r"(shared_address(&full)), "r"(0), "r"(8 * k), "h"((u16)3) : "memory");
        }
        wait(&full, k & 1);
        sum += tile[threadIdx.x] * (rank() + 1);
        __syncthreads();
        if (threadIdx.x == 0) arrive_at(peer_address(&empty, 0));
    }
    out[128 * blockIdx.x + threadIdx.x] = sum;
    cluster_sync();
}"""


def remote_ring(body: str, **kwargs) -> np.ndarray:
    """Sums of the rows that each of two blocks took."""
    out = np.zeros((2, 128), np.float32)
    run(body, rows_map(), out, 2, grid=2, block=128, cluster=2, hazards=True, **kwargs)
    return out


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_consumers_of_both_blocks_free_a_slot(seed):
    sums = remote_ring(REMOTE_RING, **({} if seed is None else {"schedule": emulator.RandomCrowds(seed)}))
    want = ROWS.reshape(2, 256)[:, :128].sum(axis=0)
    np.testing.assert_array_equal(sums, [want, 2 * want])


REMOTE_MISTAKES = {
    "only its own block arrives": ("init(&empty, 2)", "init(&empty, 1)"),
    "slot not waited for": ("if (rank() == 0) wait(&empty, (k & 1) ^ 1);", ""),
    "threads do not meet before the arrival": ("__syncthreads();\n        if", "if"),
    "arrival at its own barrier": ("peer_address(&empty, 0)", "peer_address(&empty, rank())"),
    "blocks end early": ("sum;\n    cluster_sync();", "sum;"),
    "relaxed arrival": (
        "arrive_at(peer_address(&empty, 0))",
        'asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" :: "r"(peer_address(&empty, 0)) : "memory")',
    ),
}


@pytest.mark.parametrize("mistake", REMOTE_MISTAKES)
def test_a_mistake_between_blocks_is_found(mistake):
    old, new = REMOTE_MISTAKES[mistake]
    assert old in REMOTE_RING
    with pytest.raises(emulator.EmulatorError):
        remote_ring(REMOTE_RING.replace(old, new), step_limit=20_000)


SIGNAL = """KERNEL(int* out) {
    __shared__ int box[64]; __shared__ u64 bar;
    if (threadIdx.x == 0) { init(&bar, 1); fence_init(); arrive_expect(&bar, 256); }
    if (threadIdx.x < 64) box[threadIdx.x] = 5;
    cluster_sync();
    u32 to = peer_address(&box[threadIdx.x], rank() ^ 1), signal = peer_address(&bar, rank() ^ 1);
    asm volatile("OPERATION" :: "r"(to), "r"(threadIdx.x + 100 * rank()), "r"(signal) : "memory");
    wait(&bar, 0);
    out[64 * blockIdx.x + threadIdx.x] = box[threadIdx.x];
    cluster_sync();
}"""


@pytest.mark.parametrize(
    ("operation", "change"),
    [
        ("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];", lambda old, new: new),
        ("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];", lambda old, new: new),
        ("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];", lambda old, new: old + new),
        ("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.max.u32 [%0], %1, [%2];", max),
    ],
)
def test_stores_that_signal_a_barrier(operation, change):
    out = np.zeros((2, 64), np.int32)
    run(SIGNAL.replace("OPERATION", operation), out, grid=2, block=64, cluster=2, hazards=True)
    assert out.tolist() == [[change(5, lane + 100 * sender) for lane in range(64)] for sender in (1, 0)]


def test_stores_that_signal_have_to_be_waited_for():
    body = SIGNAL.replace("OPERATION", "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];")
    for seed in (1, 2):
        message = twins(
            body,
            "wait(&bar, 0);",
            emulator.EmulatorError,
            np.zeros((2, 64), np.int32),
            grid=2,
            block=64,
            cluster=2,
            schedule=emulator.RandomWarps(seed),
        )
        assert "nobody has seen the phase of its barrier complete" in message


COPY = """KERNEL(float* out) {
    __shared__ __align__(16) float mine[64], theirs[64]; __shared__ u64 bar;
    mine[threadIdx.x] = 100.f * rank() + threadIdx.x;
    if (threadIdx.x == 0) { init(&bar, 1); fence_init(); arrive_expect(&bar, 256); }
    fence_async();
    cluster_sync();
    if (threadIdx.x == 0)
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     :: "r"(peer_address(theirs, rank() ^ 1)), "r"(shared_address(mine)), "r"(256), "r"(peer_address(&bar, rank() ^ 1))
                     : "memory");
    wait(&bar, 0);
    out[64 * blockIdx.x + threadIdx.x] = theirs[threadIdx.x];
    cluster_sync();
}"""


def test_bulk_copies_between_blocks():
    out = np.zeros((2, 64), np.float32)
    run(COPY, out, grid=2, block=64, cluster=2, hazards=True)
    np.testing.assert_array_equal(out, np.add.outer([100, 0], np.arange(64)))


def test_bulk_copies_between_blocks_need_their_fence():
    assert "no fence.proxy.async lies between" in twins(
        COPY, "fence_async();", emulator.MissingProxyFence, np.zeros((2, 64), np.float32), grid=2, block=64, cluster=2
    )
