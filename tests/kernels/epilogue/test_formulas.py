"""Formulas in the kernels of every family: drawn graphs are verified on the emulator, and wrong ones are refused with one message."""

from __future__ import annotations

import math
import os
import re
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import yaml

import gemmgen
from gemmgen.core.elements import to_elements
from gemmgen.core.errors import GemmgenError
from gemmgen.kernels.epilogue.functions import philox
from gemmgen.kernels.epilogue.numbers import Tracked, extremum
from gemmgen.kernels.gemm.explain import explain
from gemmgen.kernels.reduction.reference import _expected as reduction_expected
from gemmgen.runtime.backends import BackendName, find_backend
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.runtime.kernel import Kernel
from gemmgen.runtime.native import NativeBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS, compile_host_plan, compile_plan
from gemmgen.toolchain.nvrtc import compile_file
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_binary

from .drawn_formulas import SPACES, drawn

NAIVE = {"strategy": "naive", "threadblock": {"m": 4, "n": 32}}
TILED = {
    "strategy": "tiled",
    "tile": {"threadblock": {"m": 32, "n": 32, "k": 8}, "warp": {"m": 16, "n": 32}, "thread": {"m": 4, "n": 4}},
}
FRAGMENTS = {
    "strategy": "mma_sync",
    "tile": {"threadblock": {"m": 32, "n": 32, "k": 32}, "warp": {"m": 32, "n": 16}},
    "stages": 2,
}
NARROW = {
    "strategy": "narrow_weights",
    "tile": {"threadblock": {"m": 16, "n": 64, "k": 64}, "warp": {"m": 16, "n": 32}},
    "bits": 8,
    "group": 64,
}
WARPGROUPS = {"strategy": "wgmma", "tile": {"m": 64, "n": 32, "k": 64}, "consumers": 1, "stages": 2}
HALVES = {"a": "bf16", "b": "bf16", "c": "bf16"}
STRATEGIES: dict[str, dict[str, Any]] = {
    "naive": {"mainloop": NAIVE},
    "tiled": {"mainloop": TILED, "storage": {"c": "f16"}},
    "GEMV": {"mainloop": {"strategy": "gemv", "columns": 2}, "transpose": "nt"},
    "mma_sync": {"mainloop": FRAGMENTS, "storage": HALVES, "architecture": "sm_80", "transpose": "nt"},
    "mma_sync, aligned": {
        "mainloop": FRAGMENTS, "storage": HALVES, "architecture": "sm_80", "transpose": "nt", "alignment": {"a": 8, "b": 8, "c": 8},
    },
    "wgmma": {
        "mainloop": WARPGROUPS, "storage": HALVES, "architecture": "sm_90a", "transpose": "nt", "alignment": {"a": 8, "b": 8, "c": 8},
        "store": "tma", "multiple_of": {"n": 8},
    },
    "wgmma, pairs": {
        "mainloop": WARPGROUPS, "storage": HALVES, "architecture": "sm_90a", "transpose": "nt", "alignment": {"a": 8, "b": 8, "c": 2},
    },
    "narrow weights": {
        "mainloop": NARROW, "storage": {"a": "bf16", "b": "u8", "c": "bf16"}, "architecture": "sm_80", "alpha": "one", "beta": "zero",
        "alignment": {"a": 8, "c": 2}, "multiple_of": {"k": 64},
    },
    "split k": {"mainloop": TILED, "decomposition": {"scheme": "split_k_parallel", "slices": 2}},
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "batched": {"kind": "gemm", "mainloop": TILED, "batch": "strided"},
    "grouped": {
        "kind": "gemm", "mainloop": FRAGMENTS, "storage": HALVES, "architecture": "sm_80", "transpose": "nt", "batch": "grouped",
    },
    "elementwise": {"kind": "elementwise", "rank": 2, "threads": 32, "alignment": 1},
    "elements": {"kind": "reduction", "operation": "sum", "shape": "rows", "typical": {"outer": 8, "reduced": 64}},
    "reduction": {"kind": "reduction", "operation": "sum", "shape": "rows", "typical": {"outer": 8, "reduced": 64}},
    "conv2d": {
        "kind": "conv2d",
        "architecture": "sm_75",
        "copy_through": "registers",
        "tile": {"threadblock": {"m": 32, "n": 32, "k": 32}, "warp": {"m": 32, "n": 32}, "instruction": "m8n8k16"},
        "convolution": {"r": 1, "s": 1, "stride_h": 1, "stride_w": 1, "padding_h": 0, "padding_w": 0},
        "output": {"type": "f32", "layout": "nhwc"},
        "store": "direct",
    },
    "cpu_gemm": {"kind": "cpu_gemm", "loops": {"strategy": "naive"}},
}  # fmt: skip
FIELDS = {"elementwise": "operations", "elements": "prologue"}
"""Fields of specs that formulas stand in; the others' is epilogue. ``elements``: those of a reduction, before its sum."""
SHAPES = ("rows", "columns", "middle", "strided", "tensor")
"""Shapes of reductions whose elements have rows and columns."""
MAY_BE_ZERO = ("sums_at", "padding_h", "padding_w")
"""Dimensions of cases with elements that may be 0."""
COUNT = int(os.environ.get("GEMMGEN_FORMULAS", "2"))
"""Formulas that are drawn for each strategy and family: 2 in ordinary runs; more, by this variable, in thorough ones."""


def drawn_spec(kind: str, rng: Random) -> dict[str, Any]:
    """The spec of a strategy of GEMM or of another family with a drawn formula."""
    if kind in STRATEGIES:
        return {"kind": "gemm", **STRATEGIES[kind], "epilogue": drawn(rng, SPACES["gemm"])}
    shape = rng.choice(SHAPES) if kind == "elements" else "rows"
    own = FAMILIES[kind] if shape == "rows" else {"kind": "reduction", "operation": "sum", "shape": shape}
    if shape == "tensor":
        axes = {"kept": rng.randint(0, 3), "reduced": rng.randint(1, 3), "lanes": rng.choice([1, 8, 32, None])}
        own["strategy"] = {"name": "tensor_rows", **axes}
    return {**own, FIELDS.get(kind, "epilogue"): drawn(rng, SPACES[kind])}


def verified(fields: dict[str, Any], backend: BackendName = "emulator") -> list[str]:
    """Failures of the smallest cases of every kind of data."""
    on_host = fields["kind"] == "cpu_gemm"
    chosen = NativeBackend() if on_host else find_backend(backend)
    plan = gemmgen.plan(fields, None if on_host else chosen.architecture)

    def size(case: Any) -> int:
        return math.prod(max(1, extent) for name, extent in case.dimensions.items() if not name.startswith(("ld", "stride")))

    cases = [
        case
        for case in oracle_of(plan.spec.kind).cases(plan)
        if all(extent > 0 for name, extent in case.dimensions.items() if name not in MAY_BE_ZERO)
    ]
    many = 1 if fields.get("batch") == "grouped" else 2  # groups are slow
    of_data = (sorted((case for case in cases if case.data == data), key=size)[:4] for data in ("integers", "reals", "nonfinite"))
    few = [case for found in of_data for case in found[-many:]]
    assert few
    compiled = compile_host_plan(plan) if on_host else compile_plan(plan)
    report = verify_binary(plan, compiled, chosen, cases=few)
    return [str(result.failure) for result in report.results if result.failure]


@pytest.mark.parametrize("axes", [{"kept": 1, "reduced": 1}, {"kept": 2, "reduced": 2, "lanes": 8}, {"kept": 0, "reduced": 3}])
@pytest.mark.parametrize("operation", ["sum", "argmax", "mean_variance"])
def test_elements_of_a_tensor_have_operands_and_places(operation: str, axes: dict[str, int]) -> None:
    """A row for each result, a column for each element of one, whatever the strides; lanes beyond the last result store nothing."""
    formula = {
        "inputs": {"gate": {"per": "element"}, "scale": {"per": "row"}, "offset": {"per": "column", "type": "f16"}},
        "outputs": {"value": "value * gate + scale - offset + float32(row - column)", "product": {"value": "value * gate", "type": "f32"}},
    }
    strategy = {"name": "tensor_rows", **axes}
    spec = {"kind": "reduction", "operation": operation, "shape": "tensor", "strategy": strategy, "prologue": formula}
    plan = gemmgen.plan(spec)
    cases = [case for case in oracle_of("reduction").cases(plan) if "stride" in case.name or "order" in case.name or "rest" in case.name]
    assert len(cases) >= 3 and verify_binary(plan, compile_plan(plan), EmulatorBackend(), cases=cases).passed
    assert verified(spec) == []


@pytest.mark.parametrize("number", range(COUNT))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_drawn_formulas_of_products_are_right(strategy: str, number: int) -> None:
    fields = drawn_spec(strategy, Random(f"{strategy} {number}"))
    assert verified(fields) == [], fields["epilogue"]


@pytest.mark.parametrize("number", range(COUNT))
@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_formulas_of_other_families_are_right(family: str, number: int) -> None:
    fields = drawn_spec(family, Random(f"{family} {number}"))
    assert verified(fields) == [], fields


TAKEN = ("kept", "scale", "m", "gate_rows", "default", "index", "value2", "n")


@pytest.mark.parametrize("strategy", ["naive", "mma_sync", "wgmma"])
def test_operands_may_have_names_that_kernels_use(strategy: str) -> None:
    per = ["row", "column", "element", "all", "memory"]
    inputs = {name: {"per": per[place % 5]} for place, name in enumerate(TAKEN)}
    formula = {
        "inputs": inputs,
        "let": {"total": " + ".join(TAKEN), "float": "total * acc"},
        "outputs": {"C": "float", "pitch": {"value": "total"}, "stage": {"reduce": "max", "per": "row", "of": "float"}},
    }
    fields = {"kind": "gemm", **STRATEGIES[strategy], "epilogue": formula}
    assert {f"{name}_" for name in TAKEN} <= {argument.name for argument in gemmgen.plan(fields).sequence.arguments}
    assert verified(fields) == []


@pytest.mark.parametrize("strategy", ["naive", "mma_sync", "wgmma"])
def test_operands_may_have_the_names_of_all_words_of_a_kernel(strategy: str) -> None:
    def rendered(names: list[str]) -> gemmgen.Source:
        epilogue = {"inputs": {name: {"per": "column"} for name in names}, "value": " + ".join(["acc", *names])}
        return gemmgen.render(gemmgen.plan({"kind": "gemm", **STRATEGIES[strategy], "epilogue": epilogue}))

    text = re.sub(r'//[^\n]*|/\*.*?\*/|"[^"]*"', "", rendered([]).text, flags=re.DOTALL)
    names = []
    for name in sorted({*re.findall(r"\b[A-Za-z]\w{0,31}\b", text), "blockDim", "NULL", "nullptr", "asm", "size_t", "float4", "expf"}):
        with suppress(GemmgenError):  # names of formulas' functions, of another operand, of the product and so on
            rendered([name])
            names.append(name)
    assert len(names) >= 30
    for begin in range(0, len(names), 30):
        source = rendered(names[begin : begin + 30])
        compile_file(
            source.text, path=f"/{source.file_name}", architecture="sm_90a" if strategy == "wgmma" else "sm_80", options=COMPILE_OPTIONS
        )


@pytest.mark.parametrize("loops", [{"strategy": "naive"}, {"strategy": "blocked", "micro_kernel": {"rows": 4, "columns": 16},
                                                           "blocks": {"m": 32, "n": 64, "k": 32}, "threads": {"count": 2}}])  # fmt: skip
def test_operands_may_have_the_names_of_macros_of_c(loops: dict[str, Any]) -> None:
    names = ["NAN", "INFINITY", "HUGE_VAL", "INT_MAX", "EINVAL", "M_PI", "M_PIf", "P_tmpdir", "errno", "stdin", "sched_priority", "linux"]
    formula = {"inputs": {name: {"per": "column"} for name in names}, "value": " + ".join(["acc", *names])}
    assert verified({"kind": "cpu_gemm", "loops": loops, "epilogue": formula}) == []


@pytest.mark.parametrize(("family", "name"), [("elementwise", "d0"), ("elementwise", "divisors"), ("elements", "outer"), ("elements", "X")])
def test_outputs_may_have_names_of_extents_and_arrays(family: str, name: str) -> None:
    formula = {"outputs": {"value": "value", name: {"value": "value"}}}
    assert verified({**FAMILIES[family], FIELDS.get(family, "epilogue"): formula}) == []


@pytest.mark.parametrize("kind", ["naive", "wgmma", "elementwise", "cpu_gemm"])
def test_values_on_the_way_may_have_the_name_of_a_result(kind: str) -> None:
    formula = {"let": {"y": "value * 2", "out": "y + 1"}, "outputs": {"value": "out", "kept": {"value": "y"}}}
    fields = {"kind": "gemm", **STRATEGIES[kind]} if kind in STRATEGIES else FAMILIES[kind]
    assert verified({**fields, FIELDS.get(kind, "epilogue"): formula}) == []


def test_operands_may_have_the_name_of_a_result() -> None:
    formula = {"inputs": {"y": {"per": "row"}}, "outputs": {"C": "acc * y", "kept": {"value": "y + 1"}}}
    assert verified({"kind": "gemm", **STRATEGIES["naive"], "epilogue": formula}) == []


def test_convolutions_by_pixels_have_places_and_further_outputs() -> None:
    loop = {"strategy": "warpgroup", "tile": {"channels": 8, "pixels": 64, "k": 64}, "stages": 2, "consumers": 1, "rows": "pixels"}
    sides = {side: {"type": "f16", "layout": "nhwc"} for side in ("input", "output")}
    formula = {"outputs": {"value": "acc if row >= column else 0", "kept": {"value": "acc"}, "most": {"reduce": "max", "of": "acc"}}}
    fields = {**FAMILIES["conv2d"], "architecture": "sm_90a", "mainloop": loop, **sides, "epilogue": formula}
    plan = gemmgen.plan({name: value for name, value in fields.items() if name not in ("tile", "copy_through", "store")})
    (case,) = (case for case in oracle_of("conv2d").cases(plan) if case.name == "channels above a tile")
    assert verify_binary(plan, compile_plan(plan), EmulatorBackend(), cases=[case]).passed


def test_convolutions_have_operands_of_truth_values() -> None:
    inputs = {f"{per}_kept": {"per": per, "type": "bool"} for per in ("row", "channel", "element")}
    formula = {"inputs": inputs, "value": "value if row_kept and channel_kept or element_kept else 0"}
    assert verified({**FAMILIES["conv2d"], "epilogue": formula}) == []


@pytest.mark.parametrize("kind", ["naive", "reduction", "elements", "elementwise", "cpu_gemm"])
def test_formulas_of_a_list_may_use_the_same_names(kind: str) -> None:
    listed = [{"op": "formula", "let": {"z": f"square(max(value, {low}))", "z2": "z + 1"}, "value": "z2 - z / 2"} for low in (0, 1)]
    fields = {"kind": "gemm", **STRATEGIES[kind]} if kind in STRATEGIES else FAMILIES[kind]
    both = {"prologue": listed, "epilogue": listed} if fields["kind"] == "reduction" else {FIELDS.get(kind, "epilogue"): listed}
    assert verified({**fields, **both}) == []


def test_the_first_formula_of_the_page_is_right() -> None:
    page = (Path(__file__).parents[3] / "docs" / "epilogues.md").read_text()
    (formula,) = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "preactivation" in block)
    assert verified({"kind": "gemm", **STRATEGIES["naive"], **formula}) == []


EXTRA = {
    "inputs": {"slope": {"per": "column"}, "gate": {"per": "element", "type": "f16"}},
    "let": {"z": "value * slope"},
    "outputs": {"y": "gelu(z) * gate", "z_stored": {"value": "z", "type": "bf16"}, "positive": {"value": "z > 0", "type": "bool"}},
}


@pytest.mark.parametrize(
    "more", [{"alignment": 1}, {"alignment": 4, "unroll": 2}, {"alignment": 1, "inner": "strided", "input": "float64"}]
)
def test_elementwise_kernels_have_further_outputs(more: dict[str, Any]) -> None:
    formula = EXTRA if more.get("input") is None else {"outputs": {"y": "value * 2", "kept": {"value": "value", "type": "f16"}}}
    fields = {"kind": "elementwise", "rank": 2, "threads": 32, **more, "operations": formula}
    assert verified(fields) == []
    assert gemmgen.plan(fields).written_bytes == (4 + 2 + 1 if formula is EXTRA else 8 + 2)


BOXES: dict[str, dict[str, Any]] = {
    "formula": {"inputs": {"gate": {"per": "element", "type": "bf16"}}, "value": "silu(acc) * gate"},
    "formula with a further output": {
        "inputs": {"gate": {"per": "element", "type": "bf16"}, "other": {"per": "element", "type": "f32"}},
        "outputs": {"C": "acc * gate + other", "kept": {"value": "acc", "type": "bf16"}},
    },
    "multiply": {"op": "multiply"},
}


@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("name", BOXES)
def test_one_matrix_of_the_type_of_the_result_comes_in_boxes(name: str, consumers: int) -> None:
    more = {"consumers": 2, "schedule": "ping_pong", "persistent_blocks": 2} if consumers == 2 else {}
    fields = {"kind": "gemm", **STRATEGIES["wgmma"], "beta": "zero", "mainloop": {**WARPGROUPS, **more}, "epilogue": BOXES[name]}
    assert ("map_f" if name == "multiply" else "map_gate") in gemmgen.plan(fields).tensor_maps
    assert verified(fields) == []


IN_STAGES: dict[str, dict[str, Any]] = {
    "float32": {"inputs": {"gate": {"per": "element", "type": "f32"}}, "value": "acc + gate"},
    "bfloat16": {
        "inputs": {"gate": {"per": "element", "type": "bf16"}},
        "outputs": {"C": "acc * gate", "kept": {"value": "acc - gate", "type": "bf16"}},
    },
}


@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("stored", IN_STAGES)
def test_stages_bring_an_operand_behind_the_factors(stored: str, consumers: int) -> None:
    rows = 64 * consumers
    loop = {"strategy": "wgmma", "tile": {"m": rows, "n": rows, "k": 64}, "stages": 3, "consumers": consumers}
    fields = {"kind": "gemm", **STRATEGIES["wgmma"], "beta": "zero", "mainloop": loop, "epilogue": IN_STAGES[stored]}
    plan = gemmgen.plan(fields)
    assert plan.loop.operand_boxes == rows * (4 if stored == "float32" else 2) // 128 and "map_gate" in plan.tensor_maps
    assert f" gate, in boxes of {rows} rows of 128 bytes" in str(explain(plan))
    assert verified(fields) == []


LAST_TILES = [("bf16", 64, 96, 4, 2), ("bf16", 128, 128, 3, 1), ("bf16", 64, 64, 2, 3), ("f32", 64, 96, 4, 2), ("f32", 128, 168, 4, 1)]


@pytest.mark.parametrize(("stored", "rows", "columns", "stages", "blocks"), LAST_TILES)
def test_stages_bring_an_operand_of_the_last_tile(stored: str, rows: int, columns: int, stages: int, blocks: int) -> None:
    """Of a block whose groups take turns, behind other tiles and alone."""
    loop = {**PING_PONG, "tile": {"m": rows, "n": columns, "k": 64}, "stages": stages, "persistent_blocks": blocks}
    formula = BOXES["formula"] if stored == "bf16" else IN_STAGES["float32"]
    plan = gemmgen.plan({"kind": "gemm", **STRATEGIES["wgmma"], "beta": "zero", "mainloop": loop, "epilogue": formula})
    assert plan.loop.last_operand_boxes == (columns // plan.loop.staging.columns if stored == "bf16" else -(-columns // 32))
    assert "gate of a block's last tile comes to the stages" in str(explain(plan))
    found = sorted(oracle_of("gemm").cases(plan), key=lambda case: case.dimensions["m"] * case.dimensions["n"] * case.dimensions["k"])
    report = verify_binary(plan, compile_plan(plan), EmulatorBackend(), cases=[*found[:4], *found[-3:]])
    assert report.passed, [str(result.failure) for result in report.results if result.failure]


def test_tma_stores_further_outputs_of_blocks_with_one_tile() -> None:
    loop = {**WARPGROUPS, "tile": {"m": 128, "n": 128, "k": 64}, "consumers": 2, "persistent_blocks": 0}
    formula = {"outputs": {"C": "gelu(acc)", "earlier": {"value": "acc", "type": "bf16"}}}
    fields = {"kind": "gemm", **STRATEGIES["wgmma"], "beta": "zero", "mainloop": loop, "epilogue": formula}
    assert "map_earlier" in gemmgen.plan(fields).tensor_maps
    assert "map_earlier" not in gemmgen.plan({**fields, "mainloop": {**loop, "persistent_blocks": 2}}).tensor_maps
    assert verified(fields) == []


def test_blocks_of_many_tiles_read_and_store_pairs() -> None:
    loop = {"strategy": "wgmma", "tile": {"m": 64, "n": 64, "k": 64}, "stages": 3, "schedule": "ping_pong", "persistent_blocks": 2}
    formula = {"inputs": IN_STAGES["float32"]["inputs"], "outputs": {"C": "acc + gate", "kept": {"value": "acc", "type": "f32"}}}
    fields = {"kind": "gemm", **STRATEGIES["wgmma"], "beta": "zero", "mainloop": loop, "epilogue": formula}
    plan = gemmgen.plan(fields)
    assert plan.loop.operand_boxes == 0 and plan.collects_pairs
    assert verified(fields) == []


PING_PONG = {"strategy": "wgmma", "tile": {"m": 64, "n": 32, "k": 64}, "consumers": 2, "stages": 2, "schedule": "ping_pong"}
SHARING: dict[str, dict[str, Any]] = {
    **{name: {"kind": "gemm", **fields} for name, fields in STRATEGIES.items()},
    "wgmma, ping-pong": {"kind": "gemm", **STRATEGIES["wgmma"], "beta": "zero", "mainloop": {**PING_PONG, "persistent_blocks": 2}},
    "wgmma, in stages": {
        "kind": "gemm", **STRATEGIES["wgmma"], "beta": "zero", "mainloop": {**WARPGROUPS, "tile": {"m": 64, "n": 64, "k": 64}},
    },
    "planes": {
        "kind": "gemm", "architecture": "sm_80", "transpose": "nt", "mainloop": {**FRAGMENTS, "arithmetic": {"f32_by": "bf16x6"}},
    },
    **{name: FAMILIES[name] for name in ("batched", "grouped", "conv2d")},
}  # fmt: skip
EXTENTS = {"m": 70, "n": 56, "k": 64, "batch": 2, "groups": 2}
IMAGES = {"n": 2, "h": 5, "w": 5, "p": 5, "q": 5, "c": 32, "c_blocks": 1, "k": 32, "groups": 1, "r": 1, "s": 1}


@pytest.mark.parametrize("name", SHARING)
def test_an_operand_may_be_the_array_of_the_result(name: str) -> None:
    """The same bits as beside an array of its own, also where a kernel computes results again."""
    fields = SHARING[name]
    stored = fields["output"]["type"] if name == "conv2d" else fields.get("storage", {}).get("c", "f32")
    formula = {
        "inputs": {"z": {"per": "element", "type": stored, "in_place": True}},
        "outputs": {"value": "acc + 2 * z", "further": {"value": "z - acc"}},
    }
    plan = gemmgen.plan({**fields, "epilogue": formula})
    rng, extents, given = np.random.default_rng(3), IMAGES if name == "conv2d" else EXTENTS, {}
    for array in plan.sequence.arrays:
        shape = [extent.evaluate(extents) for extent in array.shape] if array.role != "workspace" else []
        if array.name == "offsets":
            given[array.name] = np.array([30, 70], np.int32)
        elif shape and not array.name.endswith("_terms"):
            values = to_elements(array.type, rng.integers(-3, 4, shape).astype(np.float32))
            given[array.name] = values if array.strides[-1].text == "1" else np.moveaxis(np.moveaxis(values, -1, -2).copy(), -1, -2)
    if name == "planes":
        given["A"][3] *= np.float32(1e35)
        given["A"][5, 1], given["B"][1, 7] = np.inf, np.nan
    result = "y" if name == "conv2d" else "C"
    kernel, own = Kernel(plan.sequence, compile_plan(plan)), given[result]
    apart = {**given, result: np.zeros_like(own), "z_": own.copy(), "further": np.zeros_like(given["further"])}
    with np.errstate(invalid="ignore"):
        kernel(**apart)
        kernel(**{**given, "z_": own})
    np.testing.assert_array_equal(own, apart[result])
    np.testing.assert_array_equal(given["further"], apart["further"])
    with pytest.raises(GemmgenError, match="is written, but overlaps z_ in memory"):
        kernel(**{**given, "z_": own[::-1]})


def test_an_operand_in_place_has_the_type_of_the_result() -> None:
    formula = {"inputs": {"z": {"per": "element", "type": "f16", "in_place": True}}, "value": "acc + z"}
    with pytest.raises(GemmgenError, match="in_place of float16, need float32, the result's type"):
        gemmgen.plan({"kind": "gemm", "mainloop": NAIVE, "epilogue": formula})
    for kind in ("elementwise", "cpu_gemm", "reduction"):
        formula["inputs"]["z"]["type"] = "f32"  # type: ignore[index]
        with pytest.raises(GemmgenError, match="in_place, need an operand apart"):
            gemmgen.plan({**FAMILIES[kind], FIELDS.get(kind, "epilogue"): formula})
    with pytest.raises(GemmgenError, match="in_place of an operand per row, need per: element"):
        gemmgen.plan(
            {"kind": "gemm", "mainloop": NAIVE, "epilogue": {"inputs": {"z": {"per": "row", "in_place": True}}, "value": "acc + z"}}
        )


SUMS = {
    "let": {"z": "acc + 1"},
    "outputs": {
        "C": "z",
        "by_row": {"reduce": "sum", "per": "row", "of": "z"},
        "squares": {"reduce": "sum_of_squares", "per": "column", "of": "z"},
        "everything": {"reduce": "sum_of_squares", "of": "z"},
    },
}


@pytest.mark.parametrize("more", [*STRATEGIES.values(), {"mainloop": TILED, "order": "column_major"}], ids=[*STRATEGIES, "column major"])
def test_sums_are_right_in_any_direction(more: dict[str, Any]) -> None:
    assert verified({"kind": "gemm", **more, "epilogue": SUMS}) == []


@pytest.mark.parametrize(
    "epilogue", [[{"op": "cast", "type": "int32"}], [{"op": "cast", "type": "int64"}], {"value": "int32(acc * 1.5) - row"}]
)
@pytest.mark.parametrize("kind", ["cpu_gemm", "naive"])
def test_integers_on_the_way_are_the_result(kind: str, epilogue: Any) -> None:
    fields = FAMILIES.get(kind, {"kind": "gemm", "mainloop": NAIVE}) | {"epilogue": epilogue}
    assert verified(fields) == []


def test_a_convolution_without_pixels_has_sums_of_nothing() -> None:
    fields = {**FAMILIES["conv2d"], "convolution": {"r": 3, "s": 3, "dilation_h": 2, "dilation_w": 2}, "increments": "computed"}
    plan = gemmgen.plan({**fields, "epilogue": {"outputs": {"value": "acc", "added": {"reduce": "sum", "of": "acc"}}}})
    (case,) = (case for case in oracle_of("conv2d").cases(plan) if case.name == "one pixel")
    assert case.dimensions["p"] == 0 and verify_binary(plan, compile_plan(plan), EmulatorBackend(), cases=[case]).passed


def test_sums_lie_behind_the_slices_of_a_launch() -> None:
    plan = gemmgen.plan(
        {"kind": "gemm", **STRATEGIES["mma_sync"], "decomposition": {"scheme": "split_k_parallel", "slices": "launch"}, "epilogue": SUMS}
    )
    cut = [case for case in oracle_of("gemm").cases(plan) if case.name in ("k in 2 slices", "k in 5 slices")]
    assert len(cut) == 2 and verify_binary(plan, compile_plan(plan), EmulatorBackend(), cases=cut).passed


def test_values_that_do_not_depend_on_the_product_are_right() -> None:
    formula = {"inputs": {"given": {"per": "channel"}}, "outputs": {"value": "given + 1"}}
    assert verified({**FAMILIES["conv2d"], "epilogue": formula}) == []


def test_an_infinity_without_a_known_sign_leaves_extrema_open() -> None:
    terms = Tracked(np.array([-np.inf, 2.0]), np.array([np.inf, 0.0]), "f32")
    value, bound = extremum("max", terms, (0,), np.array([1.0]))
    assert value == 2.0 and bound == np.inf


def test_an_unknown_result_of_a_reduction_has_no_bound() -> None:
    plan = gemmgen.plan({**FAMILIES["reduction"], "epilogue": {"value": "sqrt(abs(acc)) * acc"}})
    with np.errstate(invalid="ignore"):
        expected = reduction_expected(plan, Tracked(np.array([np.nan, 1.5]), np.array([np.inf, 0.0]), "f32"), (2,))
    assert expected.bound is not None and expected.bound.tolist() == [np.inf, 0.0]


def test_sums_behind_other_contents_of_the_workspace() -> None:
    plan = gemmgen.plan({"kind": "gemm", **STRATEGIES["split k"], "epilogue": SUMS})
    problem = {"m": 5, "n": 7, "k": 9}
    assert plan.sequence.argument("by_row_terms").role == "workspace"
    start = next(dimension for dimension in plan.sequence.dimensions if dimension.name == "sums_at")
    assert start.default is not None and start.default.evaluate(problem) * 256 >= 2 * 4 * 5 * 8


BATCHES = {
    "naive": STRATEGIES["naive"],
    "tiled": STRATEGIES["tiled"],
    "split k": STRATEGIES["split k"],
    "mma_sync": STRATEGIES["mma_sync"],
    "wgmma": STRATEGIES["wgmma"],
    "column major": {"mainloop": TILED, "order": "column_major"},
}
LINES = {
    **SUMS["outputs"],
    "highest": {"reduce": "max", "per": "row", "of": "z"},
    "lowest": {"reduce": "min", "per": "column", "of": "z"},
}


@pytest.mark.parametrize("strategy", BATCHES)
def test_each_product_of_a_batch_has_sums_and_extrema(strategy: str) -> None:
    plan = gemmgen.plan({"kind": "gemm", **BATCHES[strategy], "batch": "strided", "epilogue": {**SUMS, "outputs": LINES}})
    assert [len(plan.sequence.argument(name).shape) for name in ("by_row", "squares", "everything", "highest")] == [2, 2, 1, 2]
    assert verified({"kind": "gemm", **BATCHES[strategy], "batch": "strided", "epilogue": {**SUMS, "outputs": LINES}}) == []


@pytest.mark.parametrize("rows", ["sorted", "masked"])
@pytest.mark.parametrize("strategy", ["mma_sync", "wgmma"])
def test_rows_of_no_group_have_no_terms(strategy: str, rows: str) -> None:
    fields = {"kind": "gemm", **STRATEGIES[strategy], "batch": "grouped", "grouping": {"rows": rows}, "epilogue": SUMS}
    plan = gemmgen.plan(fields)
    names = ("rows behind the last group", "offsets that fall and lie outside", "empty groups", "0 groups")
    partial = [case for case in oracle_of("gemm").cases(plan) if case.name in names]
    assert len(partial) == len(names) and verify_binary(plan, compile_plan(plan), EmulatorBackend(), cases=partial).passed


OF_ELEMENTS = {
    "inputs": {"gate": {"per": "element", "type": "f16"}, "slope": {"per": "row", "type": "bf16"}, "bias": {"per": "column"}},
    "let": {"z": "value * slope + bias"},
    "outputs": {
        "value": "z * gate if row >= column else 0",
        "kept": {"value": "z", "type": "f16"},
        "mask": {"value": "z > 0", "type": "bool"},
    },
}
OF_ONE_LINE = {
    "inputs": {"gate": {"per": "element", "type": "f16"}, "level": {"pointer": "f32"}},
    "outputs": {"value": "value * gate + level", "kept": {"value": "value * 2", "type": "bf16"}},
}


@pytest.mark.parametrize(
    ("operation", "shape", "more"),
    [
        ("sum", "rows", {"typical": {"outer": 2, "reduced": 100_000}}),
        ("mean_variance", "rows", {"alignment": 4, "typical": {"outer": 8, "reduced": 64}}),
        ("argmax", "rows", {"alignment": 4, "typical": {"outer": 8, "reduced": 64}}),
        ("max", "columns", {"alignment": 4}),
        ("sum_of_squares", "columns", {}),
        ("logsumexp", "rows", {}),
        ("l2_norm", "all", {"alignment": 4}),
        ("sum", "all", {"strategy": {"name": "first_add"}}),
        ("sum", "middle", {"alignment": 4}),
        ("argmin", "middle", {"typical": {"outer": 4, "reduced": 4096, "inner": 64}}),
        ("mean", "strided", {}),
        ("logsumexp", "strided", {"strategy": {"name": "row_lanes"}}),
        ("argmax", "strided", {"strategy": {"name": "row_lanes"}}),
    ],
)
def test_elements_with_operands_are_stored_before_the_reduction(operation: str, shape: str, more: dict[str, Any]) -> None:
    formula = OF_ONE_LINE if shape == "all" else OF_ELEMENTS
    assert verified({"kind": "reduction", "operation": operation, "shape": shape, **more, "prologue": formula}) == []


@pytest.mark.parametrize(
    ("shape", "formula", "message"),
    [
        (
            "tensor",
            {"inputs": {"z": {"per": "channel"}}, "value": "value + z"},
            "per channel, need per all, memory, row, column or element",
        ),
        ("all", OF_ELEMENTS, "per row.*the elements are one line"),
        ("rows", {"outputs": {"value": "value", "top": {"reduce": "max", "of": "value"}}}, "reduce: max of elements"),
    ],
)
def test_operands_of_elements_are_refused_with_a_reason(shape: str, formula: dict[str, Any], message: str) -> None:
    with pytest.raises(GemmgenError, match=message):
        gemmgen.plan({"kind": "reduction", "operation": "sum", "shape": shape, "prologue": formula})


def test_random_numbers_are_those_of_philox() -> None:
    """The known answer of Random123 for a counter and a key of 0; and a kernel that draws them."""
    assert [hex(int(philox(0, 0, word, 0))) for word in range(4)] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    assert int(philox(3, 8, 4 * 7 + 1, 5)) == int(philox(3, 12, 4 * 2 + 1, 0))  # the seventh four is the second thread's second
    formula = {
        "inputs": {"seed": {"scalar": "s64"}, "drawn_before": {"pointer": "s64"}, "row_length": {"scalar": "s64"}},
        "let": {"kept": "rand(seed, drawn_before, int64(row) * row_length + int64(column), 0) < 0.75"},
        "outputs": {"C": "acc * 1.25 if kept else 0", "mask": {"value": "kept", "type": "bool"}, "raw": {"value": "rand(seed, 8, row, 3)"}},
    }
    assert verified({"kind": "gemm", **STRATEGIES["naive"], "epilogue": formula}) == []


def test_groups_have_values_of_their_own() -> None:
    formula = {
        "inputs": {"weight": {"per": "group"}, "bias": {"per": "column", "type": "f16"}, "gate": {"per": "element", "type": "f16"}},
        "outputs": {"C": "acc * weight + bias * gate", "saved": {"value": "acc", "type": "f32"}, "reach": {"reduce": "max", "of": "acc"}},
    }
    spec = {"kind": "gemm", **STRATEGIES["mma_sync"], "batch": "grouped", "epilogue": formula}
    assert verified(spec) == []


@pytest.mark.parametrize(("tile_n", "groups"), [(16, 1), (24, 1), (128, 2), (80, 2)])
def test_further_outputs_leave_a_wgmma_kernel_as_vectors(tile_n: int, groups: int) -> None:
    """Through the buffers of C, and in ping-pong those of C's type in boxes: tiles with and without pairs of matrices, rows that are no
    multiple of 16 bytes, two outputs. Operands and outputs of float32 are read and stored by two neighbours, ahead."""
    formula = {
        "inputs": {"gate": {"per": "element", "type": "f32"}},
        "outputs": {
            "C": "acc * gate",
            "before": {"value": "acc", "type": "bf16"},
            "half": {"value": "acc * 0.5", "type": "f16"},
            "full": {"value": "acc + gate", "type": "f32"},
        },
    }
    spec = {
        "kind": "gemm",
        "architecture": "sm_90a",
        "transpose": "nt",
        "alpha": "one",
        "beta": "zero",
        "storage": {"a": "bf16", "b": "bf16", "c": "bf16"},
        "alignment": {"a": 8, "b": 8, "c": 8},
        "store": "tma",
        "multiple_of": {"n": 8},
        "mainloop": {
            "strategy": "wgmma",
            "tile": {"m": 64, "n": tile_n, "k": 64},
            "stages": 3,
            "consumers": groups,
            "schedule": "ping_pong" if groups == 2 else "cooperative",
        },
        "epilogue": formula,
    }
    source = gemmgen.render(gemmgen.plan(spec)).text
    assert "load_vector(buffer" in source and ("store_box_2d(map_before_, buffer + 1 * kBufferBytes" in source) == (groups == 2)
    assert "float gate_next[kChunk / kMatrix][2][2]" in source and ("make_float2(full__pairs[i][half][0]" in source) == (groups == 2)
    assert verified(spec) == []


@pytest.mark.parametrize(("count", "ahead"), [(1, "a_chunk"), (3, 8), (6, 4)])
def test_operands_of_float32_are_read_before_they_are_needed(count: int, ahead: int | str) -> None:
    """Of several chunks and blocks of rows: a chunk ahead where registers are left, else as many fragments at once as they allow."""
    names = [f"given{number}" for number in range(count)]
    formula = {"inputs": {name: {"per": "element"} for name in names}, "value": " + ".join(["acc", *names])}
    mainloop = {"strategy": "wgmma", "tile": {"m": 128, "n": 96, "k": 64}, "stages": 3, "consumers": 1}
    spec = {"kind": "gemm", **STRATEGIES["wgmma"], "alpha": "one", "beta": "zero", "mainloop": mainloop, "epilogue": formula}
    plan = gemmgen.plan(spec)
    assert ahead == ("a_chunk" if plan.reads_next_chunk else plan.operands_ahead)
    assert verified(spec) == []


@pytest.mark.parametrize("tile_n", [16, 24])
def test_further_outputs_leave_a_turned_wgmma_kernel_as_vectors(tile_n: int) -> None:
    formula = {
        "inputs": {"bias": {"per": "row", "type": "bf16"}, "slope": {"per": "column", "type": "f16"}},
        "outputs": {"C": "acc * slope", "earlier": {"value": "acc + bias", "type": "bf16"}, "full": {"value": "acc"}},
    }
    mainloop = {"strategy": "wgmma", "tile": {"m": 128, "n": tile_n, "k": 64}, "stages": 3, "consumers": 1}
    fields = {
        "alpha": "one",
        "beta": "zero",
        "order": "column_major",
        "store": "tma",
        "multiple_of": {"m": 8},
        "alignment": {"a": 8, "b": 8, "c": 8},
        "transpose": "tn",
    }
    spec = {"kind": "gemm", "architecture": "sm_90a", "storage": HALVES, **fields, "mainloop": mainloop, "epilogue": formula}
    source = gemmgen.render(gemmgen.plan(spec)).text
    assert "earlier_packed[kChunk / kMatrix][2]" in source and "f16_to_float(slope_loaded[i])" in source
    assert verified(spec) == []


def test_batches_have_matrices_of_their_own() -> None:
    formula = {"inputs": {"gate": {"per": "element", "type": "u8"}}, "outputs": {"C": "acc * gate", "saved": {"value": "acc - gate"}}}
    assert verified({"kind": "gemm", "mainloop": NAIVE, "batch": "strided", "epilogue": formula}) == []


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ({"value": "silu(gat)", "inputs": {"gate": {"per": "row"}}}, r"unknown name 'gat' at character 6 of 'silu\(gat\)'.*'gate'"),
        ({"value": "sliu(acc)"}, r"unknown function 'sliu' at character 1.*'silu'|sliu.*silu"),
        ({"value": "acc + row"}, r"add of .*float32.*need one type|row"),
        ({"output": {"C": "acc"}}, "got the unknown field 'output', need inputs, let, outputs or value; did you mean 'outputs'?"),
        ({"value": "acc * x", "inputs": {"x": {"per": "row", "typ": "f16"}}}, "got the unknown field 'typ', need per, type, .*'type'?"),
        ("relu(acc)", "got 'relu\\(acc\\)', need a list of operations, or the fields of a formula: {value: relu\\(acc\\)}"),
        ({"value": "acc % 2"}, r"mod of a value of type float32 at character 1 of 'acc % 2', need integers: row, column"),
        ({"value": "float32(row // column)"}, "floordiv by column at character 16 of .*, need a positive whole number"),
        ({"value": "float32(row % 0)"}, "mod by 0 at character"),
        ({"value": "float32(row % 2.5)"}, "2.5 beside an integer value"),
        ({"value": "acc if acc else 1"}, "condition of type float32"),
        ({"value": "acc > 1"}, "truth value as the result"),
        ({"value": "acc +"}, "no expression at character"),
        ({"value": "acc * class", "inputs": {"class": {"per": "row"}}}, "got 'class', a word of Python's at inputs, need another name"),
        ({"value": "acc", "inputs": {"silu": {"per": "row"}}}, "got 'silu', which is a function at inputs, need another name"),
        ({"value": "acc", "inputs": {"bias": {"per": "row"}}}, "got 'bias', which no expression uses"),
        ({"value": "__import__('os')"}, "no expression|which no expression has"),
        ({"value": "a", "let": {"a": "b", "b": "a"}}, "a cycle of a, b|cycle"),
        ({"outputs": {"C": "acc", "value": "acc"}}, "two writers of the result"),
        ({"value": "saved", "let": {"saved": "acc"}, "outputs": {"saved": {"value": "acc"}}}, "two meanings of 'saved'"),
        ({"let": {"y": "acc"}, "outputs": {"y": "y * 2"}}, "two meanings of 'y', under let and under outputs"),
        ({"inputs": {"y": {"scalar": "f32"}}, "outputs": {"y": "y * 2"}}, "two meanings of 'y', under inputs and under outputs"),
        ({"let": {"value": "acc"}}, "got 'value', which expressions know already at let"),
        ({"outputs": {"C": "acc", "kept_z": "acc", "Kept_z": "acc"}}, "operands named kept_z and Kept_z, need names that differ by more"),
        ({"outputs": {"C": "acc", "total": {"reduce": "sum"}}}, "got reduce, need either value, or reduce with of"),
        ({"outputs": {"C": "acc", "total": {"reduce": "sum", "of": "acc", "type": "f16"}}}, "got a reduction of type f16, need f32"),
        ({"value": "acc * gain", "inputs": {"gain": {"scalar": "f16"}}}, "got a number of type f16, need f32"),
        ({"value": "lane + lane_", "inputs": {"lane": {"per": "row"}, "lane_": {"per": "row"}}}, "two meanings of 'lane_'"),
        ({"value": "gate", "inputs": {"gate": {"per": "group"}}}, "per group"),
        ({"value": "rand(1, 2, acc, 0)"}, "rand of float32 at character 12 of .*integers: row"),
        ({"value": "acc * seed", "inputs": {"seed": {"scalar": "s64"}}}, "mul of float32 and int64"),
        ({"value": "+".join(["acc"] * 300)}, "need at most"),
        ({"value": "(" * 300 + "acc" + ")" * 300}, "brackets inside each other"),
        ({"value": "mish(" * 30 + "acc" + ")" * 30}, "a long expression"),
        ({}, "an empty formula"),
        ({"inputs": {"größe": {"per": "row"}}, "value": "acc"}, "epilogue.inputs: got 'größe', need a name of ASCII letters"),
        ({"value": "acc * 1e39"}, "the largest float32"),
    ],
)
def test_bad_formulas_end_in_one_message(formula: Any, message: str) -> None:
    with pytest.raises(GemmgenError, match=message):
        gemmgen.plan({"kind": "gemm", "mainloop": NAIVE, "epilogue": formula})


def test_a_formula_equals_the_list_that_is_short_for_it() -> None:
    listed = gemmgen.plan({"kind": "gemm", "mainloop": NAIVE, "epilogue": [{"op": "bias", "per": "column"}, {"op": "silu"}]})
    formula = {"inputs": {"bias": {"per": "column"}}, "outputs": {"C": "silu(acc + bias)"}}
    written = gemmgen.plan({"kind": "gemm", "mainloop": NAIVE, "epilogue": formula})
    statements = [gemmgen.render(plan).text.split("// Applied")[1].split("{")[1].split("}")[0] for plan in (listed, written)]
    assert statements[0].split() == ["value", "+=", "bias[column];", "value", "=", "silu(value);", "return", "value;"]
    assert statements[1].split() == ["value", "=", "silu(value", "+", "bias[column]);", "return", "value;"]
