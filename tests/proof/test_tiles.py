"""Persistent loops over tiles: a turn that depends on more than its tile is not taken for a block's whole work."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("z3")

import gemmgen
from gemmgen.codegen.rendering import render
from gemmgen.core.formulas import Formula
from gemmgen.emulator.ptx.parser import parse
from gemmgen.emulator.ptx.syntax import Function, Instruction, Module
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.proof.contract import Contract
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.obligations import memory, once
from gemmgen.proof.protocols import MOST
from gemmgen.proof.slicing import with_floats
from gemmgen.proof.solver import Solver
from gemmgen.proof.tiles import ended_early, one_tile
from gemmgen.toolchain.compilation import COMPILE_OPTIONS
from gemmgen.toolchain.nvrtc import compile_source

MISTAKES = {
    "columns of the set": ("work.column += first;", "work.column += set * kColumns;"),
    "rows of the phase": ("const int first_row = work.row +", "const int first_row = work.row + set_phase * 8 +"),
    "steps of half a grid": ("index += gridDim.x", "index += gridDim.x / 2 + 1"),
    "blocks begin at half": ("int index = blockIdx.x;", "int index = blockIdx.x / 2;"),
    "tiles past the first": ("const int first_row = work.row +", "const int first_row = (index < gridDim.x ? 0 : work.row) +"),
}


def kernel(old: str = "", new: str = "") -> tuple[Contract, Module, Function, list[Instruction]]:
    """The kernel with one part of its source replaced, and its stores; with a block for each tile."""
    plan = gemmgen.plan(gemmgen.load_spec(shipped_specs()["gemm/tcgen05/bf16_128x64"]))
    assert isinstance(plan, KernelPlan)
    source = render(plan)
    assert old in source.text
    ptx = compile_source(source.text.replace(old, new), architecture="sm_100a", options=COMPILE_OPTIONS, name=source.file_name).ptx
    module, (launch,) = parse(ptx), plan.sequence.launches
    function = with_floats(module.functions[launch.entry])
    one_each = replace(launch, grid=(Formula("ceil_div(m, 128) * ceil_div(n, 64)"), *launch.grid[1:]))
    stores = [each for each in function.body if each.opcode == "st" and each.has("global")]
    return Contract(plan.sequence, one_each, MOST), module, ended_early(function, stores), stores


def test_a_turn_stores_each_element_of_its_tile_once() -> None:
    contract, module, function, stores = kernel()
    turn = one_tile(function, stores)
    assert turn is not None
    lifter = Lifter(module, turn, contract, Solver(60))
    lifter.known.of_ring = True
    lifter.lift()
    within = memory(lifter)
    verdicts = within, once(lifter, within)
    assert all(verdict.holds and verdict.obligations >= len(stores) for verdict in verdicts)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_turn_of_more_than_its_tile_is_none(name: str) -> None:
    _, _, function, stores = kernel(*MISTAKES[name])
    assert one_tile(function, stores) is None
