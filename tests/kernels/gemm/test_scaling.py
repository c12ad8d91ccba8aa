"""Block scales of operands: codes, layouts and arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmgen.core.elements import to_elements, to_numbers
from gemmgen.kernels.gemm.scaling import BlockScale, as_tiles, from_tiles, numbers_of, scale_array, scale_shape, scales_of, spread


def test_exponents_round_up_to_powers_of_two() -> None:
    """Of ue8m0 numbers, the result is the least that is no smaller; every code but NaN keeps its number."""
    codes = np.arange(256, dtype=np.uint8)
    numbers = to_numbers("ue8m0", codes)
    assert np.isnan(numbers[255]) and numbers[0] == 2.0**-127 and numbers[127] == 1.0
    np.testing.assert_array_equal(to_elements("ue8m0", numbers), codes)
    values = np.array([0.0, 1.0001, 3.0, 2.0**-130, np.inf, -1.0], np.float32)
    np.testing.assert_array_equal(to_elements("ue8m0", values), [0, 128, 129, 0, 254, 255])


@given(st.integers(1, 300), st.integers(1, 11))
def test_tiles_hold_every_scale_once(lines: int, blocks: int) -> None:
    """Tiles of 128 x 4 scales return their inputs, at the published place."""
    elements = np.arange(lines * blocks, dtype=np.int64).reshape(lines, blocks) + 1
    tiles = as_tiles(elements)
    np.testing.assert_array_equal(from_tiles(tiles, lines, blocks), elements)
    line, block = lines - 1, blocks - 1
    place = 16 * (line % 32) + 4 * (line % 128 // 32) + block % 4
    assert tiles[line // 128, block // 4, place] == elements[line, block]
    assert (tiles > 0).sum() == elements.size


@pytest.mark.parametrize(("layout", "strides"), [("k_major", ["ld_scales_a", "1"]), ("mn_major", ["1", "ld_scales_a"])])
def test_scales_lie_as_their_layout_says(layout: str, strides: list[str]) -> None:
    """The argument of A's scales in both orders."""
    array = scale_array("a", BlockScale(layout=layout)).argument
    assert [str(extent) for extent in array.shape] == ["m", "ceil_div(k, 128)"]
    assert [str(stride) for stride in array.strides] == strides


def test_scales_of_b_count_blocks_of_k_first() -> None:
    """The argument and the shape of B's scales agree."""
    block = BlockScale(lines=128)
    array = scale_array("b", block).argument
    assert tuple(extent.evaluate({"n": 300, "k": 200}) for extent in array.shape) == scale_shape("b", block, 300, 200) == (2, 3)


@pytest.mark.parametrize("kind", ["f32", "ue8m0"])
@pytest.mark.parametrize("lines", [1, 128])
def test_scaled_blocks_fit_into_their_type(kind: str, lines: int) -> None:
    """Quotients of values and their scales reach the largest number, and no further; a block of zeros has a scale of 1."""
    block = BlockScale(lines=lines, type=kind)
    values = (np.random.default_rng(5).normal(size=(130, 300)) * 1e4).astype(np.float32)
    values[:128, :128] = 0
    values[129, 290] = np.inf
    scales = numbers_of(block, scales_of(values, block, 448.0))
    assert scales.shape == scale_shape("a", block, 130, 300)
    each = np.repeat(spread(scales, block, 130), 128, axis=1)[:, :300]
    finite = np.isfinite(values)
    largest = np.abs(values / each)[finite].max()
    assert 448 / 2 < largest <= 448.01
    assert scales[0, 0] == 1
