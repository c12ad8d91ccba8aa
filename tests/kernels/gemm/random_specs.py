"""Random GEMM specs, most of them near something that works."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

EXTENTS = st.sampled_from([1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128])
SMALL_EXTENTS = st.sampled_from([1, 2, 4, 8, 16, 24, 32, 64])
WIDTHS = st.sampled_from([1, 2, 4, 4, 8])
TYPES = st.sampled_from(["f32", "f32", "f16", "bf16"])


VECTOR = st.fixed_dictionaries(
    {
        "strategy": st.just("gemv"),
        "threads": st.sampled_from([32, 64, 96, 128, 256]),
        "along": st.sampled_from(["k", "k", "m"]),
        "vectors": st.sampled_from(["aligned", "aligned", "shifted"]),
        "lanes": st.sampled_from([1, 2, 8, 32, 32, 64, 128]),
        "rows": st.sampled_from([1, 2, 4, 8]),
        "columns": st.sampled_from([1, 2, 3, 4, 7, 16]),
        "unroll": st.sampled_from([1, 2, 4]),
    }
)


@st.composite
def tiles(draw: st.DrawFn) -> dict[str, Any]:
    """Mostly a hierarchy that divides evenly, sometimes any numbers at all."""
    if draw(st.integers(0, 9)) == 7:
        return {
            "threadblock": {"m": draw(EXTENTS), "n": draw(EXTENTS), "k": draw(EXTENTS)},
            "warp": {"m": draw(EXTENTS), "n": draw(EXTENTS)},
            "thread": {"m": draw(EXTENTS), "n": draw(EXTENTS)},
        }
    thread_m, thread_n = draw(st.sampled_from([1, 2, 3, 4, 4, 4, 5, 8, 8])), draw(st.sampled_from([1, 2, 3, 4, 4, 4, 6, 8, 8]))
    lanes_m = draw(st.sampled_from([1, 2, 4, 8, 16, 32]))
    warp_m, warp_n = thread_m * lanes_m, thread_n * (32 // lanes_m)
    warps_m, warps_n = draw(st.sampled_from([1, 2, 2, 4, 3])), draw(st.sampled_from([1, 1, 2]))
    return {
        "threadblock": {"m": warp_m * warps_m, "n": warp_n * warps_n, "k": draw(st.sampled_from([8, 16, 32, 4, 2, 1]))},
        "warp": {"m": warp_m, "n": warp_n},
        "thread": {"m": thread_m, "n": thread_n},
    }


FRAGMENTS = st.sampled_from(["contiguous", "quads_in_warp", "quads_in_threadblock", "interleaved"])
SHARED = st.fixed_dictionaries(
    {
        "order": st.sampled_from(["mn_major", "k_major"]),
        "padding": st.sampled_from(["auto", "auto", "auto", 0, 1, 4]),
        "swizzle": st.sampled_from(["none", "xor"]),
        "fragment": st.one_of(st.none(), st.none(), FRAGMENTS),
        "k_vector": st.sampled_from([1, 1, 1, 2, 4]),
    }
)
TILED = st.fixed_dictionaries(
    {
        "strategy": st.just("tiled"),
        "tile": tiles(),
        "fragment": FRAGMENTS,
        "lanes": st.sampled_from(["row_major", "z_order"]),
        "copies": st.sampled_from(["registers", "cp_async"]),
        "stages": st.sampled_from([1, 2, 2, 3, 4, 5]),
        "fragment_buffers": st.sampled_from([1, 1, 2]),
        "order": st.sampled_from(["rows", "columns", "serpentine_rows", "serpentine_columns", "swirl"]),
        "unroll": st.sampled_from(["full", "full", 1, 2]),
        "k_groups": st.sampled_from([1, 1, 1, 2, 3]),
        "edges": st.sampled_from(["each_vector", "each_tile"]),
        "loaders": st.sampled_from(["all", "all", "all", "halves"]),
        "shared_a": SHARED,
        "shared_b": SHARED,
        "min_blocks_per_sm": st.sampled_from([1, 1, 1, 2, 4]),
    }
)


def mend(fields: dict[str, Any]) -> dict[str, Any]:
    """The same spec without most of the combinations that are known not to work."""
    loop = fields["mainloop"]
    if fields["early_launch"]:
        fields = {**fields, "architecture": "sm_90"}
    halves = [name for name, element in fields["storage"].items() if element != "f32"]
    narrow = {name: width if name in halves else min(4, width) for name, width in fields["alignment"].items()}
    fields = {**fields, "alignment": narrow}
    if loop["strategy"] == "naive":
        return {**fields, "store": "direct", "decomposition": {"scheme": "data_parallel"}}
    if loop["strategy"] == "gemv":
        scheme = "data_parallel" if fields["decomposition"]["scheme"] == "data_parallel" else "split_k_last"
        loop = {**loop, "lanes": min(loop["lanes"], loop["threads"] & -loop["threads"])}
        if loop["vectors"] == "shifted":  # A along m, and as many teams as a vector of halves has elements
            transpose = "tn" if fields["order"] == "row_major" else "nn"
            fields = {**fields, "transpose": transpose, "alignment": {**fields["alignment"], "a": 1}}
            loop |= {"along": "m", "threads": max(64, loop["threads"] & -loop["threads"]), "lanes": 8}
        return {**fields, "mainloop": loop, "store": "direct", "decomposition": {"scheme": scheme}}
    loop = {**loop, "min_blocks_per_sm": 1}
    tile = loop["tile"]
    if loop["loaders"] == "halves":
        if fields["transpose"] in ("nn", "tt"):
            fields = {**fields, "transpose": "tn" if fields["order"] == "row_major" else "nt"}
        fields = {**fields, "storage": {}, "cache": {}, "alignment": {"a": 4, "b": 4, "c": 4}}
        halves = []
        loop["shared_a"] = loop["shared_b"] = loop["shared_a"]
        tile = loop["tile"] = {**tile, "threadblock": {**tile["threadblock"], "m": 64, "n": 64}}
        tile |= {"warp": {"m": 64, "n": 32}, "thread": {"m": 8, "n": 8}}
    if loop["copies"] == "registers":
        fields = {**fields, "cache": {}}
    block, warp = tile["threadblock"], tile["warp"]
    threads = 32 * (block["m"] // warp["m"]) * (block["n"] // warp["n"])
    depth = max(block["k"], threads // min(block["m"], block["n"]))
    tile = loop["tile"] = {**tile, "threadblock": {**block, "k": depth}}
    if loop["copies"] == "cp_async":
        fields = {**fields, "architecture": "sm_90" if fields["early_launch"] else "sm_80"}
    else:
        loop["stages"] = min(2, loop["stages"])
    quads = tile["thread"]["m"] % 4 == 0 and tile["thread"]["n"] % 4 == 0
    if not quads and loop["fragment"].startswith("quads"):
        loop["fragment"] = "contiguous"
    k_group = 1
    for name, axis in (("shared_a", "m"), ("shared_b", "n")):
        shared = {**loop[name], "padding": "auto"}
        row = tile["threadblock"][axis if shared["order"] == "mn_major" else "k"]
        if row % (16 if halves else 8):
            shared["swizzle"] = "none"
        if not quads:
            shared["fragment"] = None
        if shared["order"] == "mn_major" or tile["threadblock"]["k"] % shared["k_vector"]:
            shared["k_vector"] = 1
        if shared["k_vector"] > 1 < k_group:
            shared["k_vector"] = k_group
        k_group = max(k_group, shared["k_vector"])
        loop[name] = shared
    if loop["stages"] == 1 or tile["threadblock"]["k"] % (2 * k_group):
        loop["fragment_buffers"] = 1
    if loop["fragment_buffers"] == 2:
        loop["unroll"] = "full"
    if (tile["thread"]["m"], tile["thread"]["n"]) != (8, 8) and loop["order"] == "swirl":
        loop["order"] = "serpentine_rows"
    return {**fields, "mainloop": loop}


NAIVE = st.fixed_dictionaries(
    {
        "strategy": st.just("naive"),
        "threadblock": st.fixed_dictionaries({"m": SMALL_EXTENTS, "n": SMALL_EXTENTS}),
        "unroll": st.sampled_from(["auto", 1, 4]),
    }
)
EPILOGUES = st.lists(
    st.one_of(
        st.fixed_dictionaries({"op": st.just("scale"), "factor": st.sampled_from([0.5, -2.0, 0.1, 3e-8])}),
        st.fixed_dictionaries({"op": st.just("bias"), "per": st.sampled_from(["row", "column", "all"])}),
        st.sampled_from([{"op": op} for op in ("relu", "residual", "silu", "sigmoid", "tanh", "gelu")]),
        st.fixed_dictionaries({"op": st.just("leaky_relu"), "slope": st.sampled_from([0.01, -0.5, 2.0, 0.0])}),
        st.sampled_from([{"op": "clamp", "low": -2.5}, {"op": "clamp", "high": 6}, {"op": "clamp", "low": -0.1, "high": 0.1}]),
        st.just({"op": "gelu", "form": "tanh"}),
    ),
    max_size=4,
)
ANY = st.fixed_dictionaries(
    {
        "kind": st.just("gemm"),
        "order": st.sampled_from(["row_major", "column_major"]),
        "transpose": st.sampled_from(["nn", "nt", "tn", "tt"]),
        "alpha": st.sampled_from(["argument", "one"]),
        "beta": st.sampled_from(["argument", "zero"]),
        "multiple_of": st.sampled_from([{}, {}, {"k": 32}, {"m": 192, "n": 64, "k": 64}, {"n": 4}, {"k": 3}]),
        "decomposition": st.sampled_from(
            [{"scheme": "data_parallel"}] * 3
            + [{"scheme": scheme, "slices": slices} for scheme in ("split_k_serial", "split_k_parallel") for slices in (2, 3, 17)]
            + [{"scheme": "split_k_parallel", "slices": "launch"}]
            + [{"scheme": "stream_k", "blocks": blocks} for blocks in (1, 3, 8, 100)]
        ),
        "store": st.sampled_from(["direct", "direct", "through_shared"]),
        "batch": st.sampled_from(["none", "none", "strided"]),
        "cache": st.sampled_from([{}, {"streaming_stores": True}, {"l2_prefetch_a": 128}, {"l1_b": "keep"}, {"l2_policy_b": "evict_last"}]),
        "rasterization": st.sampled_from([{}, {"along": "major"}, {"group": 2}, {"group": 3, "along": "major"}]),
        "storage": st.one_of(st.just({}), st.fixed_dictionaries({"a": TYPES, "b": TYPES, "c": TYPES})),
        "alignment": st.fixed_dictionaries({"a": WIDTHS, "b": WIDTHS, "c": WIDTHS}),
        "mainloop": st.one_of(TILED, TILED, TILED, VECTOR, NAIVE),
        "epilogue": EPILOGUES,
        "architecture": st.sampled_from(["sm_75", "sm_80", "sm_90"]),
        "early_launch": st.sampled_from([False, False, True]),
    }
)
SPECS = st.one_of(ANY, ANY.map(mend), ANY.map(mend), ANY.map(mend), ANY.map(mend))
