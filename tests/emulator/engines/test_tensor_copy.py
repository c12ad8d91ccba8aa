"""cp.async.bulk.tensor: boxes land where the map says, swizzled, filled outside of the array."""

import json
from pathlib import Path

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator import TensorMap
from gemmgen.hardware.tensor_map import FLOATING_ELEMENTS, packed_strides, refusals, swizzled
from measurements import tensor_copies

from ..helpers import compile_ptx
from .prelude import run

LOAD = """KERNEL(const __grid_constant__ CUtensorMap map, u8* out, int x, int y, int bytes) {
    __shared__ __align__(1024) u8 tile[16384]; __shared__ u64 bar;
    if (threadIdx.x == 0) { init(&bar, 1); fence_init(); fence_async(); }
    __syncthreads();
    if (threadIdx.x == 0) { arrive_expect(&bar, bytes); load_tile(tile, &map, &bar, x, y); }
    wait(&bar, 0);
    for (int i = threadIdx.x; i < 4096; i += 128) if (i < bytes) out[i] = tile[i];
}"""
ARRAY = np.random.default_rng(3).integers(1, 256, (40, 256)).astype(np.uint8)


def loaded(tensor_map: TensorMap, x: int, y: int) -> np.ndarray:
    out = np.zeros(tensor_map.box_bytes, np.uint8)
    run(LOAD, tensor_map, out, x, y, tensor_map.box_bytes)
    return out


def expected(width: int, height: int, x: int, y: int) -> np.ndarray:
    """The box of ARRAY, zeros outside."""
    padded = np.zeros((140, 500), np.uint8)
    padded[50:90, 100:356] = ARRAY
    return padded[50 + y : 50 + y + height, 100 + x : 100 + x + width]


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B", "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B"])
@pytest.mark.parametrize(("x", "y"), [(0, 0), (32, 5), (-16, -3), (240, 35), (48, 1), (-96, 50)])
def test_a_box_lands_swizzled_and_filled(swizzle, x, y):
    width = {"none": 64, "32B": 32, "64B": 64}.get(swizzle, 128)
    tensor_map = TensorMap("u8", (256, 40), (256,), (width, 16), swizzle=swizzle, base=ARRAY)
    got = loaded(tensor_map, x, y)
    linear = np.array([got[swizzled(byte, swizzle)] for byte in range(tensor_map.box_bytes)])
    np.testing.assert_array_equal(linear.reshape(16, width), expected(width, 16, x, y))


@pytest.mark.parametrize("x", [0, 32, -32])
def test_two_numbers_of_four_bits_share_a_byte(x):
    tensor_map = TensorMap("u8", (256, 40), (256,), (64, 16), bits=4, base=ARRAY)
    np.testing.assert_array_equal(loaded(tensor_map, 2 * x, 5).reshape(16, 64), expected(64, 16, x, 5))


@pytest.mark.parametrize("swizzle", ["none", "128B"])
@pytest.mark.parametrize(("bits", "x"), [(4, 0), (4, 64), (6, 64), (6, -64)])
def test_sixteen_narrow_numbers_are_padded_to_16_bytes(bits, x, swizzle):
    data, first = 2 * bits, x * bits // 8
    tensor_map = TensorMap("u8", (240, 40), (256,), (8 * data, 16), bits=bits, padded=True, swizzle=swizzle, base=ARRAY)
    assert tensor_map.box_bytes == 16 * 8 * data and tensor_map.row_pitch == 128
    out = np.zeros(2048, np.uint8)
    run(
        LOAD.replace("arrive_expect(&bar, bytes)", f"arrive_expect(&bar, {tensor_map.box_bytes})"),
        tensor_map,
        out,
        x,
        5,
        2048,
        hazards=False,
    )
    places = np.array([swizzled(byte, swizzle) for byte in range(2048)])
    chunks = out[places].reshape(16, 8, 16)[:, :, :data].reshape(16, -1)
    np.testing.assert_array_equal(chunks, expected(8 * data, 16, first, 5))


def test_element_strides_take_every_so_manyth_row():
    tensor_map = TensorMap("u8", (256, 40), (256,), (32, 16), element_strides=(1, 4), base=ARRAY)
    np.testing.assert_array_equal(loaded(tensor_map, 32, 2).reshape(4, 32), ARRAY[2:18:4, 32:64])


def test_nan_fills_what_lies_outside():
    array = np.ones((8, 16), np.float32)
    tensor_map = TensorMap("f32", (16, 8), packed_strides("f32", (16, 8)), (16, 8), fill="nan", base=array)
    got = loaded(tensor_map, 4, 4).view(np.float32).reshape(8, 16)
    assert (got[:4, :12] == 1).all() and np.isnan(got[4:]).all() and np.isnan(got[:, 12:]).all()


STORE = """KERNEL(const __grid_constant__ CUtensorMap map, int x, int y) {
    __shared__ __align__(1024) u8 tile[1024];
    for (int i = threadIdx.x; i < 1024; i += 128) tile[i] = i / 64 + 1;
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) { store_tile(&map, tile, x, y); commit(); wait_group<0>(); }
}"""


def test_a_store_writes_whole_units_of_16_bytes_beyond_row_ends():
    array = np.zeros((16, 64), np.uint8)
    run(STORE, TensorMap("u8", (37, 16), (64,), (64, 16), base=array), 0, 0)
    assert (array[:, :48] == np.arange(1, 17, dtype=np.uint8)[:, None]).all() and not array[:, 48:].any()


@pytest.mark.parametrize(("x", "y", "why"), [(7, 1, "innermost coordinate 7, 7 bytes"), (-99, 0, "innermost coordinate -99")])
def test_an_innermost_coordinate_off_16_bytes_is_an_error(x, y, why):
    with pytest.raises(emulator.InvalidCopy, match=why):
        loaded(TensorMap("u8", (256, 40), (256,), (32, 16), base=ARRAY), x, y)


def test_a_store_at_negative_coordinates_is_an_error():
    with pytest.raises(emulator.InvalidCopy, match="negative coordinates"):
        run(STORE, TensorMap("u8", (64, 16), (64,), (64, 16), base=np.zeros((16, 64), np.uint8)), 0, -1)


def test_tf32_elements_are_rounded_on_their_way():
    values = np.array([1 + 2**-11, 1 + 3 * 2**-11, -1 - 2**-11, np.nan, np.inf, 1e-45, 3.0, 0.1] * 2, np.float32)
    got = loaded(TensorMap("tf32", (16, 1), (64,), (16, 1), base=values[None]), 0, 0).view(np.uint32)
    nearest = np.array([1, 1 + 2**-9, -1, 0, np.inf, 0, 3, 0.1], np.float32).view(np.uint32)
    nearest[3], nearest[7] = 0x7FFFE000, 0x3DCCC000
    assert got.tolist() == nearest.tolist() * 2


INTERLEAVED = """KERNEL(const __grid_constant__ CUtensorMap map, u8* out, int width, int height, int slice, int image, int bytes) {
    __shared__ __align__(1024) u8 tile[4096]; __shared__ u64 bar;
    if (threadIdx.x == 0) { init(&bar, 1); fence_init(); fence_async(); }
    __syncthreads();
    if (threadIdx.x == 0) {
        arrive_expect(&bar, bytes);
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
            :: "r"(shared_address(tile)), "l"(&map), "r"(shared_address(&bar)), "r"(width), "r"(height), "r"(slice), "r"(image) : "memory");
    }
    wait(&bar, 0);
    for (int i = threadIdx.x; i < bytes; i += 128) out[i] = tile[i];
}"""


@pytest.mark.parametrize("interleave", ["16B", "32B"])
def test_a_box_of_an_interleaved_layout_holds_one_slice(interleave):
    unit, swizzle = (16, "none") if interleave == "16B" else (32, "32B")
    images = np.random.default_rng(0).integers(1, 256, (2, 3, 5, 6, unit)).astype(np.uint8)  # N, slices, H, W, bytes of a slice
    strides = packed_strides("f16", (6, 5, 3, 2), interleave)
    tensor_map = TensorMap("f16", (6, 5, 3, 2), strides, (8, 3, 64, 1), interleave=interleave, swizzle=swizzle, base=images)
    assert tensor_map.box_bytes == 8 * 3 * unit
    out = np.zeros(tensor_map.box_bytes, np.uint8)
    run(INTERLEAVED, tensor_map, out, -1, 3, 2, 1, tensor_map.box_bytes)
    linear = np.array([out[swizzled(byte, swizzle)] for byte in range(len(out))]).reshape(3, 8, unit)
    wanted = np.zeros_like(linear)
    wanted[:2, 1:7] = images[1, 2, 3:]
    np.testing.assert_array_equal(linear, wanted)


DATA = Path(__file__).parents[2] / "data"
INTERLEAVED_ONES = np.load(DATA / "tensor_copies_h200.npz")
EVERY_KIND = np.load(DATA / tensor_copies.NAME)
RECORDED = {
    f"{name}, {number}": (case, total)
    for name, recorded, step in (("interleaved", INTERLEAVED_ONES, 16), ("every kind", EVERY_KIND, 1))
    for number, (case, total) in enumerate(zip(json.loads(str(recorded["cases"])), recorded["sums"].tolist(), strict=True))
    if number % step == 0
}
FORBIDDEN = {name for name, (case, _) in RECORDED.items() if case["map"]["interleave"] == "32B" and case["map"]["swizzle"] != "32B"}


@pytest.fixture(scope="module")
def recorded_ptx() -> str:
    """The program that the recorded copies were made with."""
    return compile_ptx(tensor_copies.source(), "compute_90a")


@pytest.mark.parametrize("name", RECORDED)
def test_a_copy_leaves_what_an_h200_left(recorded_ptx, name, monkeypatch):
    """Through maps of 32-byte slices with other swizzles as well, which cuda.h forbids and the driver encodes."""
    case, total = RECORDED[name]
    if name in FORBIDDEN:
        with pytest.raises(emulator.EmulatorError, match="a 32-byte interleave needs the 32B swizzle"):
            tensor_copies.on_emulator(recorded_ptx, case)
        monkeypatch.setattr("gemmgen.emulator.buffers.problems", refusals)
    assert tensor_copies.summed(case, *tensor_copies.on_emulator(recorded_ptx, case)) == total, case


def test_the_record_has_every_kind_of_copy():
    cases = [case for case, _ in RECORDED.values()]
    kinds = {(case["direction"], case["map"]["interleave"], case["map"]["im2col"] is not None) for case in cases}
    assert len(cases) == 393 and len(kinds) == 16 and len(FORBIDDEN) == 3
    assert {case["map"]["element"] for case in cases if case["map"]["fill"] == "nan"} == FLOATING_ELEMENTS
    stepped = [case for case in cases if case["map"]["im2col"] and (case["map"]["element_strides"] or [1])[-1] > 1]
    reduced = [tensor_copies.map_of(case) for case in cases if case["direction"] in tensor_copies.OPERATIONS]
    within_a_unit = [m for m in reduced if m.extents[0] * m.unit_bytes % 16]
    assert len(stepped) > 20 and len(within_a_unit) > 9


@pytest.mark.parametrize("case", json.loads(str(EVERY_KIND["faulted"])), ids=lambda case: f"{case['direction']} {case['coordinates']}")
def test_a_copy_that_stops_an_h200_is_an_error(recorded_ptx, case):
    with pytest.raises(emulator.InvalidCopy, match="a GPU stops with an illegal instruction"):
        tensor_copies.on_emulator(recorded_ptx, case)


@pytest.mark.parametrize(("recorded", "count", "refused"), [(INTERLEAVED_ONES, 490, 96), (EVERY_KIND, 651, 249)])
def test_maps_are_judged_as_the_driver_does(recorded, count, refused):
    maps, codes = json.loads(str(recorded["maps"])), recorded["codes"].tolist()
    assert (len(codes), np.count_nonzero(codes)) == (count, refused)
    for described, code in zip(maps, codes, strict=True):
        assert bool(refusals(tensor_copies.map_of({"map": described}))) == bool(code), described


def test_boxes_that_the_driver_refuses_are_too_large():
    maps = [tensor_copies.map_of({"map": described}) for described in json.loads(str(EVERY_KIND["maps"]))]
    refused = [why for tensor_map in maps for why in refusals(tensor_map) if "233472 are possible" in why]
    assert len(refused) == 6 and refused[0].startswith("box: ")
