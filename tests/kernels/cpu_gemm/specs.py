"""Specs of CPU GEMMs to test with."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gemmgen.hardware.cpu import CPU_ARCHITECTURES, runs_here

HERE = [name for name, found in CPU_ARCHITECTURES.items() if found.machine == "x86_64" and runs_here(found)]
"""The x86-64 levels that this machine runs."""


def blocked(architecture: str = "x86_64_v3", **changes: Any) -> dict[str, Any]:
    """A spec with blocks so small that small problems have several; ``changes`` of loops, or of the spec itself."""
    loops = {
        "strategy": "blocked",
        "micro_kernel": {"rows": 6, "columns": 16},
        "blocks": {"m": 24, "n": 48, "k": 32},
        "unroll": 2,
    }
    own = {key: changes.pop(key) for key in ("order", "transpose", "alpha", "beta", "epilogue", "label") if key in changes}
    return {"kind": "cpu_gemm", "architecture": architecture, **own, "loops": {**loops, **changes}}


@st.composite
def random_specs(draw: st.DrawFn) -> dict[str, Any]:
    """Specs of any form that can be planned."""
    architecture = draw(st.sampled_from(HERE))
    order, transpose = draw(st.sampled_from(["row_major", "column_major"])), draw(st.sampled_from(["nn", "nt", "tn", "tt"]))
    common = {"order": order, "transpose": transpose, "epilogue": draw(st.sampled_from(EPILOGUES))}
    common |= {"alpha": draw(st.sampled_from(["argument", "one"])), "beta": draw(st.sampled_from(["argument", "zero"]))}
    if draw(st.integers(0, 5)) == 0:
        strategy = draw(st.sampled_from(["naive", "reordered"]))
        return {
            "kind": "cpu_gemm",
            "architecture": architecture,
            **common,
            "loops": {"strategy": strategy, "unroll": draw(st.sampled_from(["auto", 1, 3]))},
        }
    scalar = draw(st.integers(0, 4)) == 0
    lanes = 1 if scalar else CPU_ARCHITECTURES[architecture].lanes
    vectors = draw(st.integers(1, 3))
    rows = draw(st.integers(1, (CPU_ARCHITECTURES[architecture].registers - 1 - vectors) // vectors))
    columns = vectors * lanes
    tile = {"rows": rows, "columns": columns} if order == "row_major" else {"rows": columns, "columns": rows}
    # The operand that vectors are read from can be read where it lies only if it is not stored along k.
    right = ("b", transpose[1]) if order == "row_major" else ("a", transpose[0])
    packs = ["both", right[0], *(["none", "a" if right[0] == "b" else "b"] if right[1] == "n" else [])]
    pack = draw(st.sampled_from(packs))
    blocks = {"m": tile["rows"] * draw(st.integers(1, 4)), "n": tile["columns"] * draw(st.integers(1, 4)), "k": draw(st.integers(1, 40))}
    prefetch = {name: draw(st.integers(0, 20)) if pack in (name, "both") else 0 for name in ("a", "b")}
    packing = pack != "none" and draw(st.booleans())
    plain = not packing and not any(prefetch.values())
    edges = ["padded"] if pack == "both" else ["fitted", "fitted"] if pack == right[0] and plain else []
    threads = {"count": draw(st.sampled_from([1, 1, 2, 3, "all"])), "divide": draw(st.sampled_from(["rows", "columns", "grid"]))}
    threads |= {"parts": draw(st.integers(1, 4)), "least_work": draw(st.sampled_from([1, 500]))}
    return blocked(
        architecture,
        **common,
        instructions="scalar" if scalar else "vector",
        micro_kernel=tile,
        blocks=blocks,
        pack=pack,
        edges=draw(st.sampled_from(["masked", *edges])),
        unroll=draw(st.sampled_from([1, 2, 4, 8]) if packing else st.integers(1, 5)),
        few=draw(st.sampled_from(["fastest", "invariant", "none"])),
        dot_columns=draw(st.sampled_from([None, 4, 7, 8])),
        prefetch={**prefetch, "c": draw(st.booleans()), "packing": packing},
        threads=threads,
    )


EPILOGUES: list[list[dict[str, Any]]] = [
    [],
    [{"op": "bias", "per": "row"}, {"op": "relu"}],
    [{"op": "bias", "per": "column"}, {"op": "residual"}, {"op": "clamp", "low": -2.0}],
    [{"op": "scale", "factor": 0.5}, {"op": "bias", "per": "all"}, {"op": "gelu"}],
    [{"op": "scale", "factor": 0.001}, {"op": "exp"}, {"op": "sqrt"}, {"op": "h_swish"}],
]
