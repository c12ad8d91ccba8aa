"""Random specs of GEMMs on tensor cores of sm_90a."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8": 1, "e4m3": 1, "e5m2": 1, "f32": 4, "s32": 4}
OTHERS = {"s8": "u8", "u8": "s8", "e4m3": "e5m2", "e5m2": "e4m3"}
"""Second factors of another type, by the type of the first."""
RESULTS = {"s8": ("s32", "s8", "u8", "f32", "bf16"), "e4m3": ("bf16", "f32", "e4m3", "e5m2")}


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Mostly specs that work; tiles are small, so that they run quickly."""
    a = draw(st.sampled_from(("f16", "bf16", "tf32", "s8", "u8", "e4m3", "e5m2")))
    b = draw(st.sampled_from((a, a, OTHERS.get(a, a))))
    c = draw(st.sampled_from(RESULTS.get(a, RESULTS.get(OTHERS.get(a, ""), ("f32", "f16", "bf16")))))
    size = ELEMENT_BYTES[a]
    plain = c == "s32"
    column_major = draw(st.integers(0, 3)) == 0
    along_k = "tn" if column_major else "nt"
    consumers = draw(st.sampled_from((1, 2, 2, 3)))
    ping_pong = consumers == 2 and draw(st.booleans())
    decomposition: dict[str, Any] = draw(
        st.sampled_from(
            ({"scheme": "data_parallel"},) * 3
            + (
                {"scheme": "split_k_parallel", "slices": 3},
                {"scheme": "split_k_cluster", "slices": 2},
                {"scheme": "stream_k", "blocks": draw(st.integers(1, 5))},
            )
        )
    )
    whole_tiles = decomposition["scheme"] == "data_parallel"
    streamed = decomposition["scheme"] == "stream_k"
    ping_pong = ping_pong and not streamed
    cluster = draw(st.sampled_from(({}, {}, {"m": 2}, {"n": 2}))) if decomposition["scheme"] != "split_k_cluster" and not streamed else {}
    persistent = draw(st.sampled_from((0, 2, 4))) if decomposition["scheme"] != "split_k_cluster" and not streamed else 0
    store = draw(st.sampled_from(("direct", "tma"))) if decomposition["scheme"] != "split_k_parallel" and not column_major else "direct"
    whole = 16 // ELEMENT_BYTES.get(c, 1)
    reads = c in ("f32", "f16", "bf16")
    operations = [{"op": "bias", "per": draw(st.sampled_from(("row", "column", "all")))}, {"op": "relu"}]
    operations += [{"op": "factor", "per": draw(st.sampled_from(("row", "column", "memory")))}]
    operations += [{"op": "residual"}, {"op": "multiply"}] if reads else []
    batches = ["none", "none", "strided"]
    batches += ["grouped", "grouped"] if decomposition["scheme"] == "data_parallel" and not column_major else []
    batch = draw(st.sampled_from(batches))
    may_copy = decomposition["scheme"] != "split_k_parallel" and batch != "grouped" and not streamed
    copied = draw(st.sampled_from(("none", "none", "a", "b", *(("both",) if a == b else ())))) if may_copy else "none"
    dynamic = persistent and whole_tiles and not cluster and copied == "none" and draw(st.booleans())
    letters = [
        draw(st.sampled_from("nt")) if size == 2 or copied in (name, "both") else letter for name, letter in zip("ab", along_k, strict=True)
    ]
    return {
        "kind": "gemm",
        "architecture": "sm_90a",
        "order": "column_major" if column_major else "row_major",
        "transpose": "".join(letters),
        "alpha": "one" if plain else draw(st.sampled_from(("one", "argument"))),
        "beta": draw(st.sampled_from(("zero", "argument"))) if reads else "zero",
        "storage": {"a": a, "b": b, "c": c},
        "batch": batch,
        "alignment": {
            **{name: draw(st.sampled_from((1, 2))) if copied in (name, "both") else 16 // size for name in "ab"},
            "c": whole if store == "tma" else draw(st.sampled_from((1, 2))),
        },
        "multiple_of": {"n": whole} if store == "tma" else {},
        "rasterization": {"along": draw(st.sampled_from(("minor", "major"))), "group": draw(st.sampled_from((1, 2)))},
        "decomposition": decomposition,
        "store": store,
        "epilogue": [] if plain else draw(st.lists(st.sampled_from(operations), max_size=2, unique_by=lambda operation: operation["op"])),
        "amax": draw(st.sampled_from(("none", "stored"))) if not plain and decomposition["scheme"] != "split_k_parallel" else "none",
        "early_launch": draw(st.booleans()),
        "mainloop": {
            "strategy": "wgmma",
            "tile": {
                "m": 64 * (1 if ping_pong else consumers) * draw(st.sampled_from((1, 1, 2))),
                "n": draw(st.sampled_from((16, 32, 64, 64, 96))),
                "k": draw(st.sampled_from((1, 1, 2))) * 128 // size,
            },
            "stages": draw(st.integers(2, 4)),
            "consumers": consumers,
            "schedule": "ping_pong" if ping_pong else "cooperative",
            "cluster": cluster,
            "copied": copied,
            "persistent_blocks": persistent,
            "a_from": (a_from := "registers" if letters[0] == along_k[0] and size > 1 and draw(st.integers(0, 3)) == 0 else "shared"),
            "unroll": draw(st.sampled_from(("full", "full", 1, 2))) if a_from == "shared" else "full",
            "tiles": "dynamic" if dynamic else "static",
        },
    }
