"""Random specs of float32 products by planes, whose operands a first kernel or the mainloop splits."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

SCHEMES = ("bf16x6", "bf16x9", "f16x3", "tf32x3")
STEPS = {"bf16x6": 16, "bf16x9": 16, "f16x3": 16, "tf32x3": 8}
COLUMNS = st.sampled_from((8, 16, 24, 32, 64))
OPERATIONS = [{"op": "bias", "per": per} for per in ("row", "column", "all")]
OPERATIONS += [{"op": "relu"}, {"op": "residual"}, {"op": "multiply"}, {"op": "gelu"}, {"op": "scale", "factor": -0.5}]
OPERATIONS += [{"op": "factor", "per": "row"}, {"op": "clamp", "low": -2.5, "high": 3.0}]


@st.composite
def tensor_memory_specs(draw: st.DrawFn) -> dict[str, Any]:
    """Specs on tensor memory, all of which work."""
    f32_by = draw(st.sampled_from(SCHEMES))
    along_k_only = f32_by == "tf32x3"
    column_major = draw(st.integers(0, 3)) == 0
    along_k = "tn" if column_major else "nt"
    transpose = along_k if along_k_only else draw(st.sampled_from(("nn", "nt", "tn", "tt")))
    pair = draw(st.booleans()) and transpose == along_k
    dynamic = draw(st.booleans())
    arithmetic: dict[str, Any] = {"f32_by": f32_by}
    batch = draw(st.sampled_from(("none", "none", "strided")))
    if batch == "none":
        arithmetic["kept"] = draw(st.sampled_from(("none", "none", "a", "b")))
    b_along_k = transpose[1] == along_k[1]
    depth = 32 if along_k_only else 64
    return {
        "kind": "gemm",
        "architecture": draw(st.sampled_from(("sm_100a", "sm_100a", "sm_103a"))),
        "order": "column_major" if column_major else "row_major",
        "transpose": transpose,
        "alpha": draw(st.sampled_from(("one", "argument"))),
        "beta": draw(st.sampled_from(("zero", "argument"))),
        "batch": batch,
        "alignment": {name: draw(st.sampled_from((1, 2, 4))) for name in "abc"} | {"c": draw(st.sampled_from((1, 2)))},
        "multiple_of": draw(st.sampled_from(({}, {}, {"k": 32}, {"n": 4}))),
        "rasterization": {"along": draw(st.sampled_from(("minor", "major"))), "group": draw(st.sampled_from((1, 2)))},
        "epilogue": draw(st.lists(st.sampled_from(OPERATIONS), max_size=2, unique_by=lambda operation: operation["op"])),
        "early_launch": draw(st.booleans()),
        "mainloop": {
            "strategy": "tcgen05",
            "arithmetic": arithmetic,
            "promote_every": draw(st.sampled_from(("auto", "auto", depth))),
            "tile": {"n": draw(st.sampled_from((32, 64))) if b_along_k else 64, "k": depth},
            "stages": 2,
            "persistent_blocks": 0 if dynamic else draw(st.sampled_from((0, 2))),
            "tiles": "dynamic" if dynamic else "static",
            "pair": pair,
        },
    }


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Mostly specs that work; tiles are small, so that they run quickly."""
    strategy = draw(st.sampled_from(("wgmma", "wgmma", "mma_sync")))
    in_mainloop = strategy == "wgmma" and draw(st.integers(0, 2)) > 0
    f32_by = draw(st.sampled_from(SCHEMES[:2] if in_mainloop and draw(st.integers(0, 9)) != 7 else SCHEMES))
    along_k_only = f32_by == "tf32x3" and strategy == "wgmma"
    column_major = draw(st.integers(0, 2)) == 0
    order = "column_major" if column_major else "row_major"
    transpose = ("tn" if column_major else "nt") if along_k_only else draw(st.sampled_from(("nn", "nt", "tn", "tt")))
    b_along_n = transpose[1] == ("t" if column_major else "n") and draw(st.integers(0, 9)) != 7
    alternating = in_mainloop and draw(st.booleans())
    consumers = 2 if alternating else draw(st.sampled_from((1, 1, 2)))
    rows = 64 * (1 if alternating else consumers)
    step = STEPS[f32_by]
    stored = draw(st.sampled_from(("bf16", "f16"))) if draw(st.integers(0, 15)) == 7 else "f32"
    schemes: list[dict[str, Any]] = [{"scheme": "data_parallel"}, {"scheme": "data_parallel"}]
    if strategy == "wgmma":
        schemes += [{"scheme": "split_k_cluster", "slices": slices} for slices in (2, 4)]
    if strategy == "wgmma" and (not in_mainloop or draw(st.integers(0, 9)) == 7):
        schemes += [{"scheme": "split_k_parallel", "slices": slices} for slices in (3, 20, "launch")]
    decomposition = draw(st.sampled_from(schemes))
    whole = decomposition["scheme"] != "split_k_cluster"
    tile_k = draw(st.sampled_from((64, 64, 64, 128) if in_mainloop else (32, 64) if f32_by == "tf32x3" else (64,)))
    fields: dict[str, Any] = {
        "kind": "gemm",
        "architecture": "sm_90a" if strategy == "wgmma" else draw(st.sampled_from(("sm_80", "sm_90"))),
        "order": order,
        "transpose": transpose,
        "alpha": draw(st.sampled_from(("one", "argument"))),
        "beta": draw(st.sampled_from(("zero", "argument"))),
        "storage": {} if stored == "f32" else {"c": stored},
        "batch": draw(st.sampled_from(("none", "none", "none", "strided") if not in_mainloop else ("none",) * 14 + ("strided",))),
        "alignment": {
            "a": draw(st.sampled_from((4, 4, 4, 1 if not in_mainloop else 4, 2 if not in_mainloop else 4))),
            "b": draw(st.sampled_from((1, 2, 4, 4))),
            "c": draw(st.sampled_from((1, 2))),
        },
        "multiple_of": draw(st.sampled_from(({}, {}, {}, {"k": 32}, {"n": 4}, {"m": 64, "n": 64, "k": 64}, {"k": 3}))),
        "rasterization": {"along": draw(st.sampled_from(("minor", "major"))), "group": draw(st.sampled_from((1, 2)))},
        "decomposition": decomposition,
        "epilogue": draw(st.lists(st.sampled_from(OPERATIONS), max_size=2, unique_by=lambda operation: operation["op"])),
        "early_launch": strategy == "wgmma" and draw(st.booleans()),
    }
    arithmetic: dict[str, Any] = {"f32_by": f32_by, "sums": draw(st.sampled_from(("auto", "auto", "plain", "compensated")))}
    if not in_mainloop:
        arithmetic["kept"] = draw(st.sampled_from(("none", "none", "a", "b") if fields["batch"] == "none" else ("none",)))
    if strategy == "mma_sync":
        warp = draw(st.sampled_from(((32, 32), (16, 32), (32, 16))))
        fields["mainloop"] = {
            "strategy": strategy,
            "arithmetic": arithmetic,
            "tile": {
                "threadblock": {"m": 64, "n": draw(st.sampled_from((32, 64))), "k": draw(st.sampled_from((16, 32)))},
                "warp": {"m": warp[0], "n": warp[1]},
            },
            "stages": draw(st.integers(2, 4)),
            "persistent_blocks": draw(st.sampled_from((0, 0, 3))),
        }
        return fields
    if in_mainloop:
        arithmetic["split"] = "mainloop"
    if draw(st.integers(0, 23)) == 7:
        fields["store"] = "tma"
    fields["mainloop"] = {
        "strategy": strategy,
        "arithmetic": arithmetic,
        "tile": {"m": rows * draw(st.sampled_from((1, 1, 1, 2))), "n": 64 if b_along_n else draw(COLUMNS), "k": tile_k},
        "stages": draw(st.integers(2, 3)),
        "consumers": consumers,
        "schedule": "alternating" if alternating else "cooperative",
        "cluster": draw(st.sampled_from(({}, {}, {"n": 2}))) if whole and not in_mainloop else {},
        "persistent_blocks": draw(st.sampled_from((0, 0, 2))) if whole and not alternating else 0,
        "promote_every": draw(st.sampled_from(("auto", step, 2 * step if not alternating else step))),
        "a_from": draw(st.sampled_from(("shared", "shared", "registers"))) if in_mainloop else "shared",
    }
    return fields
