"""Predicted times count the instructions of epilogues, which the compiler leaves behind the products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import gemmgen
from gemmgen.codegen.rendering import render
from gemmgen.dispatch.model import model_seconds
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose
from gemmgen.hardware.target import device
from gemmgen.kernels.epilogue.options import hashable
from gemmgen.kernels.gemm.cost_model import work
from gemmgen.kernels.gemm.request import NamedOperand
from gemmgen.kernels.requests import Layout
from gemmgen.ops.formulas import parsed
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.toolchain.sass import disassemble, find_nvdisasm, parse

WGMMA: dict[str, Any] = {
    "kind": "gemm",
    "architecture": "sm_90a",
    "transpose": "nt",
    "alpha": "one",
    "beta": "zero",
    "storage": {"a": "bf16", "b": "bf16", "c": "bf16"},
    "alignment": {"a": 8, "b": 8, "c": 8},
    "multiple_of": {"n": 8},
    "store": "tma",
}


def seconds(schedule: str, epilogue: list[dict[str, str]], accuracy: str = "result") -> float:
    mainloop = {"strategy": "wgmma", "tile": {"m": 128, "n": 128, "k": 64}, "stages": 4}
    if schedule == "ping_pong":
        mainloop |= {"tile": {"m": 64, "n": 128, "k": 64}, "consumers": 2, "schedule": schedule}
    plan: Any = gemmgen.plan({**WGMMA, "mainloop": mainloop, "epilogue": epilogue, "accuracy": accuracy})
    return model_seconds(work(plan, {"m": 4096, "n": 11008, "k": 4096}), device("H200"))


@pytest.mark.parametrize("schedule", ["cooperative", "ping_pong"])
def test_functions_take_time(schedule: str) -> None:
    plain, silu = seconds(schedule, []), seconds(schedule, [{"op": "silu"}])
    accurate = seconds(schedule, [{"op": "silu"}], "full")
    assert plain < silu < accurate < 1.5 * plain


SINGLE: dict[str, tuple[Any, str]] = {
    "GELU (tanh)": ([{"op": "gelu", "form": "tanh"}], "coarse_gelu_tanh"),
    "GELU (tanh) in a formula": ({"value": "gelu_tanh(acc)"}, "coarse_gelu_tanh"),
    "GELU": ([{"op": "gelu"}], "single_gelu"),
    "SiLU": ({"let": {"z": "silu(acc)"}, "outputs": {"C": "z * acc", "kept": {"value": "z", "type": "bf16"}}}, "single_silu"),
}


@pytest.mark.parametrize("name", SINGLE)
def test_only_groups_that_finish_together_save_special_functions(name: str) -> None:
    """The form with fewer of them has more multiply-adds, for which the other group's tensor cores would wait."""
    epilogue, function = SINGLE[name]
    for schedule, special in (("cooperative", 1), ("ping_pong", 2)):
        mainloop = {"strategy": "wgmma", "tile": {"m": 128, "n": 128, "k": 64}, "stages": 4, "consumers": 2, "schedule": schedule}
        plan: Any = gemmgen.plan({**WGMMA, "mainloop": mainloop, "epilogue": epilogue})
        assert sum(step.special for step in plan.epilogue) == special
        assert (f"{function}(" in render(plan).text) == (special == 1)


TURNED: dict[str, Any] = {
    "kind": "gemm",
    "architecture": "sm_90a",
    "order": "column_major",
    "transpose": "tn",
    "storage": {"a": "bf16", "b": "bf16", "c": "bf16"},
    "alpha": "one",
    "beta": "zero",
    "alignment": {"a": 8, "b": 8, "c": 8},
    "multiple_of": {"m": 8},
    "store": "tma",
    "mainloop": {"strategy": "wgmma", "tile": {"m": 128, "n": 128, "k": 64}, "stages": 4, "schedule": "ping_pong", "consumers": 2},
}
EPILOGUES = {
    "row operand": TURNED
    | {"epilogue": {"inputs": {"bias": {"per": "row", "type": "bf16"}}, "value": "gelu(acc + bias)"}}
    | {"mainloop": TURNED["mainloop"] | {"tile": {"m": 128, "n": 200, "k": 64}}},
    "no operand": TURNED | {"epilogue": {"value": "silu(acc)"}},
    "two products": TURNED
    | {"order": "row_major", "transpose": "nt", "multiple_of": {"n": 8}, "dual": True, "epilogue": {"value": "silu(acc) * acc2"}}
    | {"mainloop": TURNED["mainloop"] | {"tile": {"m": 128, "n": 64, "k": 64}}},
}


@pytest.mark.skipif(find_nvdisasm() is None, reason="needs nvdisasm")
@pytest.mark.parametrize("name", EPILOGUES)
def test_stages_are_released_before_results_are_computed(name: str) -> None:
    binary = compile_plan(gemmgen.plan(EPILOGUES[name]))
    opcodes = [one.opcode for one in parse(disassemble(binary.cubin))]
    assert opcodes.count("MUFU.EX2") > 60
    done = len(opcodes) - opcodes[::-1].index("WARPGROUP.DEPBAR.LE")
    released = next(place for place in range(done, len(opcodes)) if opcodes[place].startswith("SYNCS.ARRIVE"))
    assert released - done < 40


def test_a_formula_takes_time_beside_a_product_that_was_timed() -> None:
    plain = parse_problem("gemm:512,4096,4096,nt,bf16")
    finished = replace(plain, epilogue=parsed("matmul", hashable({"value": "gelu(acc)"})))
    fastest = [choose(request, device("H200")).chosen for request in (plain, finished)]
    assert fastest[0].seconds < fastest[1].seconds
    # Two groups finish the one tile of a block sooner than one of them.
    spec: Any = fastest[1].plan.spec
    assert (spec.mainloop.schedule, spec.mainloop.consumers) == ("cooperative", 2)


@pytest.mark.parametrize(("alignment", "m", "boxes"), [(16, 512, 4), (4, 512, 0), (16, 2048, 0)])
def test_stages_bring_an_operand_if_all_tiles_run_at_once(alignment: int, m: int, boxes: int) -> None:
    """On H200: 128 tiles and more, of operands that TMA can read and cannot."""
    operations = parsed("matmul", hashable({"inputs": {"z": {"per": "element"}}, "value": "acc + z"}))
    layout = replace(Layout.packed((m, 4096), "f32"), alignment=alignment)
    request = replace(parse_problem(f"gemm:{m},4096,4096,nt,bf16"), epilogue=operations, named=(NamedOperand("z", "result", layout),))
    plan = choose(request, device("H200")).chosen.plan
    assert plan.loop.operand_boxes == boxes and (plan.loop.persistent_blocks == 0) == (boxes > 0)
