"""Each node of CUTLASS's epilogue visitor trees, and each feature of formulas, in the kernels of every family."""

from __future__ import annotations

from typing import Any

import pytest

import gemmgen
from gemmgen.core.errors import GemmgenError

from .test_formulas import FAMILIES, FIELDS, STRATEGIES, verified

NODES: dict[str, dict[str, Any]] = {
    "scalar": {"inputs": {"scale": {"scalar": "f32"}}, "term": "scale"},
    "scalar in memory": {"inputs": {"scale": {"pointer": "f16"}}, "term": "scale"},
    "row broadcast": {"inputs": {"bias": {"per": "column", "type": "bf16"}}, "term": "bias"},
    "column broadcast": {"inputs": {"slope": {"per": "row", "type": "f16"}}, "term": "slope"},
    "channel broadcast": {"inputs": {"gain": {"per": "channel"}}, "term": "gain"},
    "group broadcast": {"inputs": {"weight": {"per": "group"}}, "term": "weight"},
    "aux load": {"inputs": {"gate": {"per": "element", "type": "f16"}}, "term": "gate"},
    "aux load of bytes": {"inputs": {"code": {"per": "element", "type": "u8"}}, "term": "code"},
    "aux load of 8-bit floats": {
        "inputs": {"eighth": {"per": "element", "type": "e4m3"}, "wider": {"per": "element", "type": "e5m2"}, "unit": {"pointer": "e4m3"}},
        "term": "eighth * unit + wider",
    },
    "float32 residual": {"inputs": {"residual": {"per": "element", "type": "f32"}}, "term": "residual"},
    "aux load of doubles": {
        "inputs": {"fine": {"per": "element", "type": "f64"}, "level": {"scalar": "f64"}, "quantum": {"pointer": "f64"}},
        "term": "fine * quantum + level",
    },
    "row broadcast of doubles": {"inputs": {"shift": {"per": "column", "type": "f64"}}, "term": "shift"},
    "column broadcast of doubles": {"inputs": {"factor": {"per": "row", "type": "f64"}}, "term": "factor"},
    "aux store": {"outputs": {"stored": {"value": "z", "type": "bf16"}}},
    "aux store of doubles": {"outputs": {"stored_wide": {"value": "z", "type": "f64"}}},
    "mask": {"outputs": {"mask": {"value": "z > 0", "type": "bool"}}},
    "quantised": {"outputs": {"codes": {"value": "z", "type": "s8"}}},
    "row reduction": {"outputs": {"largest_of_row": {"reduce": "max", "per": "row", "of": "z"}}},
    "column reduction": {"outputs": {"least_of_column": {"reduce": "min", "per": "column", "of": "z"}}},
    "channel reduction": {"outputs": {"largest_of_channel": {"reduce": "absmax", "per": "channel", "of": "z"}}},
    "scalar reduction": {"outputs": {"largest": {"reduce": "absmax", "of": "z"}}},
    "row sum": {"outputs": {"sum_of_row": {"reduce": "sum", "per": "row", "of": "z"}}},
    "column sum": {"outputs": {"squares_of_column": {"reduce": "sum_of_squares", "per": "column", "of": "z"}}},
    "scalar sum": {"outputs": {"everything": {"reduce": "sum", "of": "z"}}},
    "compute": {"term": "gelu(acc) + tanh(acc) + clamp(acc, -2, 2)"},
    "topological graph": {"let": {"w": "z * z", "v": "w + z"}, "term": "v + w"},
    "coordinates": {"term": "float32(row) if row >= column else float32(column)"},
    "divided coordinates": {"term": "float32(row // 2 * (column % 3)) + float32((row - column) // 4 - (row - column) % 5)"},
    "random numbers": {"inputs": {"seed": {"scalar": "s64"}}, "term": "rand(seed, 8, seed, 0)"},
}
"""Formulas' parts by name: inputs, intermediate values, outputs, and a term of the result. ``z`` is an intermediate value."""
MISSING: dict[str, dict[str, str]] = {
    "gemm": {"channel broadcast": "per channel", "channel reduction": "per channel", "group broadcast": "batch: grouped"},
    "grouped": {"channel broadcast": "per channel", "channel reduction": "per channel"},
    "conv2d": {"group broadcast": "per group"},
    "elementwise": {
        "channel broadcast": "per channel of 2 axes", "channel reduction": "per channel of 2 axes", "group broadcast": "per group",
        "row sum": "reduce: sum", "column sum": "reduce: sum_of_squares", "scalar sum": "reduce: sum",
    },
    "elements": {
        "channel broadcast": "per channel", "group broadcast": "per group",
        **{f"{line} {kind}": "of elements" for line in ("row", "column", "channel", "scalar") for kind in ("reduction", "sum")
           if (line, kind) != ("channel", "sum")},
    },
    "reduction": {
        "row broadcast": "per column", "column broadcast": "per row", "row broadcast of doubles": "per column",
        "column broadcast of doubles": "per row", "channel broadcast": "per channel", "group broadcast": "per group",
        "row reduction": "per row", "column reduction": "per column", "channel reduction": "per channel",
        "row sum": "of results", "column sum": "of results", "scalar sum": "of results", "coordinates": "unknown name 'row'",
        "divided coordinates": "unknown name 'row'",
    },
}  # fmt: skip
"""Nodes that have no meaning in a family, or another kernel's, with words of the message."""
KINDS: dict[str, dict[str, Any]] = {name: {"kind": "gemm", **fields} for name, fields in STRATEGIES.items()} | FAMILIES
CHEAP = ("naive", "wgmma", *FAMILIES)
"""Kernels whose nodes are run together."""


def missing(kind: str) -> dict[str, str]:
    """The nodes that a kind refuses."""
    return MISSING["gemm" if kind in STRATEGIES or kind in ("batched", "cpu_gemm") else kind]


def spec(kind: str, nodes: list[str]) -> dict[str, Any]:
    """The spec of a kind with a formula of these nodes."""
    parts = [NODES[node] for node in nodes]
    inputs, let, outputs = (
        {key: one for part in parts for key, one in part.get(field, {}).items()} for field in ("inputs", "let", "outputs")
    )
    result = " + ".join(["z", *(f"0.125 * ({part['term']})" for part in parts if "term" in part)])
    formula = {"inputs": inputs, "let": {"z": "acc * 0.5", **let}, "outputs": {**outputs, "value": result}}
    return {**KINDS[kind], FIELDS.get(kind, "epilogue"): formula}


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_node_has_a_kernel_or_a_reason(kind: str, node: str) -> None:
    reason = missing(kind).get(node)
    if reason is None:
        assert gemmgen.plan(spec(kind, [node])).sequence.launches
        return
    with pytest.raises(GemmgenError, match=reason):
        gemmgen.plan(spec(kind, [node]))


@pytest.mark.parametrize("kind", CHEAP)
def test_all_nodes_of_a_family_together_are_right(kind: str) -> None:
    assert verified(spec(kind, [node for node in NODES if node not in missing(kind)])) == []


@pytest.mark.parametrize(
    "loops",
    [
        {"strategy": "blocked", "micro_kernel": {"rows": 4, "columns": 16}, "blocks": {"m": 32, "n": 64, "k": 32}},
        {
            "strategy": "blocked", "micro_kernel": {"rows": 4, "columns": 16}, "blocks": {"m": 32, "n": 64, "k": 32},
            "threads": {"count": 4, "least_work": 64, "parts": 2},
        },
    ],
    ids=["blocks", "threads"],
)  # fmt: skip
@pytest.mark.parametrize("order", ["row_major", "column_major"])
def test_nodes_in_blocked_kernels_for_processors_are_right(loops: dict[str, Any], order: str) -> None:
    turned = order == "column_major"
    micro = {"micro_kernel": {"rows": 16, "columns": 4}, "blocks": {"m": 64, "n": 32, "k": 32}} if turned else {}
    fields = spec("cpu_gemm", [node for node in NODES if node not in missing("cpu_gemm")])
    report = gemmgen.verify({**fields, "loops": loops | micro, "order": order})
    assert [str(result.failure) for result in report.results if result.failure] == []


def test_a_sum_for_each_channel_needs_channels_side_by_side() -> None:
    layer = {"input": {"type": "s8", "layout": "nchw32"}, "output": {"type": "s8", "layout": "nchw32"}}
    for node, per in (("column sum", "channel"), ("row sum", "row")):
        with pytest.raises(GemmgenError, match=f"a sum per {per} of NCHW32"):
            gemmgen.plan(spec("conv2d", [node]) | layer)


@pytest.mark.parametrize("layout", ["nchw32", "nchw4"])
def test_rows_are_pixels_in_layouts_by_blocks_of_channels(layout: str) -> None:
    nodes = ["column broadcast", "row reduction", "column reduction", "coordinates", "aux store", "scalar sum"]
    assert verified(spec("conv2d", nodes) | {"output": {"type": "f32", "layout": layout}}) == []


@pytest.mark.parametrize("kind", ["naive", "elementwise", "reduction", "cpu_gemm"])
def test_infinities_and_nan_are_constants(kind: str) -> None:
    formula = {
        "let": {"masked": "acc if acc > 1 else -inf", "marked": "nan if acc < -3 else min(masked, inf)"},
        "outputs": {
            "value": "max(marked, -inf)",
            "none": {"value": "min(acc, nan)", "type": "f32"},
            "top": {"reduce": "max", "of": "masked"},
        },
    }
    assert verified({**KINDS[kind], ("operations" if kind == "elementwise" else "epilogue"): formula}) == []
    with pytest.raises(GemmgenError, match="inf beside an integer"):
        gemmgen.plan({**KINDS["naive"], "epilogue": {"value": "float32(row + inf)"}})
    with pytest.raises(GemmgenError, match="'inf', which expressions know already"):
        gemmgen.plan({**KINDS["naive"], "epilogue": {"let": {"inf": "acc"}, "value": "inf"}})


def test_each_output_decides_the_accuracy_of_its_functions() -> None:
    formula = {
        "let": {"z": "acc + 1", "level": "tanh(z)"},
        "outputs": {
            "C": "gelu(z) * level",
            "argument": {"value": "z", "type": "f32"},
            "widest": {"value": "level + silu(z)", "type": "f32"},
            "narrow": {"value": "sigmoid(z)", "type": "f16"},
        },
    }
    (step,) = gemmgen.plan({**KINDS["wgmma"], "epilogue": formula}).epilogue
    assert {name: step.accuracies[name] for name in ("value", "argument", "widest", "narrow", "level", "z_")} == {
        "value": "bfloat16", "argument": "full", "widest": "full", "narrow": "halves", "level": "full", "z_": "full",
    }  # fmt: skip
    assert all(text in step.code for text in ("single_gelu(", "tanhf(", "= level + silu(", "quick_sigmoid("))
    assert verified({**KINDS["wgmma"], "epilogue": formula}) == []
