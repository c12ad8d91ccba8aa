"""Weights of 4 and 8 bits: the tensors of checkpoints, packed and multiplied as their formats say.

Every packer here is written from the public description of a format, one element at a time, and knows nothing of the reader.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemmgen import ops
from gemmgen.core.errors import LaunchError
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels.gemm.packed_weights import pack, unpack
from gemmgen.ops.weight_forms import Numbers
from gemmgen.ops.weight_kernels import Product, call_of, form_of, kernel_of, parts_of
from gemmgen.ops.weights import FORMATS

RNG = np.random.default_rng(17)
Array = npt.NDArray[Any]


def word(value: int) -> int:
    """32 bits as a signed number, as checkpoints hold them."""
    return value - 2**32 if value >= 2**31 else value


def packed_along(codes: Array, bits: int, axis: int) -> Array:
    """GPTQ's words: neighbours along an axis, the first in the lowest bits."""
    each = 32 // bits
    turned = codes if axis == 0 else codes.T
    rows = [
        [word(sum(int(turned[row * each + i, column]) << bits * i for i in range(each))) for column in range(turned.shape[1])]
        for row in range(turned.shape[0] // each)
    ]
    found = np.array(rows, np.int64).astype(np.int32)
    return found if axis == 0 else found.T


def packed_by_awq(codes: Array) -> Array:
    """AWQ's words along n: nibble i holds column (0, 2, 4, 6, 1, 3, 5, 7)[i]."""
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    rows = [[word(sum(int(row[8 * column + order[i]]) << 4 * i for i in range(8))) for column in range(len(row) // 8)] for row in codes]
    return np.array(rows, np.int64).astype(np.int32)


def case(k: int = 128, n: int = 40, groups: int = 2, bits: int = 4, zeros: bool = True) -> tuple[Array, Array, Array, Array]:
    """Codes with every value, zero points at both ends, exact scales, and weights."""
    codes = RNG.integers(0, 2**bits, (k, n))
    codes.flat[: 2**bits] = np.arange(2**bits)
    points = RNG.choice([1, 2 ** (bits - 1), 2**bits], (groups, n)) if zeros else np.full((groups, n), 2 ** (bits - 1))
    scales = RNG.choice([0.25, 0.5, 2.0], (groups, n)).astype(np.float16)
    group = k // groups
    weights = (codes - np.repeat(points, group, 0)) * np.repeat(scales, group, 0).astype(np.float64)
    return codes, points, scales, weights


def activations(k: int, rows: int = 3) -> Array:
    return RNG.integers(-2, 3, (rows, k)).astype(np.float16)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(1, 1), (32, 32), (33, 70), (130, 31)], ids=str)
def test_packing_keeps_every_code(bits: int, shape: tuple[int, int]) -> None:
    quads = RNG.integers(0, 16, shape)
    np.testing.assert_array_equal(unpack(pack(quads, 4, "quads"), 4, *shape, "quads"), quads)
    codes = RNG.integers(0, 2**bits, shape)
    words = pack(codes, bits)
    np.testing.assert_array_equal(unpack(words, bits, *shape), codes)


@pytest.mark.parametrize("format", FORMATS[:5])
def test_formats_of_checkpoints_are_the_same_weights(format: Any) -> None:
    codes, points, scales, weights = case()
    read: dict[str, tuple[Array, Array, Array]] = {
        "plain": (codes.astype(np.uint8), scales, points),
        "gptq": (packed_along(codes, 4, 0), scales, packed_along(points - 1, 4, 1)),
        "gptq_v2": (packed_along(codes, 4, 0), scales, packed_along(points % 16, 4, 1)),
        "awq": (packed_by_awq(codes), scales, packed_by_awq(points % 16)),
        "compressed-tensors": (packed_along(codes.T, 4, 1), scales.T.copy(), packed_along((points % 16).T, 4, 0)),
    }
    q, s, z = read[format]
    if format in ("gptq_v2", "awq", "compressed-tensors"):  # they have no zero point of 16
        weights = (codes - np.repeat(points % 16, 64, 0)) * np.repeat(scales, 64, 0).astype(np.float64)
    a = activations(128)
    got = ops.matmul(a, ops.Weight(q, s, z, format=format), output="float32")
    np.testing.assert_array_equal(got, (a.astype(np.float64) @ weights).astype(np.float32))


@pytest.mark.parametrize(("bits", "groups"), [(8, 4), (8, 1), (4, 1)], ids=str)
def test_signed_codes_need_no_zero_points(bits: int, groups: int) -> None:
    codes, _, scales, weights = case(bits=bits, groups=groups, zeros=False)
    weight = ops.Weight((codes - 2 ** (bits - 1)).astype(np.int8), scales if groups > 1 else scales[0], bits=bits)
    a = activations(128)
    np.testing.assert_array_equal(ops.matmul(a, weight, output="float32"), (a.astype(np.float64) @ weights).astype(np.float32))


def test_rows_sorted_by_group_take_their_columns() -> None:
    """GPTQ's act-order: rows belong to groups in any order, as ``g_idx`` says, or come sorted with a permutation."""
    codes, points, scales, _ = case()
    g_idx = RNG.permutation(np.repeat(np.arange(2), 64))
    weights = (codes - points[g_idx]) * scales[g_idx].astype(np.float64)
    a, perm = activations(128), np.argsort(g_idx, kind="stable")
    want = (a.astype(np.float64) @ weights).astype(np.float32)
    by_index = ops.Weight(packed_along(codes, 4, 0), scales, packed_along(points - 1, 4, 1), format="gptq", g_idx=g_idx)
    np.testing.assert_array_equal(ops.matmul(a, by_index, output="float32"), want)
    sorted_rows = ops.Weight(codes[perm].astype(np.uint8), scales, points, perm=perm)
    np.testing.assert_array_equal(ops.matmul(a, sorted_rows, output="float32"), want)


def test_bias_and_activation_follow() -> None:
    codes, points, scales, weights = case()
    bias = RNG.integers(-9, 10, 40).astype(np.float16)
    a = activations(128, rows=20)
    got = ops.matmul(a, ops.Weight(codes.astype(np.uint8), scales, points), bias=bias, activation="relu")
    np.testing.assert_array_equal(got, np.maximum(a.astype(np.float64) @ weights + bias, 0).astype(np.float16))


@pytest.mark.parametrize(("rows", "k", "n"), [(3, 0, 8), (3, 128, 0), (0, 128, 8)])
def test_products_without_terms_or_results(rows: int, k: int, n: int) -> None:
    weight = ops.Weight(np.zeros((k, n), np.uint8), np.ones((1, n), np.float16))
    assert np.array_equal(ops.matmul(activations(k, rows), weight), np.zeros((rows, n)))


def test_an_infinite_scale_reaches_its_group_alone() -> None:
    codes, points, scales, _ = case()
    scales[1, 3] = np.inf
    codes[64:, 3], points[1, 3] = 9, 8
    a = np.abs(activations(128)) + np.float16(1)
    got = ops.matmul(a, ops.Weight(codes.astype(np.uint8), scales, points), output="float32")
    assert np.isposinf(got[:, 3]).all() and np.isfinite(np.delete(got, 3, 1)).all()


@pytest.mark.parametrize("rows", [3, 40, 70])
@pytest.mark.parametrize(("groups", "scales_type"), [(2, np.float16), (1, np.float32)], ids=["groups", "columns"])
def test_int8_activations_have_scales_of_rows(rows: int, groups: int, scales_type: Any) -> None:
    """W4A8: every integer of 8 bits beside every code; scales of rows, or one for all."""
    codes, points, scales, weights = case(k=256, groups=groups)
    weight = ops.Weight(codes.astype(np.uint8), scales.astype(scales_type), points, activations="int8")
    a = RNG.integers(-128, 128, (rows, 256)).astype(np.int8)
    of_rows = RNG.choice([0.5, 1.0, 2.0], (rows, 1)).astype(np.float32)
    product = a.astype(np.float64) @ weights
    bias = RNG.integers(-9, 10, 40).astype(np.float32)
    got = ops.matmul(a, weight, scale_a=of_rows, bias=bias, output="float32", activation="relu")
    np.testing.assert_array_equal(got, np.maximum(of_rows * product + bias, 0).astype(np.float32))
    got = ops.matmul(a, weight, scale_a=np.array([2.0], np.float32), output="float32")
    np.testing.assert_array_equal(got, (2.0 * product).astype(np.float32))
    assert ops.matmul(a, weight).dtype == scales_type


@pytest.mark.parametrize("codes_are", ["integers", "e2m1"])
def test_8_bit_floats_beside_weights_of_4_bits(codes_are: Any) -> None:
    """Sums of products of few bits are exact, also on tensor cores that keep 14 bits of them."""
    kind = pytest.importorskip("ml_dtypes").float8_e4m3fn
    codes, points, scales, weights = case(zeros=codes_are == "integers")
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    if codes_are == "e2m1":
        weights = np.concatenate([values, -values])[codes] * np.repeat(scales, 64, 0).astype(np.float64)
    a = RNG.integers(-2, 3, (5, 128)).astype(kind)
    z = points if codes_are == "integers" else None
    weight = ops.Weight(codes.astype(np.uint8), scales, z, activations="float8_e4m3fn", codes=codes_are)
    got = ops.matmul(a, weight, output="float32")
    np.testing.assert_array_equal(got, (a.astype(np.float64) @ weights).astype(np.float32))


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@pytest.mark.parametrize("rows", [3, 20, 70])
def test_mxfp4_weights_have_powers_of_two_as_scales(rows: int) -> None:
    """Bytes (n, k / 2) with the first code in the lower half, and exponents (n, k / 32); the checkpoint is made here."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    k, n = 256, 40
    codes = RNG.integers(0, 16, (n, k))
    blocks = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    exponents = RNG.integers(125, 130, (n, k // 32)).astype(np.uint8)
    weights = (E2M1[codes] * np.repeat(2.0 ** (exponents.astype(int) - 127), 32, 1)).T
    a = RNG.integers(-2, 3, (rows, k)).astype(ml_dtypes.bfloat16)
    want = (a.astype(np.float64) @ weights).astype(np.float32)
    np.testing.assert_array_equal(ops.matmul(a, ops.Weight(blocks, exponents, format="mxfp4"), output="float32"), want)
    typed = ops.Weight(blocks, exponents.view(ml_dtypes.float8_e8m0fnu), format="mxfp4")
    np.testing.assert_array_equal(ops.matmul(a, typed, output="float32"), want)


@pytest.mark.parametrize("groups", [4, 1])
@pytest.mark.parametrize("rows", [3, 70])
def test_weights_of_8_bit_floats(rows: int, groups: int) -> None:
    """Every number of float8_e4m3fn: its sums differ by the roundings of float32 at most."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    k, n = 128, 40
    bits = np.resize([code for code in range(256) if code not in (0x7F, 0xFF)], (k, n)).astype(np.uint8)
    weights = bits.view(ml_dtypes.float8_e4m3fn)
    scales = RNG.choice([0.25, 0.5, 2.0], (groups, n)).astype(np.float16)
    full = weights.astype(np.float64) * np.repeat(scales.astype(np.float64), k // groups, 0)
    a = RNG.integers(-2, 3, (rows, k)).astype(np.float16)
    got = ops.matmul(a, ops.Weight(weights, scales), output="float32")
    sizes = np.abs(a.astype(np.float64)) @ np.abs(full)
    assert (np.abs(got - a.astype(np.float64) @ full) <= 2.0**-16 * sizes).all()
    assert np.abs(got - a.astype(np.float64) @ full).max() < 1.0 < np.abs(got).max()


def test_checkpoints_serve_int8_activations_too() -> None:
    codes, points, scales, weights = case()
    a = RNG.integers(-128, 128, (4, 128)).astype(np.int8)
    weight = ops.Weight(packed_along(codes, 4, 0), scales, packed_along(points - 1, 4, 1), format="gptq", activations="int8")
    np.testing.assert_array_equal(ops.matmul(a, weight, output="float32"), (a.astype(np.float64) @ weights).astype(np.float32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "gguf"}, "format is 'gguf'"),
        ({"bits": 3}, "bits is 3"),
        ({"scales": np.ones((3, 40), np.float16)}, r"scales are for 3 groups of k = 128, need 1, 4, 2, 1"),
        ({"scales": np.ones((2, 39), np.float16)}, "need 40 columns"),
        ({"scales": np.ones((2, 40), np.float32)}, "scales have elements float32"),
        ({"zeros": np.ones((1, 40), np.uint8)}, "zeros are for"),
        ({"zeros": np.ones((2, 39), np.uint8)}, r"zeros are for \(2, 39\) groups and columns, need those of scales, \(2, 40\)"),
        ({"q": np.ones(40, np.uint8)}, "q has elements uint8 and 1 axes, need integers and two axes"),
        ({"zeros": np.ones((2, 40), np.float16)}, "zeros has elements float16 and 2 axes, need integers"),
        ({"zeros": np.full((2, 40), 17, np.uint8)}, "zeros are from 17 to 17, need 0 to 16"),
        ({"q": np.full((128, 40), 16, np.uint8)}, "q has codes from 16 to 16, need 4 bits"),
        ({"q": np.ones((128, 40), np.float32)}, "q has elements float32"),
        ({"activations": "int4"}, "activations is 'int4' with bits 4"),
        ({"activations": "int8", "bits": 8}, "activations is 'int8' with bits 8, need"),
        ({"codes": "e2m1"}, "codes is 'e2m1' with bits 4 and activations None, need integers, e2m1 with 4 bits"),
        ({"codes": "e2m1", "activations": "int8", "zeros": None}, "codes is 'e2m1' with bits 4 and activations int8"),
        ({"codes": "e4m3", "zeros": None}, "codes is 'e4m3' with bits 4"),
        ({"codes": "e4m3", "zeros": None, "bits": 8, "q": np.full((128, 40), 127, np.uint8)}, "q has codes of NaN"),
        ({"format": "mxfp4", "zeros": None}, "scales has elements float16 and 2 axes, need integers"),
        ({"format": "awq"}, "need int32 for format awq"),
        ({"perm": np.zeros(128, np.int64)}, "perm is no permutation of 128 columns"),
        ({"g_idx": np.zeros(128, np.int64)}, "g_idx has no groups of 64 rows each"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_weights_that_no_kernel_reads_are_refused(changes: dict[str, Any], message: str) -> None:
    codes, points, scales, _ = case()
    given = {"q": codes.astype(np.uint8), "scales": scales, "zeros": points, **changes}
    with pytest.raises(LaunchError, match=message):
        ops.Weight(given.pop("q"), given.pop("scales"), given.pop("zeros"), **given)


def test_packed_weights_for_another_layout_are_refused() -> None:
    wide = ops.Weight(RNG.integers(0, 256, (128, 40)).astype(np.uint8), np.ones((1, 40), np.float16), np.zeros((1, 40), np.uint8), bits=8)
    narrow = ops.Weight(np.ones((128, 40), np.uint8), np.ones((1, 40), np.float16), np.ones((1, 40), np.uint8))
    _, kernel = kernel_of(call_of(Product(3, 40, 128, 8, 8), narrow._numbers, find_device("H200"), "f16"))
    with pytest.raises(LaunchError, match=r"B's extent 1 is 8, need ceil_div\(k, 32\) = 4"):
        kernel(A=activations(128), C=np.empty((3, 40), np.float16), **{**narrow._arrays, "B": wide._arrays["B"]})


def test_activations_that_do_not_go_with_a_weight_are_refused() -> None:
    codes, points, scales, _ = case()
    weight = ops.Weight(codes.astype(np.uint8), scales, points)
    with pytest.raises(LaunchError, match=r"a has shape \(3, 64\), need \(rows, 128\)"):
        ops.matmul(activations(64), weight)
    with pytest.raises(LaunchError, match="need the type of the Weight's scales, f16"):
        ops.matmul(activations(128).astype(np.float32), weight)
    with pytest.raises(LaunchError, match="goes with an array scale_a, out, bias, activation, output and stream alone"):
        ops.matmul(activations(128), weight, alpha=2.0)
    with pytest.raises(LaunchError, match="a Weight for activations of f16 goes without scale_a"):
        ops.matmul(activations(128), weight, scale_a=np.ones((3, 1), np.float32))
    bytes_weight = ops.Weight(codes.astype(np.uint8), scales, points, activations="int8")
    with pytest.raises(LaunchError, match="a has elements f16, need the Weight's activations, s8"):
        ops.matmul(activations(128), bytes_weight)
    with pytest.raises(LaunchError, match=r"scale_a is f32 of shape \(2, 1\), need float32 of \(3, 1\) or of one element"):
        ops.matmul(activations(128).astype(np.int8), bytes_weight, scale_a=np.ones((2, 1), np.float32))


@pytest.mark.parametrize(
    ("rows", "n", "bits", "tile"),
    [(4096, 14336, 4, 256), (1024, 4096, 4, 256), (4096, 14336, 8, 256), (300, 4096, 4, 80), (128, 8192, 4, 64)],
)
def test_tiles_of_many_rows_suit_the_number_of_rounds(rows: int, n: int, bits: int, tile: int) -> None:
    device = find_device("H200")
    form = form_of(Product(rows, n, 4096, 8, 2), Numbers("bf16", bits, 128, bits == 4), device.architecture, device.sm_count)
    assert form.tile[0] == tile
    assert form.tile[2] == (64 if bits == 8 else 128)


@pytest.mark.parametrize(("rows", "n", "columns"), [(1024, 14336, [12672, 1664]), (1024, 4096, [4096]), (64, 14336, [14336])])
def test_columns_of_a_short_last_round_are_a_second_product(rows: int, n: int, columns: list[int]) -> None:
    device = find_device("H200")
    parts = parts_of(Product(rows, n, 4096, 8, 8), Numbers("bf16", 4, 128, True), device.architecture, device.sm_count)
    assert [part.n for part in parts] == columns


def test_parts_of_columns_give_the_whole_product(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, points, scales, weights = case()
    monkeypatch.setattr("gemmgen.ops.weights.parts_of", lambda product, *_: (replace(product, n=32), replace(product, n=product.n - 32)))
    bias = RNG.integers(-9, 10, 40).astype(np.float16)
    a = activations(128, rows=70)
    got = ops.matmul(a, ops.Weight(codes.astype(np.uint8), scales, points), bias=bias)
    np.testing.assert_array_equal(got, (a.astype(np.float64) @ weights + bias).astype(np.float16))
