"""Rings with a mistake in the source of the kernel: which threads use the ring, on which ways."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest

pytest.importorskip("z3")

import gemmgen
from gemmgen.codegen.rendering import render
from gemmgen.core.cache import Cache
from gemmgen.core.formulas import Formula
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.proof.prover import prove_kernel
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS
from gemmgen.toolchain.nvrtc import Binary, compile_source
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_case

NAME = "gemm/wgmma/bf16/64x32"
OVERRIDES = ("mainloop.stages=3", "mainloop.tile.k=64")
SECONDS = 20.0
ALL = {"memory", "races", "progress", "initialised", "once", "complete", "coverage"}

FILLER = "        if (threadIdx.x == 0) {\n            for (; index"
FILL = """
    mbarrier_wait(empty + kBarrierBytes * stage, phase ^ 1);
    mbarrier_arrive_expect(full + kBarrierBytes * stage, kBytesA + kBytesB);
    load_box_2d(shared + stage * kBytesA, map_a, full + kBarrierBytes * stage, 0, 0);
    load_box_2d(shared + kStages * kBytesA + stage * kBytesB, map_b, full + kBarrierBytes * stage, 0, 0);
    advance<kStages>(stage, phase);
"""

BEGIN = "    if (group < 0) {\n        // Producer"
BEGIN_OF_SOME = f"    if (n <= 64) __syncthreads();\n    if (n > 64 && group < 0) return;\n{BEGIN}"
WARPS = "        const int warp = thread / 32;\n"
TWO_TEAMS = """
    const unsigned scratch = shared + kBarriers + 64 + thread * 4;
    asm volatile("st.shared.u32 [%0], %1;" :: "r"(scratch), "r"(7));
    if (n > 64) {
        if (warp < 2) {
            #pragma unroll 1
            for (int i = 0; i < 4; ++i) asm volatile("nanosleep.u32 7;");
            asm volatile("bar.sync 4, 64;" ::: "memory");
            unsigned other;
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(other) : "r"(scratch + 256));
        } else {
            asm volatile("bar.sync 5, 64;" ::: "memory");
        }
        return;
    }
"""

HEAD = "// A tensor's address, extents"
READ_TABLE = '    asm volatile("nanosleep.u32 %0;" :: "r"(table[n & 15]));\n'

DOWN = """
    int later = 0;
    #pragma unroll 1
    for (int i = k; i != -8; --i) {
        int sum;
        asm volatile("add.s32 %0, %1, 5;" : "=r"(sum) : "r"(i));
        if (later) { if (sum == 3) asm volatile("st.shared.u32 [%0], %1;" :: "r"(0x7ffffff0), "r"(i) : "memory"); }
        asm volatile("mov.u32 %0, 1;" : "=r"(later));
    }
"""

UP = """
    int i = -5;
    #pragma unroll 1
    do {
        asm volatile("{ .reg .pred p; setp.eq.s32 p, %1, 0; @p st.shared.u32 [%0], %1; }" :: "r"(0x7ffffff0), "r"(i) : "memory");
    } while (++i < k);
"""


@dataclass(frozen=True)
class Wrong:
    """Texts of the kernel that are exchanged, the properties that do not hold then, and a size that shows it on the emulator."""

    edits: tuple[tuple[str, str], ...]
    properties: frozenset[str]
    fault: str
    size: tuple[int, int, int] = (64, 32, 640)


MISTAKES = {
    "the filler leaves for small n": Wrong(
        ((FILLER, FILLER.replace("== 0)", "== 0 && n > 64)")),), frozenset({"progress", "complete"}), "deadlock"
    ),
    "a use that nobody reads": Wrong(
        ((FILLER, FILLER.replace("            for", FILL + "            for")),), frozenset({"races", "coverage"}), "outlives", (64, 32, 64)
    ),
    "a use that nobody reads for small n": Wrong(
        ((FILLER, FILLER.replace("            for", f"if (n <= 64) {{ {FILL} }}\n            for")),),
        frozenset({"races", "coverage"}),
        "outlives",
        (64, 32, 64),
    ),
    "one team on one way and two on the other": Wrong(
        (("kStages = 3;", "kStages = 2;"), (BEGIN, BEGIN_OF_SOME), (WARPS, WARPS + TWO_TEAMS)),
        frozenset({"races", "initialised"}),
        "shared memory race",
        (128, 96, 640),
    ),
    "a constant behind its table": Wrong(
        ((HEAD, f"__constant__ int table[8] = {{1, 2, 3, 4, 5, 6, 7, 8}};\n{HEAD}"), (BEGIN, READ_TABLE + BEGIN)),
        frozenset({"memory"}),
        "out of bounds",
        (64, 8, 64),
    ),
    "a counter that rises from below 0": Wrong(((BEGIN, UP + BEGIN),), frozenset({"memory"}), "out of bounds", (64, 8, 64)),
    "a counter that falls below 0": Wrong(((BEGIN, DOWN + BEGIN),), frozenset({"memory"}), "out of bounds", (64, 8, 64)),
}


def kernel(edits: tuple[tuple[str, str], ...]) -> tuple[KernelPlan, Binary]:
    """A small kernel with three stages, with some texts exchanged."""
    plan = gemmgen.plan(gemmgen.load_spec(shipped_specs()[NAME], list(OVERRIDES)))
    assert isinstance(plan, KernelPlan)
    text = render(plan).text
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return plan, compile_source(text, architecture=plan.architecture.name, options=COMPILE_OPTIONS, name="kernel.cu", cache=Cache())


def fault_of(plan: KernelPlan, binary: Binary, size: tuple[int, int, int]) -> str:
    """The first fault that the emulator finds."""
    m, n, k = size
    case = oracle_of(plan.spec.kind).cases(plan)[0]
    case = replace(case, dimensions={**case.dimensions, "m": m, "n": n, "k": k, "lda": k, "ldb": k, "ldc": n}, offsets={}, seed=0)
    return verify_case(plan, binary, EmulatorBackend(), case).failure or ""


def test_the_kernel_without_a_mistake_is_proved() -> None:
    plan, binary = kernel(())
    assert set(prove_kernel(plan.sequence, plan.sequence.launches[0], binary.ptx, SECONDS).proved) == ALL
    assert fault_of(plan, binary, (64, 32, 64)) == ""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_source_is_not_proved(name: str) -> None:
    wrong = MISTAKES[name]
    plan, binary = kernel(wrong.edits)
    proof = prove_kernel(plan.sequence, plan.sequence.launches[0], binary.ptx, SECONDS)
    assert not wrong.properties & set(proof.proved)
    assert wrong.fault in fault_of(plan, binary, wrong.size)


def test_a_load_beyond_the_parameters_of_a_ring_is_not_proved() -> None:
    plan, binary = kernel(())
    entry = plan.sequence.launches[0].entry
    ptx, count = re.subn(rf"(ld\.param\.u32 \s*%r\d+, \[{entry}_param_2)\];", r"\1+4096];", binary.ptx, count=1)
    assert count == 1
    assert "memory" not in prove_kernel(plan.sequence, plan.sequence.launches[0], ptx, SECONDS).proved


def test_products_of_two_shapes_share_no_result_in_flight() -> None:
    plan, binary = kernel(())
    first, second, *_ = re.finditer(r"m64n32k16\.f32\.bf16\.bf16 ([^;]*), p, 1, 1, 0, 0;", binary.ptx)
    ptx = f"{binary.ptx[: second.start()]}m64n32k8.f32.tf32.tf32 {second[1]}, p, 1, 1;{binary.ptx[second.end() :]}"
    assert first[1][: first[1].index("}")] == second[1][: second[1].index("}")]
    assert "races" not in prove_kernel(plan.sequence, plan.sequence.launches[0], ptx, SECONDS).proved


def test_a_counter_may_wrap_and_come_to_0_again() -> None:
    """From k = 2^31 - 8191 on, its product of turn 2^19 is in flight when a register of the sum is written."""
    plan, _ = kernel(())
    text = render(plan).text.replace("step < work.steps; ++step", "step < k; step += 8192").replace("if (step > 0)", "if (step != 0)")
    begins, waits = "if (work.steps > 0)", "                mbarrier_wait(full"
    write = '                if (step == 0) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(accumulators[0][0]));\n'
    text = text.replace(begins, "if (k > 0)").replace(waits, write + waits)
    ptx = compile_source(text, architecture=plan.architecture.name, options=COMPILE_OPTIONS, name="kernel.cu", cache=Cache()).ptx
    small = ptx.replace("8192", "4096")
    assert small != ptx
    assert "races" in prove_kernel(plan.sequence, plan.sequence.launches[0], small, SECONDS).proved
    assert "races" not in prove_kernel(plan.sequence, plan.sequence.launches[0], ptx, SECONDS).proved


def test_blocks_without_a_loop_over_tiles_may_not_end_early() -> None:
    """A grid with a block for each tile, of which those from a number on return; no small problem has as many."""
    plan, _ = kernel(())
    text = render(plan).text.replace("for (; index < works; index += gridDim.x) {", "{")
    launch = plan.sequence.launches[0]
    launch = replace(launch, grid=(Formula("ceil_div(m, 64) * ceil_div(n, 32)"), *launch.grid[1:]))
    sequence = replace(plan.sequence, launches=(launch, *plan.sequence.launches[1:]))
    leave = '    asm volatile("{ .reg .pred p; setp.lt.s32 p, %0, 5000; @!p exit; }" :: "r"(blockIdx.x));\n'
    for before, complete in (("", True), (leave, False)):
        changed = text.replace(BEGIN, before + BEGIN)
        ptx = compile_source(changed, architecture=plan.architecture.name, options=COMPILE_OPTIONS, name="kernel.cu", cache=Cache()).ptx
        assert ("complete" in prove_kernel(sequence, launch, ptx, SECONDS).proved) == complete
