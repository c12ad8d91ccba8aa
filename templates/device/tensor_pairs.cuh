// Tensor memory and copies of two neighbouring blocks of a cluster whose tensor cores multiply together (cta_group::2).

// Allocates the same columns in both blocks, a power of two from 32, by a whole warp of each; their address goes to
// shared memory. The blocks allocate no more.
template <int kColumns>
__device__ __forceinline__ void allocate_tensor_memory_of_pair(unsigned target)
{
    asm volatile(
        "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" :: "r"(target), "n"(kColumns) : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;");
}

// Frees the columns, by a whole warp of each block.
template <int kColumns>
__device__ __forceinline__ void free_tensor_memory_of_pair(unsigned address)
{
    asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" :: "r"(address), "n"(kColumns));
}

// Makes the barriers at this place of both blocks count one arrival when the products that this thread has started are
// complete.
__device__ __forceinline__ void commit_products_of_pair(unsigned barrier)
{
    constexpr unsigned short kBothBlocks = 3;
    asm volatile(
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;"
        :: "r"(barrier), "h"(kBothBlocks) : "memory");
}

// Starts to copy the box at (x, y) to this block's shared memory; its bytes arrive at a barrier of either block.
// Elements outside the tensor are filled.
__device__ __forceinline__ void load_pair_box_2d(unsigned target, const TensorMap& map, unsigned barrier, int x, int y)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2"
        " [%0], [%1, {%3, %4}], [%2];"
        :: "r"(target), "l"(&map), "r"(barrier), "r"(x), "r"(y) : "memory");
}

// Starts to copy the box at (x, y, z).
__device__ __forceinline__ void load_pair_box_3d(
    unsigned target, const TensorMap& map, unsigned barrier, int x, int y, int z)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2"
        " [%0], [%1, {%3, %4, %5}], [%2];"
        :: "r"(target), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");
}

// Starts to copy kBoxes such boxes side by side, kElements apart in the tensor and kBytes apart in shared memory.
template <int kBoxes, int kElements, int kBytes>
__device__ __forceinline__ void load_pair_boxes_2d(unsigned target, const TensorMap& map, unsigned barrier, int x,
    int y)
{
    #pragma unroll
    for (int box = 0; box < kBoxes; ++box)
        load_pair_box_2d(target + box * kBytes, map, barrier, x + box * kElements, y);
}

// Starts to copy such boxes of a tensor with three axes.
template <int kBoxes, int kElements, int kBytes>
__device__ __forceinline__ void load_pair_boxes_3d(
    unsigned target, const TensorMap& map, unsigned barrier, int x, int y, int z)
{
    #pragma unroll
    for (int box = 0; box < kBoxes; ++box)
        load_pair_box_3d(target + box * kBytes, map, barrier, x + box * kElements, y, z);
}

// Starts to copy some channels of a column of pixels: of the pixels at a distance of (dx, dy) from those of the map's
// walk, which begins at (x, y) of an image.
__device__ __forceinline__ void load_pair_pixels(
    unsigned target, const TensorMap& map, unsigned barrier, int channel, int x, int y, int image, int dx, int dy)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.cta_group::2"
        " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
        :: "r"(target), "l"(&map), "r"(barrier), "r"(channel), "r"(x), "r"(y), "r"(image),
           "h"(static_cast<unsigned short>(dx)), "h"(static_cast<unsigned short>(dy)) : "memory");
}
