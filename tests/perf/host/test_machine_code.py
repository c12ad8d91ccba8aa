"""Counts in the innermost loop of an instance for a processor."""

from __future__ import annotations

import shutil

import pytest
from kernels.cpu_gemm.specs import HERE, blocked

import gemmgen
from gemmgen.perf.host.machine_code import InnerLoop, disassemble, inner_loop
from gemmgen.toolchain.compilation import compile_host_plan

TEXT = """
0000000000001000 <outer>:
    1000:\tvmovups (%rsi),%zmm1
    1004:\tvbroadcastss (%rdi),%zmm2
    1008:\tvfmadd231ps %zmm1,%zmm2,%zmm3
    100c:\tvfmadd231ps (%rdx),%zmm2,%zmm4
    1010:\tprefetcht0 0x80(%rdi)
    1014:\tvmovaps %zmm3,0x40(%rsp)
    1018:\tvmovups %zmm4,(%rcx)
    101c:\tadd    $0x4,%rdi
    1020:\tjne    1000 <outer>
    1024:\tdec    %rax
    1028:\tjne    1000 <outer>
    102c:\tret
"""


def test_a_loop_is_counted_by_what_its_instructions_do() -> None:
    assert inner_loop(TEXT) == InnerLoop(
        "outer", instructions=9, fma=2, lanes=16, loads=3, broadcasts=1, prefetches=1, spills=1, vector_registers=4
    )


def test_code_moved_behind_the_end_is_no_loop() -> None:
    behind = "    1030:\tvfmadd231ps %zmm5,%zmm6,%zmm7\n" * 3 + "    1040:\tjmp    101c <outer>\n"
    moved = TEXT.replace("    1024:\tdec    %rax\n    1028:\tjne    1000 <outer>\n", "") + behind
    found = inner_loop(moved)
    assert found is not None and found.fma == 2


def test_a_loop_for_rests_is_not_the_inner_one() -> None:
    rest = "".join(f"    {0x1030 + 4 * i:x}:\tvfmadd231ps %xmm5,%xmm6,%xmm7\n    {0x1032 + 4 * i:x}:\tnop\n" * 8 for i in range(2))
    found = inner_loop(TEXT.replace("    102c:\tret\n", rest + "    1090:\tjne    1030 <outer>\n    1094:\tret\n"))
    assert found is not None and (found.fma, found.lanes) == (2, 16)


def test_without_multiply_adds_there_is_no_loop() -> None:
    assert inner_loop(TEXT.replace("vfmadd231ps", "vaddps")) is None


needs = pytest.mark.skipif(not HERE or shutil.which("objdump") is None, reason="needs x86-64-v3 and objdump")


@needs
def test_a_step_of_the_micro_kernel_is_what_its_plan_says() -> None:
    loop = inner_loop(disassemble(compile_host_plan(gemmgen.plan(blocked(unroll=1)))))
    assert loop is not None
    assert (loop.fma, loop.lanes, loop.spills) == (12, 8, 0)
    assert loop.loads == 6 + 2


@needs
@pytest.mark.skipif("x86_64_v4" not in HERE, reason="this machine has no AVX-512")
def test_the_shipped_avx512_kernel_keeps_its_sums_in_registers() -> None:
    plan = gemmgen.plan(gemmgen.load_spec({**SHIPPED, "architecture": "x86_64_v4"}))
    loop = inner_loop(disassemble(compile_host_plan(plan)))
    assert loop is not None
    assert loop.lanes == 16 and loop.fma % 24 == 0
    assert loop.fma_share > 0.5 and loop.spills <= 2


SHIPPED = {
    "kind": "cpu_gemm",
    "loops": {
        "strategy": "blocked",
        "micro_kernel": {"rows": 8, "columns": 48},
        "blocks": {"m": 240, "n": 2064, "k": 512},
        "unroll": 2,
    },
}
