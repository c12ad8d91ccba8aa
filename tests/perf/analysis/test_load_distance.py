"""Instructions between loads and the first use of their data."""

from __future__ import annotations

import pytest
from perf.analysis.listing import assemble

from gemmgen.api import plan
from gemmgen.hardware.target import ARCHITECTURES
from gemmgen.perf.analysis.load_distance import load_distances
from gemmgen.perf.analysis.machine_code import machine_code
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.toolchain.sass import find_nvdisasm


def test_instructions_in_between_are_counted() -> None:
    assert load_distances(assemble("LDG.E R4, desc[UR4][R2.64]\nFADD R9, R8, R8\nFADD R0, R4, R1"), "LDG") == [1]


def test_any_register_of_a_wide_load_counts() -> None:
    assert load_distances(assemble("LDS.128 R4, [R0]\nFADD R9, R8, R8\nFADD R0, R7, R1"), "LDS") == [1]
    assert load_distances(assemble("LDS.64 R4, [R0]\nFADD R9, R8, R8\nFADD R0, R7, R1"), "LDS") == []


def test_a_use_the_next_time_round_counts() -> None:
    assert load_distances(assemble("STS [R8], R4\nFADD R9, R8, R8\nLDG.E R4, desc[UR4][R2.64]\nBAR.SYNC 0x0"), "LDG") == [1]


def test_an_address_is_a_use() -> None:
    assert load_distances(assemble("LDG.E R4, desc[UR4][R2.64]\nMOV R8, R5\nLDS R9, [R4+0x10]"), "LDG") == [1]


def test_an_overwritten_result_has_no_later_use() -> None:
    assert load_distances(assemble("LDG.E R4, desc[UR4][R2.64]\nMOV R4, R5\nFADD R9, R4, R1"), "LDG") == []


def test_a_part_that_is_not_overwritten_is_followed() -> None:
    assert load_distances(assemble("LDS.64 R4, [R0]\nMOV R4, R8\nFADD R9, R4, R1\nFADD R9, R5, R1"), "LDS") == [2]


def test_a_predicated_instruction_overwrites_nothing_for_sure() -> None:
    assert load_distances(assemble("LDG.E R4, desc[UR4][R2.64]\n@P0 MOV R4, R5\nFADD R9, R4, R1"), "LDG") == [1]


def test_the_shorter_way_round_a_branch_counts() -> None:
    listing = "LDS R4, [R0]\n@P0 BRA `(.L_1)\nFADD R8, R8, R8\nFADD R8, R8, R8\n.L_1:\nFADD R9, R4, R1\nBRA 0x0"
    assert load_distances(assemble(listing), "LDS") == [1]


def test_code_that_a_branch_skips_is_no_use() -> None:
    assert load_distances(assemble("LDS R4, [R0]\nBRA `(.L_1)\nFADD R9, R4, R1\n.L_1:\nMOV R4, R5\nBRA 0x0"), "LDS") == []


def test_a_store_reads_all_of_its_data() -> None:
    assert load_distances(assemble("LDG.E R7, desc[UR4][R2.64]\nFADD R9, R8, R8\nSTS.128 [R20], R4"), "LDG") == [1]


@pytest.mark.skipif(find_nvdisasm() is None, reason="needs nvdisasm")
def test_machine_code_of_the_maxas_kernel_reads_what_it_loads() -> None:
    binary = compile_plan(plan("gemm/simt/maxas/64", "sm_90"))
    (code,) = machine_code(binary, ARCHITECTURES["sm_90"]).values()
    main = code.main_loop
    loads = [place for place, instruction in enumerate(main.loop.instructions) if instruction.mnemonic == "LDG"]
    last_store = max(place for place, instruction in enumerate(main.loop.instructions) if instruction.mnemonic == "STS")
    assert 0 < main.distances["LDG"] <= max(last_store - min(loads), 1)


def test_other_loads_do_not_count() -> None:
    assert load_distances(assemble("LDS R4, [R0]\nFADD R0, R4, R1"), "LDG") == []
