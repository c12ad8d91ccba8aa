"""Tensor maps that a kernel changes itself: in global memory, and in shared memory with a copy back."""

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator import TensorMap
from gemmgen.hardware.tensor_map import Swizzle, swizzled

from ..helpers import compile_ptx
from .prelude import PRELUDE, run

GLOBAL = """KERNEL(u8* map, const u8* other, u8* out, int bytes) {
    __shared__ __align__(1024) u8 tile[4096]; __shared__ u64 bar;
    if (threadIdx.x == 0) {
        CHANGES
        asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
        asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(map) : "memory");
        init(&bar, 1); fence_init(); fence_async();
    }
    __syncthreads();
    if (threadIdx.x == 0) { arrive_expect(&bar, bytes); load_tile(tile, (const CUtensorMap*)map, &bar, 0, 1); }
    wait(&bar, 0);
    for (int i = threadIdx.x; i < bytes; i += 128) out[i] = tile[i];
}"""
ARRAY = np.arange(64 * 32, dtype=np.uint8).reshape(32, 64)
OTHER = (np.arange(64 * 32) * 7 % 251).astype(np.uint8).reshape(64, 32)


def field(name: str, value: str, axis: str = "", space: str = "global", at: str = "map") -> str:
    wide = name in ("global_address", "global_stride")
    kind, letter = ("b64", "l") if wide else ("b32", "r")
    constant = name in ("elemtype", "swizzle_mode", "swizzle_atomicity", "fill_mode", "interleave_layout")
    operand, given = (value, "") if constant else ("%1", f', "{letter}"({value})')
    address = f'"l"({at})' if space == "global" else f'"r"((unsigned)__cvta_generic_to_shared({at}))'
    return f'asm volatile("tensormap.replace.tile.{name}.{space}.b1024.{kind} [%0], {axis}{operand};" :: {address}{given} : "memory");'


def changed(*changes: str, bytes: int = 512) -> np.ndarray:
    out = np.zeros(bytes, np.uint8)
    run(GLOBAL.replace("CHANGES", "\n".join(changes)), [TensorMap("u8", (64, 32), (64,), (32, 16), base=ARRAY)], OTHER, out, bytes)
    return out


def test_a_map_takes_another_array():
    got = changed(
        field("global_address", "other"),
        field("global_dim", "32", "0, "),
        field("global_dim", "64", "1, "),
        field("global_stride", "32ull", "0, "),
    )
    np.testing.assert_array_equal(got.reshape(16, 32), OTHER[1:17])


def test_a_map_takes_another_box():
    got = changed(field("box_dim", "8", "1, "), bytes=256)
    np.testing.assert_array_equal(got.reshape(8, 32), ARRAY[1:9, :32])


def test_a_changed_map_is_checked_where_it_is_used():
    with pytest.raises(emulator.InvalidCopy, match="CUDA does not allow, after the kernel has changed it"):
        changed(field("global_stride", "40ull", "0, "))


def test_a_map_is_changed_in_shared_memory_and_copied_back():
    through_shared = f"""
    }}
    __shared__ __align__(128) u8 copy[128];
    copy[threadIdx.x] = map[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {{ {field("box_dim", "4", "1, ", "shared::cta", "copy")} }}
    __syncwarp();
    if (threadIdx.x < 32) asm volatile(
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;"
        :: "l"(map), "r"((unsigned)__cvta_generic_to_shared(copy)) : "memory");
    if (threadIdx.x == 0) {{"""
    np.testing.assert_array_equal(changed(through_shared, bytes=128).reshape(4, 32), ARRAY[1:5, :32])


ATOMS: tuple[Swizzle, ...] = ("128B", "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B")


@pytest.mark.parametrize("atom", range(4))
def test_a_map_takes_other_atoms_of_its_swizzle(atom):
    array = np.random.default_rng(atom).integers(0, 256, (32, 128)).astype(np.uint8)
    source = PRELUDE + GLOBAL.replace("CHANGES", field("swizzle_atomicity", str(atom)) + field("swizzle_mode", "3"))
    out, map_ = np.zeros(1024, np.uint8), TensorMap("u8", (128, 32), (128,), (128, 8), swizzle="128B", base=array)
    emulator.launch(compile_ptx(source, "sm_100a"), "kernel", grid=1, block=128, args=[[map_], OTHER, out, 1024], source=source)
    linear = np.array([out[swizzled(byte, ATOMS[atom])] for byte in range(1024)])
    np.testing.assert_array_equal(linear.reshape(8, 128), array[1:9])


def test_a_narrower_swizzle_has_no_other_atoms():
    source = PRELUDE + GLOBAL.replace("CHANGES", field("swizzle_atomicity", "1"))
    map_ = TensorMap("u8", (64, 32), (64,), (32, 16), base=ARRAY)
    with pytest.raises(emulator.InvalidCopy, match="only 128B has a choice"):
        emulator.launch(compile_ptx(source, "sm_100a"), "kernel", grid=1, block=128, args=[[map_], OTHER, np.zeros(512, np.uint8), 512])
