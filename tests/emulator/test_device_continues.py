"""Errors that a GPU does not notice: a device notes them, and the launch runs to its end."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen.emulator import Device, DeviceLaunch, HazardError, OutOfBounds, launch, native_threads
from gemmgen.emulator.hazards import report
from gemmgen.emulator.memory import GLOBAL_BASE
from gemmgen.sanitizer.findings import code_of
from tests.emulator.test_native import needs_compiler

KERNEL = """.version 8.0
.target sm_80
.address_size 64
.visible .entry kernel(.param .u64 kernel_x, .param .u64 kernel_y)
{
  .reg .u32 %r<12>; .reg .u64 %rd<8>; .reg .pred %p<2>;
  .shared .align 16 .b8 tile[512];
  .shared .align 4 .b8 other[4];
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
        ["divergent-warp", "inactive-shuffle"],
    ),
    "a read before the wait": (f"{COPY} ld.shared.u32 %r5, [%r4]; cp.async.wait_group 0;", ["in-flight-read"]),
    "a copy over a copy": (f"{COPY} {COPY} cp.async.wait_group 0; ld.shared.u32 %r5, [%r4];", ["in-flight-write"]),
    "a store over a copy": (f"{COPY} st.shared.u32 [%r4], %r1; cp.async.wait_group 0; ld.shared.u32 %r5, [%r4];", ["in-flight-write"]),
    "a load past the end": ("ld.global.u32 %r6, [%rd4+300]; mov.u32 %r5, %r1;", ["out-of-bounds"]),
    "a store past the end": ("st.global.u32 [%rd4+300], %r1; ld.global.u32 %r5, [%rd4];", ["out-of-bounds"]),
    "an atomic operation past the end": ("red.global.add.u32 [%rd4+300], %r1; ld.global.u32 %r5, [%rd4];", ["out-of-bounds"]),
    "a load far behind all arrays": ("ld.global.u32 %r6, [%rd4+1800000]; mov.u32 %r5, %r1;", ["out-of-bounds"]),
    "a store between two variables": (
        "setp.eq.u32 %p1, %r1, 31; @%p1 st.shared.u32 [%r4+388], %r1; @%p1 st.shared.u32 [other], %r1; mov.u32 %r5, %r1;",
        ["out-of-bounds"],
    ),
    "a load past the end of shared memory": (
        "setp.eq.u32 %p1, %r1, 31; @%p1 st.shared.u32 [other], %r1; @%p1 ld.shared.u32 %r6, [other+64]; mov.u32 %r5, %r1;",
        ["out-of-bounds"],
    ),
    "a store past the end of shared memory": (
        "setp.eq.u32 %p1, %r1, 31; @%p1 st.shared.u32 [other], %r1; @%p1 st.shared.u32 [other+64], %r1; mov.u32 %r5, %r1;",
        ["out-of-bounds"],
    ),
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
    assert [code_of(type(finding)) for finding in result.findings] == codes
    assert device.memory[y - GLOBAL_BASE : y - GLOBAL_BASE + 128].view("u4").tolist() == list(range(32))


def _launched(body: str, monkeypatch: pytest.MonkeyPatch, compiles: bool) -> tuple[DeviceLaunch, Device, int]:
    """A launch of two warps on arrays of 128 bytes, the second one followed by padding."""
    monkeypatch.setattr(native_threads, "ENOUGH_WORK", 0 if compiles else 1 << 60)
    device = Device(1 << 24)
    module = device.load(KERNEL.replace("BODY", body))
    x, y = device.allocate(128, "x"), device.allocate(128, "y")
    device.note_written(x, 128)
    parameters = x.to_bytes(8, "little") + y.to_bytes(8, "little")
    result = device.launch(module, "kernel", grid=(1, 1, 1), block=(64, 1, 1), parameters=parameters)
    compiled = module.kernels["kernel"].compiled
    assert (compiled is not None and compiled.failures == 1) == compiles
    return result, device, y


@pytest.mark.parametrize("compiles", [pytest.param(True, marks=needs_compiler), False])
def test_padding_is_read_and_written_as_on_a_gpu(compiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    result, device, y = _launched("mov.u32 %r5, %r1;", monkeypatch, compiles)
    assert result.error is None
    assert [(code_of(type(finding)), finding.count) for finding in result.findings] == [("out-of-bounds", 32)]
    assert "0 bytes past the end of y (128 bytes)" in result.findings[0].message
    assert device.memory[y - GLOBAL_BASE : y - GLOBAL_BASE + 256].view("u4").tolist() == list(range(64))


def test_shared_memory_that_a_gpu_does_not_allocate_ends_it() -> None:
    device = Device(1 << 24)
    module = device.load(KERNEL.replace("BODY", "st.shared.u32 [other], %r1; ld.shared.u32 %r5, [other+128];"))
    y = device.allocate(128, "y").to_bytes(8, "little")
    result = device.launch(module, "kernel", grid=(1, 1, 1), block=(1, 1, 1), parameters=y + y)
    assert type(result.error) is OutOfBounds


@pytest.mark.parametrize("compiles", [pytest.param(True, marks=needs_compiler), False])
@pytest.mark.parametrize("distance", [4 << 20, -4096, -(1 << 40)])
def test_an_access_to_an_unmapped_page_ends_it(distance: int, compiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"add.s64 %rd6, %rd4, {distance}; ld.global.u32 %r5, [%rd6];"
    result, device, y = _launched(body, monkeypatch, compiles)
    assert type(result.error) is OutOfBounds
    assert not device.memory[y - GLOBAL_BASE : y - GLOBAL_BASE + 256].any()


def test_a_single_launch_continues_past_an_array() -> None:
    x, y, unused = np.arange(64, dtype="u4"), np.zeros(64, "u4"), np.zeros(64, "u4")
    with pytest.raises(OutOfBounds, match="0 bytes past the end of argument 0") as caught:
        launch(KERNEL.replace("BODY", "ld.global.u32 %r5, [%rd4]; add.u32 %r5, %r5, 1;"), grid=1, block=64, args=[x[:32], y], hazards=True)
    assert isinstance(caught.value, HazardError) and caught.value.ending is None
    assert y[:32].tolist() == list(range(1, 33)) and not unused.any()
    with pytest.raises(OutOfBounds):
        launch(KERNEL.replace("BODY", "ld.global.u32 %r5, [%rd4];"), grid=1, block=64, args=[x[:32], unused])
    assert not unused.any()


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
