"""Planted hazards of a persistent kernel with two sets of sums whose results leave through shared memory, with a count of uses instead of
phases: its sound form is clean, each mistake is found."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen import emulator

from ..helpers import run_cuda
from ..tcgen05 import TCGEN05, core_matrices, descriptor

TILES, STEPS = 3, 3
ROWS, COLUMNS, DEPTH = 128, 32, 16

KERNEL = (
    r"""
struct Ring {  // places of a ring by how often they were used
    u32 uses, size;
    DEVICE u32 place() const { return uses % size; }
    DEVICE u32 parity() const { return uses / size & 1; }
};
struct Shared {
    char a[2][4096], b[2][1024];
    float out[4096];
    u64 full[2], empty[2], ready[2], free_[2];
    u32 columns;
};
extern "C" __global__ void __launch_bounds__(256) kernel(const char* a, const char* b, float* d) {
    extern __shared__ __align__(1024) char raw[];
    Shared& s = *reinterpret_cast<Shared*>(raw);
    int t = threadIdx.x, warp = t / 32, lane = t % 32;
    if (warp == 1 && lane == 0) {
        for (int i = 0; i < 2; ++i) { init(&s.full[i], 1); init(&s.empty[i], 1); init(&s.ready[i], 1); init(&s.free_[i], 4); }
        fence_init();
    }
    if (warp == 2) { tmem_alloc(&s.columns, 64); relinquish(); }
    before_sync(); __syncthreads(); after_sync();
    u32 base = s.columns;
    if (warp == 0) {
        Ring stage = {0, 2};
        if (lane == 0)
            for (int i = 0; i < TILES * STEPS; ++i, ++stage.uses) {
                u32 p = stage.place();
                wait(&s.empty[p], stage.parity() ^ 1);
                arrive_expect(&s.full[p], 4096 + 1024);
                load_bulk(s.a[p], a + i * 4096, 4096, &s.full[p]);
                load_bulk(s.b[p], b + i * 1024, 1024, &s.full[p]);
            }
    } else if (warp == 1) {
        Ring stage = {0, 2}, set = {0, 2};
        if (lane == 0)
            for (int tile = 0; tile < TILES; ++tile, ++set.uses) {
                wait(&s.free_[set.place()], set.parity() ^ 1);
                after_sync();
                for (int k = 0; k < STEPS; ++k, ++stage.uses) {
                    u32 p = stage.place();
                    wait(&s.full[p], stage.parity());
                    mma_f16(base + set.place() * 32, matrix(s.a[p], 2048, 128, 0), matrix(s.b[p], 512, 128, 0), FORMu, k > 0);
                    commit(&s.empty[p]);
                }
                commit(&s.ready[set.place()]);
            }
    } else if (warp >= 4) {
        Ring set = {0, 2};
        int row = t - 128;
        for (int tile = 0; tile < TILES; ++tile, ++set.uses) {
            wait(&s.ready[set.place()], set.parity());
            after_sync();
            u32 x[32], from = base + set.place() * 32 + (warp % 4 * 32 << 16);
            LOAD
            wait_ld();
            before_sync();
            __syncwarp();
            if (lane == 0) arrive(&s.free_[set.place()]);
            if (row == 0) wait_group_read<0>();
            asm volatile("bar.sync 1, 128;" ::: "memory");
            for (int c = 0; c < 32; ++c) s.out[row * 32 + c] = __uint_as_float(x[c]);
            fence_async();
            asm volatile("bar.sync 1, 128;" ::: "memory");
            if (row == 0) { store_bulk(d + tile * 4096, s.out, 16384); commit(); }
        }
        if (row == 0) wait_group<0>();
    }
    before_sync(); __syncthreads(); after_sync();
    if (warp == 2) tmem_free(base, 64);
}
""".replace(
        "LOAD",
        'asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{}}}, [%32];" : {} : "r"(from));'.format(
            ", ".join(f"%{i}" for i in range(32)), ", ".join(f'"=r"(x[{i}])' for i in range(32))
        ),
    )
    .replace("FORM", str(descriptor(ROWS, COLUMNS, 0, 0, 1)))
    .replace("TILES", str(TILES))
    .replace("STEPS", str(STEPS))
)
COMMIT_STAGE, COMMIT_SET = "commit(&s.empty[p]);", "commit(&s.ready[set.place()]);"
RELEASE = "if (lane == 0) arrive(&s.free_[set.place()]);"
BAR = 'asm volatile("bar.sync 1, 128;" ::: "memory");'
STORE = "store_bulk(d + tile * 4096, s.out, 16384); commit();"
PLANTS: dict[str, tuple[str, str, str]] = {
    "a stage given back by an arrival": (COMMIT_STAGE, "arrive(&s.empty[p]);", "may still be reading"),
    "a stage given back before its product": (
        "mma_f16(base",
        f"{COMMIT_STAGE} mma_f16(base",
        "may still be reading|arrival|phase|deadlock",
    ),
    "sums handed on by an arrival": (COMMIT_SET, "arrive(&s.ready[set.place()]);", "in flight|going to write|race|unwritten"),
    "sums handed on before the last product": (
        "for (int k = 0; k < 3",
        "if (tile) commit(&s.ready[set.place()]); for (int k = 0; k < 3",
        "in flight|going to write|race|unwritten|arrival|deadlock|still reading",
    ),
    "a parity for a stage of the turn before": (
        "wait(&s.full[p], stage.parity());",
        "wait(&s.full[p], stage.parity() ^ 1);",
        "unwritten|is going to write|in flight|deadlock",
    ),
    "a producer that never waits": ("wait(&s.empty[p], stage.parity() ^ 1);", "", "may still be reading|phase|in flight|is going to write"),
    "sums written again before they were read": (
        "wait(&s.free_[set.place()], set.parity() ^ 1);",
        "",
        "race|in flight|still reading|has not been|may still|read",
    ),
    "one warp that frees the set for all": (
        "init(&s.free_[i], 4)",
        "init(&s.free_[i], 1)",
        "race|phase|arrival|still reading|may still|read",
    ),
    "five arrivals where four come": ("init(&s.free_[i], 4)", "init(&s.free_[i], 5)", "deadlock"),
    "released before the loads are complete": (
        "wait_ld();\n            before_sync();\n            __syncwarp();\n            " + RELEASE,
        RELEASE + "\n            wait_ld();\n            before_sync();\n            __syncwarp();",
        "race|before_thread_sync|fence|still|wait::ld",
    ),
    "no fence behind the wait for sums": (
        "wait(&s.ready[set.place()], set.parity());\n            after_sync();",
        "wait(&s.ready[set.place()], set.parity());",
        "after_thread_sync",
    ),
    "no fence before the release": ("wait_ld();\n            before_sync();", "wait_ld();", "before_thread_sync"),
    "no fence behind the wait for a free set": (
        "set.parity() ^ 1);\n                after_sync();",
        "set.parity() ^ 1);",
        "after_thread_sync",
    ),
    "staging that TMA does not see": ("fence_async();", "", "proxy"),
    "staging stored before all warps filled it": (
        "fence_async();\n            " + BAR,
        "fence_async();",
        "race|unwritten|is going to write|proxy",
    ),
    "staging refilled under its copy": ("if (row == 0) wait_group_read<0>();", "", "still reading|may still be|in flight"),
    "staging whose wait others do not meet": (
        "wait_group_read<0>();\n            " + BAR,
        "wait_group_read<0>();",
        "race|still reading|may still be",
    ),
    "staging that nobody waits for at the end": ("if (row == 0) wait_group<0>();", "", "still|in flight|exit|ends"),
    "registers of a load that has not returned": ("wait_ld();", "", "has to come first"),
    "lanes of another warp": ("(warp % 4 * 32 << 16)", "((warp + 1) % 4 * 32 << 16)", "may begin at lane"),
    "columns of a third set": (
        "set = {0, 2};\n        int row",
        "set = {0, 3};\n        int row",
        "not allocated|deadlock|shared|outside|past",
    ),
    "freed under the last loads": (
        "before_sync(); __syncthreads(); after_sync();\n    if (warp == 2) tmem_free",
        "if (warp == 2) tmem_free",
        "allocated|race|freed",
    ),
    "addresses read before the allocation": (
        "before_sync(); __syncthreads(); after_sync();\n    u32 base = s.columns;",
        "u32 base = s.columns;\n    before_sync(); __syncthreads(); after_sync();",
        "race|unwritten|written",
    ),
    "fewer bytes than are copied": (
        "arrive_expect(&s.full[p], 4096 + 1024);",
        "arrive_expect(&s.full[p], 4096);",
        "bytes|unwritten|is going to write|in flight|expect",
    ),
    "more bytes than are copied": ("arrive_expect(&s.full[p], 4096 + 1024);", "arrive_expect(&s.full[p], 8192);", "deadlock"),
    "the rows of B at the stride of A": (
        "matrix(s.b[p], 512, 128, 0)",
        "matrix(s.b[p], 2048, 128, 0)",
        "past the end|shared memory|unwritten|race|proxy|in flight",
    ),
    "a first product that adds": ("k > 0);", "1);", "nothing has written|unwritten|never"),
}


def launch(source: str, schedule: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The results of a source, and those that it should have."""
    numbers = np.random.default_rng(7)
    a = numbers.integers(-2, 3, (TILES, STEPS, ROWS, DEPTH)).astype(np.float16)
    b = numbers.integers(-2, 3, (TILES, STEPS, COLUMNS, DEPTH)).astype(np.float16)
    images = [np.concatenate([core_matrices(each[tile, k]) for tile in range(TILES) for k in range(STEPS)]) for each in (a, b)]
    found = np.zeros((TILES, ROWS, COLUMNS), np.float32)
    more = {} if schedule is None else {"schedule": emulator.RandomWarps(schedule)}
    run_cuda(TCGEN05 + source, "kernel", 1, 256, [*images, found], "sm_100a", hazards=True, strict=True, shared_bytes=28000, **more)
    return found, np.einsum("tkrd,tkcd->trc", a.astype(np.float32), b.astype(np.float32))


@pytest.mark.parametrize("schedule", [None, 1, 2])
def test_the_sound_kernel_is_clean_in_every_order(schedule):
    found, wanted = launch(KERNEL, schedule)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_hazard_is_found(plant):
    before, after, message = PLANTS[plant]
    assert before in KERNEL
    with pytest.raises(emulator.EmulatorError, match=message):
        launch(KERNEL.replace(before, after))
