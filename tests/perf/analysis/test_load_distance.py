"""Instructions between loads and the first use of what they load."""

from __future__ import annotations

from perf.analysis.listing import assemble

from gemmgen.perf.analysis.load_distance import load_distances


def test_instructions_in_between_are_counted() -> None:
    assert load_distances(assemble("LDG.E R4, desc[UR4][R2.64]\nFADD R9, R8, R8\nFADD R0, R4, R1"), "LDG") == [1]


def test_any_register_of_a_wide_load_counts() -> None:
    assert load_distances(assemble("LDS.128 R4, [R0]\nFADD R9, R8, R8\nFADD R0, R7, R1"), "LDS") == [1]
    assert load_distances(assemble("LDS.64 R4, [R0]\nFADD R9, R8, R8\nFADD R0, R7, R1"), "LDS") == []


def test_a_use_the_next_time_round_counts() -> None:
    assert load_distances(assemble("STS [R8], R4\nFADD R9, R8, R8\nLDG.E R4, desc[UR4][R2.64]\nBAR.SYNC 0x0"), "LDG") == [1]


def test_a_result_is_no_use_but_an_address_is() -> None:
    assert load_distances(assemble("LDG.E R4, desc[UR4][R2.64]\nMOV R4, R5\nLDS R9, [R4+0x10]"), "LDG") == [1]


def test_other_loads_do_not_count() -> None:
    assert load_distances(assemble("LDS R4, [R0]\nFADD R0, R4, R1"), "LDG") == []
