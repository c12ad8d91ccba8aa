"""Instructions of sm_100a that the emulator refuses by name, and the list of them in the documents."""

from pathlib import Path

import numpy as np
import pytest

from gemmgen import emulator

PAGE = (Path(__file__).resolve().parents[2] / "docs/blackwell.md").read_text()

MODULE = """.version 9.0
.target sm_100a
.address_size 64
.visible .entry kernel(.param .u64 out) {{
    .reg .pred %p<2>; .reg .b32 %r<12>; .reg .f32 %f<4>; .reg .b64 %rd<4>;
    mov.b32 %r1, 0; mov.b32 %r2, 0; mov.b32 %r3, 0; mov.b64 %rd1, 0; mov.b64 %rd2, 0;
    mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f3F800000; setp.eq.b32 %p1, %r1, 0;
    {instruction}
    ret;
}}
"""

FORMS = {
    "cvt.rs": "cvt.rs.f16x2.f32 %r4, %f1, %f2, %r2;",
    "tcgen05.mma.sp": "tcgen05.mma.sp.cta_group::1.kind::f16 [%r1], %rd1, %rd2, [%r3], %r2, %p1;",
    "tcgen05.ld.red": "tcgen05.ld.red.sync.aligned.32x32b.x2.min.u32 {%r4, %r5}, %r6, [%r1];",
    "tcgen05.cp with 4x256b": "tcgen05.cp.cta_group::1.4x256b [%r1], %rd1;",
    "tcgen05.cp that unpacks 6 bits": "tcgen05.cp.cta_group::1.128x256b.b8x16.b6x16_p32 [%r1], %rd1;",
    "tcgen05.cp that unpacks 4 bits": "tcgen05.cp.cta_group::1.128x256b.b8x16.b4x16_p64 [%r1], %rd1;",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_refused_by_name(form):
    with pytest.raises(emulator.UnknownInstruction) as refused:
        emulator.launch(MODULE.format(instruction=FORMS[form]), "kernel", grid=1, block=128, args=[np.zeros(4, np.uint32)])
    assert "not implemented" in str(refused.value) and form.split()[0] in str(refused.value)
    assert f"`{form.split()[0]}`" in PAGE
