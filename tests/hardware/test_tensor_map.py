"""Tensor maps: maps that the driver would refuse are refused with the reason; swizzles permute addresses."""

from dataclasses import replace

import pytest

from gemmgen.hardware.tensor_map import Im2col, TensorMap, packed_strides, problems, swizzled

TILE = TensorMap("bf16", (512, 300), (1024,), (64, 128), swizzle="128B", l2_promotion="256B")
PIXELS = TensorMap(
    "f16", (64, 56, 56, 8), packed_strides("f16", (64, 56, 56, 8)), swizzle="128B", im2col=Im2col((-1, -1), (-1, -1), 64, 128)
)

REFUSED = {
    "element": (replace(TILE, element="e4m3"), "element: 'e4m3' is none of u8"),
    "no axis": (TensorMap("u8", (), ()), "extents: 0 axes; the rank is 1 to 5"),
    "six axes": (TensorMap("u8", (16,) * 6, packed_strides("u8", (16,) * 6), (16,) * 6), "extents: 6 axes"),
    "interleave of a matrix": (replace(TILE, interleave="16B"), "the rank of an interleaved map is 3 to 5"),
    "strides missing": (replace(TILE, strides=()), "strides: 0 for 2 axes"),
    "box of another rank": (replace(TILE, box=(64,)), "box: 1 sizes for 2 axes"),
    "empty extent": (replace(TILE, extents=(512, 0)), "extents[1]: 0; 1 to 2^32"),
    "huge extent": (replace(TILE, extents=(512, 2**32 + 1)), "extents[1]: 4294967297"),
    "stride of odd bytes": (replace(TILE, strides=(1032,)), "strides of axis 1: 1032 bytes, which is no multiple of 16"),
    "huge stride": (replace(TILE, strides=(2**40,)), "2^40 - 1"),
    "box of 257": (replace(TILE, box=(64, 257)), "box[1]: 257; 1 to 256"),
    "row of 24 bytes": (replace(TILE, box=(12, 8)), "12 elements of 2 bytes are 24 bytes, which is no multiple of 16"),
    "row beyond its span": (replace(TILE, swizzle="64B"), "are 128 bytes; a 64B swizzle takes rows of at most 64"),
    "element stride": (replace(TILE, element_strides=(1, 9)), "element_strides[1]: 9; 1 to 8"),
    "NaN of integers": (replace(TILE, element="u16", fill="nan"), "fill: nan with elements of type u16"),
    "interleave and swizzle": (
        TensorMap("u8", (32, 8, 8), (32, 256), (32, 8, 8), interleave="32B"),
        "swizzle: none; a 32-byte interleave needs the 32B swizzle",
    ),
    "interleaved stride": (
        TensorMap("u8", (32, 8, 8), (48, 384), (32, 8, 8), interleave="32B", swizzle="32B"),
        "48 bytes, which is no multiple of 32 with a 32-byte interleave",
    ),
    "im2col of a matrix": (replace(PIXELS, extents=(64, 56), strides=(128,)), "the rank of an im2col map is 3 to 5"),
    "corners of another rank": (replace(PIXELS, im2col=Im2col((0,), (0, 0), 64, 128)), "im2col.lower: 1 offsets for 2 spatial axes"),
    "im2col with a box": (replace(PIXELS, box=(64, 1, 1, 1)), "box: an im2col map has none"),
    "corner too far": (replace(PIXELS, im2col=Im2col((-129, 0), (0, 0), 64, 128)), "im2col.lower[0]: -129; with 4 axes -128 to 127"),
    "empty walk": (replace(PIXELS, im2col=Im2col((0, 60), (0, 0), 64, 128)), "the box is empty along axis 2"),
    "too many channels": (replace(PIXELS, swizzle="none", im2col=Im2col((0, 0), (0, 0), 264, 128)), "im2col.channels_per_pixel: 264"),
    "too many pixels": (replace(PIXELS, im2col=Im2col((0, 0), (0, 0), 64, 1025)), "im2col.pixels_per_column: 1025"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_driver_refuses_has_a_reason(name):
    tensor_map, reason = REFUSED[name]
    found = problems(tensor_map)
    assert any(reason in problem for problem in found), found


@pytest.mark.parametrize("tensor_map", [TILE, PIXELS, replace(TILE, swizzle="none", box=(256, 256), element_strides=(1, 8))])
def test_a_good_map_has_no_problem(tensor_map):
    assert problems(tensor_map, 0x1000) == ()


def test_an_array_at_an_odd_address_is_refused():
    assert "8 bytes past a multiple of 16" in problems(TILE, 0x1008)[0]


def test_a_box_with_element_strides_counts_what_it_takes():
    tensor_map = replace(TILE, box=(64, 9), element_strides=(5, 4))
    assert tensor_map.box_elements == (64, 3) and tensor_map.box_bytes == 64 * 3 * 2


def test_a_row_narrower_than_its_swizzle_keeps_the_pitch():
    tensor_map = replace(TILE, box=(32, 8))
    assert (tensor_map.row_pitch, tensor_map.box_bytes, tensor_map.shared_bytes) == (128, 512, 1024)


PERIODS = {"none": 16, "32B": 256, "64B": 512, "128B": 1024, "128B_ATOM_32B": 512, "128B_ATOM_32B_FLIP_8B": 512, "128B_ATOM_64B": 256}


@pytest.mark.parametrize("swizzle", PERIODS)
def test_a_swizzle_permutes_each_period(swizzle):
    period = PERIODS[swizzle]
    moved = [swizzled(address, swizzle) for address in range(period)]
    assert sorted(moved) == list(range(period))
    assert [swizzled(address + period, swizzle) - period for address in range(period)] == moved


def test_chunks_move_as_the_isa_draws_them():
    # The chunk in column c of row r of 128 bytes goes to column c ^ (r mod 8); narrower spans use fewer bits of r.
    assert [swizzled(row * 128, "128B") // 16 % 8 for row in range(9)] == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    assert [swizzled(row * 64, "64B") // 16 % 4 for row in range(9)] == [0, 0, 1, 1, 2, 2, 3, 3, 0]
    assert [swizzled(row * 32, "32B") // 16 % 2 for row in range(9)] == [0, 0, 0, 0, 1, 1, 1, 1, 0]


def test_atoms_move_whole_and_a_flip_exchanges_halves():
    # Each row of 128 bytes: the atom that its first chunk lands in, and the half of the chunk that its first 8 bytes land in.
    assert [swizzled(row * 128, "128B_ATOM_32B") // 32 % 4 for row in range(5)] == [0, 1, 2, 3, 0]
    assert [swizzled(row * 128, "128B_ATOM_64B") // 64 % 2 for row in range(5)] == [0, 1, 0, 1, 0]
    assert [swizzled(row * 128 + 16, "128B_ATOM_64B") % 64 for row in range(5)] == [16] * 5
    assert [swizzled(row * 128, "128B_ATOM_32B_FLIP_8B") // 8 % 16 for row in range(5)] == [0, 5, 8, 13, 0]
