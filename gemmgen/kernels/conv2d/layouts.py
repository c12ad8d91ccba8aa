"""Tensor layouts around NCHW32, and the order in which convolution kernels read their filters.

Every function takes and returns NumPy, CuPy or torch arrays, on any device, and returns a new array that is
contiguous. No library is imported but the one that the array belongs to.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar, cast, get_args

CHANNELS = 32
"""Channels that lie side by side in NCHW32."""

INSTRUCTION_CHANNELS = 16
"""Channels of an instruction on 16-bit floats."""

FilterOrder = Literal[
    "plain",
    "octets",
    "quads",
    "pairs",
    "rows",
    "neighbours",
    "filled_rows",
    "filled_neighbours",
    "taps",
    "fragments",
    "group_fragments",
    "tap_rows",
]
"""Order of a reordered filter. For kernels on NCHW32, that of the output channels within 32: as they are; or so that the lane that
holds results of a tensor core holds 8 or 4 consecutive channels of a pixel, or 4 and another 4 that are 16 further. For kernels on
``wgmma``: ``rows`` (k, r, s, c), with each filter a row of memory; ``neighbours``, the same with output channels 2 i and 2 i + 1 at
places i and i + 8 of 16, which one lane holds results of; ``filled_rows`` and ``filled_neighbours``, the same with each filter filled up
with zeros to a multiple of 128 elements (k, r s c and more). For kernels without tiles: ``taps`` (r, s, c, k), with the output channels
side by side, as threads are; for groups of few channels on ``mma.sync``: ``fragments``, block-diagonal filters of neighbouring groups as
lanes hold them, or ``group_fragments``, those of one group where it fills instructions; for few input channels: ``tap_rows``, those of a
row of taps side by side, as lanes hold them. A convolution's plan says which it reads."""

ROW_ORDERS = ("rows", "neighbours")
"""The orders in which each filter is a row of memory."""
FILLED_ORDERS = {"filled_rows": "rows", "filled_neighbours": "neighbours"}
"""Those with filters filled up to whole ``FILLED_ELEMENTS``, and the orders without."""
FILLED_ELEMENTS = 128
NEIGHBOURS = 16
"""Output channels among which ``neighbours`` exchanges places."""


class Shaped(Protocol):
    """A NumPy, CuPy or torch array."""

    @property
    def shape(self) -> Sequence[int]:
        """Extents of the axes, slowest first."""


ArrayT = TypeVar("ArrayT", bound=Shaped)


class ChannelsPadded(UserWarning):
    """A channel count that is no multiple of 32 was filled up with zeros."""


def nchw_to_nchw32(x: ArrayT) -> ArrayT:
    """(n, c, h, w) to (n, ceil(c / 32), h, w, 32).

    Channels that are missing to a multiple of 32 are zeros, which a ``ChannelsPadded`` warning says.
    """
    n, c, h, w = _shape(x, "n c h w")
    blocks = _padded(x, axis=1, what="channels").reshape(n, -(-c // CHANNELS), CHANNELS, h, w)
    result: ArrayT = _contiguous(_permuted(blocks, (0, 1, 3, 4, 2)))
    return result


def nchw32_to_nchw(x: ArrayT, c: int | None = None) -> ArrayT:
    """(n, c / 32, h, w, 32) to (n, c, h, w); ``c`` leaves out padded channels."""
    n, blocks, h, w, _ = _shape(x, "n blocks h w 32")
    channels = _channels(c, blocks)
    result: ArrayT = _contiguous(_permuted(x, (0, 1, 4, 2, 3)).reshape(n, blocks * CHANNELS, h, w)[:, :channels])
    return result


def nhwc_to_nchw32(x: ArrayT) -> ArrayT:
    """(n, h, w, c) to (n, ceil(c / 32), h, w, 32); pads and warns like ``nchw_to_nchw32``."""
    n, h, w, c = _shape(x, "n h w c")
    blocks = _padded(x, axis=3, what="channels").reshape(n, h, w, -(-c // CHANNELS), CHANNELS)
    result: ArrayT = _contiguous(_permuted(blocks, (0, 3, 1, 2, 4)))
    return result


def nchw32_to_nhwc(x: ArrayT, c: int | None = None) -> ArrayT:
    """(n, c / 32, h, w, 32) to (n, h, w, c); ``c`` leaves out padded channels."""
    n, blocks, h, w, _ = _shape(x, "n blocks h w 32")
    channels = _channels(c, blocks)
    result: ArrayT = _contiguous(_permuted(x, (0, 2, 3, 1, 4)).reshape(n, h, w, blocks * CHANNELS)[..., :channels])
    return result


def nchw4_to_nchw(x: ArrayT) -> ArrayT:
    """(n, c / 4, h, w, 4) to (n, c, h, w)."""
    n, quads, h, w, _ = _shape(x, "n quads h w 4")
    result: ArrayT = _contiguous(_permuted(x, (0, 1, 4, 2, 3)).reshape(n, quads * 4, h, w))
    return result


def reorder_filter(filter: ArrayT, order: FilterOrder) -> ArrayT:
    """(k, c, r, s), or (k, c / 32, r, s, 32) in NCHW32, to the kernels' layouts: (c / 32, r, s, k, 32), or (k, r, s, c) in the orders
    ``rows`` and ``neighbours``, filled up (k, r s c and more) in ``filled_rows`` and ``filled_neighbours``, or (r, s, c, k) in the order
    ``taps``.

    ``c`` counts the channels of one group. Channels on either side that are missing to a multiple of 32 are zeros, which a
    ``ChannelsPadded`` warning says; in the order ``neighbours``, output channels that are missing to a multiple of 16.
    """
    if order not in get_args(FilterOrder):
        raise ValueError(f"order is {order!r}, need one of {', '.join(get_args(FilterOrder))}")
    result: ArrayT = _REORDERED[order](filter) if order in _REORDERED else _reordered(filter, order)
    return result


def _reordered(filter: Any, order: FilterOrder) -> Any:
    """The filter in an order of kernels on NCHW32, or in one whose filters are rows or taps."""
    if order in ROW_ORDERS or order == "taps":
        return _filter_rows(filter, order)
    if order in FILLED_ORDERS:
        rows = _filter_rows(filter, FILLED_ORDERS[order])
        rows = rows.reshape(rows.shape[0], -1)
        return _filled(rows, 1, -int(rows.shape[1]) % FILLED_ELEMENTS)
    if len(filter.shape) == 4:
        filter = nchw_to_nchw32(filter)
    _shape(filter, "k blocks r s 32")
    padded = _padded(filter, axis=0, what="output channels")
    k, blocks, r, s, _ = padded.shape
    ordered = padded.reshape(k // CHANNELS, CHANNELS, blocks, r, s, CHANNELS)[:, list(channel_order(order))]
    return _contiguous(_permuted(ordered, (2, 3, 4, 0, 1, 5)).reshape(blocks, r, s, k, CHANNELS))


def _filter_rows(filter: Any, order: str) -> Any:
    if len(filter.shape) == 5:
        filter = nchw32_to_nchw(filter)
    k, c, r, s = _shape(filter, "k c r s")
    if order == "taps":
        return _contiguous(_permuted(filter, (2, 3, 1, 0)))
    rows = _permuted(filter, (0, 2, 3, 1))
    if order == "rows":
        return _contiguous(rows)
    blocks = _filled(rows, 0, -k % NEIGHBOURS).reshape(-1, NEIGHBOURS, r, s, c)
    return _contiguous(blocks[:, list(_NEIGHBOUR_ORDER)].reshape(-1, r, s, c))


def _filter_fragments(filter: Any) -> Any:
    """Block-diagonal filters of neighbouring groups that fill 16 channels, as lanes hold them for ``mma.sync``: (k / 16, r, s,
    input channels / 16, lane, 8)."""
    if len(filter.shape) == 5:
        filter = nchw32_to_nchw(filter)
    k, c, r, s = _shape(filter, "k c r s")
    block = math.lcm(c, INSTRUCTION_CHANNELS)
    groups = block // c
    filled = _filled(filter, 0, -k % block)
    blocks = int(filled.shape[0]) // block
    diagonal = _filled(filled.reshape(-1)[:0], 0, blocks * block * block * r * s).reshape(blocks, groups, c, groups, c, r, s)
    parts = filled.reshape(blocks, groups, c, c, r, s)
    for group in range(groups):
        diagonal[:, group, :, group] = parts[:, group]
    steps = block // INSTRUCTION_CHANNELS
    return _in_lanes(diagonal.reshape(blocks * steps, INSTRUCTION_CHANNELS, block, r, s))


def _filter_group_fragments(filter: Any) -> Any:
    """Filters whose input channels are filled up to whole instructions: (k / 16, r, s, input channels of a group / 16, lane, 8)."""
    if len(filter.shape) == 5:
        filter = nchw32_to_nchw(filter)
    k, c, r, s = _shape(filter, "k c r s")
    filled = _filled(_filled(filter, 1, -c % INSTRUCTION_CHANNELS), 0, -k % INSTRUCTION_CHANNELS)
    return _in_lanes(filled.reshape(-1, INSTRUCTION_CHANNELS, int(filled.shape[1]), r, s))


def _in_lanes(matrices: Any) -> Any:
    """Matrices (slices, 16 output channels, input channels, r, s) as lanes hold them: (slices, r, s, input channels / 16, lane, 8). A lane
    holds results of four neighbouring output channels."""
    slices, _, depth, r, s = _shape(matrices, "slices 16 depth r s")
    lanes = matrices.reshape(slices, 4, 2, 2, depth // INSTRUCTION_CHANNELS, 2, 4, 2, r, s)
    return _contiguous(_permuted(lanes, (0, 8, 9, 4, 1, 3, 6, 2, 5, 7)).reshape(slices, r, s, depth // INSTRUCTION_CHANNELS, 32, 8))


def _from_lanes(filter: Any) -> Any:
    """The inverse of ``_in_lanes``, all output channels side by side: (k, input channels, r, s)."""
    slices, r, s, steps, _, _ = _shape(filter, "slices r s steps 32 8")
    lanes = filter.reshape(slices, r, s, steps, 4, 2, 4, 2, 2, 2)
    rows = _permuted(lanes, (0, 4, 7, 5, 3, 8, 6, 9, 1, 2))
    return _contiguous(rows.reshape(slices * INSTRUCTION_CHANNELS, steps * INSTRUCTION_CHANNELS, r, s))


def even(count: int) -> int:
    """The next even number."""
    return count + count % 2


def _filter_tap_rows(filter: Any) -> Any:
    """Channels of a row of taps side by side, as lanes hold them for ``mma.sync``: (k / 16, r, sixteens of a row, lane, 8)."""
    if len(filter.shape) == 5:
        filter = nchw32_to_nchw(filter)
    k, c, r, s = _shape(filter, "k c r s")
    filled = _filled(_filled(filter, 1, c % 2), 0, -k % INSTRUCTION_CHANNELS)
    rows = _contiguous(_permuted(filled, (0, 3, 1, 2))).reshape(int(filled.shape[0]), s * even(c), r)
    rows = _filled(rows, 1, -(s * even(c)) % INSTRUCTION_CHANNELS)
    return _in_lanes(rows.reshape(-1, INSTRUCTION_CHANNELS, int(rows.shape[1]), r, 1))[:, :, 0]


def within_rows(filter: Any, c: int, s: int) -> Any:
    """Filters (k, c, r, s) from those with the channels of a row of taps side by side, (k, channels, r, 1)."""
    k, _, r, _ = _shape(filter, "k channels r 1")
    rows = filter[:, : s * even(c), :, 0].reshape(k, s, even(c), r)
    return _contiguous(_permuted(rows[:, :, :c], (0, 2, 3, 1)))


def of_filled(filter: Any, c: int, r: int, s: int) -> Any:
    """Filters (k, c, r, s) from those with the channels of all taps behind one another, (k, r s c and more, 1, 1)."""
    k, _, _, _ = _shape(filter, "k depth 1 1")
    taps = filter.reshape(k, -1)[:, : r * s * c].reshape(k, r, s, c)
    return _contiguous(_permuted(taps, (0, 3, 1, 2)))


def within_groups(filter: Any, c: int) -> Any:
    """Filters of the ``c`` channels of a group, (k, c, r, s), from block-diagonal ones of several groups."""
    k, block, r, s = _shape(filter, "k block r s")
    parts = filter.reshape(k // block, block // c, c, block // c, c, r, s)
    spread = _filled(filter.reshape(-1)[:0], 0, k * c * r * s).reshape(k // block, block // c, c, c, r, s)
    for group in range(block // c):
        spread[:, group] = parts[:, group, :, group]
    return spread.reshape(k, c, r, s)


_NEIGHBOUR_ORDER = (*range(0, NEIGHBOURS, 2), *range(1, NEIGHBOURS, 2))


_REORDERED = {"fragments": _filter_fragments, "group_fragments": _filter_group_fragments, "tap_rows": _filter_tap_rows}


def restore_filter(filter: ArrayT, order: FilterOrder) -> ArrayT:
    """The inverse of ``reorder_filter``: (c / 32, r, s, k, 32) to (k, c / 32, r, s, 32), or (k, r, s, c) or (r, s, c, k) to (k, c, r, s),
    with the channels that were filled up."""
    result: ArrayT = _restored(filter, order)
    return result


def _restored(filter: Any, order: str) -> Any:
    if order in ("fragments", "group_fragments"):
        return _from_lanes(filter)
    if order == "tap_rows":
        return _from_lanes(filter[:, :, None])
    if order == "taps":
        _shape(filter, "r s c k")
        return _contiguous(_permuted(filter, (3, 2, 0, 1)))
    if order in FILLED_ORDERS:
        k, depth = _shape(filter, "k depth")
        return _restored(filter.reshape(k, 1, 1, depth), FILLED_ORDERS[order])
    if order in ROW_ORDERS:
        k, r, s, c = _shape(filter, "k r s c")
        if order == "neighbours":
            inverse = [_NEIGHBOUR_ORDER.index(channel) for channel in range(NEIGHBOURS)]
            filter = filter.reshape(-1, NEIGHBOURS, r, s, c)[:, inverse].reshape(k, r, s, c)
        return _contiguous(_permuted(filter, (0, 3, 1, 2)))
    blocks, r, s, k, _ = _shape(filter, "blocks r s k 32")
    forward = channel_order(cast("FilterOrder", order))
    inverse = [forward.index(channel) for channel in range(CHANNELS)]
    grouped = filter.reshape(blocks, r, s, k // CHANNELS, CHANNELS, CHANNELS)[:, :, :, :, inverse]
    return _contiguous(_permuted(grouped, (3, 4, 0, 1, 2, 5)).reshape(k, blocks, r, s, CHANNELS))


WITH_ZEROS = ("fragments", "group_fragments", "tap_rows", *FILLED_ORDERS)
"""The orders with more places than a filter has elements."""


def plain_filters(filter: Any, order: FilterOrder, problem: Mapping[str, int]) -> Any:
    """The filters (k, c / groups, r, s) of a problem, of those in an order of instances."""
    filters: Any = restore_filter(filter, order)
    filters = filters if filters.ndim == 4 else nchw32_to_nchw(filters)
    if order == "fragments":
        filters = within_groups(filters, problem["c"] // problem["groups"])
    if order == "group_fragments":
        filters = filters[:, : problem["c"] // problem["groups"]]
    if order in FILLED_ORDERS:
        filters = of_filled(filters, problem["c"] // problem["groups"], problem["r"], problem["s"])
    if order == "tap_rows":
        filters = within_rows(filters, problem["c"], problem["s"])
    return filters[: problem["k"]]


def tap_sums(filter: ArrayT) -> ArrayT:
    """(k, c, r, s), or (k, c / 32, r, s, 32) in NCHW32, to int32 (r + 1, s + 1, k): at (i, j), the sum over all input channels of the
    taps in the first i rows and the first j columns of each filter, by which convolutions take a zero point of x into account."""
    result: ArrayT = _tap_sums(filter)
    return result


def _tap_sums(filter: Any) -> Any:
    if len(filter.shape) == 5:
        filter = nchw32_to_nchw(filter)
    k, _, r, s = _shape(filter, "k c r s")
    if _is_torch(filter):
        torch = sys.modules["torch"]
        sums = filter.sum(1, dtype=torch.int32).cumsum(1, dtype=torch.int32).cumsum(2, dtype=torch.int32)
        result = torch.zeros((r + 1, s + 1, k), dtype=torch.int32, device=filter.device)
    else:
        sums = filter.sum(1, dtype="int32").cumsum(1, dtype="int32").cumsum(2, dtype="int32")
        library = sys.modules[type(filter).__module__.split(".")[0]]
        result = library.zeros((r + 1, s + 1, k), "int32")
    result[1:, 1:] = _permuted(sums, (1, 2, 0))
    return result


def channel_order(order: FilterOrder) -> tuple[int, ...]:
    """The one of 32 output channels at each position of a reordered filter.

    Lane l of a warp holds rows l / 4 and columns l % 4 * 2 + {0, 1} of each 8 x 8 block of results. ``octets``: channels are
    columns, and the four blocks' columns of a lane are 8 consecutive channels; ``pairs``: 4 consecutive ones, and 4 that are
    16 further. ``quads``: channels are rows, and the four blocks' rows of a lane are 4 consecutive channels.
    """
    if order == "plain":
        return tuple(range(CHANNELS))
    if order == "octets":
        return tuple(position % 8 // 2 * 8 + position // 8 * 2 + position % 2 for position in range(CHANNELS))
    if order == "pairs":
        return tuple(p // 16 * 16 + p % 8 // 2 * 4 + p // 8 % 2 * 2 + p % 2 for p in range(CHANNELS))
    return tuple(position % 8 * 4 + position // 8 for position in range(CHANNELS))


def _shape(array: Any, names: str) -> Sequence[int]:
    """The shape, of which an extent named by a number must be that number. ``ValueError`` if it does not fit."""
    wanted = names.split()
    shape = tuple(int(extent) for extent in array.shape)
    if len(shape) != len(wanted) or any(name.isdigit() and extent != int(name) for name, extent in zip(wanted, shape, strict=False)):
        raise ValueError(f"expected an array of shape ({', '.join(wanted)}), got {shape}")
    return shape


def _channels(c: int | None, blocks: int) -> int:
    if c is not None and not 0 <= c <= blocks * CHANNELS:
        raise ValueError(f"c is {c}, but {blocks} blocks hold {blocks * CHANNELS} channels")
    return blocks * CHANNELS if c is None else c


def _padded(array: Any, axis: int, what: str) -> Any:
    extent = int(array.shape[axis])
    missing = -extent % CHANNELS
    if not missing:
        return array
    warnings.warn(f"{extent} {what} were filled up with {missing} of zeros to {extent + missing}", ChannelsPadded, stacklevel=3)
    return _filled(array, axis, missing)


def _filled(array: Any, axis: int, missing: int) -> Any:
    """The array padded with zeros along an axis."""
    if not missing:
        return array
    extent = int(array.shape[axis])
    shape = list(array.shape)
    shape[axis] = extent + missing
    if _is_torch(array):
        result = array.new_zeros(shape)
    elif type(array).__module__.split(".")[0] == "cupy":
        result = sys.modules["cupy"].zeros(shape, array.dtype)
    else:
        import numpy as np

        result = np.zeros(shape, array.dtype)
    result[(slice(None),) * axis + (slice(0, extent),)] = array
    return result


def _permuted(array: Any, axes: tuple[int, ...]) -> Any:
    return array.permute(axes) if _is_torch(array) else array.transpose(axes)


def _contiguous(array: Any) -> Any:
    """A new contiguous array with the same elements."""
    if _is_torch(array):
        return array.clone(memory_format=sys.modules["torch"].contiguous_format)
    return array.copy(order="C")


def _is_torch(array: object) -> bool:
    return type(array).__module__.split(".")[0] == "torch"
