"""Random reduction specs, most of them near something that works."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from gemmgen.kernels.reduction.arithmetic import JOINED
from gemmgen.kernels.reduction.spec import SERIES, WALKS, OperationName

OPERATIONS = st.sampled_from(get_args(OperationName))
INPUTS = st.sampled_from(["float32", "float32", "float64", "float16", "bfloat16", "int8", "int32", "int64"])
ACCUMULATORS = st.sampled_from([None, None, None, None, "float32", "float64", "int32", "int64"])
OUTPUTS = st.sampled_from([None, None, None, "float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "bool"])
SHAPES = ("all", "all", "rows", "rows", "columns", "middle", "strided", "tensor", "tensor", "tensor")
THREADS = st.sampled_from([32, 64, 128, 32, 64, 128, 64, 96])
VECTORS = st.sampled_from([1, 1, 2, 4, 8])
UNROLLS = st.sampled_from([1, 2, 3, 4])
FINISHES = st.sampled_from(["two_pass", "last_block", "first_block", "atomic"])
ELEMENTWISE = st.one_of(
    st.fixed_dictionaries({"op": st.just("scale"), "factor": st.sampled_from([0.5, -2.0, 0.1, 3.0])}),
    st.sampled_from([{"op": "square"}, {"op": "abs"}, {"op": "exp"}, {"op": "sqrt"}, {"op": "relu"}]),
    st.fixed_dictionaries({"op": st.just("bias"), "per": st.sampled_from(["all", "result"])}),
    st.fixed_dictionaries(
        {"op": st.just("cast"), "type": st.sampled_from(["float32", "float64", "float16", "bfloat16", "int8", "int32", "int64"])}
    ),
)


def _walk(draw: st.DrawFn) -> dict[str, Any]:
    """A strategy for tensors."""
    name = draw(st.sampled_from(WALKS))
    flat = name.startswith("flat") and draw(st.integers(0, 9)) > 0
    kept = st.integers(1, 2) if name in ("flat_columns", "flat_tiles") else st.just(1) if flat else st.integers(name == "tensor_columns", 4)
    strategy = {
        "name": name,
        "threads": draw(THREADS),
        "unroll": draw(UNROLLS),
        "vector": draw(st.sampled_from([None, None, 1, 2, 2, 4, 8])),
        "kept": draw(kept),
        "reduced": 1 if flat else draw(st.integers(1, 4)),
        "wide": name != "flat_rows" and draw(st.integers(0, 3)) == 0,
    }
    if name != "flat_rows" and strategy["kept"] > 1:
        strategy["repeated"] = draw(st.booleans())
    if name == "tensor_rows":
        strategy["lanes"] = draw(st.sampled_from([None, None, 1, 4, 8, 32]))
    if name == "flat_tiles":
        strategy["lanes"] = draw(st.sampled_from([None, 2, 4, 6, 8, 16]))
    if name == "tensor_columns":
        strategy |= {"lanes": draw(st.sampled_from([1, 4, 16, 32, 64])), "columns": draw(st.sampled_from([1, 1, 2, 3]))}
        strategy["ragged"] = draw(st.booleans())
    if name == "tensor_columns" and strategy["vector"] is None:
        strategy["vector"] = 1
    return strategy | ({"longest": draw(st.sampled_from([8, 16, 32]))} if name == "flat_rows" else {})


@st.composite
def reductions(draw: st.DrawFn, shapes: tuple[str, ...] = SHAPES) -> dict[str, Any]:
    """A spec as a mapping."""
    shape = draw(st.sampled_from(shapes))
    common = {"threads": draw(THREADS), "unroll": draw(UNROLLS)}
    if shape != "strided":
        common["vector"] = draw(VECTORS)
    kind = {"tensor": "walk", "all": "block", "rows": draw(st.sampled_from(["row_lanes", "row_blocks"])), "strided": "row_lanes"}.get(
        shape, "column_tiles"
    )
    if draw(st.integers(0, 19)) == 0:
        kind = draw(st.sampled_from(["block", "row_lanes", "row_blocks", "column_tiles", "walk"]))
    if kind == "block":
        name = draw(st.sampled_from([*SERIES, "streaming", "streaming", "streaming"]))
        strategy = {"name": name, "finish": draw(FINISHES)}
        if name in SERIES[:6]:
            strategy |= {"threads": common["threads"]}
        else:
            strategy |= {**common, "multiprocessors": draw(st.sampled_from([1, 2, 5])), "blocks_per_sm": draw(st.sampled_from([1, 2]))}
            strategy |= {"waves": draw(st.sampled_from([None, 2]))}
    elif kind == "walk":
        strategy = _walk(draw)
    elif kind == "row_lanes":
        strategy = {"name": kind, **common, "lanes": draw(st.sampled_from([1, 2, 4, 8, 16, 32])), "rows": draw(st.sampled_from([1, 2, 3]))}
    elif kind == "row_blocks":
        blocks = draw(st.sampled_from([1, 2, 5]))
        strategy = {"name": kind, **common, "blocks_per_row": blocks, "finish": draw(st.sampled_from(["two_pass", "last_block", "atomic"]))}
    else:
        finish = draw(st.sampled_from(["two_pass", "last_block"]))
        lanes = draw(st.sampled_from([1, 4, 16, 32, 64, 128]))
        strategy = {"name": kind, **common, "lanes": lanes, "splits": draw(st.sampled_from([1, 2, 3])), "finish": finish}
    fields: dict[str, Any] = {
        "kind": "reduction",
        "operation": draw(OPERATIONS),
        "input": draw(INPUTS),
        "shape": shape,
        "alignment": strategy.get("vector", 1) or 1 if draw(st.integers(0, 9)) else 1,
        "strategy": strategy,
        "architecture": draw(st.sampled_from(["sm_75", "sm_80", "sm_90"])),
        "correction": draw(st.sampled_from([0, 1])),
        "prologue": draw(st.lists(ELEMENTWISE, max_size=2)) if draw(st.booleans()) else [],
        "epilogue": draw(st.lists(ELEMENTWISE, max_size=2)) if draw(st.booleans()) else [],
    }
    if kind == "walk" and draw(st.integers(0, 3)) == 0:
        fields |= {"operation": draw(st.lists(st.sampled_from(JOINED), min_size=2, max_size=2)), "prologue": [], "epilogue": []}
        return fields
    for name, choices in (("accumulator", ACCUMULATORS), ("output", OUTPUTS)):
        chosen = draw(choices)
        if chosen is not None:
            fields[name] = chosen
    return fields
