"""A load that the compiler widened over bytes whose value nothing reads is no hazard; one whose value is read is."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator import UnwrittenRead

PTX = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry kernel(.param .u64 out)
{{
    .reg .f32 %f<6>;
    .reg .b64 %rd<2>;
    .shared .align 16 .b8 tile[16];
    ld.param.u64 %rd1, [out];
    mov.f32 %f5, 0f3F800000;
    st.shared.v2.f32 [tile], {{%f5, %f5}};
    ld.shared.v4.f32 {{%f1, %f2, %f3, %f4}}, [tile];
    add.rn.f32 %f1, %f1, {second};
    st.global.f32 [%rd1], %f1;
    ret;
}}
"""


def run(second: str) -> float:
    out = np.zeros(1, np.float32)
    emulator.launch(PTX.format(second=second), grid=1, block=1, args=[out], hazards=True)
    return float(out[0])


def test_parts_that_nothing_reads_may_be_unwritten() -> None:
    assert run("%f2") == 2.0


def test_parts_that_something_reads_may_not() -> None:
    with pytest.raises(UnwrittenRead):
        run("%f3")
