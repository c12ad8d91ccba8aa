// Block scales of tcgen05.mma: 512 bytes hold those of 128 lines and four blocks along k, 16 bytes a row.

// Starts to copy bytes from global memory, 16 or a multiple, to shared memory; they arrive at the barrier.
__device__ __forceinline__ void load_bytes(unsigned target, const void* source, int bytes, unsigned barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(target), "l"(source), "r"(bytes), "r"(barrier) : "memory");
}

// The descriptor of a tile of scales in shared memory, with this lower half.
__device__ __forceinline__ unsigned long long scale_descriptor(unsigned position)
{
    constexpr int kUnit = 16;  // unit of the addresses and strides in descriptors, in bytes
    constexpr unsigned kVersion = 1;
    constexpr unsigned kStrideBytes = 128;  // from eight rows to the next
    return static_cast<unsigned long long>(kVersion << 14 | kStrideBytes / kUnit) << 32 | position;
}

// Starts to copy a tile of scales from shared memory to four columns of tensor memory, in all quarters of its lanes.
__device__ __forceinline__ void copy_scales(unsigned columns, unsigned position)
{
    asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" :: "r"(columns),
        "l"(scale_descriptor(position)) : "memory");
}

// Starts to copy such tiles in both blocks of a pair, from and to the same place in each.
__device__ __forceinline__ void copy_scales_of_pair(unsigned columns, unsigned position)
{
    asm volatile("tcgen05.cp.cta_group::2.32x128b.warpx4 [%0], %1;" :: "r"(columns),
        "l"(scale_descriptor(position)) : "memory");
}

// Sets the scales of a tile to 0 from block `blocks` along k on, by a whole warp: those blocks do not exist.
__device__ __forceinline__ void clear_scales(unsigned char* tile, int blocks, int lane)
{
    uint4& row = reinterpret_cast<uint4*>(tile)[lane];
    const unsigned existing = (1u << 8 * blocks) - 1;
    row = make_uint4(row.x & existing, row.y & existing, row.z & existing, row.w & existing);
}

// Sets all scales of a tile to 0, by a whole warp: none of its blocks exists, and no copy has filled it.
__device__ __forceinline__ void erase_scales(unsigned char* tile, int lane)
{
    reinterpret_cast<uint4*>(tile)[lane] = make_uint4(0, 0, 0, 0);
}
