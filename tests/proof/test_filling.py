"""Boxes that leave fill the result: a mistake that leaves elements out is not proved complete."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

pytest.importorskip("z3")

from gemmgen.core.formulas import Formula
from gemmgen.emulator.ptx.parser import parse
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.proof.control import Unliftable
from gemmgen.proof.obligations import Verdict
from gemmgen.proof.protocols import verdicts
from gemmgen.proof.solver import Solver
from tests.proof.test_rings import STORE, kernel


def verdict(sequence: LaunchSequence, ptx: str) -> Verdict:
    module, launch = parse(ptx), sequence.launches[0]
    function = next(each for each in module.functions.values() if each.is_entry and each.name == launch.entry)
    try:
        return verdicts(sequence, launch, module, function, Solver(60.0))["complete"]
    except Unliftable as error:
        return Verdict("complete", unproved=[str(error)])


def test_every_element_leaves_in_a_box() -> None:
    found = verdict(*kernel())
    assert found.holds and found.obligations == 1, found.unproved


def of_stores(statements: str, guard: str = "") -> Callable[[str], str]:
    """Statements before each box that leaves, whose coordinates are called COLUMN and ROW there."""

    def change(ptx: str) -> str:
        def into(found: re.Match[str]) -> str:
            before = statements.replace("COLUMN", found[1]).replace("ROW", found[2])
            return f"{{\n.reg .pred gone;\n.reg .b32 number;\n{before}\n{guard}{found[0]}\n}}"

        return re.sub(STORE, into, ptx)

    return change


def replaced(pattern: str, into: str) -> Callable[[str], str]:
    return lambda ptx: re.sub(pattern, into, ptx)


def only_in_stage_0(ptx: str) -> str:
    stage = re.findall(r"setp\.eq\.s32 \s*%p\d+, (%r\d+), 0;", ptx[: re.search(STORE, ptx).start()])[-1]  # type: ignore[union-attr]
    return of_stores(f"setp.eq.s32 gone, {stage}, 0;", "@gone ")(ptx)


MISTAKES: dict[str, Callable[[str], str]] = {
    "a box leaves only if the ring stands at its first stage": only_in_stage_0,
    "every second row of tiles": of_stores("shl.b32 ROW, ROW, 1;"),
    "every second column of tiles": of_stores("shl.b32 COLUMN, COLUMN, 1;"),
    "rows begin at the second tile": of_stores("add.s32 ROW, ROW, 64;"),
    "columns begin before the first": of_stores("add.s32 COLUMN, COLUMN, -32;"),
    "the first column of tiles is not stored": of_stores("setp.lt.s32 gone, COLUMN, 1;", "@!gone "),
    "tiles after row 4096 are not stored": of_stores("setp.lt.s32 gone, ROW, 4096;", "@gone "),
    "the first tile alone": of_stores("mov.u32 number, %ctaid.x; setp.lt.s32 gone, number, 1;", "@gone "),
    "one tile less": replaced(r"(mul\.lo\.s32 \s*(%r\d+), %r\d+, %r\d+;)(?=[^;]*mov\.u32[^;]*%ctaid\.x)", r"\1 add.s32 \2, \2, -1;"),
    "rows are rounded down": replaced(
        r"add\.s32 \s*(%r\d+), (%r\d+), 1;(?=\s*(?:\.loc[^\n]*\s*)*add\.s32 \s*%r\d+, %r\d+, -1;)", r"mov.u32 \1, \2;"
    ),
    "each block stops after one tile": replaced(
        r"setp\.lt\.s32( \s*%p\d+, %r\d+), (%r\d+);(?=[^;]*bra \s*\$L__BB0_(?:6|23);)", r"setp.lt.s32\1, 0;"
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_elements_that_no_box_holds_are_noticed(mistake: str) -> None:
    sequence, ptx = kernel()
    mutant = MISTAKES[mistake](ptx)
    assert mutant != ptx
    assert not verdict(sequence, mutant).holds


def test_a_grid_without_blocks_is_noticed() -> None:
    sequence, ptx = kernel()
    (launch,) = sequence.launches
    grid = (Formula(f"min({launch.grid[0]}, n // 64)"), *launch.grid[1:])
    assert not verdict(replace(sequence, launches=(replace(launch, grid=grid),)), ptx).holds
