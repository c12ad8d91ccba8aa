"""``conv2d_input_gradient``, ``conv2d_filter_gradient`` and ``conv_transpose2d``: sums of the kernels of ``conv2d`` and ``matmul``.

With y = conv2d(x, w), an element of the gradient of x is the sum of dy[o] w[t] over all outputs o and taps t with
``o stride + t dilation - padding = i``. For the elements i of one remainder modulo the stride, these are a convolution of dy with every
``stride / gcd(stride, dilation)``-th tap, reversed, with stride 1: one launch for each remainder. The gradient of w is one product for each
tap, of dy and the pixels that the tap reads, summed over images and pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any, cast

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.calls import integer, pair
from gemmgen.kernels.conv2d.matcher import ALIGNMENT
from gemmgen.kernels.conv2d.problem import MAX_EXTENT
from gemmgen.ops.arrays import contiguous, is_torch, new_array, readable, view_of
from gemmgen.ops.filters import results_of
from gemmgen.ops.functions.conv2d import axes_moved, conv2d
from gemmgen.ops.functions.matmul import matmul
from gemmgen.runtime.arrays.protocols import Array, ArrayT

TYPES = ("f16", "bf16")


@dataclass(frozen=True)
class Remainder:
    """Elements of one axis of dx whose index plus the padding has one remainder modulo the stride, as a convolution of dy."""

    start: int
    """The first of these elements; the others follow in steps of the stride."""
    count: int
    taps: slice
    """The filter's taps that reach them; none if the slice is empty."""
    outputs: slice
    """Elements of dy that are read."""
    padding: int
    """Zeros on both sides of these."""
    skipped: int
    """Results of the convolution before the first element."""
    dilation: int


def remainders(extent: int, outputs: int, taps: int, stride: int, padding: int, dilation: int) -> Iterator[Remainder]:
    """The convolutions of an axis with ``outputs`` elements of dy that give those of ``extent`` elements of dx which taps reach."""
    shared = gcd(stride, dilation)
    between, steps = stride // shared, dilation // shared
    first_taps = {tap * dilation % stride: tap for tap in reversed(range(taps))}
    for remainder, tap in sorted(first_taps.items()):
        first = max(-((remainder - padding) // stride), 0)  # the first v with remainder + stride v - padding >= 0
        start = remainder + stride * first - padding
        count = max(-((start - extent) // stride), 0)
        if not count:
            continue
        reached = max(-((tap - taps) // between), 0)
        reach = steps * (reached - 1)
        last = first + (remainder - tap * dilation) // stride  # the element that the first tap reads for the first result
        before, after = reach - last, count - 1 + last - (outputs - 1)
        read = slice(max(-before, 0), max(outputs - max(-after, 0), 0))
        if not reached or read.start >= read.stop:
            yield Remainder(start, count, slice(0, 0), slice(0, 0), 0, 0, 1)
            continue
        pad = max(before, after, 0)
        yield Remainder(start, count, slice(tap, taps, between), read, pad, pad - max(before, 0), steps)


def conv2d_input_gradient(
    dy: ArrayT,
    w: Array,
    shape: tuple[int, int],
    *,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> ArrayT:
    """The gradient of x of ``y = conv2d(x, w)``, from that of y.

    Parameters
    ----------
    dy
        (n, k, p, q), float16 or bfloat16, in any order in memory.
    w
        The filter (k, c / groups, r, s), of dy's type.
    shape
        Rows and columns of x.
    stride, padding, dilation, groups
        Those of the convolution.

    Returns
    -------
    ArrayT
        (n, c, h, w), of dy's type, with the channels contiguous in memory.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    call = "conv2d_input_gradient"
    strides, paddings, dilations = (pair(call, *one) for one in (("stride", stride), ("padding", padding), ("dilation", dilation)))
    h, width = pair(call, "shape", shape)
    dy, w = readable(dy), readable(w)
    n, k, p, q = _extents(call, "dy", dy)
    filters, c_group, r, s = _extents(call, "w", w)
    groups = integer(call, "groups", groups)
    if groups < 1 or k % groups or filters != k:
        raise LaunchError(f"{call}: w has {filters} filters in {groups} groups, dy has {k} channels")
    made = results_of((h, width), (r, s), strides, paddings, dilations)
    for name, extent, given, needed in zip(("rows", "columns"), (h, width), (p, q), made, strict=True):
        if given != needed:
            raise LaunchError(f"{call}: dy has {given} {name}, a convolution of {extent} {name} has {needed}")
    # (k, c / groups, r, s) as the filter of the convolution back, (c, k / groups, r, s)
    swapped = axes_moved(cast("Any", w).reshape(groups, k // groups, c_group, r, s), (0, 2, 1, 3, 4)).reshape(
        groups * c_group, k // groups, r, s
    )
    if max(h, width) > MAX_EXTENT:
        raise LaunchError(f"{call}: the gradient has {max(h, width)} elements along an axis, need at most {MAX_EXTENT}")
    arguments = zip((h, width), (p, q), (r, s), strides, paddings, dilations, strict=True)
    rows, columns = (list(remainders(*one)) for one in arguments)
    if len(rows) == len(columns) == 1 and rows[0].count == h and columns[0].count == width and rows[0].taps.stop and columns[0].taps.stop:
        return cast("ArrayT", _channels_last(_part(dy, swapped, rows[0], columns[0], groups)))
    dx = axes_moved(new_array(dy, (n, h, width, groups * c_group), view_of(dy, "dy", None).type), (0, 3, 1, 2))
    dx[...] = 0
    for row in rows:
        for column in columns:
            if row.taps.stop and column.taps.stop:
                dx[:, :, row.start :: strides[0], column.start :: strides[1]] = _part(dy, swapped, row, column, groups)
    return cast("ArrayT", dx)


def _part(dy: Any, w: Any, row: Remainder, column: Remainder, groups: int) -> Any:
    """The elements of dx of one remainder of rows and one of columns."""
    read = _channels_last(dy[:, :, row.outputs, column.outputs])
    gradient = conv2d(
        read,
        _reversed(w[:, :, row.taps, column.taps]),
        padding=(row.padding, column.padding),
        dilation=(row.dilation, column.dilation),
        groups=groups,
    )
    return gradient[:, :, row.skipped : row.skipped + row.count, column.skipped : column.skipped + column.count]


def conv2d_filter_gradient(
    x: ArrayT,
    dy: Array,
    shape: tuple[int, int],
    *,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> ArrayT:
    """The gradient of w of ``y = conv2d(x, w)``, from that of y.

    Parameters
    ----------
    x
        Images (n, c, h, w), float16 or bfloat16, in any order in memory.
    dy
        The gradient of y, (n, k, p, q), of x's type.
    shape
        Rows and columns of the filter.
    stride, padding, dilation, groups
        Those of the convolution.

    Returns
    -------
    ArrayT
        (k, c / groups, r, s), of x's type; each element is summed up in float32 and rounded once.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    call = "conv2d_filter_gradient"
    strides, paddings, dilations = (pair(call, *one) for one in (("stride", stride), ("padding", padding), ("dilation", dilation)))
    r, s = pair(call, "shape", shape)
    x, dy = readable(x), readable(dy)
    n, c, h, width = _extents(call, "x", x)
    images, k, p, q = _extents(call, "dy", dy)
    groups = integer(call, "groups", groups)
    if groups < 1 or c % groups or k % groups:
        raise LaunchError(f"{call}: x has {c} and dy has {k} channels, need multiples of {groups} groups")
    made = results_of((h, width), (r, s), strides, paddings, dilations)
    if (images, p, q) != (n, *made):
        raise LaunchError(f"{call}: dy has shape {(images, k, p, q)}, need {(n, k, *made)}")
    kind = view_of(x, "x", None).type
    dw = new_array(x, (k, c // groups, r, s), kind)
    if not n * p * q or not k * c:
        dw[...] = 0
        return cast("ArrayT", dw)
    pixels = axes_moved(cast("Any", x), (0, 2, 3, 1))
    padded: Any = pixels
    if any(paddings):
        padded = new_array(x, (n, h + 2 * paddings[0], width + 2 * paddings[1], c), kind)
        padded[...] = 0
        padded[:, paddings[0] : paddings[0] + h, paddings[1] : paddings[1] + width, :] = pixels
    # (groups, k / groups, n p q), the gradient's channels contiguous in memory
    left = axes_moved(axes_moved(_channels_last(dy), (0, 2, 3, 1)).reshape(n * p * q, groups, k // groups), (1, 2, 0))
    for row in range(r):
        for column in range(s):
            top, side = row * dilations[0], column * dilations[1]
            rows = slice(top, top + strides[0] * (p - 1) + 1, strides[0])
            columns = slice(side, side + strides[1] * (q - 1) + 1, strides[1])
            right = axes_moved(padded[:, rows, columns, :].reshape(n * p * q, groups, c // groups), (1, 0, 2))
            product = matmul(left[0], right[0]) if groups == 1 else matmul(left, right)
            dw[:, :, row, column] = product.reshape(k, c // groups)
    return cast("ArrayT", dw)


def conv_transpose2d(
    x: ArrayT,
    w: Array,
    *,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    output_padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> ArrayT:
    """Transposed convolution of images, as ``torch.nn.functional.conv_transpose2d`` without a bias.

    Parameters
    ----------
    x
        (n, c, h, w), float16 or bfloat16, in any order in memory.
    w
        (c, k / groups, r, s), of x's type.
    stride, padding, output_padding, dilation, groups
        As in torch; ``output_padding`` is less than the stride.

    Returns
    -------
    ArrayT
        (n, k, p, q) with ``p = (h - 1) stride - 2 padding + dilation (r - 1) + output_padding + 1``, channels contiguous in memory.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    call = "conv_transpose2d"
    strides, paddings, dilations = (pair(call, *one) for one in (("stride", stride), ("padding", padding), ("dilation", dilation)))
    extra = pair(call, "output_padding", output_padding)
    x, w = readable(x), readable(w)
    _, _, h, width = _extents(call, "x", x)
    _, _, r, s = _extents(call, "w", w)
    shape = []
    for extent, taps, skip, pad, step, more in zip((h, width), (r, s), strides, paddings, dilations, extra, strict=True):
        if more >= skip:
            raise LaunchError(f"{call}: output_padding is {more}, need less than the stride, {skip}")
        shape.append((extent - 1) * skip - 2 * pad + step * (taps - 1) + more + 1)
        if shape[-1] < 1:
            raise LaunchError(f"{call}: a result has {shape[-1]} elements along an axis, need at least 1")
    return conv2d_input_gradient(x, w, (shape[0], shape[1]), stride=stride, padding=padding, dilation=dilation, groups=groups)


def _channels_last(array: object) -> Any:
    """(n, c, h, w) with the channels contiguous in memory from a multiple of 16 bytes on, copied if they are not."""
    moved = contiguous(axes_moved(array, (0, 2, 3, 1)))
    if view_of(moved.detach() if is_torch(moved) else moved, "dy", None).pointer % ALIGNMENT:
        moved = moved.clone() if is_torch(moved) else moved.copy()
    return axes_moved(moved, (0, 3, 1, 2))


def _reversed(w: Any) -> Any:
    """The filter with its taps in reverse: itself if it has one."""
    if tuple(w.shape[2:]) == (1, 1):
        return w
    return w.flip((2, 3)) if is_torch(w) else w[:, :, ::-1, ::-1].copy()


def _extents(call: str, name: str, array: Any) -> tuple[int, int, int, int]:
    """The four extents of an array. Raises ``LaunchError`` for others and for types that have no gradients."""
    shape = getattr(array, "shape", None)
    if shape is None or not hasattr(array, "reshape"):
        raise LaunchError(f"{call}: {name} is {type(array).__name__}, need an array of NumPy, CuPy or torch")
    if len(shape) != 4:
        raise LaunchError(f"{call}: {name} has {len(shape)} axes, need 4")
    if view_of(array.detach() if is_torch(array) else array, name, None).type not in TYPES:
        raise LaunchError(f"{call}: {name} has elements {str(array.dtype).removeprefix('torch.')}, need float16 or bfloat16")
    n, c, h, w = (int(extent) for extent in shape)
    return n, c, h, w
