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
        ("tensormap[f33, 16x64, box 8x32]", "'f33' is no type of a tensor map's elements"),
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
