"""cp.async.bulk, its reductions and its tensor form beyond plain loads."""

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator import Im2col, TensorMap
from gemmgen.hardware.tensor_map import packed_strides

from .prelude import run

ROUND_TRIP = """KERNEL(const float* in, float* out, int count) {
    __shared__ __align__(16) float tile[256]; __shared__ u64 bar;
    if (threadIdx.x == 0) {
        init(&bar, 1); fence_init();
        arrive_expect(&bar, 4 * count); load_bulk(tile, in, 4 * count, &bar); wait(&bar, 0);
        tile[0] += 1; fence_async();
        store_bulk(out, tile, 4 * count); commit(); wait_group<0>();
    }
}"""


def test_bytes_go_to_shared_memory_and_back():
    data, out = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    run(ROUND_TRIP, data, out, 200, block=32, hazards=True)
    assert out[0] == 1 and (out[1:200] == data[1:200]).all() and not out[200:].any()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ((", in,", ", in + 1,"), emulator.Misaligned, "no multiple of 16"),
        (("(tile, in", "(tile + 2, in"), emulator.Misaligned, "8 bytes past a multiple of 16"),
        (("4 * count", "4 * count + 8"), emulator.InvalidCopy, "no multiple of 16"),
        (("4 * count", "8 * count"), emulator.OutOfBounds, "shared"),
        ((", in,", ", in + 128,"), emulator.OutOfBounds, "past the end"),
    ],
)
def test_bulk_copies_that_cannot_be(change, error, message):
    with pytest.raises(error, match=message):
        run(ROUND_TRIP.replace(*change), np.zeros(256, np.float32), np.zeros(256, np.float32), 200, block=32)


def test_copies_of_no_bytes_move_nothing():
    body = """KERNEL(const float* in, float* out, int bytes) {
        __shared__ __align__(16) float tile[4]; __shared__ u64 bar;
        if (threadIdx.x == 0) {
            init(&bar, 1); fence_init();
            tile[0] = 3; fence_async();
            arrive_expect(&bar, bytes); load_bulk(tile, in, bytes, &bar); wait(&bar, 0);
            store_bulk(out, tile, bytes); commit(); wait_group<0>();
            out[1] = tile[0];
        }
    }"""
    out = np.zeros(4, np.float32)
    assert not run(body, np.ones(4, np.float32), out, 0, hazards=True, block=32).findings
    assert out.tolist() == [0, 3, 0, 0]


def test_stores_are_seen_behind_their_wait():
    body = ROUND_TRIP.replace("wait_group<0>();", "wait_group<0>(); out[0] = 10 * *(volatile float*)(out + 1);")
    data, out = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    run(body, data, out, 256, block=32)
    assert out[0] == 10


def test_a_mask_of_bytes():
    mask = """asm volatile("cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%0], [%1], 32, %2;"
                          :: "l"(out), "r"(shared_address(tile)), "h"((u16)0x8001));"""
    data, out = np.arange(32, dtype=np.uint8) + 100, np.zeros(32, np.uint8)
    body = """KERNEL(const u8* in, u8* out) { __shared__ __align__(16) u8 tile[32]; tile[threadIdx.x] = in[threadIdx.x]; fence_async();
        __syncthreads(); if (threadIdx.x == 0) { COPY commit(); wait_group<0>(); } }"""
    run(body.replace("COPY", mask), data, out, block=32, hazards=True)
    assert np.flatnonzero(out).tolist() == [0, 15, 16, 31] and out[15] == 115


REDUCE = """KERNEL(const TYPE* in, TYPE* out) { __shared__ __align__(16) TYPE tile[64]; tile[threadIdx.x] = in[threadIdx.x]; fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.FORM [%0], [%1], %2;"
                     :: "l"(out), "r"(shared_address(tile)), "n"(64 * sizeof(TYPE)) : "memory");
        commit(); wait_group<0>();
    } }"""
REDUCTIONS = {
    "add.u32": ("u32", np.add),
    "add.s32": ("u32", np.add),
    "min.s32": ("s32", np.minimum),
    "max.u32": ("u32", np.maximum),
    "and.b32": ("u32", np.bitwise_and),
    "or.b32": ("u32", np.bitwise_or),
    "xor.b32": ("u32", np.bitwise_xor),
    "add.u64": ("u64", np.add),
    "max.s64": ("s64", np.maximum),
    "add.f32": ("f32", np.add),
    "add.f64": ("f64", np.add),
    "add.noftz.f16": ("f16", np.add),
    "min.f16": ("f16", np.minimum),
    "inc.u32": ("u32", lambda old, limit: np.where(old >= limit, 0, old + 1)),
}
DTYPES = {"u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64, "f32": np.float32, "f64": np.float64, "f16": np.float16}
C_TYPES = {"u32": "u32", "s32": "int", "u64": "u64", "s64": "long long", "f32": "float", "f64": "double", "f16": "u16"}


@pytest.mark.parametrize("form", REDUCTIONS)
def test_reductions_into_global_memory(form):
    kind, reference = REDUCTIONS[form]
    random = np.random.default_rng(8)
    dtype = DTYPES[kind]
    data, out = (random.integers(0, 200, 64).astype(dtype) for _ in range(2))
    want = reference(out, data).astype(dtype)
    run(REDUCE.replace("TYPE", C_TYPES[kind]).replace("FORM", form), data, out, block=64, hazards=True)
    np.testing.assert_array_equal(out, want)


TENSOR_STORE = """KERNEL(const __grid_constant__ CUtensorMap map, const float* in, int x, int y) {
    __shared__ __align__(1024) float tile[256];
    for (int i = threadIdx.x; i < 256; i += 128) tile[i] = in[i];
    fence_async(); __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("FORM.2d.global.shared::cta.REDUCEtile.bulk_group [%0, {%2, %3}], [%1];"
                     :: "l"(&map), "r"(shared_address(tile)), "r"(x), "r"(y) : "memory");
        commit(); wait_group<0>();
    }
}"""


@pytest.mark.parametrize("swizzle", ["none", "128B"])
@pytest.mark.parametrize(("x", "y"), [(0, 0), (16, 8), (28, 14), (44, 3)])
@pytest.mark.parametrize("form", ["cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor"])
def test_boxes_are_stored_where_the_array_is(swizzle, x, y, form):
    box = np.random.default_rng(9).integers(1, 100, (8, 32)).astype(np.float32)
    array = np.full((16, 48), 1000, np.float32)
    want = array.copy()
    for row in range(8):
        for column in range(32):
            if 0 <= y + row < 16 and 0 <= x + column < 48:
                want[y + row, x + column] = box[row, column] + (1000 if "reduce" in form else 0)
    tile = box if swizzle == "none" else np.array([[box[r, (c // 4 ^ r) * 4 + c % 4] for c in range(32)] for r in range(8)], np.float32)
    tensor_map = TensorMap("f32", (48, 16), (192,), (32, 8), swizzle=swizzle, base=array)
    body = TENSOR_STORE.replace("FORM", form).replace("REDUCE", "add." if "reduce" in form else "")
    run(body, tensor_map, tile, x, y, hazards=True)
    np.testing.assert_array_equal(array, want)


LOAD = """KERNEL(const __grid_constant__ CUtensorMap map, u8* out, int bytes) {
    __shared__ __align__(1024) u8 tile[8192]; __shared__ u64 bar;
    if (threadIdx.x == 0) {
        init(&bar, 1); fence_init();
        asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
        asm volatile("PREFETCH" :: "l"(&map) : "memory");
        arrive_expect(&bar, bytes);
        asm volatile("FORM" :: "r"(shared_address(tile)), "l"(&map), "r"(shared_address(&bar)) : "memory");
        wait(&bar, 0);
        for (int i = 0; i < bytes; ++i) out[i] = tile[i];
    }
}"""


def load(tensor_map: TensorMap, mode: str, operands: str, tail: str = "") -> np.ndarray:
    body = LOAD.replace(
        "FORM",
        f"cp.async.bulk.tensor.{tensor_map.rank}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes "
        f"[%0], [%1, {operands}], [%2]{tail};",
    )
    body = body.replace("PREFETCH", f"cp.async.bulk.prefetch.tensor.{tensor_map.rank}d.L2.global.{mode} [%0, {operands}]{tail};")
    out = np.zeros(tensor_map.box_bytes, np.uint8)
    run(body, tensor_map, out, tensor_map.box_bytes, block=32)
    return out


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_tiles_of_every_rank(rank):
    shape = (3, 4, 5, 6, 32)[-rank:]
    array = np.random.default_rng(rank).integers(1, 256, shape).astype(np.uint8)
    extents = tuple(reversed(shape))
    box = (16, 3, 2, 3, 2)[:rank]
    start = (16, 4, -1, 1, 2)[:rank]
    got = load(TensorMap("u8", extents, packed_strides("u8", extents), box, base=array), "tile", "{" + ", ".join(map(str, start)) + "}")
    padded = np.pad(array, 8)
    where = tuple(slice(8 + s, 8 + s + b) for s, b in zip(reversed(start), reversed(box), strict=True))
    np.testing.assert_array_equal(got.reshape(tuple(reversed(box))), padded[where])


def im2col_reference(array: np.ndarray, start, offsets, lower, upper, pixels: int, channels: int, step: int) -> np.ndarray:
    """Pixels (n, h, w) in order from a start within the bounding box, each moved by offsets; array is NHWC."""
    images, height, width, _ = array.shape
    rows = [
        (n, h, w)
        for n in range(images + 1)
        for h in range(lower[1], height + upper[1], step)
        for w in range(lower[0], width + upper[0], step)
    ]
    first = rows.index((start[3], start[2], start[1]))
    result = np.zeros((pixels, channels), array.dtype)
    for index, (n, h, w) in enumerate(rows[first : first + pixels]):
        h, w = h + offsets[1], w + offsets[0]
        if n < images and 0 <= h < height and 0 <= w < width:
            result[index] = array[n, h, w, start[0] : start[0] + channels]
    return result


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("offsets", [(0, 0), (2, 1)])
def test_columns_of_pixels(step, offsets):
    # A 3x3 filter with padding 1.
    array = np.random.default_rng(2).integers(1, 256, (2, 6, 8, 32)).astype(np.uint8)
    lower, upper, pixels = (-1, -1), (-1, -1), 40
    tensor_map = TensorMap(
        "u8",
        (32, 8, 6, 2),
        packed_strides("u8", (32, 8, 6, 2)),
        element_strides=(1, step, step, 1),
        im2col=Im2col(lower, upper, 16, pixels),
        base=array,
    )
    start = (16, -1 + 2 * step, -1 + step, 0)
    got = load(tensor_map, "im2col", "{" + ", ".join(map(str, start)) + "}", ", {" + ", ".join(map(str, offsets)) + "}")
    want = im2col_reference(array, start, offsets, lower, upper, pixels, 16, step)
    np.testing.assert_array_equal(got.reshape(pixels, 16), want)


@pytest.mark.parametrize(("rank", "most"), [(4, 255), (5, 31)])
def test_offsets_of_a_column_share_16_bits(rank, most):
    extents = (*(16, 4, 4, 4, 2)[: rank - 1], 2)
    walk = Im2col((0,) * (rank - 2), (0,) * (rank - 2), 16, 8)
    tensor_map = TensorMap("u8", extents, packed_strides("u8", extents), im2col=walk, base=np.ones(extents[::-1], np.uint8))
    zeros = "{" + ", ".join(["0"] * rank) + "}"
    assert not load(tensor_map, "im2col", zeros, ", {" + ", ".join([str(most), *["0"] * (rank - 3)]) + "}").any()
    with pytest.raises(emulator.InvalidCopy, match=f"offset of {most + 1}; with {rank} axes 0 to {most} are possible"):
        load(tensor_map, "im2col", zeros, ", {" + ", ".join([str(most + 1), *["0"] * (rank - 3)]) + "}")


WRONG = {
    "dimensions": (
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {0, 0, 0}], [%2];",
        emulator.InvalidCopy,
        "3 dimensions through a tensor map of 2",
    ),
    "mode": (
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {0, 0, 0}], [%2], {0};",
        emulator.InvalidCopy,
        "tensor map of 2",
    ),
    "alignment": (
        "{.reg .b32 t; add.u32 t, %0, 64; cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[t], [%1, {0, 0}], [%2];}",
        emulator.Misaligned,
        "64 bytes past a multiple of 128",
    ),
    "room": (
        "{.reg .b32 t; add.u32 t, %0, 7168; cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[t], [%1, {0, 0}], [%2];}",
        emulator.EmulatorError,
        "shared|tensor map",
    ),
    "map": (
        "{.reg .b64 t; add.u64 t, %1, 64; cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [t, {0, 0}], [%2];}",
        emulator.EmulatorError,
        "shared|tensor map",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_tensor_copies_that_cannot_be(case):
    form, error, message = WRONG[case]
    array = np.zeros((64, 64), np.float32)
    body = LOAD.replace('asm volatile("PREFETCH" :: "l"(&map) : "memory");', "").replace("FORM", form)
    with pytest.raises(error, match=message):
        run(body, TensorMap("f32", (64, 64), (256,), (32, 16), base=array), np.zeros(2048, np.uint8), 2048, block=32, hazards=True)


def test_a_map_that_the_driver_would_refuse():
    array = np.zeros((64, 64), np.float32)
    body = "KERNEL(const __grid_constant__ CUtensorMap map, u8* out, int bytes) {}"
    with pytest.raises(emulator.BadLaunch, match="box\\[0\\]: 64 elements of 4 bytes are 256 bytes; a 128B swizzle"):
        run(body, TensorMap("f32", (64, 64), (256,), (64, 16), swizzle="128B", base=array), np.zeros(1, np.uint8), 1)
    with pytest.raises(emulator.BadLaunch, match="of an array of 16384 bytes"):
        run(body, TensorMap("f32", (64, 65), (256,), (32, 16), base=array), np.zeros(1, np.uint8), 1)


MAPS = """struct Maps { CUtensorMap map[2]; };
    KERNEL(const __grid_constant__ Maps maps, const CUtensorMap* array, float* out) {
        __shared__ __align__(1024) float tile[2][64]; __shared__ u64 bar;
        if (threadIdx.x == 0) {
            init(&bar, 1); fence_init(); arrive_expect(&bar, 512);
            load_tile(tile[0], &maps.map[1], &bar, 0, 0); load_tile(tile[1], array + 2, &bar, 0, 0);
        }
        __syncthreads(); wait(&bar, 0);
        out[threadIdx.x] = tile[threadIdx.x / 64][threadIdx.x % 64];
    }"""


def test_maps_in_structs_and_in_global_memory():
    assert maps_of_five([np.full((8, 8), float(number), np.float32) for number in range(5)]) == (1, 4)


def test_maps_of_neighbouring_views():
    assert maps_of_five(list(np.repeat(np.arange(5, dtype=np.float32), 64).reshape(5, 8, 8))) == (1, 4)


def maps_of_five(arrays):
    """The value of the second and of the last of five arrays, each of one value, by their maps."""
    maps = [TensorMap("f32", (8, 8), (32,), (8, 8), base=array) for array in arrays]
    out = np.zeros(128, np.float32)
    run(MAPS, maps[:2], maps[2:], out, hazards=True)
    assert len(set(out[:64])) == len(set(out[64:])) == 1
    return out[0], out[64]


REGISTERS = """KERNEL(int* out) {
    if (threadIdx.x < 128) { asm volatile("setmaxnreg.dec.sync.aligned.u32 DEC;"); out[0] = 1; }
    else asm volatile("setmaxnreg.inc.sync.aligned.u32 INC;");
}"""


def registers(dec: int, inc: int) -> int:
    """Flag that the kernel writes when all warpgroups have the registers that they asked for."""
    body = REGISTERS.replace("DEC", str(dec)).replace("INC", str(inc)).replace("__launch_bounds__(1024)", "__launch_bounds__(384)")
    out = np.zeros(1, np.int32)
    run(body.replace("KERNEL", 'extern "C" __global__ void __launch_bounds__(384) kernel'), out, block=384)
    return int(out[0])


def test_warpgroups_pass_registers_on():
    assert registers(40, 232) == registers(24, 240) == 1


@pytest.mark.parametrize(
    ("dec", "inc", "error", "message"),
    [
        (40, 240, emulator.Deadlock, "want 240 registers a thread"),
        (176, 200, emulator.RegisterPoolMisuse, "dec to 176 where a thread holds 168"),
        (160, 160, emulator.RegisterPoolMisuse, "inc to 160 where a thread holds 168"),
    ],
)
def test_a_pool_has_so_many_registers(dec, inc, error, message):
    with pytest.raises(error, match=message):
        registers(dec, inc)
