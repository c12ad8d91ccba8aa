"""The launch sequence: the table of taps against brute force, and calls that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmgen import api, layouts
from gemmgen.core.errors import LaunchError
from gemmgen.kernels.conv2d.plan import Conv2dPlan
from gemmgen.kernels.conv2d.problem import complete
from gemmgen.kernels.launch import HostArgument

FIELDS: dict[str, Any] = {
    "kind": "conv2d",
    "architecture": "sm_80",
    "gemm_m": "pixels",
    "tile": {"threadblock": {"m": 64, "n": 64, "k": 64}, "warp": {"m": 32, "n": 32}, "instruction": "m16n8k32"},
    "bias": "none",
    "store": "direct",
}


def planned(**fields: Any) -> Conv2dPlan:
    plan = api.plan({**FIELDS, **fields})
    assert isinstance(plan, Conv2dPlan)
    return plan


def with_warps(m: int, n: int) -> dict[str, Any]:
    return {**FIELDS["tile"], "warp": {"m": m, "n": n}}


@pytest.mark.parametrize("advance", [1, 2])
@pytest.mark.parametrize(("r", "s", "dilation"), [(1, 1, 1), (3, 3, 1), (5, 2, 2), (1, 7, 3)])
def test_the_table_leads_from_tap_to_tap(advance: int, r: int, s: int, dilation: int) -> None:
    # 256 threads copy two planes of 64 rows at a time.
    plan = planned(tile=with_warps(32, 32) if advance == 1 else with_warps(16, 32))
    assert plan.pixel_tile.planes_apart == advance
    h, w = 11, 13
    sizes = {"n": 1, "c": 128, "h": h, "w": w, "k": 32, "r": r, "s": s, "dilation_h": dilation, "dilation_w": dilation}
    problem = complete(plan.spec, {**sizes, "padding_h": 9, "padding_w": 9})
    taps = plan.sequence.argument("taps")
    assert isinstance(taps, HostArgument)
    words = np.frombuffer(taps.pack(problem), np.int32)
    increments, bounds = words[: plan.table_entries], words[plan.table_entries :].view(np.uint32)
    period = -(-advance // (r * s)) * r * s
    for first in range(advance):
        entry, tap, offset = first, first % period, None
        while entry < 4 * r * s:
            block, within = divmod(entry, r * s)
            row, column = divmod(within, s)
            wanted = (block * h * w + row * dilation * w + column * dilation) * 32
            offset = wanted if offset is None else offset
            assert offset == wanted
            assert bounds[tap] == (1 << row) | (1 << (16 + column))
            offset += int(increments[tap])
            entry, tap = entry + advance, (tap + advance) % period


@given(st.integers(0, 2**31 - 1), st.one_of(st.integers(1, 100), st.integers(1, 2**31 - 1)))
def test_a_prepared_divisor_divides(number: int, divisor: int) -> None:
    divisors = planned().sequence.argument("divisors")
    assert isinstance(divisors, HostArgument)
    words = np.frombuffer(divisors.pack({"n": 1, "p": 1, "q": divisor, "k": 64, "groups": 1}), np.uint32)
    multiplier, shift = (int(word) for word in words[2:4])
    total = number * multiplier // 2**32 + number
    assert total < 2**32 and total >> shift == number // divisor


def call(x: Any = None, w: Any = None, **arguments: Any) -> np.ndarray:
    """The output, which is 1 before the call."""
    kernel = api.compile(planned())
    x = np.zeros((1, 2, 4, 4, 32), np.int8) if x is None else x
    w = layouts.reorder_filter(np.zeros((32, 64, 3, 3), np.int8), "octets") if w is None else w
    y = arguments.pop("y", np.ones((1, 1, 2, 2, 32), np.int8))
    kernel(x=x, filter=w, y=y, **arguments)
    return y


def test_a_call_takes_strides_and_padding_by_name() -> None:
    assert not call(padding_h=1, padding_w=1, y=np.ones((1, 1, 4, 4, 32), np.int8)).any()


def test_an_output_of_the_wrong_size_is_rejected() -> None:
    with pytest.raises(LaunchError, match="p must be the output height that h, padding, filter, stride and dilation give"):
        call(y=np.zeros((1, 1, 3, 2, 32), np.int8))


def test_number_of_channels_no_multiple_of_32_names_helper() -> None:
    with pytest.raises(LaunchError, match="nchw_to_nchw32"):
        call(c=48)
    with pytest.raises(LaunchError, match="nchw_to_nchw32"):
        complete(planned().spec, {"n": 1, "c": 48, "h": 4, "w": 4, "k": 32, "r": 1, "s": 1})


def test_a_filter_with_more_taps_than_the_table_is_rejected() -> None:
    kernel = api.compile(planned(maximum_taps=9))
    with pytest.raises(LaunchError, match="must be at most 9 "):
        kernel(
            x=np.zeros((1, 1, 5, 5, 32), np.int8),
            filter=np.zeros((1, 5, 5, 32, 32), np.int8),
            y=np.zeros((1, 1, 1, 1, 32), np.int8),
        )


def test_a_sum_that_could_overflow_is_rejected() -> None:
    kernel = api.compile(planned(maximum_depth=256))
    with pytest.raises(LaunchError, match="sums must have at most 256 products each"):
        kernel(
            x=np.zeros((1, 9, 1, 1, 32), np.int8),
            filter=np.zeros((9, 1, 1, 32, 32), np.int8),
            y=np.zeros((1, 1, 1, 1, 32), np.int8),
        )


def test_what_a_spec_fixes_is_checked() -> None:
    kernel = api.compile(planned(convolution={"r": 3, "s": 3}))
    with pytest.raises(LaunchError, match="r must be 3 "):
        kernel(
            x=np.zeros((1, 1, 5, 5, 32), np.int8),
            filter=np.zeros((1, 1, 1, 32, 32), np.int8),
            y=np.zeros((1, 1, 5, 5, 32), np.int8),
        )


def test_a_kernel_is_called_on_nchw_tensors_through_the_helpers() -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(-128, 128, (2, 64, 6, 5)).astype(np.int8)
    w = rng.integers(-128, 128, (32, 64, 3, 3)).astype(np.int8)
    plan = planned(output={"type": "s32"}, alpha="one")
    y = np.zeros((2, 1, 3, 2, 32), np.int32)
    api.compile(plan)(
        x=layouts.nchw_to_nchw32(x),
        filter=layouts.reorder_filter(w, plan.filter_order),
        y=y,
        stride_h=2,
        stride_w=3,
        padding_h=1,
        padding_w=1,
    )
    padded = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::3]
    assert np.array_equal(layouts.nchw32_to_nchw(y), np.einsum("ncpqrs,kcrs->nkpq", windows, w.astype(np.int64)))
