"""Index mathematics: every vector is copied once, every fragment lies where the tensor core wants it, nothing conflicts."""

from __future__ import annotations

from itertools import product

import pytest

from gemmgen.kernels.conv2d.tiles import (
    EXCHANGE_BYTES,
    OCTETS,
    PAIRS,
    QUADS,
    LaneOutput,
    OperandTile,
    accumulator,
    exchange_costs,
    exchange_offset,
    exchange_swizzle,
    fragment_cost,
    fragment_vector,
    vector_offset,
)
from gemmgen.layouts import channel_order

TILES = [
    OperandTile(rows, planes, threads)
    for rows, planes, threads in product((16, 32, 64, 128, 256), (1, 2, 4), (32, 64, 128, 256, 512))
    if OperandTile(rows, planes, threads).is_even
]


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_vector_of_a_tile_is_copied_once(tile: OperandTile) -> None:
    copied = [
        tile.vector(thread, plane, a_pass)
        for thread, plane, a_pass in product(range(tile.threads), range(tile.thread_planes), range(tile.passes))
    ]
    assert sorted(copied) == list(product(range(tile.planes), range(tile.rows), range(2)))


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_storing_a_tile_has_no_conflicts(tile: OperandTile) -> None:
    cost = tile.store_cost()
    assert (cost.wavefronts, cost.conflicts) == (4, 0)


def test_vectors_fill_a_plane_without_overlap() -> None:
    offsets = sorted(vector_offset(row, half) for row in range(64) for half in (0, 1))
    assert offsets == [16 * index for index in range(128)]


@pytest.mark.parametrize("blocks_first", [False, True])
def test_reading_fragments_has_no_conflicts(blocks_first: bool) -> None:
    cost = fragment_cost(blocks_first)
    assert (cost.wavefronts, cost.conflicts) == (4, 0)


def test_a_plain_layout_would_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.kernels.conv2d.tiles.vector_offset", lambda row, half: row * 32 + half * 16)
    assert fragment_cost(False).conflicts == 4


def test_rows_of_m16n8k32_get_16_rows_first_halves_first() -> None:
    # PTX ISA, mma.m16n8k32 for .s8: register i of a row fragment holds row lane / 4 + 8 (i % 2), bytes 16 (i / 2) on.
    for register in range(4):
        pointed = [fragment_vector(8 * register + row, blocks_first=True) for row in range(8)]
        assert pointed == [(row + 8 * (register % 2), register // 2) for row in range(8)]


def test_columns_get_both_halves_of_8() -> None:
    for register in range(4):
        pointed = [fragment_vector(8 * register + row, blocks_first=False) for row in range(8)]
        assert pointed == [(row + 8 * (register // 2), register % 2) for row in range(8)]


@pytest.mark.parametrize("lane", [OCTETS, PAIRS])
@pytest.mark.parametrize("channels_are_rows", [False, True])
def test_the_exchange_holds_every_result_once(channels_are_rows: bool, lane: LaneOutput) -> None:
    offsets = [exchange_offset(pixel, channel, channels_are_rows, lane) for pixel in range(8) for channel in range(32)]
    assert sorted(offsets) == list(range(0, EXCHANGE_BYTES, 4))


@pytest.mark.parametrize("lane", [OCTETS, PAIRS])
@pytest.mark.parametrize("channels_are_rows", [False, True])
def test_the_exchange_has_no_conflicts(channels_are_rows: bool, lane: LaneOutput) -> None:
    assert [cost.conflicts for cost in exchange_costs(channels_are_rows, lane)] == [0, 0]


@pytest.mark.parametrize("lane", [OCTETS, PAIRS])
@pytest.mark.parametrize("channels_are_rows", [False, True])
def test_the_source_permutes_the_exchange_like_the_plan(channels_are_rows: bool, lane: LaneOutput) -> None:
    expression = exchange_swizzle(channels_are_rows, lane).replace("/", "//")
    for pixel in range(8):
        swizzle = eval(expression, {"pixel": pixel, "kLayoutChannels": 32, "kGroup": 4})
        for channel in range(32):
            word = pixel * 32 + (channel // 4 ^ swizzle) * 4 + channel % 4
            assert exchange_offset(pixel, channel, channels_are_rows, lane) == 4 * word


def test_octets_give_a_lane_8_consecutive_channels_of_its_pixel() -> None:
    order = channel_order("octets")
    for lane in range(32):
        held = [order[block * 8 + accumulator(lane, element)[1]] for block in range(4) for element in range(2)]
        assert held == list(range(lane % 4 * OCTETS.channels, (lane % 4 + 1) * OCTETS.channels))


def test_quads_give_a_lane_4_consecutive_channels_of_its_pixels() -> None:
    order = channel_order("quads")
    for lane in range(32):
        held = [order[block * 8 + accumulator(lane, 0)[0]] for block in range(4)]
        assert held == list(range(lane // 4 * QUADS.channels, (lane // 4 + 1) * QUADS.channels))


def test_pairs_give_a_lane_twice_4_channels_of_its_pixel() -> None:
    order = channel_order("pairs")
    for lane in range(32):
        held = [order[block * 8 + accumulator(lane, element)[1]] for block in range(4) for element in range(2)]
        first = lane % 4 * PAIRS.lane_stride
        assert held == [first + quad * PAIRS.quads_apart + i for quad in (0, 1) for i in range(4)]
