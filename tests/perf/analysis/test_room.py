"""Resources that one more block on an SM would need."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmgen.hardware.target import ARCHITECTURES, Architecture, occupancy
from gemmgen.perf.analysis.residency import Residency, one_more_block
from gemmgen.toolchain.nvrtc import KernelResources


def kernel(architecture: Architecture, threads: int, registers: int, static: int, dynamic: int = 0) -> Residency:
    used = KernelResources(registers, 0, 0, 0, 0, static, 0, 0, None)
    return Residency("k", architecture.name, threads, used, dynamic, occupancy(architecture, threads, registers, static + dynamic))


def needs(*arguments: int) -> dict[str, int]:
    more = one_more_block(kernel(ARCHITECTURES["sm_90"], *arguments), ARCHITECTURES["sm_90"])
    return {need.resource: need.most for need in more.needs}


def test_registers_alone() -> None:
    assert needs(256, 128, 16384) == {"registers": 80}


def test_registers_and_shared_memory_together() -> None:
    # Two blocks of 100 KB; three have at most (228 KB / 3 = 76 KB) - 1 KB each.
    assert needs(256, 128, 100 * 1024) == {"registers": 80, "shared": 75 * 1024}


def test_a_full_sm_asks_for_smaller_blocks() -> None:
    assert needs(1024, 32, 0) == {"threads": 672}


def test_nothing_helps_beyond_the_blocks_of_an_sm() -> None:
    assert needs(32, 16, 0) == {}


@given(
    st.sampled_from(list(ARCHITECTURES.values())), st.integers(1, 1024), st.integers(1, 300), st.integers(0, 245760), st.integers(0, 4096)
)
def test_what_is_asked_for_suffices_and_no_less_would(
    architecture: Architecture, threads: int, registers: int, static: int, dynamic: int
) -> None:
    before = kernel(architecture, threads, registers, static, dynamic)
    more = one_more_block(before, architecture)
    assert more.blocks_per_sm == before.occupancy.blocks_per_sm + 1
    asked = {need.resource: need.most for need in more.needs}
    if not asked or 0 in asked.values():
        return
    now = {"threads": threads, "registers": registers, "shared": static + dynamic}
    assert all(asked[name] < now[name] for name in asked)
    with_all = now | asked

    def blocks(numbers: dict[str, int]) -> int:
        return occupancy(architecture, numbers["threads"], numbers["registers"], numbers["shared"]).blocks_per_sm

    assert blocks(with_all) >= more.blocks_per_sm
    for name, step in (("registers", 1), ("shared", 128), ("threads", 32)):
        if name in asked:
            assert blocks(with_all | {name: asked[name] + step}) < more.blocks_per_sm


@pytest.mark.parametrize("registers", [256, 300])
def test_a_kernel_that_cannot_be_launched_is_told_what_it_needs(registers: int) -> None:
    assert needs(128, registers, 0)["registers"] <= 255
