"""Errors that a GPU does not notice: a device notes them, and the launch runs to its end."""

from __future__ import annotations

import pytest

from gemmgen.emulator import Device
from gemmgen.emulator.hazards import report
from gemmgen.emulator.memory import GLOBAL_BASE

KERNEL = """.version 8.0
.target sm_80
.address_size 64
.visible .entry kernel(.param .u64 kernel_x, .param .u64 kernel_y)
{
  .reg .u32 %r<12>; .reg .u64 %rd<8>; .reg .pred %p<2>;
  .shared .align 16 .b8 tile[512];
  ld.param.u64 %rd1, [kernel_x];
  ld.param.u64 %rd2, [kernel_y];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 4;
  add.u64 %rd4, %rd1, %rd3;
  add.u64 %rd5, %rd2, %rd3;
  mov.u32 %r2, tile;
  shl.b32 %r3, %r1, 2;
  add.u32 %r4, %r2, %r3;
  BODY
  st.global.u32 [%rd5], %r5;
  ret;
}
"""
COPY = "cp.async.ca.shared.global [%r4], [%rd4], 4; cp.async.commit_group;"
BODIES = {
    "a mask without its lane": (
        "ld.global.u32 %r6, [%rd4]; shfl.sync.bfly.b32 %r5, %r6, 0, 31, 0xffff;",
        ["DivergentWarp", "InactiveShuffle"],
    ),
    "a read before the wait": (f"{COPY} ld.shared.u32 %r5, [%r4]; cp.async.wait_group 0;", ["InFlightRead"]),
    "a copy over a copy": (f"{COPY} {COPY} cp.async.wait_group 0; ld.shared.u32 %r5, [%r4];", ["InFlightWrite"]),
    "a store over a copy": (f"{COPY} st.shared.u32 [%r4], %r1; cp.async.wait_group 0; ld.shared.u32 %r5, [%r4];", ["InFlightWrite"]),
    "a copy that is waited for": (f"{COPY} cp.async.wait_group 0; ld.shared.u32 %r5, [%r4];", []),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_launch_continues_as_on_a_gpu(name: str) -> None:
    body, codes = BODIES[name]
    device = Device(1 << 24)
    module = device.load(KERNEL.replace("BODY", body))
    x, y = device.allocate(128, "x"), device.allocate(128, "y")
    device.memory[x - GLOBAL_BASE : x - GLOBAL_BASE + 128].view("u4")[:] = range(32)
    device.note_written(x, 128)
    parameters = x.to_bytes(8, "little") + y.to_bytes(8, "little")
    result = device.launch(module, "kernel", grid=(1, 1, 1), block=(32, 1, 1), parameters=parameters)
    assert result.error is None
    assert [type(finding).__name__ for finding in result.findings] == codes
    assert device.memory[y - GLOBAL_BASE : y - GLOBAL_BASE + 128].view("u4").tolist() == list(range(32))


def test_a_barrier_of_a_warp_without_its_lane_traps() -> None:
    device = Device(1 << 24)
    module = device.load(KERNEL.replace("BODY", "mov.u32 %r5, 1; bar.warp.sync 0xffff;"))
    y = device.allocate(128, "y").to_bytes(8, "little")
    result = device.launch(module, "kernel", grid=(1, 1, 1), block=(32, 1, 1), parameters=y + y)
    assert type(result.error).__name__ == "DivergentWarp"


@pytest.mark.parametrize("tracks", [True, False])
def test_what_is_written_behind_many_findings_counts(tracks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_REPEATS", 1)
    device = Device(1 << 24)
    module = device.load(KERNEL.replace("BODY", "ld.shared.u32 %r5, [%r4]; st.global.u32 [%rd4], %r5; mov.u32 %r5, 7;"))
    x, y = device.allocate(128, "x"), device.allocate(8192, "y")
    parameters = x.to_bytes(8, "little") + y.to_bytes(8, "little")
    result = device.launch(module, "kernel", grid=(1, 1, 1), block=(32, 1, 1), parameters=parameters, tracks=tracks)
    assert result.error is None and [type(finding).__name__ for finding in result.findings] == ["UnwrittenRead"]
    assert device.memory[y - GLOBAL_BASE : y - GLOBAL_BASE + 128].view("u4").tolist() == [7] * 32
    assert device.count_unwritten(y, 128) == 0
    assert device.count_unwritten(y, 8192) == (8192 - 128 if tracks else 0)
