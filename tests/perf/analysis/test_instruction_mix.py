"""Classes of machine instructions and widths of accesses."""

from __future__ import annotations

import pytest
from perf.analysis.listing import assemble

from gemmgen.perf.analysis.instruction_mix import access_bytes, count_mix, instruction_class


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("FFMA.SAT R0, R1.reuse, R2, R3", "fma float32"),
        ("FADD R0, R1, R2", "float32"),
        ("IMMA.16832.S8.S8.SAT R4, R8.ROW, R12.COL, R4", "mma"),
        ("HMMA.1688.F32.TF32 R4, R8, R12, R4", "mma"),
        ("IMAD R0, R1, R2, R3", "integer"),
        ("IMAD.MOV.U32 R0, RZ, RZ, R3", "move"),
        ("IMAD.U32 R0, RZ, RZ, UR4", "move"),
        ("IMAD.U32 R0, R1, R2, R3", "integer"),
        ("HFMA2.MMA R2, -RZ, RZ, 0, 0", "move"),
        ("HFMA2 R2, R3, R4, R5", "float16"),
        ("LDGSTS.E.BYPASS.LTC128B.128 [R1], desc[UR4][R2.64]", "copy global to shared"),
        ("LDSM.16.M88.4 R4, [R8]", "load shared"),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", "barrier"),
        ("FROBNICATE R1, R2", "other"),
    ],
)
def test_class(text: str, name: str) -> None:
    assert instruction_class(assemble(text)[0]) == name


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("LDS.128 R4, [R8]", 16),
        ("LDS R4, [R8+0x10]", 4),
        ("LDS.U.64 R4, [R8]", 8),
        ("LDG.E.128.CONSTANT R4, desc[UR4][R2.64]", 16),
        ("LDG.E.U8 R4, desc[UR4][R2.64]", 1),
        ("STG.E.U16 desc[UR4][R2.64], R4", 2),
        ("LDGSTS.E.BYPASS.128 [R1], desc[UR4][R2.64]", 16),
        ("LDGSTS.E [R1], desc[UR4][R2.64]", 4),
        ("LDSM.16.M88.4 R4, [R8]", 16),
        ("LDSM.16.MT88 R4, [R8]", 4),
        ("STL [R1], R2", 4),
        ("FFMA R1, R2, R3, R4", None),
        ("LDC.64 R2, c[0x0][0x210]", None),
    ],
)
def test_width(text: str, width: int | None) -> None:
    assert access_bytes(assemble(text)[0]) == width


def test_shares_and_widths_of_a_piece_of_code() -> None:
    mix = count_mix(assemble("LDS.128 R4, [R0]\nLDS R8, [R0]\nSTL [R1], R4\nFFMA R9, R4.reuse, R5, R9\nFFMA R10, R4, R6.reuse, R10"))
    assert mix.share("fma float32") == pytest.approx(0.4)
    assert mix.accesses == {"LDS": {16: 1, 4: 1}, "STL": {4: 1}}
    assert (mix.wide, mix.narrow) == (1, 1)  # spills are neither
    assert mix.reused_operands == 2


def test_nothing_has_no_share() -> None:
    assert count_mix([]).share("mma") == 0.0
