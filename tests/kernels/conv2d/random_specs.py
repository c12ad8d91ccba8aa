"""Specs drawn at random: most can work, some cannot."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

EXTENTS = {16: [16, 32, 64], 32: [32, 64, 128], 64: [64, 128]}


@st.composite
def tiles(draw: st.DrawFn) -> dict[str, Any]:
    warp = {"m": draw(st.sampled_from([32, 32, 64, 16])), "n": draw(st.sampled_from([32, 32, 64, 16]))}
    block = {axis: draw(st.sampled_from(EXTENTS[warp[axis]])) for axis in ("m", "n")}
    return {
        "threadblock": {**block, "k": draw(st.sampled_from([32, 64, 96, 128]))},
        "warp": warp,
        "instruction": draw(st.sampled_from(["m8n8k16", "m16n8k32", "m16n8k32"])),
    }


def parameter(*values: int) -> st.SearchStrategy[int | str]:
    return st.sampled_from(["argument", "argument", *values])


CONVOLUTIONS = st.fixed_dictionaries(
    {
        "r": parameter(1, 3),
        "s": parameter(1, 3),
        "stride_h": parameter(1, 2),
        "stride_w": parameter(1, 2),
        "padding_h": parameter(0, 1),
        "padding_w": parameter(0, 1),
        "dilation_h": parameter(1, 2),
        "dilation_w": parameter(1),
        "groups": st.sampled_from([1, 1, 2, "argument"]),
    },
    optional={"c": st.sampled_from([64, 96, 128]), "k": st.sampled_from([64, 128])},
)
ACTIVATIONS = st.one_of(
    st.just({"op": "none"}),
    st.just({"op": "relu"}),
    st.builds(lambda low, width: {"op": "clamp", "low": low, "high": low + width}, st.floats(-200, 100), st.floats(0, 200)),
    st.builds(lambda slope: {"op": "leaky_relu", "slope": slope}, st.floats(-1, 1, width=32)),
    st.builds(lambda scale: {"op": "h_swish", "scale": scale}, st.floats(0.125, 16, width=32)),
)
TO_INTEGERS = st.fixed_dictionaries(
    {
        "output": st.builds(lambda layout: {"type": "s32", "layout": layout}, st.sampled_from(["nchw32", "nhwc", "nchw4"])),
        "alpha": st.just("one"),
        "gamma": st.just("one"),
        "bias": st.sampled_from(["none", "s32"]),
        "activation": st.sampled_from([{"op": "none"}, {"op": "relu"}]),
    }
)
TO_ROUNDED = st.fixed_dictionaries(
    {
        "output": st.builds(
            lambda kind, layout: {"type": kind, "layout": layout},
            st.sampled_from(["s8", "s8", "f32"]),
            st.sampled_from(["nchw32", "nhwc", "nchw4"]),
        ),
        "alpha": st.sampled_from(["argument", "one"]),
        "beta": st.sampled_from(["argument", "one"]),
        "gamma": st.sampled_from(["argument", "one"]),
        "bias": st.sampled_from(["none", "s32", "f32"]),
        "activation": ACTIVATIONS,
    }
)
PIPELINES = st.one_of(
    st.builds(lambda stages: {"copy_through": "cp_async", "stages": stages}, st.integers(2, 5)),
    st.builds(lambda stages: {"copy_through": "registers", "stages": stages}, st.sampled_from([1, 2])),
)


@st.composite
def _specs(draw: st.DrawFn) -> dict[str, Any]:
    pipeline = draw(PIPELINES)
    if pipeline["copy_through"] == "cp_async":
        pipeline["persistent_blocks"] = draw(st.sampled_from([None, None, 3]))
    return {
        "kind": "conv2d",
        "architecture": draw(st.sampled_from(["sm_80", "sm_80", "sm_80", "sm_80", "sm_75"])),
        "gemm_m": draw(st.sampled_from(["output_channels", "pixels"])),
        "tile": draw(tiles()),
        **pipeline,
        "unroll": draw(st.sampled_from(["full", 1])) if pipeline["stages"] == 1 else "full",
        "input_cache": draw(st.sampled_from(["l2", "l1"])),
        "increments": draw(st.sampled_from(["precomputed", "precomputed", "computed"])),
        "convolution": draw(CONVOLUTIONS),
        "maximum_depth": draw(st.sampled_from([131071, 131071, 4096, 256])),
        **draw(st.one_of(TO_INTEGERS, TO_ROUNDED, TO_ROUNDED)),
        "float_conversion": draw(st.sampled_from(["instruction", "instruction", "instruction", "addition"])),
        "residual": draw(st.booleans()),
        "store": draw(st.sampled_from(["shared", "direct"])),
        "split_k": draw(st.sampled_from([1, 1, 1, 2, 3])),
        "rasterization": draw(st.sampled_from(["channels_first", "pixels_first"])),
    }


SPECS = _specs()
