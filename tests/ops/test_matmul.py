"""ops.matmul on NumPy arrays, which the emulator works on: NumPy's own product is the reference, on integers that are exact."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import ALL

from gemmgen import ops
from gemmgen.core.errors import LaunchError
from gemmgen.dispatch.candidates import Candidate
from gemmgen.dispatch.matcher import numeric_class_of
from gemmgen.dispatch.selection import choose, fitted
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels.gemm import matcher
from gemmgen.kernels.gemm.operator import interpret
from gemmgen.kernels.gemm.split_precision.kept import planes_layout
from gemmgen.kernels.requests import Fit, Layout
from gemmgen.kernels.spec_files import load_spec

RNG = np.random.default_rng(7)


def integers(*shape, type="f"):
    return RNG.integers(0 if type == "u1" else -4, 5, shape).astype(type)


def views(shape, flavour, type="f"):
    """An array of that shape in one of the layouts that a matrix can have."""
    *batch, rows, columns = shape
    if flavour == "columns":
        return np.swapaxes(integers(*batch, columns, rows, type=type), -1, -2)
    if flavour == "padded":
        return integers(*batch, rows, columns + 3, type=type)[..., :columns]
    if flavour == "odd":
        return integers(*batch, rows + 1, columns + 1, type=type)[..., 1:, 1:]
    return integers(*shape, type=type)


FLAVOURS = st.sampled_from(["rows", "columns", "padded", "odd"])


@settings(max_examples=30 if ALL else 6, deadline=None)
@given(m=st.integers(1, 70), n=st.integers(1, 70), k=st.integers(1, 40), a=FLAVOURS, b=FLAVOURS, out=FLAVOURS)
def test_every_layout_of_every_operand_gives_the_product(m, n, k, a, b, out):
    x, y, z = views((m, k), a), views((k, n), b), views((m, n), out)
    assert ops.matmul(x, y, out=z) is z
    assert (z == x @ y).all()


@settings(max_examples=30 if ALL else 4, deadline=None)
@given(m=st.integers(0, 70), n=st.integers(0, 70), k=st.integers(0, 40), a=FLAVOURS, b=FLAVOURS, out=FLAVOURS)
@pytest.mark.parametrize(("type", "sums"), [("f2", "f2"), ("i1", "i4"), ("u1", "f4")])
def test_tensor_cores_take_every_layout_of_every_operand(type, sums, m, n, k, a, b, out):
    x, y, z = views((m, k), a, type), views((k, n), b, type), views((m, n), out, sums)
    assert ops.matmul(x, y, out=z) is z
    assert (z == (x.astype("f") @ y.astype("f")).astype(sums)).all()


def test_new_result_has_type_of_its_factors_and_numpys_shape():
    a, b = integers(20, 30), integers(30, 10)
    assert (ops.matmul(a, b) == a @ b).all()
    half = ops.matmul(a.astype("f2"), b.astype("f2"))
    assert half.dtype == np.float16
    assert (half == (a @ b).astype("f2")).all()
    assert ops.matmul(a.astype("f2"), b).dtype == np.float32


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((7,), (7, 5)),
        ((4, 7), (7,)),
        ((7,), (7,)),
        ((3, 4, 7), (3, 7, 5)),
        ((3, 4, 7), (7, 5)),
        ((4, 7), (3, 7, 5)),
        ((2, 3, 4, 7), (2, 3, 7, 5)),
    ],
)
def test_vectors_and_batches_follow_numpys_rules(a, b):
    x, y = integers(*a), integers(*b)
    got = ops.matmul(x, y)
    assert got.shape == (x @ y).shape
    assert (got == x @ y).all()


@pytest.mark.parametrize("size", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_empty_extents_are_fine(size):
    m, n, k = size
    got = ops.matmul(integers(m, k), integers(k, n))
    assert got.shape == (m, n)
    assert (got == 0).all()


@pytest.mark.parametrize("shape", [(3, 0, 4), (2, 4, 0), (0, 2, 2)])
def test_a_batch_of_nothing_is_written_to_out(shape):
    batch, m, n = shape
    out = np.empty(shape, np.float32)
    assert ops.matmul(np.ones((batch, m, 5), "f"), np.ones((batch, 5, n), "f"), out=out, backend="emulator") is out


@pytest.mark.parametrize("size", [(0, 5), (6, 0)])
def test_vectors_of_an_empty_extent_are_fine(size):
    rows, columns = (np.ones(extent, "f") for extent in size)
    a, b = integers(size[0], 4).astype(np.float16), integers(4, size[1]).astype(np.float16)
    for bias in (rows[:, None].astype(np.float16), columns.astype(np.float16)):
        assert ops.matmul(a, b, bias=bias, scale_a=rows, scale_b=columns).shape == size


def test_all_that_can_follow_a_product_follows_it_in_order():
    a, b, c, bias, residual = integers(20, 8), integers(8, 12), integers(20, 12), integers(12), integers(20, 12)
    before = c.copy()
    ops.matmul(a, b, out=c, alpha=2.0, beta=-1.0, bias=bias, residual=residual, gamma=3.0, activation="relu")
    assert (c == np.maximum(2 * (a @ b) - before + bias + 3 * residual, 0)).all()


def test_biases_go_by_columns_by_rows_or_are_one_number():
    a, b = integers(20, 8), integers(8, 12)
    columns, rows = integers(12), integers(20, 1)
    assert (ops.matmul(a, b, bias=columns) == a @ b + columns).all()
    assert (ops.matmul(a, b, bias=rows) == a @ b + rows).all()
    assert (ops.matmul(a, b, bias=2.5) == a @ b + 2.5).all()


def test_a_bias_by_rows_repeats_with_each_product_of_a_batch():
    a, b, rows = integers(3, 20, 8), integers(8, 12), integers(20, 1)
    assert (ops.matmul(a, b, bias=rows) == a @ b + rows).all()


def test_a_column_major_result_has_its_bias_along_the_same_axis():
    a, b, bias, out = integers(20, 8), integers(8, 12), integers(12), np.zeros((20, 12), "f", order="F")
    ops.matmul(a, b, bias=bias, out=out)
    assert (out == a @ b + bias).all()


def test_several_activations_and_activations_with_arguments():
    a, b = integers(20, 8), integers(8, 12)
    got = ops.matmul(a, b, activation=["relu", {"op": "clamp", "high": 6.0}])
    assert (got == np.clip(a @ b, 0, 6)).all()


def test_factors_that_are_zero_hide_what_is_not_read():
    a, b, c = np.full((4, 4), np.nan, "f"), integers(4, 4), integers(4, 4)
    before = c.copy()
    ops.matmul(a, b, out=c, alpha=0.0, beta=2.0)
    assert (c == 2 * before).all()


A, B = integers(6, 8), integers(8, 4)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((A, A), {}, "a has 8 columns, b has 6 rows"),
        ((A.astype("d"), B), {}, "a, b and the result have elements float64, float32, float32; float64 goes with float64 alone"),
        ((A, B), {"bias": integers(3)}, r"bias has shape \(3,\), need \(4,\)"),
        ((A, B), {"beta": 1.0}, "there is no out"),
        ((A, B), {"out": np.empty((12, 8), np.float32)[::2, ::2]}, "out has strides"),
        ((A, B), {"activation": "softmax"}, "activation is 'softmax', need one of relu"),
        ((A, B), {"activation": {"op": "clamp"}}, "needs low, high or both"),
        ((A, B), {"activation": {"op": "clamp", "high": [1]}}, "clamp.high: Input should be a valid number"),
        ((A, B), {"alpha": "2"}, "alpha must be a number, got str"),
        ((A, B), {"out": integers(6, 3)}, r"out has shape \(6, 3\), need \(6, 4\)"),
        ((A, B), {"residual": integers(4, 6)}, r"residual has shape \(4, 6\)"),
        (([1.0], B), {}, "a must be an array"),
        ((integers(2, 3, 4), integers(5, 4, 3)), {}, "do not broadcast"),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(arguments, options, message):
    with pytest.raises(LaunchError, match=message):
        ops.matmul(*arguments, **options)


def test_a_result_that_overlaps_a_factor_is_refused():
    with pytest.raises(LaunchError, match="is written, but overlaps"):
        ops.matmul(A[:4, :4], B[:4], out=A[1:5, 1:5])


def test_bytes_are_multiplied_on_tensor_cores() -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((5, 48), (7, 48)))
    got = ops.matmul(a, b.T)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, a.astype(np.int64) @ b.T.astype(np.int64))


def bytes_and_scales() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(6)
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((5, 48), (7, 48)))
    return a, b.T, rng.random((5, 1), dtype=np.float32), rng.random((1, 7), dtype=np.float32)


@pytest.mark.parametrize("scales", [(1.0, None), (0.5, 2.0)])
def test_a_result_with_scales_is_float_whatever_they_are(scales: tuple[float, float | None]) -> None:
    a, b, _, _ = bytes_and_scales()
    got = ops.matmul(a, b, scale_a=scales[0], scale_b=scales[1])
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, a.astype("f") @ b.astype("f"))


def test_scales_multiply_rows_and_columns() -> None:
    a, b, scale_a, scale_b = bytes_and_scales()
    got = ops.matmul(a, b, scale_a=scale_a, scale_b=scale_b)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, (a.astype(float) @ b.astype(float)) * scale_a * scale_b, rtol=1e-6)


def test_a_scale_in_memory_comes_after_all_else() -> None:
    a, b, scale_a, _ = bytes_and_scales()
    scale = np.array([0.01], np.float32)
    got = ops.matmul(a, b, scale_a=scale_a, scale_b=2.0, activation="relu", scale_out=scale, output="int8")
    exact = np.maximum(a.astype(float) @ b.astype(float) * scale_a * 2, 0) * 0.01
    np.testing.assert_array_equal(got, np.clip(np.rint(exact), -128, 127).astype(np.int8))


def test_the_absolute_maximum_is_that_before_the_last_scale() -> None:
    a, b, scale_a, scale_b = bytes_and_scales()
    exact = np.abs(a.astype(float) @ b.astype(float) * scale_a * scale_b).max()
    amax = np.zeros((), np.float32)
    ops.matmul(a, b, scale_a=scale_a, scale_b=scale_b, scale_out=np.full(1, 0.01, "f"), output="int8", amax=amax)
    assert amax == pytest.approx(exact, rel=1e-6)
    amax[...] = 1e9
    ops.matmul(a, b, scale_a=scale_a, scale_b=scale_b, amax=amax)
    assert amax == np.float32(1e9)


def test_nothing_outside_of_a_result_counts_for_its_maximum() -> None:
    amax = np.zeros(1, np.float32)
    bias = np.full(8, 16, np.float16)
    result = ops.matmul(-np.ones((5, 16), np.float16), np.ones((8, 16), np.float16).T, bias=bias, amax=amax)
    assert (result == 0).all()
    assert amax == 0


@pytest.mark.parametrize("backend", ["auto", "emulator"])
def test_scales_follow_a_result_that_is_stored_in_columns(backend: str) -> None:
    scale_a, scale_b = (np.arange(1, extent + 1, dtype=np.float32) for extent in (6, 4))
    a, b = integers(6, 5), integers(5, 4)
    got = ops.matmul(a, b, scale_a=scale_a, scale_b=scale_b, out=np.empty((4, 6), np.float32).T, backend=backend)
    np.testing.assert_array_equal(got, (a @ b) * scale_a[:, None] * scale_b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale_a": np.ones((1, 5), "f")}, r"scale_a has shape \(1, 5\)"),
        ({"scale_out": np.ones(7, "f")}, "need one element"),
        ({"scale_b": np.ones(7)}, "scale_b has elements float64, need float32"),
        ({"scale_a": np.ones(1, "f"), "beta": 1.0, "out": np.zeros((5, 7), np.int32)}, "pass a copy of out as residual"),
        ({"amax": np.zeros(2, "f")}, "need one element"),
        ({"amax": np.broadcast_to(np.float32(0), ())}, "amax is written, but the array is read-only"),
        ({"output": "int4"}, "output is 'int4', need float32"),
    ],
)
def test_scales_that_fit_nothing_are_refused(options: dict[str, object], message: str) -> None:
    a, b, _, _ = bytes_and_scales()
    with pytest.raises(LaunchError, match=message):
        ops.matmul(a, b, **options)


def groups() -> tuple[np.ndarray, ...]:
    offsets = np.array([7, 7, 100, 149], np.int32)
    return integers(150, 64).astype(np.float16), integers(4, 40, 64).astype(np.float16).transpose(0, 2, 1), offsets


def test_groups_of_rows_have_a_matrix_each() -> None:
    a, b, offsets = groups()
    bias = integers(4, 40).astype(np.float16)
    out = np.full((150, 40), -9, np.float16)
    assert ops.grouped_matmul(a, b, offsets, bias=bias, activation="relu", alpha=0.5, out=out) is out
    for index, (start, end) in enumerate(zip([0, *offsets], offsets, strict=False)):
        np.testing.assert_array_equal(out[start:end], np.maximum(a[start:end].astype("f") @ b[index].astype("f") / 2 + bias[index], 0))
    assert (out[149:] == -9).all()


def test_groups_of_rows_that_are_stored_in_columns():
    a, b, offsets = groups()
    found = ops.grouped_matmul(np.asfortranarray(a), b, offsets)
    for index, (start, end) in enumerate(zip([0, *offsets], offsets, strict=False)):
        np.testing.assert_array_equal(found[start:end], (a[start:end].astype("f") @ b[index].astype("f")).astype(np.float16))


@pytest.mark.parametrize("shape", [(5, 17, 33), (129, 70, 64), (3, 1, 8)])
@pytest.mark.parametrize("kind", [np.float16, np.int8])
def test_groups_of_any_shape_are_multiplied(shape: tuple[int, int, int], kind: type) -> None:
    m, n, k = shape
    a, b = integers(m, k).astype(kind), integers(3, k, n).astype(kind)
    offsets = np.array([m // 2, m // 2, m], np.int32)
    bias = integers(3, n)
    got = ops.grouped_matmul(a, b, offsets, bias=bias, output="float32")
    for group, rows in ((0, slice(0, m // 2)), (2, slice(m // 2, m))):
        np.testing.assert_array_equal(got[rows], a[rows].astype("f") @ b[group].astype("f") + bias[group])


def test_numbers_scale_groups_as_they_scale_products() -> None:
    a, b, offsets = groups()
    scaled = ops.grouped_matmul(a, b, offsets, scale_a=0.5, scale_b=np.float32(2), alpha=0.5)
    np.testing.assert_array_equal(scaled[:149], ops.grouped_matmul(a, b, offsets, alpha=0.5)[:149])


@pytest.mark.parametrize("types", [("f4", "f4"), ("f2", "f4")])
def test_a_maximum_of_float32_sums_is_refused(types: tuple[str, str]) -> None:
    with pytest.raises(LaunchError, match="amax is found on tensor cores, which multiply float32 with precision='tf32'"):
        ops.matmul(A.astype(types[0]), B.astype(types[1]), amax=np.zeros(1, "f"))


def test_a_maximum_of_float32_is_found_on_tensor_cores() -> None:
    amax = np.zeros(1, "f")
    product = ops.matmul(A, B, amax=amax, precision="tf32", backend="emulator")
    np.testing.assert_array_equal(product, A @ B)
    assert amax == np.abs(A @ B).max()


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"offsets": np.zeros(3, np.int32)}, {}, r"offsets has shape \(3,\)"),
        ({"offsets": np.zeros(4, np.int64)}, {}, "offsets has elements int64, need int32"),
        ({"b": integers(4, 63, 40).astype(np.float16)}, {}, r"need \(m, k\) and \(groups, k, n\)"),
        ({}, {"bias": integers(40).astype(np.float16)}, r"need \(4, 40\) without gaps"),
        ({}, {"scale_b": integers(40)}, "need one element, or"),
        ({}, {"out": np.zeros((40, 150), np.float16).T}, "its rows must be contiguous"),
    ],
)
def test_groups_that_do_not_go_together_are_refused(change: dict[str, object], options: dict[str, object], message: str) -> None:
    arguments = dict(zip(("a", "b", "offsets"), groups(), strict=True)) | change
    with pytest.raises(LaunchError, match=message):
        ops.grouped_matmul(**arguments, **options)


def test_an_unknown_precision_is_refused():
    with pytest.raises(LaunchError, match="precision is 'double', need 'f32', 'ffma', 'tf32', 'int8x14' or 'int8x15'"):
        ops.matmul(np.ones((2, 2), "f"), np.ones((2, 2), "f"), precision="double")


def test_precision_is_for_float32_factors():
    with pytest.raises(LaunchError, match="which is for float32 factors"):
        ops.matmul(np.ones((2, 2), np.float16), np.ones((2, 2), np.float16), precision="tf32")


@pytest.mark.parametrize(
    ("k", "words", "takes_planes"),
    [(4096, [], True), (4096, ["ffma"], False), (128, ["tf32"], True), (127, ["tf32"], False), (127, [], False)],
)
def test_planes_serve_where_they_pay(k, words, takes_planes):
    spec = load_spec("gemm/split_precision/f16x3/128x128")
    fit = matcher.fit(spec, matcher.parse_request([256, 256, k], words))
    assert isinstance(fit, Fit) == takes_planes


def choice_for(rows, **options):
    layouts = {"a": Layout.packed((rows, 4096), "bf16"), "b": Layout.packed((4096, 4096), "bf16")}
    request = interpret(layouts, options).request
    return choose(request, find_device("H200")).chosen


def test_one_class_serves_all_batches_if_rows_must_not_change():
    chosen = [choice_for(rows, batch_invariant=True) for rows in (1, 100, 5000)]
    assert {numeric_class_of(option.plan, option.dimensions) for option in chosen} == {"bf16, k16"}
    assert len({option.candidate.label for option in chosen}) > 1


@pytest.mark.parametrize(("type", "options"), [("f2", {}), ("i1", {"scale_b": 0.1, "activation": "gelu"}), ("f4", {"precision": "tf32"})])
def test_rows_have_the_same_bits_in_batches_of_any_size(type, options):
    rng = np.random.default_rng(3)
    a, b = ((2 * rng.standard_normal(shape)).astype(type) for shape in ((70, 272), (272, 24)))
    options = {"batch_invariant": True, "backend": "emulator", **options}
    whole = ops.matmul(a, b, **options)
    for rows in (1, 33):
        assert np.array_equal(ops.matmul(a[:rows], b, **options), whole[:rows])


@pytest.mark.parametrize("turned", [False, True])
def test_planes_that_are_kept_are_an_operand_of_the_kernel(turned):
    spec = load_spec("gemm/split_precision/f16x3/128x128")
    request = matcher.parse_request([256, 256, 512], ["nt", "planes"])
    fit = matcher.fit(spec, replace(request, c=matcher.transposed(request.c)) if turned else request)
    kept = "a" if turned else "b"
    assert fit.spec.mainloop.arithmetic.kept == kept
    assert fit.arrays[f"planes_{kept}"] == ("planes", request.planes)


@pytest.mark.parametrize("by_rows", [False, True])
def test_planes_of_a_weight_give_its_products(by_rows):
    a, w = integers(5, 72), integers(72, 36)
    kept = ops.Planes(w if by_rows else np.asfortranarray(w))
    np.testing.assert_array_equal(ops.matmul(a, kept), a @ w)
    assert kept.array() is None  # host memory: multiplied by the processor


def test_planes_of_a_left_factor_are_refused():
    w = integers(8, 8)
    with pytest.raises(LaunchError, match="right factor"):
        ops.matmul(ops.Planes(w), w)


def test_planes_are_made_once():
    w = integers(72, 36)
    kept = ops.Planes(w)
    made = kept.array(emulated=True)
    assert made.shape == planes_layout(Layout.packed(w.shape, "f32")).shape
    assert kept.array(emulated=True) is made


@pytest.mark.parametrize(
    ("w", "match"),
    [
        (np.zeros((4, 4), np.float16), "float32 matrices"),
        (np.zeros((2, 4, 4), np.float32), "float32 matrices"),
        (np.zeros((8, 8), np.float32)[::2, ::2], "contiguous copy"),
    ],
)
def test_planes_of_what_is_no_stored_float32_matrix_are_refused(w, match):
    with pytest.raises(LaunchError, match=match):
        ops.Planes(w)


def test_tf32_instances_take_float32_arrays():
    layouts = {name: Layout.packed((2048, 2048), "f32") for name in "ab"}
    turned = {**layouts, "b": Layout((2048, 2048), (1, 2048), "f32")}
    spec = load_spec("gemm/wgmma/tour/tf32_128x256")
    request = interpret(turned, {"precision": "tf32"}).request
    fitting = fitted(Candidate("tf32", spec), request, find_device("H200").architecture)
    assert not isinstance(fitting, str)


def _strided(axes: tuple[int, ...]) -> list[np.ndarray]:
    """Arrays of one shape whose strides no kernel reads: reversed, with gaps in both axes, one value everywhere."""
    wide = integers(*(2 * extent for extent in axes))
    gaps = wide[tuple(slice(None, None, 2) for _ in axes)]
    return [integers(*axes)[::-1], integers(*axes)[..., ::-1], gaps, np.broadcast_to(np.float32(3), axes)]


def test_integers_with_a_residual_give_float32() -> None:
    a, b = np.arange(-6, 6, dtype=np.int8).reshape(3, 4), np.arange(8, dtype=np.int8).reshape(4, 2)
    residual = np.full((3, 2), 0.5, np.float32)
    result = ops.matmul(a, b, residual=residual)
    assert result.dtype == np.float32
    assert (result == a.astype(float) @ b.astype(float) + residual).all()


@pytest.mark.parametrize("backend", ["auto", "emulator"])
@pytest.mark.parametrize("case", range(4))
def test_operands_of_any_strides_are_multiplied(backend, case):
    a, b, residual, bias = (_strided(axes)[case] for axes in ((6, 10), (10, 4), (6, 4), (4,)))
    result = ops.matmul(a, b, bias=bias, residual=residual, backend=backend)
    np.testing.assert_array_equal(result, a @ b + bias + residual)


@pytest.mark.parametrize("backend", ["auto", "emulator"])
def test_a_residual_is_stored_in_any_order(backend):
    a, b = integers(6, 10), integers(10, 4)
    residual = integers(6, 4)
    by_columns = np.empty((4, 6), np.float32).T
    for out, added in ((None, np.asfortranarray(residual)), (by_columns, residual)):
        np.testing.assert_array_equal(ops.matmul(a, b, residual=added, out=out, backend=backend), a @ b + residual)


def test_batches_broadcast_along_some_of_their_axes():
    a, b = integers(2, 1, 5, 6), integers(3, 6, 4)
    np.testing.assert_array_equal(ops.matmul(a, b), a @ b)
    np.testing.assert_array_equal(ops.matmul(a[:, 0], b[:2][::-1]), a[:, 0] @ b[:2][::-1])


def test_scales_with_gaps_are_read():
    a, b = integers(5, 8).astype(np.float16), integers(8, 4).astype(np.float16)
    scale = np.arange(1, 11, dtype=np.float32)[::2]
    np.testing.assert_array_equal(ops.matmul(a, b, scale_a=scale, output="float32"), scale[:, None] * (a @ b).astype(np.float32))


def test_an_operand_of_another_call_is_copied_anew():
    a, b = integers(6, 10)[::-1], integers(10, 4)
    first = ops.matmul(a, b)
    a += 1
    np.testing.assert_array_equal(ops.matmul(a, b), first + b.sum(axis=0))


def test_doubles_are_multiplied_in_float64() -> None:
    """Strides, a batch, and factors that float32 does not hold."""
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 21, 35)), rng.standard_normal((35, 18))
    assert np.allclose(ops.matmul(a, np.asfortranarray(b)), a @ b, rtol=0, atol=1e-13)
    out = rng.standard_normal((18, 21)).T
    want = a[0] @ b / 3 - 0.1 * out
    assert ops.matmul(a[0], b, out=out, alpha=1 / 3, beta=-0.1) is out
    assert np.allclose(out, want, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"b": np.ones((4, 4), np.float32)}, "a, b and the result have elements float64, float32, float32; float64 goes with float64"),
        ({"output": "float32"}, "a, b and the result have elements float64, float64, float32"),
        ({"bias": np.ones(4, np.float32)}, "bias has elements float32, need float64, as the result"),
        ({"alpha": 2.0, "activation": "gelu"}, "gelu of a value of type float64, need a float32 value"),
    ],
)
def test_doubles_beside_anything_else_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        ops.matmul(np.ones((4, 4)), **{"b": np.ones((4, 4)), **more})


def test_an_empty_field_of_packed_records_is_read() -> None:
    field = np.zeros((0, 4), [("a", "i1"), ("x", "f4")])["x"]
    assert ops.matmul(field, np.ones((4, 5), np.float32)).shape == (0, 5)
