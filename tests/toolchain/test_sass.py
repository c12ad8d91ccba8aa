"""Disassembling, and reading the text."""

from __future__ import annotations

import re

import pytest

from gemmgen.core.errors import EnvironmentMissing, GemmgenError
from gemmgen.toolchain import sass
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.toolchain.sass import count_opcodes, disassemble, find_nvdisasm, parse

SOURCE = """extern "C" __global__ void dot4(const float4* x, const float4* y, float* out, int n) {
    __shared__ float4 stage[128];
    float sum = 0.f;
    for (int i = threadIdx.x; i < n; i += 128) {
        stage[threadIdx.x] = x[i];
        __syncthreads();
        float4 a = stage[threadIdx.x ^ 1], b = y[i];
        sum += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
        __syncthreads();
    }
    out[threadIdx.x] = sum;
}
extern "C" __global__ void second(float* a) { a[threadIdx.x] = 1.f; }
"""

TEXT = """
\t.section\t.text.k1,"ax",@progbits
k1:
.text.k1:
\t//## File "/k.cu", line 7
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!UP0 FFMA R5, R5.reuse, R24.reuse, RZ ;
.L_x_3:
        /*0020*/                   STL [R1+0x15c], R8                                  (*"SpillRefill"*);
\t//## File "/k.cu", line 9
        /*10030*/               @P0 BRA `(.L_x_3) ;
        /*0040*/                   EXIT ;
\t.section\t.nv.info,"",@progbits
        /*0000*/ \t.byte\t0x04, 0x2f
"""

needs_nvdisasm = pytest.mark.skipif(find_nvdisasm() is None, reason="needs nvdisasm")


def test_reads_every_part_of_an_instruction():
    load, multiply, store, branch, leave = parse(TEXT)
    assert (load.function, load.address, load.opcode, load.operands) == ("k1", 0, "LDC", ("R1", "c[0x0][0x28]"))
    assert (load.source_line, load.labels, load.predicate) == (7, (), "")
    assert (multiply.predicate, multiply.reused_operands) == ("!UP0", 2)
    assert multiply.operands == ("R5", "R5.reuse", "R24.reuse", "RZ")
    assert (store.labels, store.notes, store.operands) == ((".L_x_3",), ("SpillRefill",), ("[R1+0x15c]", "R8"))
    assert (branch.address, branch.predicate, branch.source_line, branch.labels) == (0x10030, "P0", 9, ())
    assert (leave.opcode, leave.operands) == ("EXIT", ())


@needs_nvdisasm
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90a", "sm_100", "sm_120"])
def test_counts_what_the_source_implies(architecture):
    text = disassemble(compile_source(SOURCE, architecture=architecture).cubin)
    instructions = parse(text)
    assert len(instructions) == len(re.findall(r"^\s*/\*[0-9a-f]+\*/", text, re.MULTILINE))
    assert {instruction.function for instruction in instructions} == {"dot4", "second"}
    addresses = [instruction.address for instruction in instructions if instruction.function == "dot4"]
    assert addresses == list(range(0, 16 * len(addresses), 16))
    dot = [instruction for instruction in instructions if instruction.function == "dot4"]
    multiplies = [i for i in dot if i.is_a("FFMA") or i.is_a("FMUL")]
    assert len(multiplies) % 4 == 0
    assert len(multiplies) >= 4
    assert any(i.is_a("LDS.128") for i in dot)
    assert any(i.is_a("STS.128") for i in dot)
    assert any(i.is_a("LDG.E.128") for i in dot)
    assert all(i.is_a("LDS.128") for i in dot if i.is_a("LDS"))
    assert count_opcodes(dot)["BAR.SYNC.DEFER_BLOCKING"] + count_opcodes(dot)["BAR.SYNC"] == sum(i.is_a("BAR") for i in dot)
    assert {i.source_line for i in dot if i.is_a("LDS")} == {7}


@needs_nvdisasm
def test_without_line_information_no_line_is_claimed():
    cubin = compile_source(SOURCE, architecture="sm_90").cubin
    assert {instruction.source_line for instruction in parse(disassemble(cubin, line_info=False))} == {None}


def test_is_a_compares_whole_modifiers():
    (instruction,) = parse("        /*0000*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;")
    assert instruction.is_a("LDG")
    assert instruction.is_a("LDG.128")
    assert not instruction.is_a("LD")
    assert not instruction.is_a("LDG.12")


@needs_nvdisasm
def test_a_damaged_cubin_is_a_readable_error():
    with pytest.raises(GemmgenError, match="cannot disassemble"):
        disassemble(b"not a cubin")


def test_a_missing_disassembler_names_the_extra(monkeypatch):
    monkeypatch.setattr(sass, "find_nvdisasm", lambda: None)
    with pytest.raises(EnvironmentMissing, match=re.escape("pip install 'nvidia-cuda-nvdisasm")):
        disassemble(b"")


def test_a_disassembler_that_does_not_run_is_a_readable_error(monkeypatch, tmp_path):
    (tmp_path / "nvdisasm").write_text("no program")
    monkeypatch.setattr(sass, "find_nvdisasm", lambda: tmp_path / "nvdisasm")
    with pytest.raises(GemmgenError, match="could not be run"):
        disassemble(b"")


def test_falls_back_to_path(monkeypatch, tmp_path):
    tool = tmp_path / "nvdisasm"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setattr(sass.sys, "path", [])
    monkeypatch.setattr(sass.sysconfig, "get_path", lambda _: str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_nvdisasm() == tool
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert find_nvdisasm() is None
