"""Forms of the asynchronous instructions that an assembler takes are taken, those that it refuses are refused.

tests/data/assembler_verdicts.json.gz has 9,400 statements, made of modifiers in all combinations that look likely, and ptxas's verdict on
each in a kernel like the one below. Where there is a ptxas, some are asked again.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from sampling import sampled

from gemmgen import emulator

VERDICTS = json.loads(gzip.decompress((Path(__file__).parents[2] / "data" / "assembler_verdicts.json.gz").read_bytes()))
KERNEL = """.version 8.5
.target sm_90a
.address_size 64
.visible .entry kernel(.param .align 64 .b8 map[128], .param .u64 out)
{
    .reg .pred P, Q; .reg .b16 h<4>; .reg .b32 r<80>; .reg .b64 d<8>; .reg .f32 f<80>; .reg .f64 g<4>;
    .reg .b32 sa, sb; .reg .b64 ga, pm, gs, gb;
    .shared .align 128 .b8 smem[1024];
    mov.u32 sa, smem; add.u32 sb, sa, 512; cvt.u64.u32 gb, sb; cvta.shared.u64 gb, gb; cvta.shared.u64 gs, 0;
    ld.param.u64 ga, [out]; mov.b64 pm, map; cvta.param.u64 pm, pm;
    mov.u32 r1, 0; mov.u32 r2, 16; mov.u64 d1, 0; mov.u64 d2, 0; mov.b16 h1, 0; mov.f32 f1, 0f00000000;
    setp.ne.u32 P, r1, 0;
    @P FORM
    ret;
}
"""
FORMS = [(form, verdict) for verdict in ("taken", "refused") for form in VERDICTS[verdict]]


def _kind(form: tuple[str, str]) -> object:
    """Opcode, first words and verdict: of each kind one is always run."""
    return form[1], re.sub(r"\d", "", ".".join(form[0].split()[0].split(".")[:3]))


CHOSEN = sampled(FORMS, 40, lambda form: form[0], _kind)


@pytest.mark.parametrize(("form", "verdict"), CHOSEN, ids=lambda part: str(part)[:90])
def test_a_form_is_judged_as_an_assembler_judges_it(form: str, verdict: str) -> None:
    text = KERNEL.replace("FORM", form)
    try:
        emulator.launch(text, "kernel", grid=1, block=128, args=[bytes(128), np.zeros(64, np.uint64)])
    except (emulator.UnknownInstruction, emulator.ParseError) as error:
        assert verdict == "refused", error
    else:
        assert verdict == "taken"


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas here")
def test_the_assembler_still_says_so(tmp_path: Path) -> None:
    found = []
    for number, (form, verdict) in enumerate(CHOSEN[::8]):
        source = tmp_path / f"{number}.ptx"
        source.write_text(KERNEL.replace("FORM", form))
        done = subprocess.run(["ptxas", "-arch=sm_90a", str(source), "-o", str(tmp_path / "out")], capture_output=True, check=False)
        found.append((form, "refused" if done.returncode else "taken", verdict))
    assert [each for each in found if each[1] != each[2]] == [] and len(found) > 20
