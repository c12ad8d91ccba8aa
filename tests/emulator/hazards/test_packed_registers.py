"""A register that is put together from parts, of which only one holds a value, may be taken apart again."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator.errors import EmulatorError

KERNEL = """.version 8.0
.target sm_80
.address_size 64
.visible .entry kernel(.param .u64 target)
{
    .reg .b32 %r<5>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [target];
    mov.u32 %r1, 7;
    mov.b64 %rd2, {%r2, %r1};
    mov.b64 {%r3, %r4}, %rd2;
    st.global.u32 [%rd1], STORED;
    ret;
}
"""


def launch(stored: str) -> int:
    target = np.zeros(1, np.uint32)
    emulator.launch(KERNEL.replace("STORED", stored), "kernel", grid=1, block=1, args=[target], hazards=True)
    return int(target[0])


def test_the_part_with_a_value_has_it() -> None:
    assert launch("%r4") == 7


def test_the_part_without_a_value_has_none() -> None:
    with pytest.raises(EmulatorError, match="holds no value yet"):
        launch("%r3")


BYTES = """.version 8.0
.target sm_80
.address_size 64
.visible .entry kernel(.param .u64 target)
{
    .reg .b32 %r<9>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [target];
    mov.b32 %r1, 0x00030002;
    mov.b32 %r2, 5;
    prmt.b32 %r3, %r4, %r5, 0x3340U;
    prmt.b32 %r6, %r2, 24, 0x3340U;
    prmt.b32 %r7, %r6, %r3, 0x5410U;
    dp2a.PART.u32.u32 %r8, %r1, %r7, 0;
    st.global.u32 [%rd1], %r8;
    ret;
}
"""


def dot(part: str) -> int:
    target = np.zeros(1, np.uint32)
    emulator.launch(BYTES.replace("PART", part), "kernel", grid=1, block=1, args=[target], hazards=True)
    return int(target[0])


def test_bytes_that_hold_values_may_be_read() -> None:
    assert dot("lo") == 2 * 5 + 3 * 24


def test_bytes_that_hold_no_value_are_found() -> None:
    with pytest.raises(EmulatorError, match="holds no value yet"):
        dot("hi")
