"""Hazards in forms that other tests do not have: each kernel is clean and right, and finds its error by one change."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator import TensorMap

from .prelude import PRELUDE, run

RING = """constexpr int SLOTS = 2;
KERNEL(const float* rows, float* out, int steps) {
    __shared__ __align__(128) float slot[SLOTS][128]; __shared__ u64 full[SLOTS], empty[SLOTS];
    if (threadIdx.x == 0) {
        for (int s = 0; s < SLOTS; ++s) { init(full + s, PRODUCERS); init(empty + s, 4); }
        fence_init();
    }
    __syncthreads();
    if (threadIdx.x >= 128) {
        int half = threadIdx.x / 32 - 4;
        if (threadIdx.x % 32 == 0)
            for (int k = 0; k < steps; ++k) {
                int s = k % SLOTS, phase = k / SLOTS & 1;
                wait(empty + s, phase ^ 1);
                arrive_expect(full + s, 256);
                load_bulk(slot[s] + 64 * half, rows + 128 * k + 64 * half, 256, full + s);
            }
    } else {
        float sum = 0;
        for (int k = 0; k < steps; ++k) {
            int s = k % SLOTS, phase = k / SLOTS & 1;
            wait(full + s, phase);
            sum += slot[s][threadIdx.x];
            __syncwarp();
            if (threadIdx.x % 32 == 0) arrive(empty + s);
        }
        out[threadIdx.x] = sum;
    }
}""".replace("PRODUCERS", "2")

FOUR = """KERNEL(float* out) {
    __shared__ float mine; __shared__ u64 all;
    if (threadIdx.x == 0) { init(&all, 4); fence_init(); mine = rank(); }
    cluster_sync();
    if (threadIdx.x < 4 && rank() > 0 + SKIPPED) {
        if (threadIdx.x == 0) arrive_at(peer_address(&all, 0));
    } else if (threadIdx.x == 0 && rank() == 0) arrive_at(peer_address(&all, 0));
    if (rank() == 0) wait(&all, 0);
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(peer_address(&mine, (rank() + 1) & 3)) : "memory");
    if (threadIdx.x == 0) out[rank()] = value;
    cluster_sync();
}""".replace("SKIPPED", "0")

STORED = """KERNEL(float* out, float* copy) {
    __shared__ __align__(128) float tile[128];
    tile[threadIdx.x] = threadIdx.x;
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        store_bulk(out, tile, 512); commit(); wait_group<0>();
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    __syncthreads();
    copy[threadIdx.x] = out[threadIdx.x];
}"""

COLUMNS = """KERNEL(const __grid_constant__ CUtensorMap map, float* out) {
    __shared__ __align__(128) float tile[128]; __shared__ u64 bar;
    if (threadIdx.x == 0) {
        init(&bar, 1); fence_init(); arrive_expect(&bar, 512);
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%3, %3, %3, %3}], [%2], {%4, %4};"
                     :: "r"(shared_address(tile)), "l"(&map), "r"(shared_address(&bar)), "r"(0), "h"((short)0) : "memory");
    }
    __syncthreads();
    wait(&bar, 0);
    out[threadIdx.x] = tile[threadIdx.x];
}"""

SENT = """KERNEL(int* out) {
    __shared__ __align__(16) int box[4]; __shared__ u64 bar;
    if (threadIdx.x == 0) { init(&bar, 1); fence_init(); arrive_expect(&bar, 16); }
    cluster_sync();
    u32 next = rank() + 1 & 3;
    if (threadIdx.x == 0)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %1, %1, %1}, [%2];"
                     :: "r"(peer_address(box, next)), "r"(rank()), "r"(peer_address(&bar, next)) : "memory");
    wait(&bar, 0);
    if (threadIdx.x < 4) out[4 * rank() + threadIdx.x] = box[threadIdx.x];
    cluster_sync();
}"""

EVERY = """KERNEL(const __grid_constant__ CUtensorMap map, float* out) {
    __shared__ __align__(128) float tile[256]; __shared__ u64 bar;
    if (threadIdx.x == 0) { init(&bar, 1); fence_init(); arrive_expect(&bar, 1024); }
    cluster_sync();
    if (threadIdx.x == 0) {
        u32 at = shared_address(tile + 64 * rank());
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
                     " [%0], [%1, {%3, %4}], [%2], %5;"
                     :: "r"(at), "l"(&map), "r"(shared_address(&bar)), "r"(0), "r"(2 * rank()), "h"((u16)0xf) : "memory");
    }
    wait(&bar, 0);
    for (int i = threadIdx.x; i < 256; i += 128) out[256 * rank() + i] = tile[i];
    cluster_sync();
}"""

ROLES = """KERNEL(int* out) {
    if (threadIdx.x < 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    else asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    out[threadIdx.x] = threadIdx.x;
}""".replace("KERNEL", 'extern "C" __global__ void __launch_bounds__(384) kernel')

ROWS = np.random.default_rng(3).integers(0, 100, (8, 128)).astype(np.float32)
PIXELS = np.arange(128, dtype=np.float32).reshape(1, 4, 4, 8)
TILE = np.arange(256, dtype=np.float32).reshape(8, 32)


def im2col_map() -> TensorMap:
    walk = emulator.Im2col((0, 0), (0, 0), channels_per_pixel=8, pixels_per_column=16)
    return TensorMap("f32", (8, 4, 4, 1), (32, 128, 512), (), im2col=walk, base=PIXELS)


def quarter_map() -> TensorMap:
    return TensorMap("f32", (32, 8), (128,), (32, 2), base=TILE)


@dataclass(frozen=True)
class Kernel:
    """A kernel, the arrays that it needs before its result, and its output."""

    body: str
    result: np.ndarray
    arguments: tuple[Any, ...] = ()
    after: tuple[Any, ...] = ()
    launch: dict[str, Any] = field(default_factory=dict)

    def run(self, body: str, **kwargs: Any) -> np.ndarray:
        out = np.zeros_like(self.result)
        arguments = [argument() if callable(argument) else argument for argument in self.arguments]
        found = run(body, *arguments, out, *self.after, hazards=True, **self.launch, **kwargs)
        assert not found.findings
        return out


FOUR_BLOCKS = {"grid": 4, "cluster": 4, "block": 128}
KERNELS = {
    "ring of two producers": Kernel(RING, ROWS.sum(axis=0), (ROWS,), (8,), {"block": 192}),
    "barrier of four blocks": Kernel(FOUR, np.array([1, 2, 3, 0], np.float32), launch=FOUR_BLOCKS),
    "read behind a store": Kernel(STORED, np.arange(128, dtype=np.float32), (np.zeros(128, np.float32),)),
    "column of pixels": Kernel(COLUMNS, PIXELS.reshape(-1), (im2col_map,)),
    "sent to the next block": Kernel(SENT, np.repeat([3, 0, 1, 2], 4).astype(np.int32), launch=FOUR_BLOCKS | {"block": 32}),
    "multicast by four": Kernel(EVERY, np.tile(TILE.reshape(-1), 4), (quarter_map,), launch=FOUR_BLOCKS),
    "pool of registers": Kernel(ROLES, np.arange(384, dtype=np.int32), launch={"block": 384}),
}

# Words that begin with @ stand for their line in the kernel.
MISTAKES: dict[tuple[str, str], tuple[str, str, type[emulator.EmulatorError], tuple[str, ...]]] = {
    ("ring of two producers", "phase of the first two rounds for ever"): (
        "int s = k % SLOTS, phase = k / SLOTS & 1;\n            wait",
        "int s = k % SLOTS, phase = k < 2 * SLOTS ? k / SLOTS : 1;\n            wait",
        emulator.EmulatorError,
        ("sum += slot[s]",),
    ),
    ("ring of two producers", "one producer counted"): (
        "init(full + s, 2)",
        "init(full + s, 1)",
        emulator.BarrierMisuse,
        ("@arrive_expect(full", "@init(full"),
    ),
    ("ring of two producers", "bytes announced twice"): (
        "arrive_expect(full + s, 256);",
        "arrive_expect(full + s, 256); "
        'asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 256;" :: "r"(shared_address(full + s)));',
        emulator.Deadlock,
        ("@wait(full", "@wait(empty", "phase 0, 0 of 2 arrivals pending, 512 bytes", "phase 0, 4 of 4 arrivals pending, 0 bytes"),
    ),
    ("ring of two producers", "producers share a half"): ("slot[s] + 64 * half,", "slot[s],", emulator.EmulatorError, ("@load_bulk(slot",)),
    ("ring of two producers", "slot filled while it is read"): (
        "wait(empty + s, phase ^ 1);",
        "",
        emulator.BarrierMisuse,
        ("@arrive_expect(full", "@init(full"),
    ),
    ("ring of two producers", "odd number of bytes"): (", 256, full + s", ", 250, full + s", emulator.EmulatorError, ("250",)),
    ("barrier of four blocks", "the last block does not arrive"): (
        "if (threadIdx.x == 0) arrive_at",
        "if (threadIdx.x == 0 && rank() < 3) arrive_at",
        emulator.Deadlock,
        ("@wait(&all", "cluster_wait", "phase 0, 1 of 4 arrivals pending"),
    ),
    ("barrier of four blocks", "no barrier before the reading"): (
        "    cluster_sync();\n    if",
        "    if",
        emulator.ClusterMisuse,
        ("@if (threadIdx.x == 0) arrive_at", "need not have started"),
    ),
    ("barrier of four blocks", "a block ends early"): (
        "= value;\n    cluster_sync();",
        "= value;",
        emulator.EmulatorError,
        ("ld.shared::cluster",),
    ),
    ("read behind a store", "the source is read, the array not written"): (
        "wait_group<0>",
        "wait_group_read<0>",
        emulator.EmulatorError,
        ("copy[threadIdx.x] = out[threadIdx.x]", "store_bulk"),
    ),
    ("read behind a store", "threads that do not meet"): (
        "}\n    __syncthreads();\n    copy",
        "}\n    copy",
        emulator.EmulatorError,
        ("copy[threadIdx.x] = out[threadIdx.x]",),
    ),
    ("column of pixels", "not waited for"): (
        "wait(&bar, 0);",
        "",
        emulator.EmulatorError,
        ("out[threadIdx.x] = tile", "cp.async.bulk.tensor.4d"),
    ),
    ("column of pixels", "offsets of another rank"): (", {%4, %4};", ", {%4};", emulator.EmulatorError, ("im2col",)),
    ("column of pixels", "tile mode"): (
        ".im2col.mbarrier",
        ".tile.mbarrier",
        emulator.EmulatorError,
        (),
    ),
    ("sent to the next block", "not waited for"): ("wait(&bar, 0);", "", emulator.EmulatorError, ("= box[threadIdx.x]", "st.async")),
    ("sent to the next block", "signal in its own block"): (
        "peer_address(&bar, next)",
        "peer_address(&bar, rank())",
        emulator.EmulatorError,
        (),
    ),
    ("sent to the next block", "barrier not initialised yet"): (
        "    cluster_sync();\n    u32",
        "    __syncthreads();\n    u32",
        emulator.EmulatorError,
        (),
    ),
    ("multicast by four", "mask beyond the cluster"): ("(u16)0xf", "(u16)0x1f", emulator.EmulatorError, ("block",)),
    ("multicast by four", "a block left out"): (
        "(u16)0xf",
        "(u16)0x7",
        emulator.Deadlock,
        ("@wait(&bar", "0 of 1 arrivals pending, 1024 bytes"),
    ),
    ("multicast by four", "peers may not have initialised"): (
        "    cluster_sync();\n    if",
        "    __syncthreads();\n    if",
        emulator.EmulatorError,
        ("cp.async.bulk.tensor",),
    ),
    ("multicast by four", "box off its alignment"): ("tile + 64 * rank()", "tile + 64 * rank() + 4", emulator.EmulatorError, ("128",)),
    ("pool of registers", "nobody gives any up"): (
        "setmaxnreg.dec.sync.aligned.u32 40",
        "setmaxnreg.inc.sync.aligned.u32 232",
        emulator.Deadlock,
        ("232",),
    ),
    ("pool of registers", "lowered where it is to grow"): (
        "setmaxnreg.inc.sync.aligned.u32 232",
        "setmaxnreg.dec.sync.aligned.u32 232",
        emulator.EmulatorError,
        ("232",),
    ),
    ("pool of registers", "not a multiple of eight"): ("u32 232", "u32 230", emulator.EmulatorError, ("230",)),
}


def place(body: str, words: str) -> str:
    """The line of a kernel that these words stand in, as messages name it."""
    whole = PRELUDE + body
    return f"kernel.cu:{whole[: whole.index(words, len(PRELUDE))].count(chr(10)) + 1}"


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("seed", [None, 1])
def test_the_kernel_is_clean_and_right(name, seed):
    kernel = KERNELS[name]
    schedule = {} if seed is None else {"schedule": emulator.RandomCrowds(seed)}
    np.testing.assert_array_equal(kernel.run(kernel.body, **schedule), kernel.result)


@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_the_mistake_is_found_at_its_lines(name, mistake):
    old, new, error, words = MISTAKES[name, mistake]
    kernel = KERNELS[name]
    assert old in kernel.body
    changed = kernel.body.replace(old, new, 1)
    with pytest.raises(error) as raised:
        kernel.run(changed, strict=True, step_limit=50_000)
    text = str(raised.value)
    wanted = [place(changed, word[1:]) if word.startswith("@") else word for word in words]
    assert [word for word in wanted if word not in text] == []
