"""ops.conv2d on NumPy arrays."""

import numpy as np
import pytest

from gemmgen import ops, symbols
from gemmgen.core.errors import LaunchError
from gemmgen.kernels.conv2d.reference import convolution, sums
from gemmgen.layouts import nchw32_to_nchw, nchw_to_nchw32

RNG = np.random.default_rng(5)
X = RNG.integers(-8, 9, (2, 64, 6, 7)).astype("i1")
W = RNG.integers(-8, 9, (32, 64, 3, 3)).astype("i1")
PACKED = nchw_to_nchw32(X)


def exact(stride=1, padding=0):
    p, q = ((extent + 2 * padding - 3) // stride + 1 for extent in (6, 7))
    sizes = {"n": 2, "k": 32, "p": p, "q": q, "r": 3, "s": 3, "groups": 1}
    pairs = {"stride": stride, "padding": padding, "dilation": 1}
    problem = sizes | {f"{name}_{axis}": value for name, value in pairs.items() for axis in "hw"}
    return convolution(X.astype(np.int64), W.astype(np.int64), problem)


@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 0)])
def test_sums_are_exact(stride, padding):
    got = ops.conv2d(PACKED, W, stride=stride, padding=padding, output="int32")
    assert (nchw32_to_nchw(got) == exact(stride, padding)).all()


def test_filter_is_reordered_once_and_scaling_bias():
    weights, bias = ops.Filter(W), np.arange(32, dtype="i4")
    expected = np.clip(np.rint(np.maximum(exact(1, 1) * 0.125 + bias[:, None, None], 0)), -128, 127)
    for _ in range(2):
        got = ops.conv2d(PACKED, weights, padding=1, alpha=0.125, bias=bias, activation="relu")
        assert (nchw32_to_nchw(got) == expected).all()
    assert len(weights._ordered) == 1


@pytest.mark.parametrize("kind", ["f2", "u2"])
def test_a_bias_of_16_bits_counts_as_float32(kind):
    x, w, bias = (channels_last(X[:, :8]).astype("f2"), W[:8, :8].astype("f2"), np.arange(8, dtype="f4"))
    given = bias.astype("f2") if kind == "f2" else (bias.view("u4") >> 16).astype("u2")
    assert (ops.conv2d(x, w, bias=given) == ops.conv2d(x, w, bias=bias)).all()


def channels_last(array):
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def test_channels_last_with_an_alpha_for_each_channel():
    alpha, bias = RNG.random(32).astype("f") / 16, RNG.standard_normal(32).astype("f")
    got = ops.conv2d(channels_last(X), W, padding=1, alpha=alpha, bias=bias, output="float32")
    assert got.shape == (2, 32, 6, 7) and got.strides[1] == 4
    assert np.allclose(got, exact(1, 1) * alpha[:, None, None] + bias[:, None, None], rtol=1e-6, atol=1e-6)


def test_channels_that_fill_no_block_and_a_residual():
    x, w = channels_last(X[:, :48]), W[:19, :48]
    residual = channels_last(RNG.integers(-9, 9, (2, 19, 6, 7)).astype("i4"))
    got = ops.conv2d(x, w, padding=1, residual=residual, output="int32")
    padded = ops.conv2d(
        channels_last(np.pad(x, ((0, 0), (0, 16), (0, 0), (0, 0)))),
        np.pad(w, ((0, 13), (0, 16), (0, 0), (0, 0))),
        padding=1,
        output="int32",
    )
    assert (got == padded[:, :19] + residual).all()


def test_uint8_with_a_zero_point_that_the_padding_has_too():
    x = RNG.integers(0, 256, (2, 64, 6, 7)).astype("u1")
    got = ops.conv2d(channels_last(x), W, padding=1, zero_point=100, output="int32")
    sizes = {"n": 2, "k": 32, "p": 6, "q": 7, "r": 3, "s": 3, "groups": 1}
    pairs = {f"{name}_{axis}": 1 for name in ("stride", "padding", "dilation") for axis in "hw"}
    assert (got == convolution(x.astype("i8") - 100, W.astype("i8"), sizes | pairs)).all()


def test_float16_and_float32_of_it():
    x, w = channels_last(RNG.standard_normal((1, 16, 5, 4)).astype("f2")), RNG.standard_normal((24, 16, 2, 2)).astype("f2")
    sizes = {"n": 1, "k": 24, "p": 4, "q": 3, "r": 2, "s": 2, "groups": 1, "padding_h": 0, "padding_w": 0}
    pairs = {f"{name}_{axis}": 1 for name in ("stride", "dilation") for axis in "hw"}
    expected = sums(x.astype("d"), w.astype("d"), sizes | pairs)
    assert np.allclose(ops.conv2d(x, w), expected, rtol=2e-3, atol=1e-2)
    assert np.allclose(ops.conv2d(x, w, output="float32"), expected, rtol=1e-5, atol=1e-4)


def test_a_residual_in_nhwc():
    residual = RNG.standard_normal((2, 4, 5, 32)).astype("f")
    got = ops.conv2d(PACKED, W, residual=residual, gamma=2.0, output="float32", layout="nhwc")
    assert np.allclose(got, exact().transpose(0, 2, 3, 1) + 2 * residual, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((X[0], W), {}, "or NCHW32"),
        ((X, W), {}, "x must have its channels side by side"),
        ((PACKED, W[:16]), {}, "k is 16, need a multiple of 32"),
        ((PACKED, W[:, :32]), {}, "the filter has 32 input channels for 1 groups, x has 64"),
        ((PACKED, W), {"stride": 0}, "stride is 0, need an integer of at least 1"),
        ((PACKED, W), {"padding": (1, 2, 3)}, "padding is"),
        ((PACKED, W), {"layout": "nchw"}, "layout is 'nchw'"),
        ((PACKED, W), {"output": "int16"}, "need int8, uint8, int32, float32, float16 or bfloat16"),
        ((PACKED, W), {"output": "int32", "alpha": 0.5}, "cannot scale"),
        ((PACKED, W), {"activation": "gelus"}, "activation is 'gelus', need one of relu.*did you mean 'gelu'"),
        ((PACKED, W), {"activation": 3}, "activation is 3, need one of relu"),
        ((PACKED, W), {"zero_point": 1.5}, "zero_point is 1.5, need an integer from -128 to 127"),
        ((PACKED, W), {"zero_point": 128}, "zero_point is 128, need an integer from -128 to 127"),
        ((PACKED, W), {"zero_point": float("inf")}, "zero_point is inf, need an integer"),
        ((PACKED.view("u1"), W), {"zero_point": -1}, "zero_point is -1, need an integer from 0 to 255"),
        ((PACKED.astype("f2"), W.astype("f2")), {"zero_point": 1}, "zero_point is for x of int8 or uint8, not of float16"),
        ((PACKED, W), {"residual": ops.Filter(W)}, "residual is Filter, need an array"),
        ((PACKED, W.astype("f")), {}, "the filter has elements float32, need int8"),
        ((PACKED[:, :, ::2], W), {}, "x must be contiguous"),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(arguments, options, message):
    with pytest.raises(LaunchError, match=message):
        ops.conv2d(*arguments, **options)


@pytest.mark.parametrize("target", ["nchw32", "nhwc", "nchw4"])
@pytest.mark.parametrize("source", ["nchw32", "nhwc"])
@pytest.mark.parametrize("groups", [1, 2, 64])
@pytest.mark.parametrize(("kind", "output"), [("u1", "uint8"), ("i1", "float16"), ("f2", "float32")])
def test_layouts_types_and_groups_go_together(kind, output, groups, source, target):
    x = RNG.integers(0, 5, (2, 64, 5, 3)).astype(kind)
    w = RNG.integers(-2, 3, (64, 64 // groups, 3, 2)).astype("i1" if kind == "u1" else kind)
    sizes = {"n": 2, "k": 64, "p": 3, "q": 2, "r": 3, "s": 2, "groups": groups, "padding_h": 0, "padding_w": 0}
    pairs = {f"{name}_{axis}": 1 for name in ("stride", "dilation") for axis in "hw"}
    zero = 2 if kind != "f2" else 0
    alpha = RNG.integers(1, 3, 64).astype("f")
    sums = convolution(x.astype("i8") - zero, w.astype("i8"), sizes | pairs) * alpha[:, None, None]
    given = nchw_to_nchw32(x) if source == "nchw32" else channels_last(x)
    got = ops.conv2d(given, w, groups=groups, zero_point=zero, alpha=alpha, output=output, layout=target)
    if target != "nhwc":
        got = got.transpose(0, 1, 4, 2, 3).reshape(2, 64, 3, 2)
    elif source == "nchw32":
        got = got.transpose(0, 3, 1, 2)
    assert (got == (sums.clip(0, 255) if kind == "u1" else sums)).all()


def test_a_zero_point_with_a_filter_in_blocks_of_channels():
    plain = ops.conv2d(PACKED, W, zero_point=3, output="int32")
    assert (ops.conv2d(PACKED, nchw_to_nchw32(W), zero_point=3, output="int32") == plain).all()


def test_output_channels_side_by_side_of_any_number():
    assert (ops.conv2d(PACKED, W[:19], output="int32", layout="nhwc").transpose(0, 3, 1, 2) == exact()[:, :19]).all()


@pytest.mark.parametrize(
    ("c", "filter", "stride", "padding", "dilation", "groups"),
    [
        (32, (32, 1, 3, 3), 1, 1, 1, 32),
        (24, (36, 8, 3, 1), 2, 1, 1, 3),
        (3, (8, 3, 3, 3), 1, 1, 1, 1),
        (16, (5, 16, 2, 2), 9, 0, 1, 1),
        (16, (4, 16, 1, 1), 8, 130, 1, 1),
        (2, (3, 2, 2, 1), 1, 0, (160, 1), 1),
    ],
    ids=["one by one", "groups", "three channels", "long strides", "wide padding", "far taps"],
)
@pytest.mark.parametrize("kind", ["i1", "f2"])
def test_what_tensor_cores_do_not_take(c, filter, stride, padding, dilation, groups, kind):
    pair = (dilation, dilation) if isinstance(dilation, int) else dilation
    h, w = (11 + (filter[2] - 1) * (pair[0] - 1), 7)
    x, weights = RNG.integers(-4, 5, (1, c, h, w)).astype(kind), RNG.integers(-4, 5, filter).astype(kind)
    sizes = {"n": 1, "k": filter[0], "r": filter[2], "s": filter[3], "groups": groups}
    for axis, extent, taps, step in zip("hw", (h, w), filter[2:], pair, strict=True):
        sizes |= {f"stride_{axis}": stride, f"padding_{axis}": padding, f"dilation_{axis}": step}
        sizes["p" if axis == "h" else "q"] = (extent + 2 * padding - step * (taps - 1) - 1) // stride + 1
    got = ops.conv2d(channels_last(x), weights, stride=stride, padding=padding, dilation=dilation, groups=groups, output="float32")
    assert (got == convolution(x.astype("i8"), weights.astype("i8"), sizes)).all()


FORMULA = {
    "inputs": {"scale": {"per": "channel"}, "gate": {"per": "element", "type": "f16"}, "limit": {"scalar": "f32"}},
    "value": "min(value * scale, limit) * gate",
}


def test_an_epilogue_reads_numbers_channels_and_elements():
    scale, gate = RNG.random(32).astype("f"), channels_last(RNG.integers(-3, 4, (2, 32, 6, 7)).astype("f2"))
    operands = {"scale": scale, "gate": gate, "limit": 5.0}
    got = ops.conv2d(channels_last(X), W, padding=1, output="float32", epilogue=FORMULA, operands=operands)
    assert np.array_equal(got, np.minimum(exact(1, 1).astype("f") * scale[:, None, None], np.float32(5)) * gate)


@pytest.mark.parametrize(
    ("epilogue", "operands", "message"),
    [
        (FORMULA, {"scale": np.ones(31, "f"), "gate": np.ones((2, 32, 6, 7), "f2"), "limit": 1.0}, "side by side|scale has shape"),
        ({"value": "value", "outputs": {"kept": {"value": "value"}}}, {"kept": np.ones((2, 32, 6, 7), "f")}, "side by side"),
        ({"value": "value", "outputs": {"kept": {"value": "value"}}}, {}, "the epilogue has the output kept"),
        (
            {"value": "value * t", "inputs": {"t": {"per": "row"}}},
            {"t": np.ones(6, "f")},
            r"t has shape \(6,\), need \(84,\) or \(2, 6, 7\)",
        ),
        ({"value": "value * t", "inputs": {"t": {"per": "group"}}}, {"t": np.ones(6, "f")}, "t is per group"),
        ({"value": "value * w", "inputs": {"w": {"per": "channel"}}}, {"w": np.ones(32, "f")}, "a name that the call has itself"),
        (None, {"t": 1.0}, "operands without epilogue"),
    ],
)
def test_epilogues_without_a_place_in_a_convolution(epilogue, operands, message):
    with pytest.raises(LaunchError, match=message):
        ops.conv2d(channels_last(X), W, padding=1, output="float32", epilogue=epilogue, operands=operands)


def test_an_image_keeps_its_bits_beside_any_others():
    x = channels_last(RNG.standard_normal((3, 64, 8, 8)).astype(np.float16))
    w = (RNG.standard_normal((32, 64, 3, 3)) / 24).astype(np.float16)
    together = ops.conv2d(x, w, padding=1, batch_invariant=True)
    alone = ops.conv2d(channels_last(x[1:2]), w, padding=1, batch_invariant=True)
    assert (alone.view(np.uint16) == together[1:2].view(np.uint16)).all()


def test_an_epilogue_stores_further_outputs():
    kept = channels_last(np.zeros((2, 32, 6, 7), "f"))
    given = {"kept": kept, "top": np.full(32, -np.inf, "f"), "Pixels": np.full((2, 6, 7), -np.inf, "f")}
    sums = {"added": np.zeros(32, "f"), "each": np.zeros(84, "f"), "all_of": np.zeros(1, "f")}
    weight = RNG.integers(-3, 4, (2, 6, 7)).astype("f")
    formula = {
        "inputs": {"weight": {"per": "row"}},
        "let": {"z": "acc + weight"},
        "outputs": {
            "value": "relu(z)",
            "kept": {"value": "z", "type": "f32"},
            "top": {"reduce": "max", "per": "channel", "of": "z"},
            "Pixels": {"reduce": "max", "per": "row", "of": "z"},
            "added": {"reduce": "sum", "per": "column", "of": "z"},
            "each": {"reduce": "sum", "per": "row", "of": "z"},
            "all_of": {"reduce": "sum", "of": "z"},
        },
    }
    got = ops.conv2d(channels_last(X), W, padding=1, output="float32", epilogue=formula, operands=given | sums | {"weight": weight})
    z = exact(1, 1) + weight[:, None]
    assert np.array_equal(got, np.maximum(z, 0)) and np.array_equal(kept, z)
    assert np.array_equal(given["top"], z.max((0, 2, 3))) and np.array_equal(given["Pixels"], z.max(1))
    assert np.array_equal(sums["added"], z.sum((0, 2, 3))) and np.array_equal(sums["each"], z.sum(1).reshape(-1))
    assert sums["all_of"] == z.sum()


@pytest.mark.parametrize(
    "activation",
    [
        ["relu", {"op": "clamp", "low": 0.0, "high": 6.0}],
        [{"op": "clamp", "low": 0.0, "high": 6.0}],
        "clamp(value, 0, 6)",
        {"let": {"z": "max(acc, 0)"}, "value": "min(z, 6)"},
        lambda acc: symbols.clamp(acc, 0, 6),
        np.array(["relu", "min(value, 6)"]),
    ],
)
def test_activations_are_lists_formulas_and_functions(activation):
    got = ops.conv2d(channels_last(X), W, padding=1, output="float32", activation=activation)
    assert np.array_equal(got, np.clip(exact(1, 1), 0, 6))
