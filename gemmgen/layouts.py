"""Tensor layouts around NCHW32, and the order in which convolution kernels read their filters."""

from gemmgen.kernels.conv2d.layouts import (
    ChannelsPadded,
    FilterOrder,
    channel_order,
    nchw4_to_nchw,
    nchw32_to_nchw,
    nchw32_to_nhwc,
    nchw_to_nchw32,
    nhwc_to_nchw32,
    reorder_filter,
    restore_filter,
    tap_sums,
)

__all__ = [
    "ChannelsPadded",
    "FilterOrder",
    "channel_order",
    "nchw4_to_nchw",
    "nchw32_to_nchw",
    "nchw32_to_nhwc",
    "nchw_to_nchw32",
    "nhwc_to_nchw32",
    "reorder_filter",
    "restore_filter",
    "tap_sums",
]
