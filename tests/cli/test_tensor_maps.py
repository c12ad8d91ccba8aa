"""gemmgen emulate with tensor maps and clusters."""

from pathlib import Path

import pytest

from cli.conftest import Run

KERNEL = r"""
struct __align__(64) CUtensorMap { unsigned long long opaque[16]; };
__device__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
extern "C" __global__ void copy(const __grid_constant__ CUtensorMap map, float* out, int rank_wanted) {
    __shared__ __align__(1024) float tile[256]; __shared__ unsigned long long bar; unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(address(&bar)) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" :: "r"(address(&bar)) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {8, 2}], [%2];"
                     :: "r"(address(tile)), "l"(&map), "r"(address(&bar)) : "memory");
    }
    __syncthreads();
    asm volatile("{.reg .pred p; L: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra L;}" :: "r"(address(&bar)) : "memory");
    if (rank == rank_wanted) out[threadIdx.x] = tile[threadIdx.x];
}"""


@pytest.fixture
def emulate(run: Run):
    Path("copy.cu").write_text(KERNEL)

    def launch(tensor_map: str, *more: str, rank: int = 0, code: int = 0) -> str:
        arguments = ["--arch", "sm_90a", "--block", "256", "--arg", tensor_map, "--arg", "f32[256]", "--arg", f"i32={rank}"]
        result = run("emulate", "copy.cu", *arguments, "--print", "out:3", *more, code=code)
        return result.out + result.err

    return launch


def test_a_tensor_map_is_an_argument(emulate):
    assert "out (f32[256]): 40.0, 41.0, 42.0, ..." in emulate("tensormap[f32, 64x16, box 32x8]=range", "--grid", "1")


def test_strides_leave_gaps(emulate):
    text = "tensormap[f32, 64x16, box 32x8, strides 128, promote 128B]=range"
    assert "out (f32[256]): 72.0, 73.0, 74.0, ..." in emulate(text, "--grid", "1")


def test_clusters_are_launched(emulate):
    text = "tensormap[f32, 64x16, box 32x8]=range"
    assert "40.0, 41.0, 42.0" in emulate(text, "--grid", "2", "--cluster", "2", rank=1)
    assert "no multiple of the cluster" in emulate(text, "--grid", "3", "--cluster", "2", code=2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tensormap[f32]=range", "'' is no shape"),
        ("tensormap[f33, 16x64, box 8x32]", "'f33' is not an element type of tensor maps"),
        ("tensormap[f32, 16xa, box 8x32]", "'16xa' is no shape"),
        ("tensormap[f32, 16x64, box 8]", "box has 1 numbers; the array has 2 axes"),
        ("tensormap[f32, 16x64, boxes 8x32]", "'boxes 8x32' says nothing about a tensor map"),
        ("tensormap[f32, 16x64, box 8x32, box 8x32]", "box is given twice"),
        ("tensormap[f32, 16x64, box 8x32, swizzle 64B]", "a 64B swizzle takes rows of at most 64"),
        ("tensormap[f32, 16x64, box 8x32, swizzle 65B]", "'65B' is none of none, 32B"),
        ("tensormap[f32, 16x63, box 8x32]", "252 bytes, which is no multiple of 16"),
        ("tensormap[f32, 4x16x16x64, lower 0x0, upper 0x0, channels 32]", "an im2col map needs pixels"),
        ("tensormap[f32, 16x64, box 8x32", "expected a tensor map such as"),
        ("f32[64]=ones", "is a struct of 128 bytes"),
    ],
)
def test_a_map_that_cannot_be_says_why(emulate, text, reason):
    assert reason in emulate(text, "--grid", "1", code=2)


PIXELS = "tensormap[f16, 8x56x56x64, lower 0x0, upper 0x0, channels 64, pixels 128"
REFUSED = {
    "tensormap[f32, 2x2x2x2x2x16, box 1x1x1x1x1x16]": "extents: 6 axes; the rank is 1 to 5",
    "tensormap[f32, 0x64, box 8x32]": "extents[1]: 0; 1 to 2^32",
    "tensormap[f32, 4294967297x4, box 8x4]": "extents[1]: 4294967297",
    "tensormap[f32, 16x64, box 257x32]": "box[1]: 257; 1 to 256",
    "tensormap[f32, 16x64, box 0x32]": "box[1]: 0; 1 to 256",
    "tensormap[f32, 16x64, box -8x32]": "box[1]: -8; 1 to 256",
    "tensormap[f32, 16x64, box 8x6]": "6 elements of 4 bytes are 24 bytes, which is no multiple of 16",
    "tensormap[f32, 16x64, box 8x64, swizzle 128B]": "a 128B swizzle takes rows of at most 128",
    "tensormap[f32, 16x64, box 8x16, swizzle 32B]": "a 32B swizzle takes rows of at most 32",
    "tensormap[f32, 16x64, box 8x32, strides 264]": "strides of axis 1: 264 bytes, which is no multiple of 16",
    "tensormap[f32, 16x64, box 8x32, strides 1099511627776]": "0 to 2^40 - 1 are possible",
    "tensormap[f32, 16x64, box 8x32, strides -256]": "0 to 2^40 - 1 are possible",
    "tensormap[f32, 16x64, box 8x32, strides 256x4]": "strides has 2 numbers",
    "tensormap[f32, 16x64, box 8x32, steps 9x1]": "element_strides[1]: 9; 1 to 8",
    "tensormap[f32, 16x64, box 8x32, steps 0x1]": "element_strides[1]: 0; 1 to 8",
    "tensormap[i32, 16x64, box 8x32, fill nan]": "fill: nan with elements of type s32",
    "tensormap[f32, 16x64, box 8x32, fill ones]": "fill: 'ones' is none of",
    "tensormap[f32, 16x64, box 8x32, promote 512B]": "l2_promotion: '512B' is none of",
    "tensormap[f32, 16x64, box 8x32, interleave 16B]": "the rank of an interleaved map is 3 to 5",
    "tensormap[u8, 8x8x32, box 8x8x32, interleave 32B]": "a 32-byte interleave needs the 32B swizzle",
    "tensormap[u8, 8x8x32, box 8x8x32, interleave 64B]": "interleave: '64B' is none of",
    "tensormap[u8, 8x8x32, box 8x8x32, interleave 32B, swizzle 32B, strides 384x48]": "no multiple of 32 with a 32-byte interleave",
    "tensormap[f16, 56x64, lower 0, upper 0, channels 64, pixels 128]": "lower has 1 numbers",
    f"{PIXELS.replace('lower 0x0', 'lower 0x-129')}]": "im2col.lower[0]: -129; with 4 axes -128 to 127",
    f"{PIXELS.replace('upper 0x0', 'upper 128x0')}]": "im2col.upper[1]: 128; with 4 axes -128 to 127",
    f"{PIXELS.replace('lower 0x0', 'lower 60x0')}]": "the box is empty along axis 2",
    f"{PIXELS.replace('channels 64', 'channels 264')}]": "im2col.channels_per_pixel: 264; 1 to 256",
    f"{PIXELS.replace('pixels 128', 'pixels 1025')}]": "im2col.pixels_per_column: 1025; 1 to 1024",
    f"{PIXELS}, box 1x1x1x64]": "box: an im2col map has none",
    f"{PIXELS}, swizzle 64B]": "a 64B swizzle takes rows of at most 64",
}
"""Maps that cuTensorMapEncodeTiled or cuTensorMapEncodeIm2col refuses, and the reason that is told."""


@pytest.mark.parametrize("text", REFUSED)
def test_what_the_driver_refuses_is_refused(emulate, text):
    message = emulate(text, "--grid", "1", code=2)
    assert REFUSED[text] in message and "Traceback" not in message


MAPS = (
    KERNEL.replace("const __grid_constant__ CUtensorMap map", "MAPS")
    .replace("(&map)", "(WHICH)")
    .replace("extern", "struct Maps { int first; CUtensorMap one; CUtensorMap more[2]; };\nextern")
)
FIRST, SECOND = "tensormap[f32, 64x16, box 32x8]=zeros", "tensormap[f32, 64x16, box 32x8]=range"


@pytest.mark.parametrize(
    ("parameter", "which", "given"),
    [
        ("const CUtensorMap* maps", "maps + 1", f"[{FIRST}, {SECOND}]"),
        ("const __grid_constant__ Maps maps", "&maps.one", f"{{first=3, one={SECOND}, more=[{FIRST}, {FIRST}]}}"),
        ("const __grid_constant__ Maps maps", "&maps.more[maps.first]", f"{{first=1, one={FIRST}, more=[{FIRST}, {SECOND}]}}"),
    ],
)
def test_maps_lie_in_memory_and_in_structures(emulate, parameter, which, given):
    Path("copy.cu").write_text(MAPS.replace("MAPS", parameter).replace("WHICH", which))
    assert "out (f32[256]): 40.0, 41.0, 42.0, ..." in emulate(given, "--grid", "1")


def test_a_member_takes_as_many_maps_as_it_has(emulate):
    Path("copy.cu").write_text(MAPS.replace("MAPS", "const __grid_constant__ Maps maps").replace("WHICH", "&maps.one"))
    message = emulate(f"{{first=3, one={SECOND}, more=[{FIRST}]}}", "--grid", "1", code=2)
    assert "the member more takes 2 elements of 128 bytes, got 1 tensor maps" in message


@pytest.mark.parametrize(
    ("parameter", "which", "argument"),
    [
        ("const CUtensorMap* maps", "maps + 1", "[x_map, y_map]"),
        ("const __grid_constant__ CUtensorMap map", "&map", "y_map"),
        ("const __grid_constant__ Maps maps", "&maps.more[maps.first]", "{first: 1, one: x_map, more: [x_map, y_map]}"),
        ("const __grid_constant__ Behind maps", "maps.there", "{there: y_map}"),
    ],
)
def test_launch_files_name_maps_inside_arguments(run: Run, parameter: str, which: str, argument: str):
    kernel = MAPS.replace("MAPS", parameter).replace("WHICH", which)
    Path("copy.cu").write_text(kernel.replace("extern", "struct Behind { const CUtensorMap* there; };\nextern"))
    Path("run.yaml").write_text(
        f"arrays: {{x_map: '{FIRST}', y_map: '{SECOND}', out: 'f32[256]'}}\n"
        f"launches: [{{grid: 1, block: 256, args: [{argument}, out, 0]}}]\n"
    )
    found = run("emulate", "copy.cu", "--arch", "sm_90a", "--launches", "run.yaml", "--print", "out:3")
    assert "out (f32[256]): 40.0, 41.0, 42.0, ..." in found.out


def test_an_array_inside_several_arguments_stays_one_array(run: Run):
    Path("rows.cu").write_text("""
__global__ void fill(float* x) { x[threadIdx.x] = threadIdx.x; }
__global__ void sum(float* const* rows, float* out) { out[threadIdx.x] = rows[0][threadIdx.x] + rows[1][threadIdx.x]; }""")
    Path("run.yaml").write_text(
        "arrays: {x: 'f32[32]', y: 'f32[32]=ones', out: 'f32[32]'}\n"
        "launches: [{entry: fill, grid: 1, block: 32, args: [x]}, {entry: sum, grid: 1, block: 32, args: [[x, y], out]}]\n"
    )
    assert "out (f32[32]): 1.0, 2.0, 3.0, ..." in run("emulate", "rows.cu", "--launches", "run.yaml", "--print", "out:3").out
