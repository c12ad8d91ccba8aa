"""cp.async.bulk.tensor: boxes land where the map says, swizzled, filled outside of the array."""

import numpy as np
import pytest

from gemmgen.emulator import TensorMap
from gemmgen.hardware.tensor_map import packed_strides, swizzled

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


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
@pytest.mark.parametrize(("x", "y"), [(0, 0), (32, 5), (-16, -3), (240, 35), (7, 1), (-99, 50)])
def test_a_box_lands_swizzled_and_filled(swizzle, x, y):
    width = {"none": 64, "32B": 32, "64B": 64, "128B": 128}[swizzle]
    tensor_map = TensorMap("u8", (256, 40), (256,), (width, 16), swizzle=swizzle, base=ARRAY)
    got = loaded(tensor_map, x, y)
    linear = np.array([got[swizzled(byte, swizzle)] for byte in range(tensor_map.box_bytes)])
    np.testing.assert_array_equal(linear.reshape(16, width), expected(width, 16, x, y))


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


def test_a_store_writes_whole_units_of_16_bytes_beyond_the_end_of_rows():
    array = np.zeros((16, 64), np.uint8)
    run(STORE, TensorMap("u8", (37, 16), (64,), (64, 16), base=array), 0, 0)
    assert (array[:, :48] == np.arange(1, 17, dtype=np.uint8)[:, None]).all() and not array[:, 48:].any()
