"""Device code is CUDA of its own: each file compiles without a kernel, on the architectures that it serves, and each name stands once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmgen.codegen.device_code import MARK, parse, with_device_code
from gemmgen.core.resources import resource_directory
from gemmgen.hardware.target import architecture
from gemmgen.toolchain.compilation import COMPILE_OPTIONS
from gemmgen.toolchain.nvrtc import compile_source

ROOT = resource_directory("templates") / "device"
EVERYWHERE = ("sm_80", "sm_90a")
SERVES = {
    "async_copy": EVERYWHERE,
    "conversions": EVERYWHERE,
    "division": EVERYWHERE,
    "flag": EVERYWHERE,
    "load_matrices": EVERYWHERE,
    "planes": EVERYWHERE,
    "scheduler": ("sm_100a",),
    "tensor_memory": ("sm_100a",),
    "tensor_pairs": ("sm_100a",),
    "tensor_scales": ("sm_100a",),
    "ticket": EVERYWHERE,
    "warp_tiles": EVERYWHERE,
}
"""Architectures of files that serve more than warpgroups and TMA."""
FILES = [
    (path, name)
    for path in sorted(ROOT.rglob("*.cuh"))
    for name in (("sm_75",) if path.parent.name == "turing" else SERVES.get(path.stem, ("sm_90a",)))
]
USES = {
    "bulk_copy": """
__global__ void uses(TensorMap map, int* found)
{
    load_boxes_2d<2, 64, 8192>(0, map, 0, 0, 0);
    prefetch_boxes_2d<2, 64>(map, 1, 2);
    load_boxes_3d<1, 64, 8192>(0, map, 0, 0, 0, 0);
    multicast_boxes_2d<2, 64, 8192>(0, map, 0, 3, 0, 0);
    multicast_boxes_3d<2, 64, 8192>(0, map, 0, 3, 0, 0, 0);
    load_pieces_2d<2, 64, 8192, 64, 4096>(0, map, 0, 0, 0, 2);
    load_boxes_2d_by_policy<2, 64, 8192>(0, map, 0, 0, 0, 7);
    load_boxes_3d_by_policy<2, 64, 8192>(0, map, 0, 0, 0, 0, 7);
    multicast_boxes_2d_by_policy<2, 64, 8192>(0, map, 0, 3, 0, 0, 7);
    multicast_boxes_3d_by_policy<2, 64, 8192>(0, map, 0, 3, 0, 0, 0, 7);
    store_boxes_wait<0>();
}
""",
    "matrix_descriptor": """
__global__ void uses(unsigned long long* found)
{
    found[0] = matrix_descriptor<128>(descriptor_position<16>(1024) + step_offset<32, 4, 8192>(5) / kDescriptorUnit);
    static_assert(kDescriptorUnit == 16);
}
""",
    "mbarrier": """
__global__ void uses(int* tickets)
{
    pass_ticket<4>(0, tickets, 0, 1);
    tickets[0] = take_ticket<4>(0, tickets, 0, 0);
}
""",
    "pipeline": """
__global__ void uses(int* stage, int* phase) { advance<4>(*stage, *phase); }
""",
    "narrow_weights": """
__global__ void uses(unsigned* found, float zero)
{
    const unsigned f16 = zero_offset_f16(zero);
    const unsigned bf16 = zero_offset_bf16(zero);
    found[0] = nibbles_to_f16<0>(found[0], f16) + nibbles_to_bf16<1>(found[1], bf16);
    found[9] = small_nibbles_to_f16<0>(found[0], f16) + small_nibbles_to_bf16<3>(found[1], bf16);
    found[10] = spread_nibbles_to_f16<1>(found[2], f16) + spread_nibbles_to_f16<2>(found[2], f16);
    found[1] = bytes_to_f16<0>(found[2], f16) + small_bytes_to_bf16<1>(found[3], bf16);
    found[2] = scale_f16(found[4], f16) + scale_bf16(found[5], bf16);
    found[7] = nibble_floats_to_f16<0>(found[7]) + nibble_floats_to_bf16<1>(found[7]);
    found[8] = byte_floats_to_f16<0>(found[8]) + byte_floats_to_bf16<1>(found[8]);
    const unsigned bytes = zero_offset_bytes(zero);
    found[3] = nibbles_to_s8<0>(found[2], bytes) + nibbles_to_e4m3<1>(found[3], bytes) + nibbles_e2m1_to_e4m3<0>(found[3]);
}
""",
    "tensor_memory": """
__global__ void uses(unsigned shared, unsigned address, float* found)
{
    float values[16];
    int integers[16];
    allocate_tensor_memory<64>(shared);
    load_tensor_columns(values, address);
    load_tensor_integers(integers, address + 32);
    wait_for_tensor_loads();
    found[0] = values[1] + integers[2] + static_cast<float>(tensor_descriptor<128>(4) + deep_descriptor<8192, 48>(4, address));
    free_tensor_memory<64>(address);
}
""",
    "scheduler": """
__global__ void uses(unsigned shared, int* found)
{
    ask_for_cluster(shared, shared + 16);
    ask_for_cluster_for_all(shared, shared + 16);
    found[0] = take_answer<2>(shared, shared + 32, shared + 48, found[1]);
}
""",
    "tensor_pairs": """
__global__ void uses(unsigned shared, unsigned address, TensorMap map)
{
    allocate_tensor_memory_of_pair<64>(shared);
    load_pair_boxes_2d<2, 64, 8192>(0, map, 0, 0, 0);
    load_pair_boxes_3d<2, 64, 8192>(0, map, 0, 0, 0, 0);
    free_tensor_memory_of_pair<64>(address);
}
""",
    "warp_tiles": """
template <bool kKMajor, int kSpan>
struct Tile {
    using Element = unsigned short;
    static constexpr int kLines = 64;
    static constexpr int kDepth = 64;
    static constexpr int kVector = 8;
    static constexpr int kElementBytes = 2;
    static constexpr int kRowBytes = 128;
    static constexpr int kSpanBytes = kSpan;
    static constexpr bool kAlongK = kKMajor;
    static constexpr bool kSharedAlongK = kKMajor;
};
template <class Along, class Across>
__device__ void use(unsigned* found, const unsigned short* matrix, const int* rows, unsigned shared, int part)
{
    unsigned a[2][4];
    unsigned b[2][2];
    copy_tile<Along, 128>(shared, matrix, 64, 0, 0, 64, 64);
    copy_tile<Across, 96>(shared, matrix, 64, 0, 0, 64, 64);
    copy_gathered_tile<Along, 128>(shared, matrix, 64, rows, 64, 0, 0, 64, 64);
    load_fragments_a<Along, 16>(a, shared, 0, part, threadIdx.x);
    load_fragments_b<Across, 16>(b, shared, 0, part, threadIdx.x);
    found[0] = a[1][3] + b[1][1];
    load_fragments_a<Across, 16>(a, shared, 0, part, threadIdx.x);
    load_fragments_b<Along, 16>(b, shared, 0, part, threadIdx.x);
    found[1] = a[1][3] + b[1][1];
}
__global__ void uses(unsigned* found, const unsigned short* matrix, const int* rows, unsigned shared, int part)
{
    use<Tile<true, 0>, Tile<false, 0>>(found, matrix, rows, shared, part);
    use<Tile<true, 8192>, Tile<false, 8192>>(found, matrix, rows, shared, part);
}
""",
}
"""Uses of templates, by the file that they are in."""


@pytest.mark.parametrize(("path", "name"), FILES, ids=lambda value: value.stem if isinstance(value, Path) else value)
def test_a_file_of_device_code_compiles_without_a_kernel(path: Path, name: str) -> None:
    used = with_device_code(f"{MARK}\n{USES[path.stem]}", architecture(name)) if path.stem in USES else path.read_text()
    binary = compile_source(used, architecture=name, options=COMPILE_OPTIONS, name=path.name, cache=None)
    assert binary.architecture == name


@pytest.mark.parametrize("stem", USES)
def test_every_template_of_these_files_is_used(stem: str) -> None:
    text = (ROOT / f"{stem}.cuh").read_text()
    templates = [definition.name for definition in parse(text) if "template <" in definition.text]
    assert [name for name in templates if f"{name}<" not in USES[stem] + text.replace(f"{name}(", "")] == []


def test_a_definition_stands_in_one_file() -> None:
    names = [definition.name for path in sorted(ROOT.glob("*.cuh")) for definition in parse(path.read_text())]
    assert sorted(names) == sorted(set(names))
