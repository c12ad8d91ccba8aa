"""Launches on a device that begin before the one in front of them has ended."""

from __future__ import annotations

import pytest

from gemmgen.emulator import Device, DeviceLaunch
from gemmgen.emulator.memory import GLOBAL_BASE

KERNEL = """.version 8.0
.target sm_90
.address_size 64
.visible .entry add(.param .u64 add_x)
{
  .reg .u32 %r<4>; .reg .u64 %rd<4>;
  ld.param.u64 %rd1, [add_x];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd3, %rd1, %rd2;
  WAIT
  ld.global.u32 %r2, [%rd3];
  add.u32 %r2, %r2, 1;
  st.global.u32 [%rd3], %r2;
  griddepcontrol.launch_dependents;
  ret;
}
"""


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(("wait", "codes"), [("griddepcontrol.wait;", []), ("", ["UnorderedLaunch", "UnorderedLaunch"])])
def test_a_dependent_launch_waits_or_is_reported(wait: str, codes: list[str], keeps: bool) -> None:
    device = Device(1 << 24)
    module = device.load(KERNEL.replace("WAIT", wait))
    x = device.allocate(256, "x")
    device.note_written(x, 256)
    before: DeviceLaunch | None = None
    found = []
    for _ in range(3):
        shape = {"grid": (1, 1, 1), "block": (64, 1, 1)}
        parameters = x.to_bytes(8, "little")
        before = device.launch(module, "add", **shape, parameters=parameters, tracks=True, keeps_footprints=keeps, before=before)
        assert before.error is None and bool(before.footprints) == keeps
        found.append([type(finding).__name__ for finding in before.findings if getattr(finding, "severity", "error") == "error"])
    assert found[0] == [] and found[1] == codes
    assert device.memory[x - GLOBAL_BASE : x - GLOBAL_BASE + 4].tolist() == [3, 0, 0, 0]
