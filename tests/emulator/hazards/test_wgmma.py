"""Mistakes around wgmma: each kernel is clean, and caught once it has the mistake; messages name both places."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen import emulator

from ..helpers import run_cuda
from ..wgmma import HELPERS, wrapper
from .twins import check, twins

KERNEL = (
    HELPERS
    + wrapper("mma", "m64n8k16.f32.bf16.bf16", "f32", 4)
    + wrapper("mma_a", "m64n8k16.f32.bf16.bf16", "f32", 4, "1, 1, 0", a_registers=True)
    + """
extern "C" __global__ void __launch_bounds__(256) kernel(float* out)
{
    __shared__ __align__(1024) unsigned short a[64 * 64], b[8 * 64];
    for (int i = threadIdx.x; i < 64 * 64; i += blockDim.x) a[i] = 0x3f80;
    for (int i = threadIdx.x; i < 8 * 64; i += blockDim.x) b[i] = 0x3f80;
    proxy_fence();
    __syncthreads();
    uint64_t da = matrix(a, 16, 1024, 1), db = matrix(b, 16, 1024, 1);
    float d[4] = {}, e[4] = {};
    uint32_t f[4] = {threadIdx.x, 1, 2, 3};
    BODY
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = d[i] + e[i];
}
"""
)
PLAIN = "wgmma_fence(); mma(d, da, db, 0); wgmma_commit(); wgmma_wait<0>();"


def body(text: str) -> str:
    return KERNEL.replace("BODY", text)


def caught(text: str, remove: str, error: type[emulator.EmulatorError], instead: str = "", block: int = 128) -> str:
    """The message about a body that is clean until `remove` is replaced."""
    return twins(body(text), remove, error, np.zeros(4 * 256, np.float32), instead=instead, block=block, architecture="compute_90a")


def places(text: str) -> int:
    return text.count("PTX   line")


def test_no_fence_before_the_first():
    text = caught(PLAIN, "wgmma_fence();", emulator.MissingWarpgroupFence)
    assert "no wgmma.fence comes before this first wgmma" in text and "wgmma.mma_async" in text


SCALED = f"""{PLAIN}
    for (int i = 0; i < 4; ++i) d[i] *= 2.0f;
    wgmma_fence(); mma(d, da, db, 1); wgmma_commit(); wgmma_wait<0>();"""


def test_no_fence_after_accumulators_were_written():
    text = caught(SCALED, "wgmma_fence(); mma(d, da, db, 1);", emulator.MissingWarpgroupFence, "mma(d, da, db, 1);")
    assert places(text) == 2 and "no wgmma.fence lies between an access to" in text and "add.f32" in text


FRAGMENT = """wgmma_fence(); mma_a(d, f, db, 0); wgmma_commit(); wgmma_wait<0>();
    f[0] = f[0] * 3 + threadIdx.x; asm volatile("" : "+r"(f[0]));
    wgmma_fence(); mma_a(d, f, db, 1); wgmma_commit(); wgmma_wait<0>();"""


def test_no_fence_after_a_registers_were_written():
    text = caught(FRAGMENT, "wgmma_fence(); mma_a(d, f, db, 1);", emulator.MissingWarpgroupFence, "mma_a(d, f, db, 1);")
    assert places(text) == 2


def test_a_fence_before_the_last_write_is_a_warning():
    early = SCALED.replace("d[i] *= 2.0f;\n    wgmma_fence();", 'asm volatile("add.f32 %0, %0, %0;" : "+f"(d[i]));').replace(
        "for (int i", "wgmma_fence();\n    for (int i"
    )
    result = run_cuda(body(early), "kernel", 1, 128, [np.zeros(1024, np.float32)], "compute_90a", hazards=True)
    (found,) = result.findings
    assert isinstance(found, emulator.EarlyWarpgroupFence) and "the wgmma.fence comes too early" in str(found)


def test_accumulators_need_no_fence_between_operations():
    first = "wgmma_fence(); mma(d, da, db, 0); mma(d, da + 2, db + 2, 1); wgmma_commit();"
    text = first + " mma(d, da, db, 1); wgmma_commit(); wgmma_wait<1>(); wgmma_wait<0>();"
    assert not check(body(text), np.zeros(1024, np.float32), block=128, architecture="compute_90a").findings


@pytest.mark.parametrize(
    ("remove", "instead", "remedy"),
    [
        ("wgmma_wait<0>();", "", "wgmma.wait_group 0 by these threads has to come first"),
        ("wgmma_wait<0>();", "wgmma_wait<1>();", "wgmma.wait_group 0 by these threads has to come first"),
        ("wgmma_commit();", "", "its group is not even committed"),
    ],
)
def test_results_read_too_early(remove, instead, remedy):
    text = caught(PLAIN, remove, emulator.RegisterInFlight, instead)
    assert places(text) == 2 and remedy in text and "is read while a wgmma in flight has yet to write it" in text


def test_the_older_of_two_groups_is_there_before_the_newer():
    two = """wgmma_fence(); mma(d, da, db, 0); wgmma_commit(); mma(e, da, db, 0); wgmma_commit();
    wgmma_wait<1>(); out[threadIdx.x * 4] = d[0]; wgmma_wait<0>();"""
    text = caught(two, "wgmma_wait<1>();", emulator.RegisterInFlight, "wgmma_wait<2>();")
    assert "wgmma.wait_group 1 by these threads has to come first" in text


def test_accumulators_written_in_flight():
    text = """wgmma_fence(); mma(d, da, db, 0); wgmma_commit();
    /* here */ wgmma_wait<0>();"""
    message = caught(text, "/* here */", emulator.RegisterInFlight, 'asm volatile("mov.f32 %0, 0f00000000;" : "+f"(d[0]));')
    assert places(message) == 2


def test_a_registers_written_in_flight():
    text = """wgmma_fence();
    asm volatile("{\\n.reg .b32 a;\\nmov.b32 a, %6;\\nwgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3}, {a, %4, %4, %4}, %5, 0, 1, 1, 0;\\nwgmma.commit_group.sync.aligned;\\nWAIT\\n"
        "add.u32 a, a, 1;\\nwgmma.wait_group.sync.aligned 0;\\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(f[1]), "l"(db), "r"(f[0]) : "memory");"""
    clean = text.replace("WAIT", "wgmma.wait_group.sync.aligned 0;")
    message = caught(clean, '\\nwgmma.wait_group.sync.aligned 0;\\n"', emulator.RegisterInFlight, '\\n"')
    assert places(message) == 2 and "as an A register" in message


def test_a_result_that_is_used_as_a_fragment_too_early():
    text = """wgmma_fence(); mma(d, da, db, 0); wgmma_commit(); wgmma_wait<0>();
    uint32_t g[4]; for (int i = 0; i < 4; ++i) g[i] = __float_as_uint(d[i]);
    wgmma_fence(); mma_a(e, g, db, 0); wgmma_commit(); wgmma_wait<0>();"""
    assert "a wgmma in flight has yet to write it" in caught(
        text, "wgmma_commit(); wgmma_wait<0>();\n", emulator.RegisterInFlight, "wgmma_commit();\n"
    )


@pytest.mark.parametrize(
    ("remove", "what"), [("wgmma_wait<0>();", "that nothing waited for"), ("wgmma_commit(); wgmma_wait<0>();", "never committed")]
)
def test_threads_end_with_an_operation_in_flight(remove, what):
    text = caught(
        f"if (threadIdx.x == 999) out[0] = 1; {PLAIN.replace('(d', '(f0')} return;".replace(
            "wgmma_fence", "float f0[4] = {}; wgmma_fence", 1
        ),
        remove,
        emulator.UnfinishedWgmma,
    )
    assert what in text


def test_a_warpgroup_that_is_not_whole():
    text = caught(f"if (threadIdx.x < 128) {{ {PLAIN} }}", "< 128", emulator.DivergentWarp, "< 64")
    assert "waits for warps of its warpgroup that never arrive" in text


def test_a_warpgroup_of_which_a_thread_has_ended():
    text = caught(PLAIN, "wgmma_fence();", emulator.DivergentWarp, "if (threadIdx.x == 77) return; wgmma_fence();")
    assert "needs all 128 lanes of a warpgroup; 1 have exited" in text


def test_a_block_without_whole_warpgroups():
    with pytest.raises(emulator.DivergentWarp, match="needs all 128 lanes"):
        check(body(PLAIN), np.zeros(1024, np.float32), block=192, architecture="compute_90a")


def test_a_descriptor_that_differs_between_threads():
    text = caught(PLAIN, "mma(d, da, db, 0)", emulator.InvalidMatrix, "mma(d, da + 64 * (threadIdx.x / 64), db, 0)")
    assert "a matrix descriptor differs between the threads of a warpgroup" in text


def test_a_swizzle_that_does_not_begin_with_its_pattern():
    text = caught(PLAIN, "mma(d, da,", emulator.InvalidMatrix, "mma(d, da + (1ull << 49),")
    assert "896 bytes into the pattern of its 128-byte swizzle, which repeats every 1024 bytes" in text


def test_a_step_along_k_that_leaves_its_row():
    text = caught(PLAIN, "mma(d, da,", emulator.InvalidMatrix, "mma(d, da + 7,")
    assert "112 bytes into rows of 128 bytes, as its swizzle has them: 32 bytes along k reach beyond their end" in text


def test_an_operand_beyond_shared_memory():
    text = caught(PLAIN, "mma(d, da, db, 0)", emulator.InvalidMatrix, "mma(d, da, matrix(b, 16, 1024, 1) + 4096, 0)")
    assert "operand B begins at shared address" in text and "; shared memory has" in text


def test_shared_memory_overwritten_while_it_is_read():
    ordered = """wgmma_fence(); mma(d, da, db, 0); wgmma_commit(); wgmma_wait<0>(); __syncthreads();
    b[threadIdx.x] = 0; /* after */"""
    text = caught(
        ordered,
        "wgmma_wait<0>(); __syncthreads();\n    b[threadIdx.x] = 0; /* after */",
        emulator.InFlightWrite,
        "b[threadIdx.x] = 0; wgmma_wait<0>();",
    )
    assert places(text) == 2 and "nobody has seen the wgmma.wait_group of its warpgroup" in text


def test_moves_of_accumulators_in_flight_are_no_accesses():
    source = body("""wgmma_fence(); mma(d, da, db, 0); wgmma_commit();
    asm volatile("{\\n.reg .f32 x;\\nmov.f32 x, %0;\\nmov.f32 %1, x;\\n}" : "+f"(d[0]), "=f"(e[0]));
    wgmma_wait<0>(); d[0] = 0.0f;""")
    out = np.zeros(1024, np.float32)
    run_cuda(source, "kernel", 1, 128, [out], "compute_90a", hazards=True)
    np.testing.assert_array_equal(out[:512], 16.0)


def test_no_proxy_fence_after_threads_wrote_an_operand():
    text = twins(
        KERNEL.replace("BODY", PLAIN),
        "proxy_fence();\n",
        emulator.MissingProxyFence,
        np.zeros(4 * 256, np.float32),
        block=128,
        architecture="compute_90a",
    )
    assert places(text) == 4 and "wgmma uses shared a[0], which threads have written" in text and "wgmma uses shared b[0]" in text


def test_an_operand_that_nothing_has_written():
    text = twins(
        KERNEL.replace("BODY", PLAIN),
        "b[i] = 0x3f80;",
        emulator.UnwrittenRead,
        np.zeros(4 * 256, np.float32),
        instead=";",
        block=128,
        architecture="compute_90a",
    )
    assert "shared b[0]" in text and "wgmma.mma_async" in text


UNSET = """float x[4]; for (int k = 0; k < 2; ++k) {
    wgmma_fence(); mma(x, da, db, k > 0); wgmma_commit(); wgmma_wait<0>(); }
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = x[i]; return;"""


def test_accumulators_that_nothing_has_set():
    text = caught(UNSET, "mma(x, da, db, k > 0)", emulator.UndefinedRegister, "mma(x, da, db, 1)")
    assert "the accumulator of this wgmma is made of" in text


def test_no_barrier_after_threads_wrote_an_operand():
    source = KERNEL.replace("BODY", PLAIN)
    text = twins(
        source,
        "    __syncthreads();\n    uint64_t",
        emulator.SharedRace,
        np.zeros(4 * 256, np.float32),
        instead="    uint64_t",
        block=128,
        architecture="compute_90a",
    )
    assert "read of shared a[0]" in text and "wgmma.mma_async" in text


def test_another_warpgroup_overwrites_operand_without_barrier():
    ordered = f"""if (threadIdx.x < 128) {{ {PLAIN} }}
    __syncthreads(); if (threadIdx.x >= 128) b[threadIdx.x] = 0;"""
    text = caught(ordered, "__syncthreads(); if", emulator.SharedRace, "if", block=256)
    assert places(text) == 2


def test_the_warps_that_waited_may_overwrite_an_operand():
    assert not check(
        body(PLAIN + " b[threadIdx.x] = 0;"),
        np.zeros(1024, np.float32),
        block=128,
        architecture="compute_90a",
        schedule=emulator.RandomWarps(3),
    ).findings
