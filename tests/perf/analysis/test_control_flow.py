"""Loops of machine code."""

from __future__ import annotations

from perf.analysis.listing import assemble

from gemmgen.perf.analysis.control_flow import Loop, find_loops


def spans(loops: list[Loop]) -> list[tuple[int, int, int]]:
    return [(loop.first_address // 16, loop.last_address // 16, loop.depth) for loop in loops]


def test_straight_code_has_no_loop() -> None:
    assert find_loops(assemble("MOV R1, R2\nEXIT")) == []
    assert find_loops([]) == []


def test_a_branch_back_is_a_loop() -> None:
    code = assemble("MOV R0, RZ\n.L_x_0:\nIADD3 R0, R0, 0x1, RZ\nISETP.NE.AND P0, PT, R0, R1, PT\n@P0 BRA `(.L_x_0)\nEXIT")
    (loop,) = find_loops(code)
    assert spans([loop]) == [(1, 3, 1)]
    assert loop.own == loop.instructions


def test_a_loop_within_a_loop_is_told_apart() -> None:
    code = assemble("""
        .L_outer:
        LDG.E R2, desc[UR4][R4.64]
        .L_inner:
        FFMA R0, R2, R3, R0
        @P0 BRA `(.L_inner)
        BAR.SYNC.DEFER_BLOCKING 0x0
        @P1 BRA `(.L_outer)
        EXIT
    """)
    outer, inner = find_loops(code)
    assert spans([outer, inner]) == [(0, 4, 1), (1, 2, 2)]
    assert [i.mnemonic for i in outer.own] == ["LDG", "BAR", "BRA"]


def test_loops_one_after_the_other_are_two() -> None:
    code = assemble(".L_a:\nFFMA R0, R2, R3, R0\n@P0 BRA `(.L_a)\n.L_b:\nFADD R0, R2, R3\n@!P0 BRA `(.L_b)\nEXIT")
    assert spans(find_loops(code)) == [(0, 1, 1), (2, 3, 1)]


def test_code_out_of_line_that_returns_is_no_loop() -> None:
    # The code after EXIT branches back to its origin, once.
    code = assemble("""
        BRA.DIV UR4, `(.L_far)
        .L_back:
        EXIT
        .L_far:
        WARPSYNC.COLLECTIVE R5, `(.L_at)
        .L_at:
        BRA `(.L_back)
    """)
    assert find_loops(code) == []


def test_the_branch_to_itself_behind_the_end_is_no_loop() -> None:
    assert find_loops(assemble("EXIT\n.L_end:\nBRA `(.L_end)\nNOP")) == []


def test_an_exit_that_a_predicate_skips_goes_on() -> None:
    code = assemble(".L_a:\n@P0 EXIT\nFFMA R0, R2, R3, R0\nBRA `(.L_a)")
    assert spans(find_loops(code)) == [(0, 2, 1)]


def test_a_branch_on_an_operand_goes_on() -> None:
    code = assemble(".L_a:\nFFMA R0, R2, R3, R0\nBRA P1, `(.L_a)\nEXIT")
    assert spans(find_loops(code)) == [(0, 1, 1)]


def test_a_predicate_that_is_always_true_is_none() -> None:
    code = assemble(".L_a:\nFFMA R0, R2, R3, R0\n@PT BRA `(.L_b)\nBRA `(.L_a)\n.L_b:\nEXIT")
    assert find_loops(code) == []


def test_targets_may_be_addresses() -> None:
    # As disassemblers print them that set no labels.
    code = assemble("MOV R0, RZ\nFFMA R0, R2, R3, R0\n@P0 BRA 0x10\nEXIT")
    assert spans(find_loops(code)) == [(1, 2, 1)]


def test_several_labels_may_stand_at_one_place() -> None:
    code = assemble(".L_a:\n.L_b:\nFFMA R0, R2, R3, R0\n@P0 BRA `(.L_a)\nEXIT")
    assert spans(find_loops(code)) == [(0, 1, 1)]


def test_loops_of_subroutines_are_found() -> None:
    code = assemble("CALL.REL.NOINC `($sub)\nEXIT\n$sub:\nMOV R0, RZ\n.L_a:\nIADD3 R0, R0, 0x1, RZ\n@P0 BRA `(.L_a)\nRET.REL.NODEC R2 `(k)")
    assert spans(find_loops(code)) == [(3, 4, 1)]


def test_two_ways_into_a_cycle_are_one_loop() -> None:
    code = assemble("@P0 BRA `(.L_b)\n.L_a:\nFADD R0, R1, R2\n.L_b:\nFADD R1, R2, R3\n@P1 BRA `(.L_a)\nEXIT")
    assert spans(find_loops(code))[0] == (1, 3, 1)


def test_a_deep_nest_does_not_overflow() -> None:
    depth = 300
    text = "".join(f".L_{i}:\nFADD R0, R1, R2\n" for i in range(depth)) + "".join(f"@P0 BRA `(.L_{i})\n" for i in reversed(range(depth)))
    loops = find_loops(assemble(text + "EXIT"))
    assert len(loops) == depth
    assert max(loop.depth for loop in loops) == depth
