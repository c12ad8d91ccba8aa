"""Main loops of hand-written and of real kernels."""

from __future__ import annotations

from functools import cache

import pytest
from perf.analysis.listing import assemble

from gemmgen.api import plan
from gemmgen.hardware.target import ARCHITECTURES
from gemmgen.perf.analysis.machine_code import KernelCode, MainLoop, analyse_functions, machine_code
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.toolchain.sass import find_nvdisasm

needs_nvdisasm = pytest.mark.skipif(find_nvdisasm() is None, reason="needs nvdisasm")


def analysed(text: str, architecture: str = "sm_90a") -> KernelCode:
    return analyse_functions(assemble(text), ARCHITECTURES[architecture])["k"]


def main_loop(code: KernelCode) -> MainLoop:
    assert code.main_loop is not None
    return code.main_loop


@cache
def code_of(spec: str, architecture: str, *overrides: str) -> KernelCode:
    planned = plan(spec, architecture, overrides)
    return machine_code(compile_plan(planned), planned.architecture)[planned.name]


def test_the_loop_with_most_multiply_adds_is_the_main_loop() -> None:
    code = analysed("""
        .L_copy:
        LDG.E R2, desc[UR4][R4.64]
        LDG.E R3, desc[UR4][R4.64]
        LDG.E R6, desc[UR4][R4.64]
        @P0 BRA `(.L_copy)
        .L_compute:
        FFMA R0, R2, R3, R0
        @P0 BRA `(.L_compute)
        EXIT
    """)
    assert main_loop(code).mix.classes == {"fma float32": 1, "branch": 1}


def test_an_unrolled_loop_is_preferred_to_its_remainder() -> None:
    code = analysed(".L_r:\nFFMA R0, R2, R3, R0\n@P0 BRA `(.L_r)\n.L_u:\n" + "FFMA R0, R2, R3, R0\n" * 4 + "@P0 BRA `(.L_u)\nEXIT")
    assert main_loop(code).mix.classes["fma float32"] == 4


def test_loop_over_tiles_with_as_many_multiply_adds_gives_way() -> None:
    code = analysed(".L_t:\nMOV R0, RZ\n.L_k:\nFFMA R0, R2, R3, R0\n@P0 BRA `(.L_k)\nFFMA R0, R2, R3, R0\n@P1 BRA `(.L_t)\nEXIT")
    assert main_loop(code).loop.depth == 2


def test_a_small_loop_inside_does_not_make_the_outer_one_less() -> None:
    code = analysed(".L_k:\nFFMA R0, R2, R3, R0\n.L_wait:\nLDG.E R4, desc[UR4][R4.64]\n@P0 BRA `(.L_wait)\n@P1 BRA `(.L_k)\nEXIT")
    assert main_loop(code).mix.total == 4


def test_without_multiply_adds_loop_that_streams_is_main_loop() -> None:
    code = analysed(
        ".L_a:\nIADD3 R0, R0, 0x1, RZ\nIADD3 R0, R0, 0x1, RZ\n@P0 BRA `(.L_a)\n.L_b:\nLDG.E R4, desc[UR4][R2.64]\n@P0 BRA `(.L_b)\nEXIT"
    )
    assert "load global" in main_loop(code).mix.classes


def test_filling_behind_the_code_does_not_count() -> None:
    assert analysed("FADD R0, R1, R2\nEXIT\n.L_end:\nBRA `(.L_end)\nNOP\nNOP").mix.total == 2


def test_spills_are_counted_by_the_marks_of_the_compiler() -> None:
    assert analysed('STL [R1], R2 (*"SpillRefill"*)\nLDL R2, [R1]\nEXIT').spilled == 1


def test_the_ceiling_is_issue_slots_where_an_ffma_takes_one() -> None:
    body = ".L_a:\n" + "FFMA R1, R2, R4, RZ\nFFMA R3, R5, R6, RZ\n" * 2 + "LDS R8, [R9]\n@P0 BRA `(.L_a)\nEXIT"
    assert main_loop(analysed(body.replace("R4, RZ", "RZ, RZ"))).ffma_ceiling == pytest.approx(4 / 6)


def test_ceiling_is_unit_where_other_instructions_fit_between() -> None:
    body = ".L_a:\n" + "FFMA R1, R2, RZ, RZ\n" * 4 + "LDS R8, [R9]\n@P0 BRA `(.L_a)\nEXIT"
    assert main_loop(analysed(body, "sm_80")).ffma_ceiling == 1.0


def test_code_for_architecture_with_unknown_banks_has_all_rest() -> None:
    code = analysed(".L_a:\nFFMA R1, R2, R4, R6\n@P0 BRA `(.L_a)\nEXIT", "sm_100")
    assert not code.banks_known
    assert main_loop(code).banks is None
    assert main_loop(code).ffma_ceiling == 0.5


@needs_nvdisasm
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_main_loop_of_a_gemm_is_one_step_along_k(architecture: str) -> None:
    main = main_loop(code_of("gemm/v3_double_buffer", architecture))
    assert main.mix.classes["fma float32"] == 8 * 8 * 8
    assert main.mix.accesses["LDS"] == {16: 32}  # 8 of k, two vectors of A and two of B each
    assert main.mix.accesses["STS"] == {16: 1, 4: 4}  # B as it is, A transposed
    assert main.mix.classes["barrier"] == 1
    assert main.banks is not None
    assert main.banks.ffmas == 512


@needs_nvdisasm
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_main_loop_of_a_convolution_is_that_with_its_mma(architecture: str) -> None:
    main = main_loop(code_of("conv2d/mma_sync/int8/pixels_64x64x64", architecture))
    assert main.mix.classes["mma"] % 8 == 0
    assert set(main.mix.accesses["LDGSTS"]) == {16}
    assert set(main.mix.accesses["LDSM"]) == {16}
    assert main.ffma_ceiling is None


@needs_nvdisasm
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_main_loop_of_reduction_is_that_which_reads_input(architecture: str) -> None:
    main = main_loop(code_of("reduction/s8_streaming", architecture))
    assert set(main.mix.accesses) == {"LDG"}
    assert main.banks is None


@needs_nvdisasm
def test_without_promised_alignment_global_loads_are_narrow() -> None:
    wide = main_loop(code_of("gemm/v3_double_buffer", "sm_90")).mix
    narrow = main_loop(code_of("gemm/v3_double_buffer", "sm_90", "alignment={a: 1, b: 1, c: 1}")).mix
    assert 16 in wide.accesses["LDG"]
    assert set(narrow.accesses["LDG"]) == {4}


@needs_nvdisasm
def test_persistent_kernels_show_loop_over_k_inside() -> None:
    code = code_of("gemm/simt/stream_k", "sm_90")
    assert main_loop(code).loop.depth == 2
    assert main_loop(code).mix.accesses["LDS"] == {16: 32}


@needs_nvdisasm
def test_planted_spills_are_seen_in_the_code() -> None:
    source = """extern "C" __global__ void __launch_bounds__(1024, 2) spilling(float* x, int n) {
        float v[64];
        #pragma unroll
        for (int i = 0; i < 64; ++i) v[i] = x[i * 1024 + threadIdx.x];
        for (int t = 0; t < n; ++t)
            #pragma unroll
            for (int i = 0; i < 64; ++i) v[i] = fmaf(v[i], v[(i + 1) % 64], v[(i + 7) % 64]);
        #pragma unroll
        for (int i = 0; i < 64; ++i) x[i * 1024 + threadIdx.x] = v[i];
    }"""
    binary = compile_source(source, architecture="sm_90")
    assert binary.resources["spilling"].spill_loads > 0
    code = machine_code(binary, ARCHITECTURES["sm_90"])["spilling"]
    assert code.spilled > 0
    assert "load local" in main_loop(code).mix.classes
