"""Breaks a GEMM with TMA, multicast in clusters, two consumer groups and TMA stores one way at a time. Every mistake has to be caught."""

from __future__ import annotations

import pytest
from emulator.engines.pipelined_gemm import BODY, gemm

from gemmgen import emulator

MEET = 'asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory");'
MISTAKES = {
    "no fence after the initialisation": ("fence_init();\n", "\n"),
    "no barrier of the cluster at the start": ("cluster_sync();\n    const int row", "__syncthreads();\n    const int row"),
    "no barrier of the cluster at the end": ("    cluster_sync();\n}", "}"),
    "a stage less": ("constexpr int STAGES = 3", "constexpr int STAGES = 4"),
    "slot not waited for": ("wait(empty + s, phase ^ 1);", ""),
    "parity of the producer": ("wait(empty + s, phase ^ 1)", "wait(empty + s, phase)"),
    "data not waited for": ("wait(full + s, phase);", ""),
    "parity of the consumers": ("wait(full + s, phase)", "wait(full + s, phase ^ 1)"),
    "too few bytes expected": ("arrive_expect(full + s, BYTES)", "arrive_expect(full + s, BYTES - B_BYTES / 2)"),
    "too many bytes expected": ("arrive_expect(full + s, BYTES)", "arrive_expect(full + s, BYTES + 16)"),
    "count of arrivals too low": ("init(empty + s, 4)", "init(empty + s, 2)"),
    "count of arrivals too high": ("init(empty + s, 4)", "init(empty + s, 5)"),
    "arrival at one's own block only": ("threadIdx.x % 128 < 2", "threadIdx.x % 128 == rank()"),
    "arrival twice at one block": ("peer_address(empty + s, threadIdx.x % 128)", "peer_address(empty + s, rank())"),
    "relaxed arrival": (
        "arrive_at(peer_address(empty + s, threadIdx.x % 128))",
        'asm volatile("mbarrier.arrive.relaxed.cluster'
        '.shared::cluster.b64 _, [%0];" :: "r"(peer_address(empty + s, threadIdx.x % 128)) : "memory")',
    ),
    "multicast to oneself": ('"h"((u16)3)', '"h"((u16)(1 << rank()))'),
    "multicast beyond the cluster": ('"h"((u16)3)', '"h"((u16)7)'),
    "both blocks send the same half": ("64 * tile + 32 * rank());", "64 * tile);"),
    "halves at one place": ("A_BYTES + B_BYTES / 2 * rank()", "A_BYTES"),
    "groups not waited for": ('asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");', ""),
    "arrival before the wait": (
        'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");\n',
        "if (threadIdx.x % 128 < 2) "
        'arrive_at(peer_address(empty + s, threadIdx.x % 128)); asm volatile("wgmma.wait_group.sync.aligned 0;"'
        ' ::: "memory"); if (false)\n',
    ),
    "no proxy fence before the store": ("fence_async();\n", "\n"),
    "no barrier before the store": ("fence_async();\n                " + MEET, "fence_async();"),
    "store not waited for": ("if (thread == 0) wait_group_read<0>();", ""),
    "wait leaves a store": ("wait_group_read<0>", "wait_group_read<1>"),
    "store not committed": ("commit(); }", "}"),
    "no barrier after the wait": (MEET + "\n                for", "for"),
    "block ends before its stores have read": ("if (threadIdx.x % 128 == 0) wait_group<0>();", ""),
    "more registers than there are": ("u32 232;", "u32 248;"),
    "registers not given back": ('asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");', ""),
    "store at another row": ("row + 64 * group); commit", "row + 63 * group); commit"),
}


def verdict(body: str, swizzle: str = "128B", **kwargs) -> str:
    """Finding about a kernel; empty if there is none."""
    try:
        right = gemm(256, 128, 256, body, swizzle, hazards=True, step_limit=20_000, **kwargs)
    except emulator.EmulatorError as error:
        return type(error).__name__
    return "" if right else "wrong results"


def test_the_kernel_itself_is_clean():
    assert verdict(BODY) == ""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(mistake):
    old, new = MISTAKES[mistake]
    assert old in BODY
    assert verdict(BODY.replace(old, new))


def test_map_whose_swizzle_differs_from_descriptors_is_caught():
    assert verdict(BODY, "none")


def test_groups_that_share_named_barrier_are_caught():
    body = BODY.replace(MEET, MEET.replace("group + 1", "1"))
    assert any(verdict(body, schedule=emulator.RandomWarps(seed)) for seed in range(3))
    assert not verdict(BODY, schedule=emulator.RandomWarps(0))
