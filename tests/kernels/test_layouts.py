"""Layout conversions: exact inverses, zero padding that is announced, and the order of a reordered filter."""

import numpy as np
import pytest

from gemmgen import layouts
from gemmgen.kernels.conv2d.layouts import plain_filters
from gemmgen.layouts import ChannelsPadded


def values(*shape):
    return np.random.default_rng(len(shape)).integers(-128, 128, shape).astype(np.int8)


def test_a_channel_lies_in_its_block_at_its_position():
    x = values(2, 96, 3, 5)
    blocked = layouts.nchw_to_nchw32(x)
    assert blocked.shape == (2, 3, 3, 5, 32) and blocked.flags.c_contiguous and blocked.dtype == np.int8
    assert blocked[1, 2, 0, 4, 7] == x[1, 2 * 32 + 7, 0, 4]


@pytest.mark.parametrize("channels", [32, 64, 40, 1])
def test_nchw_comes_back(channels):
    x = values(2, channels, 3, 4)
    if channels % 32:
        with pytest.warns(ChannelsPadded):
            blocked = layouts.nchw_to_nchw32(x)
    else:
        blocked = layouts.nchw_to_nchw32(x)
    assert np.array_equal(layouts.nchw32_to_nchw(blocked, channels), x)


@pytest.mark.parametrize("channels", [64, 33])
def test_nhwc_comes_back(channels):
    x = values(2, 3, 4, channels)
    if channels % 32:
        with pytest.warns(ChannelsPadded):
            blocked = layouts.nhwc_to_nchw32(x)
    else:
        blocked = layouts.nhwc_to_nchw32(x)
    assert np.array_equal(layouts.nchw32_to_nhwc(blocked, channels), x)


def test_both_ways_into_nchw32_agree():
    x = values(2, 64, 3, 4)
    assert np.array_equal(layouts.nchw_to_nchw32(x), layouts.nhwc_to_nchw32(x.transpose(0, 2, 3, 1)))


def test_padding_is_zero_and_says_how_much():
    with pytest.warns(ChannelsPadded, match="40 channels were filled up with 24 of zeros to 64"):
        blocked = layouts.nchw_to_nchw32(values(1, 40, 2, 2))
    assert not layouts.nchw32_to_nchw(blocked)[:, 40:].any()


def test_a_multiple_of_32_is_not_warned_about(recwarn):
    layouts.nchw_to_nchw32(values(1, 32, 2, 2))
    assert not recwarn.list


def test_nchw4_quads():
    x = values(2, 8, 3, 4)
    assert np.array_equal(layouts.nchw4_to_nchw(x.reshape(2, 2, 4, 3, 4).transpose(0, 1, 3, 4, 2)), x)


@pytest.mark.parametrize("order", ["plain", "octets", "quads", "pairs"])
def test_a_reordered_filter_comes_back(order):
    w = values(64, 96, 3, 2)
    reordered = layouts.reorder_filter(w, order)
    assert reordered.shape == (3, 3, 2, 64, 32) and reordered.flags.c_contiguous
    assert np.array_equal(layouts.nchw32_to_nchw(layouts.restore_filter(reordered, order)), w)


@pytest.mark.parametrize("order", ["plain", "octets", "quads", "pairs"])
def test_a_blocked_filter_is_reordered_like_a_plain_one(order):
    w = values(32, 64, 1, 3)
    assert np.array_equal(layouts.reorder_filter(layouts.nchw_to_nchw32(w), order), layouts.reorder_filter(w, order))


def test_filters_that_are_missing_to_32_are_zero():
    with pytest.warns(ChannelsPadded, match="40 output channels were filled up with 24 of zeros to 64"):
        reordered = layouts.reorder_filter(values(40, 32, 1, 1), "octets")
    assert not layouts.restore_filter(reordered, "octets")[40:].any()


@pytest.mark.parametrize("order", ["plain", "octets", "quads", "pairs"])
def test_an_order_is_a_permutation(order):
    assert sorted(layouts.channel_order(order)) == list(range(32))


@pytest.mark.parametrize(("order", "shape"), [("rows", (40, 3, 2, 24)), ("neighbours", (48, 3, 2, 24)), ("taps", (3, 2, 24, 40))])
def test_a_filter_in_rows_or_by_taps_comes_back(order, shape):
    filter = values(40, 24, 3, 2)
    ordered = layouts.reorder_filter(filter, order)
    restored = layouts.restore_filter(ordered, order)
    assert ordered.shape == shape and ordered.flags.c_contiguous
    assert np.array_equal(restored[:40], filter)
    assert not restored[40:].any()


@pytest.mark.parametrize(("order", "shape"), [("filled_rows", (40, 256)), ("filled_neighbours", (48, 256))])
def test_a_filter_in_filled_rows_comes_back(order, shape):
    filter = values(40, 24, 3, 2)
    ordered = layouts.reorder_filter(filter, order)
    assert ordered.shape == shape and ordered.flags.c_contiguous
    assert np.count_nonzero(ordered) == np.count_nonzero(filter)
    assert np.array_equal(plain_filters(ordered, order, {"k": 40, "c": 24, "groups": 1, "r": 3, "s": 2}), filter)


def test_neighbours_lie_eight_apart():
    filter = values(32, 4, 1, 1)
    ordered = layouts.reorder_filter(filter, "neighbours")
    assert np.array_equal(ordered[16 + 3, 0, 0], filter[16 + 6, :, 0, 0])
    assert np.array_equal(ordered[16 + 11, 0, 0], filter[16 + 7, :, 0, 0])


def test_sums_of_taps_are_those_above_and_left():
    filter = values(5, 7, 3, 4)
    sums = layouts.tap_sums(filter)
    assert sums.shape == (4, 5, 5) and sums.dtype == np.int32
    assert np.array_equal(sums[2, 3], filter[:, :, :2, :3].astype(int).sum((1, 2, 3)))
    assert not sums[0].any() and not sums[:, 0].any()


def test_the_input_is_never_returned():
    x = values(1, 32, 1, 1)
    assert not np.shares_memory(layouts.nchw_to_nchw32(x), x)


@pytest.mark.parametrize(
    ("convert", "shape"),
    [
        (layouts.nchw_to_nchw32, (1, 32, 2)),
        (layouts.nchw32_to_nchw, (1, 1, 2, 2, 16)),
        (layouts.nhwc_to_nchw32, (1, 1, 2, 2, 32)),
        (lambda x: layouts.restore_filter(x, "plain"), (1, 1, 1, 32, 31)),
        (lambda x: layouts.reorder_filter(x, "plain"), (32, 1, 1, 1, 31)),
    ],
)
def test_a_wrong_shape_is_an_error_that_says_what_is_needed(convert, shape):
    with pytest.raises(ValueError, match=r"expected an array of shape \(.*\), got"):
        convert(values(*shape))


def test_more_channels_than_there_are_is_an_error():
    with pytest.raises(ValueError, match="c is 33, but 1 blocks hold 32 channels"):
        layouts.nchw32_to_nchw(values(1, 1, 2, 2, 32), 33)


def test_torch_tensors_are_converted_like_arrays():
    torch = pytest.importorskip("torch")
    x, w = values(2, 40, 3, 4), values(40, 64, 3, 3)
    with pytest.warns(ChannelsPadded):
        pairs = [
            (layouts.nchw_to_nchw32(torch.from_numpy(x)), layouts.nchw_to_nchw32(x)),
            (layouts.reorder_filter(torch.from_numpy(w), "octets"), layouts.reorder_filter(w, "octets")),
        ]
    for tensor, array in pairs:
        assert tensor.is_contiguous() and np.array_equal(tensor.numpy(), array)


@pytest.mark.gpu
def test_cupy_arrays_are_converted_like_arrays():
    cupy = pytest.importorskip("cupy")
    x = values(2, 40, 3, 4)
    with pytest.warns(ChannelsPadded):
        assert np.array_equal(layouts.nchw_to_nchw32(cupy.asarray(x)).get(), layouts.nchw_to_nchw32(x))


def test_an_order_that_no_kernel_reads_is_refused() -> None:
    with pytest.raises(ValueError, match="order is 'octet', need one of plain, octets"):
        layouts.reorder_filter(np.zeros((32, 32, 1, 1), np.int8), "octet")  # type: ignore[arg-type]
