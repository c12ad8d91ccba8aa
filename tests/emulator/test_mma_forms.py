"""Forms of mma.sync that the ISA does not have, or that the emulator leaves out: each is refused where it stands."""

import pytest

from gemmgen import emulator

from .helpers import wrap_ptx

FORMS = {
    "rows and columns exchanged": "m16n8k16.col.row.f32.f16.f16.f32 {F4}, {R4}, {R2}, {F4}",
    "both by rows": "m16n8k16.row.row.f32.f16.f16.f32 {F4}, {R4}, {R2}, {F4}",
    "both by columns": "m16n8k16.col.col.f32.bf16.bf16.f32 {F4}, {R4}, {R2}, {F4}",
    "without orders": "m16n8k16.f32.f16.f16.f32 {F4}, {R4}, {R2}, {F4}",
    "a depth of another type": "m16n8k32.row.col.f32.f16.f16.f32 {F4}, {R4}, {R2}, {F4}",
    "tf32 as deep as halves": "m16n8k16.row.col.f32.tf32.tf32.f32 {F4}, {R4}, {R2}, {F4}",
    "two float types": "m16n8k16.row.col.f32.f16.bf16.f32 {F4}, {R4}, {R2}, {F4}",
    "sums of bf16 in halves": "m16n8k16.row.col.f16.bf16.bf16.f16 {R2}, {R4}, {R2}, {R2}",
    "sums of tf32 in halves": "m16n8k8.row.col.f16.tf32.tf32.f16 {R2}, {R4}, {R2}, {R2}",
    "saturated floats": "m16n8k16.row.col.satfinite.f32.f16.f16.f32 {F4}, {R4}, {R2}, {F4}",
    "floats of bytes": "m16n8k32.row.col.f32.s8.s8.f32 {F4}, {R4}, {R2}, {F4}",
    "integers of halves": "m16n8k16.row.col.s32.f16.f16.s32 {R4}, {R4}, {R2}, {R4}",
    "three registers of A": "m16n8k16.row.col.f32.f16.f16.f32 {F4}, {R3}, {R2}, {F4}",
    "four registers of B": "m16n8k16.row.col.f32.f16.f16.f32 {F4}, {R4}, {R4}, {F4}",
    "two sums": "m16n8k16.row.col.f32.f16.f16.f32 {F2}, {R4}, {R2}, {F4}",
    "a wider tile": "m16n16k16.row.col.f32.f16.f16.f32 {F4}, {R4}, {R2}, {F4}",
    "no sum to add": "m16n8k16.row.col.f32.f16.f16.f32 {F4}, {R4}, {R2}",
}


def _registers(form: str) -> str:
    for letter, count in ((letter, count) for letter in "FR" for count in (2, 3, 4)):
        form = form.replace(f"{{{letter}{count}}}", "{" + ", ".join(f"%{letter.lower()}{i}" for i in range(count)) + "}")
    return form


def _launch(form: str, sync: str = "sync.aligned.") -> None:
    body = f".reg .f32 %f<4>; .reg .b32 %r<4>; mma.{sync}{_registers(form)}; ret;"
    emulator.launch(wrap_ptx(body), grid=1, block=32)


@pytest.mark.parametrize("name", FORMS)
def test_other_forms_of_mma_are_refused(name):
    with pytest.raises(emulator.UnknownInstruction):
        _launch(FORMS[name])


@pytest.mark.parametrize("sync", ["", "sync.", "aligned."])
def test_mma_is_for_a_whole_warp(sync):
    right = "m16n8k16.row.col.f32.f16.f16.f32 {F4}, {R4}, {R2}, {F4}"
    with pytest.raises(emulator.UnknownInstruction):
        _launch(right, sync)
    _launch(right)
