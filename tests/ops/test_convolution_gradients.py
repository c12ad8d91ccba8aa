"""Gradients of ``ops.conv2d`` and transposed convolutions, beside sums in float64 that follow their definition."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from gemmgen import ops
from gemmgen.core.errors import LaunchError
from gemmgen.ops.functions.convolution_gradients import remainders


def layer(n, c, h, w, k, r, s, stride, padding, dilation, groups, seed=0):
    """Random images, filter, gradient of the results, and the window."""
    rng = np.random.default_rng(seed)
    window = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    made = [
        (extent + 2 * pad - step * (taps - 1) - 1) // skip + 1
        for extent, taps, skip, pad, step in zip((h, w), (r, s), stride, padding, dilation, strict=True)
    ]
    draw = [rng.standard_normal(shape).astype(np.float16) for shape in ((n, c, h, w), (k, c // groups, r, s), (n, k, *made))]
    return *draw, window


def taps_of(dy, filter_shape, window):
    """For each tap: the pixels of the padded images that it reads for all results."""
    (sh, sw), (dh, dw) = window["stride"], window["dilation"]
    heights, widths = sh * (dy.shape[2] - 1) + 1, sw * (dy.shape[3] - 1) + 1
    for row, column in itertools.product(*map(range, filter_shape)):
        yield row, column, slice(row * dh, row * dh + heights, sh), slice(column * dw, column * dw + widths, sw)


def by_definition(x, w, dy, window):
    """Gradients of the images and of the filter in float64, and the sums of their products' magnitudes."""
    (ph, pw), groups = window["padding"], window["groups"]
    padded = np.pad(x.astype(float), ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    dx, most_x = np.zeros_like(padded), np.zeros_like(padded)
    dw, most_w = np.zeros(w.shape), np.zeros(w.shape)
    k, c = w.shape[0] // groups, w.shape[1]
    for row, column, rows, columns in taps_of(dy, w.shape[2:], window):
        for group in range(groups):
            filters, channels = slice(group * k, group * k + k), slice(group * c, group * c + c)
            tap, given = w[filters, :, row, column].astype(float), dy[:, filters].astype(float)
            read = padded[:, channels, rows, columns]
            dx[:, channels, rows, columns] += np.einsum("nkpq,kc->ncpq", given, tap)
            most_x[:, channels, rows, columns] += np.einsum("nkpq,kc->ncpq", abs(given), abs(tap))
            dw[filters, :, row, column] = np.einsum("nkpq,ncpq->kc", given, read)
            most_w[filters, :, row, column] = np.einsum("nkpq,ncpq->kc", abs(given), abs(read))
    inner = slice(ph, ph + x.shape[2]), slice(pw, pw + x.shape[3])
    return dx[:, :, *inner], most_x[:, :, *inner], dw, most_w


def is_close(found, expected, most):
    """Within a rounding to float16 and sums in float32."""
    allowed = 2.0**-11 * abs(expected) + 2.0**-18 * most + 2.0**-24
    return found.shape == expected.shape and bool(np.all(abs(found.astype(float) - expected) <= allowed))


LAYERS = {
    "one tap": (2, 8, 3, 4, 8, 1, 1, (1, 1), (0, 0), (1, 1), 1),
    "three taps": (1, 8, 4, 3, 16, 3, 3, (1, 1), (1, 1), (1, 1), 1),
    "more padding than taps": (1, 8, 5, 5, 8, 2, 3, (1, 1), (3, 2), (1, 1), 1),
    "a stride that leaves pixels out": (1, 8, 4, 6, 8, 2, 1, (1, 3), (1, 0), (1, 1), 1),
    "dilated and strided": (1, 8, 8, 7, 8, 3, 2, (2, 1), (1, 2), (3, 2), 1),
    "a dilation that the stride divides": (1, 8, 9, 9, 8, 2, 2, (2, 2), (0, 1), (2, 2), 1),
    "groups": (1, 16, 4, 3, 32, 2, 2, (1, 1), (1, 1), (1, 1), 2),
    "channel by channel": (1, 8, 4, 3, 8, 3, 2, (1, 1), (1, 1), (1, 1), 8),
    "three channels": (1, 3, 5, 4, 6, 3, 3, (2, 2), (1, 1), (1, 1), 1),
    "one result": (1, 8, 3, 3, 8, 3, 3, (1, 1), (0, 0), (1, 1), 1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_those_of_the_definition(name):
    x, w, dy, window = layer(*LAYERS[name])
    dx, most_x, dw, most_w = by_definition(x, w, dy, window)
    assert is_close(ops.conv2d_input_gradient(dy, w, x.shape[2:], **window), dx, most_x)
    assert is_close(ops.conv2d_filter_gradient(x, dy, w.shape[2:], **window), dw, most_w)


def test_remainders_cover_each_element_and_tap_once():
    rng = random.Random(1)
    for _ in range(500):
        extent, taps, stride, padding, dilation = (rng.randint(*ends) for ends in ((1, 14), (1, 5), (1, 5), (0, 6), (1, 5)))
        outputs = (extent + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
        if outputs < 1:
            continue
        found = [[] for _ in range(extent)]
        for one in remainders(extent, outputs, taps, stride, padding, dilation):
            numbers = range(taps)[one.taps][::-1]
            read = range(outputs)[one.outputs]
            for place in range(one.count):
                at = place + one.skipped - one.padding
                pairs = [(tap, at + one.dilation * index) for index, tap in enumerate(numbers)]
                found[one.start + stride * place] += [(tap, read[index]) for tap, index in pairs if 0 <= index < len(read)]
        expected = [[] for _ in range(extent)]
        for output, tap in itertools.product(range(outputs), range(taps)):
            if 0 <= (element := output * stride + tap * dilation - padding) < extent:
                expected[element].append((tap, output))
        assert [sorted(one) for one in found] == [sorted(one) for one in expected]


def test_a_transposed_convolution_spreads_its_argument():
    x, w = np.zeros((1, 8, 2, 2), np.float16), np.zeros((8, 8, 3, 3), np.float16)
    x[0, 1, 0, 1], w[1, 2] = 2, np.arange(9).reshape(3, 3)
    y = ops.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1)
    expected = np.zeros((4, 4))
    expected[0:2, 1:4] = 2 * np.arange(9).reshape(3, 3)[1:]
    assert y.shape == (1, 8, 4, 4) and np.array_equal(y[0, 2].astype(float), expected) and not y[0, 3].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": (9, 9)}, "dy has 5 rows, a convolution of 9 rows has 9"),
        ({"groups": 3}, "w has 8 filters in 3 groups, dy has 8 channels"),
        ({"stride": 0}, "stride is 0, need an integer of at least 1"),
        ({"padding": (1, 1, 1)}, "need an integer of at least 0, or one for rows and one for columns"),
        ({"dilation": 1.5}, "dilation"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(change, message):
    given = {"shape": (5, 5), "padding": 1} | change
    with pytest.raises(LaunchError, match=message):
        ops.conv2d_input_gradient(np.zeros((1, 8, 5, 5), np.float16), np.zeros((8, 8, 3, 3), np.float16), **given)


def test_other_types_and_ranks_are_refused():
    dy, w = np.zeros((1, 8, 5, 5), np.float32), np.zeros((8, 8, 3, 3), np.float16)
    with pytest.raises(LaunchError, match="dy has elements float32, need float16 or bfloat16"):
        ops.conv2d_input_gradient(dy, w, (5, 5), padding=1)
    with pytest.raises(LaunchError, match="x has 3 axes, need 4"):
        ops.conv2d_filter_gradient(np.zeros((8, 5, 5), np.float16), w, (3, 3))
    with pytest.raises(LaunchError, match="output_padding is 2, need less than the stride, 2"):
        ops.conv_transpose2d(w, w, stride=2, output_padding=2)


@pytest.mark.parametrize("activation", [None, "relu"])
def test_torch_has_the_derivatives(activation):
    torch = pytest.importorskip("torch")
    ops.register_torch()
    generator = torch.Generator().manual_seed(5)
    x, w, bias = (torch.randn(*shape, generator=generator) for shape in ((2, 16, 7, 6), (8, 16, 3, 3), (8,)))
    window = {"stride": 2, "padding": 1}
    given = [one.requires_grad_() for one in (x.half().to(memory_format=torch.channels_last), w.half(), bias)]
    y = ops.conv2d(given[0], given[1], bias=given[2], activation=activation, **window)
    dy = torch.randn(y.shape, generator=generator).half()
    found = torch.autograd.grad(y, given, dy)
    plain = [one.detach().float().requires_grad_() for one in given]
    expected = torch.nn.functional.conv2d(*plain, **window)
    expected = expected.relu() if activation else expected
    for one, other in zip(found, torch.autograd.grad(expected, plain, dy.float()), strict=True):
        # Torch on a processor adds up float16 in float16.
        assert torch.allclose(one.float(), other, rtol=5e-3, atol=2e-2)


def test_torch_refuses_derivatives_that_are_not_known():
    torch = pytest.importorskip("torch")
    ops.register_torch()
    x = torch.randn(1, 8, 5, 5).half().to(memory_format=torch.channels_last).requires_grad_()
    w = torch.randn(8, 8, 1, 1).half()
    with pytest.raises(LaunchError, match="no derivative of the activation h_swish"):
        ops.conv2d(x, w, activation="h_swish")
    with pytest.raises(LaunchError, match="no second derivative"):
        torch.autograd.grad(ops.conv2d(x, w).sum(), x, create_graph=True)


def test_parts_that_begin_between_vectors_are_copied() -> None:
    x, w, dy, window = layer(1, 64, 9, 3, 3, 1, 5, (2, 2), (2, 2), (1, 1), 1)
    dx, most_x, _, _ = by_definition(x, w, dy, window)
    last = np.ascontiguousarray(dy.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    assert is_close(ops.conv2d_input_gradient(last, w, x.shape[2:], **window), dx, most_x)
