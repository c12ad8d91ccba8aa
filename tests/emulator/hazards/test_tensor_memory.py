"""Hazards of tensor memory, each planted in a kernel that is sound without it: copies, products and loads by different warps."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen import emulator

from ..helpers import run_cuda
from ..tcgen05 import TCGEN05, core_matrices, descriptor, moves

STEPS = 3
FORM = descriptor(128, 32, 0, 0, 1)
KERNEL = f"""
extern "C" __global__ void __launch_bounds__(192) kernel(const char* a, const char* b, u32* d) {{
    __shared__ __align__(1024) char as[8192];
    __shared__ __align__(1024) char bs[2048];
    __shared__ u32 slot;
    __shared__ __align__(8) u64 full, empty, done, drained;
    int t = threadIdx.x, warp = t / 32;
    if (t == 0) {{ init(&full, 1); init(&empty, 1); init(&done, 1); init(&drained, 128); fence_init(); }}
    if (warp == 0) {{ tmem_alloc(&slot, 32); relinquish(); }}
    before_sync(); __syncthreads(); after_sync();
    u32 tmem = slot;
    if (t == 128) {{
        for (int i = 0; i < {STEPS}; ++i) {{
            wait(&empty, i & 1 ^ 1);
            arrive_expect(&full, 5120);
            load_bulk(as, a + i * 4096, 4096, &full); load_bulk(bs, b + i * 1024, 1024, &full);
        }}
    }} else if (t == 160) {{
        for (int i = 0; i < {STEPS}; ++i) {{
            wait(&drained, i & 1 ^ 1); after_sync();
            wait(&full, i & 1);
            mma_f16(tmem, matrix(as, 2048, 128, 0), matrix(bs, 512, 128, 0), {FORM}u, 0);
            commit(&empty);
            commit(&done);
        }}
    }} else if (warp < 4) {{
        for (int i = 0; i < {STEPS}; ++i) {{
            wait(&done, i & 1); after_sync(); // read
            load_columns(tmem + (warp * 32u << 16), d + (i * 128 + t) * 32);
            before_sync(); arrive(&drained);
        }}
    }}
    __syncthreads();
    if (warp == 0) tmem_free(tmem, 32);
}}
"""
READ = "wait(&done, i & 1); after_sync(); // read"
NO_WAIT = 'u32 x = tmem_ld(tmem + (warp * 32u << 16)), y = x + 1; asm volatile("" :: "r"(y)); wait_ld(); d[(i * 128 + t) * 32] = y;'
PLANTS: dict[str, tuple[str, str, str]] = {
    "accumulator read early": (READ, "", "unwritten memory|is going to write"),
    "operands refilled": ("commit(&empty);", "arrive(&empty);", "may still be reading"),
    "accumulator overwritten early": ("wait(&drained, i & 1 ^ 1); after_sync();", "", "race in tensor memory|still in use"),
    "result used before its wait": ("load_columns(tmem + (warp * 32u << 16), d + (i * 128 + t) * 32);", NO_WAIT, "before its wait"),
    "no fence after the wait": (READ, "wait(&done, i & 1);", "fence::after_thread_sync"),
    "no fence before the arrival": ("before_sync(); arrive(&drained);", "arrive(&drained);", "fence::before_thread_sync"),
    "no fence of the issuer": ("wait(&drained, i & 1 ^ 1); after_sync();", "wait(&drained, i & 1 ^ 1);", "fence::after_thread_sync"),
    "never freed": ("if (warp == 0) tmem_free(tmem, 32);", "", "holds 32 columns"),
    "freed twice": ("tmem_free(tmem, 32);", "{ tmem_free(tmem, 32); tmem_free(tmem, 32); }", "freed already"),
    "freed in part": ("tmem_free(tmem, 32);", "tmem_free(tmem, 64);", "64 columns of an allocation of 32"),
    "used after it was freed": (
        "if (warp == 0) tmem_free(tmem, 32);",
        "if (warp == 0) { tmem_free(tmem, 32); d[0] = tmem_ld(tmem); wait_ld(); }",
        "which is not allocated",
    ),
    "allocated after the permit": ("tmem_free(tmem, 32);", "{ tmem_free(tmem, 32); tmem_alloc(&slot, 32); }", "relinquish_alloc_permit"),
    "allocated out of sizes": ("tmem_alloc(&slot, 32);", "tmem_alloc(&slot, 48);", "powers of two"),
    "allocated beyond all": ("tmem_alloc(&slot, 32);", "{ tmem_alloc(&slot, 512); tmem_alloc(&slot, 32); }", "wait forever"),
    "lanes of another warp": ("tmem + (warp * 32u << 16)", "tmem + ((warp ^ 1) * 32u << 16)", "may begin at lane"),
    "lanes of the first warp": ("tmem + (warp * 32u << 16)", "tmem", "may begin at lane"),
    "columns of nobody": ("mma_f16(tmem,", "mma_f16(tmem + 16,", "which is not allocated"),
    "columns beyond the last": ("mma_f16(tmem,", "mma_f16(tmem + 496,", "tensor memory has 512"),
    "a barrier that counts otherwise": ("init(&done, 1)", "init(&done, 2)", "deadlock"),
    "a commit too many": ("commit(&done);", "commit(&done); commit(&done);", "race|in flight|still in use|deadlock|arrival more"),
    "no commit": (
        "commit(&empty);\n            commit(&done);",
        "arrive(&empty); arrive(&done);",
        "tcgen05 operation|in flight|still in use",
    ),
    "never waited for": (READ, "if (i + 1 == 3) break; " + READ, "nobody has seen the arrival"),
    "a stride into unwritten memory": ("matrix(as, 2048, 128, 0)", "matrix(as, 2048, 256, 0)", "unwritten"),
    "a sum that nothing began": (f"{FORM}u, 0)", f"{FORM}u, 1)", "nothing has written a part"),
}


KINDS = {
    "operands refilled": emulator.InFlightWrite,
    "accumulator overwritten early": emulator.TensorRace,
    "result used before its wait": emulator.TensorLoadInFlight,
    "no fence after the wait": emulator.MissingTensorFence,
    "never freed": emulator.TensorMemoryMisuse,
    "lanes of the first warp": emulator.LanesOfFirstWarp,
    "never waited for": emulator.TensorMemoryInFlight,
}


def launch(source: str, group: int = 1, **kwargs) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-8, 8, (STEPS, rows, 16)).astype(np.float16) for rows in (128, 32))
    images = [np.concatenate([core_matrices(step) for step in steps]) for steps in (a, b)]
    d = np.zeros((STEPS, 128, 32), np.float32)
    text = (TCGEN05 + moves(32) + source).replace("cta_group::1", f"cta_group::{group}")
    run_cuda(text, "kernel", 1, 192, [*images, d], "sm_100a", **kwargs)
    return d, np.matmul(a.astype(np.float32), b.astype(np.float32).swapaxes(1, 2))


@pytest.mark.parametrize("schedule", [None, 1, 2, 3])
def test_the_sound_kernel_is_clean_in_every_order(schedule):
    options = {} if schedule is None else {"schedule": emulator.RandomWarps(schedule)}
    d, wanted = launch(KERNEL, hazards=True, **options)
    assert np.array_equal(d, wanted)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_hazard_is_found(name):
    old, new, message = PLANTS[name]
    assert old in KERNEL
    with pytest.raises(emulator.EmulatorError, match=message):
        launch(KERNEL.replace(old, new), hazards=True)


@pytest.mark.parametrize("name", KINDS)
def test_findings_have_kinds(name):
    old, new, _ = PLANTS[name]
    with pytest.raises(emulator.EmulatorError) as caught:
        launch(KERNEL.replace(old, new), hazards=True)
    error = caught.value
    assert KINDS[name] in {type(found) for found in (error, *getattr(error, "also", ()), getattr(error, "ending", None))}


def test_the_launch_continues_with_the_loaded_value():
    early = "u32 x = tmem_ld(tmem + (warp * 32u << 16)); d[(i * 128 + t) * 32] = x;"
    source = KERNEL.replace("load_columns(tmem + (warp * 32u << 16), d + (i * 128 + t) * 32);", early)
    d, wanted = launch(source, hazards=False)
    assert np.array_equal(d[..., 0], wanted[..., 0])
    with pytest.raises(emulator.TensorLoadInFlight) as caught:
        launch(source, hazards=True)
    assert caught.value.ending is None


@pytest.mark.parametrize("name", ["commit", "dealloc", "mma"])
def test_single_blocks_and_pairs_do_not_mix(name):
    text = (TCGEN05 + moves(32) + KERNEL).replace(f"tcgen05.{name}.cta_group::1", f"tcgen05.{name}.cta_group::2")
    arrays = [np.zeros(size, np.uint8) for size in (STEPS * 4096, STEPS * 1024, STEPS * 16384)]
    with pytest.raises(emulator.TensorMemoryMisuse, match="all its instructions need the same"):
        run_cuda(text, "kernel", 2, 192, arrays, "compute_100a", hazards=True, cluster=2)  # without ptxas, which refuses it as well


def test_a_pair_needs_a_cluster():
    with pytest.raises(emulator.EmulatorError, match="there is no pair of blocks"):
        launch(KERNEL, group=2, hazards=True)


def test_a_block_must_not_end_with_a_product_in_flight():
    source = KERNEL.replace("if (warp == 0) tmem_free(tmem, 32);", "").replace(f"i < {STEPS}", "i < 1").replace(READ, "continue;")
    with pytest.raises(emulator.UnfinishedTensorOperation, match="whose commit nobody has waited for"):
        launch(source, hazards=True)


def test_products_of_one_thread_follow_without_a_wait():
    source = KERNEL.replace("wait(&drained, i & 1 ^ 1); after_sync();", "")
    source = source.replace(", 0);\n            commit(&empty);", ", i > 0);\n            commit(&empty);\n            if (i == 2)")
    head, _, tail = source.partition("else if (warp < 4)")
    d, wanted = launch(f"{head}else if (warp < 4){tail.replace(f'i < {STEPS}', 'i < 1', 1)}", hazards=True)
    assert np.array_equal(d[0], wanted.sum(axis=0))
