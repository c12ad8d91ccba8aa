"""Pictures of machine code: a box for each instruction of the main loop, with its control code."""

from __future__ import annotations

from dataclasses import replace

import pytest

import gemmgen
from gemmgen.cli.compilation import compile_plans
from gemmgen.kernels.pictures import LoopCode
from gemmgen.perf.analysis.listing import listing
from gemmgen.present.drawing import draw
from gemmgen.present.drawing.code import SHOWN
from gemmgen.present.loop_picture import loop_picture
from gemmgen.toolchain.nvrtc import Binary
from gemmgen.toolchain.sass import find_nvdisasm
from present.drawing.reading import SVG, overlapping, parse

pytestmark = pytest.mark.skipif(find_nvdisasm() is None, reason="nvdisasm reads machine code")


@pytest.fixture(scope="module")
def binary() -> Binary:
    (found,) = compile_plans([gemmgen.plan("gemm/simt/maxas/64", "sm_90a")])
    return found


def test_each_instruction_has_its_control_code(binary: Binary) -> None:
    picture = loop_picture(binary)
    loop = [one for one in listing(binary) if one.in_main_loop]
    assert [(slot.mnemonic, slot.stall, slot.waits) for slot in picture.slots] == [
        (one.instruction.mnemonic, one.annotation.control.stall, one.annotation.control.waits) for one in loop
    ]
    assert picture.bytes == loop[-1].instruction.address - loop[0].instruction.address + 16
    kinds = {slot.mnemonic: slot.kind for slot in picture.slots}
    assert kinds["FFMA"] == "multiply-add" and kinds["LDS"] == kinds["STS"] == "shared memory" and kinds["LDG"] == "global memory"


def test_a_barrier_that_the_loop_waits_for_is_set_in_it(binary: Binary) -> None:
    picture = loop_picture(binary)
    waited = {barrier for slot in picture.slots for barrier in slot.waits}
    assert waited and waited <= {barrier for slot in picture.slots for barrier in slot.sets}
    assert any(slot.waits for slot in picture.slots if slot.mnemonic == "FFMA")
    assert any(slot.sets for slot in picture.slots if slot.mnemonic == "LDS")


def drawn(picture: LoopCode) -> list[str]:
    return [rect.attrib["class"] for rect in parse(draw("kernel", [picture])).iter(f"{SVG}rect")]


def test_boxes_are_drawn_for_all_and_marked(binary: Binary) -> None:
    picture = loop_picture(binary)
    boxes = drawn(picture)
    assert sum(kind == "bad" for kind in boxes) == 1 + sum(bool(slot.waits) for slot in picture.slots)
    assert sum(kind == "worker" for kind in boxes) == 1 + sum(bool(slot.sets) for slot in picture.slots)
    assert overlapping(parse(draw("kernel", [picture]))) == []


def test_a_loop_beyond_what_is_drawn_is_cut(binary: Binary) -> None:
    picture = loop_picture(binary)
    longer = replace(picture, slots=picture.slots * 4)
    assert len(drawn(longer)) < len(drawn(picture)) * 4
    assert sum(kind.startswith("c") for kind in drawn(longer)) <= SHOWN + 16
