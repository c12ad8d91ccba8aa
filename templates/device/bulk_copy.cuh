// Copies of boxes between tensors in global memory and tiles in shared memory, by TMA.

// A tensor's address, extents, strides, box and swizzle, made by the host.
struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

// Fetches a tensor map into the cache that TMA reads it from.
__device__ __forceinline__ void prefetch_tensor_map(const TensorMap& map)
{
    asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
}

// Starts to copy the box at (x, y) to shared memory; its bytes arrive at the barrier. Elements outside the tensor are
// filled.
__device__ __forceinline__ void load_box_2d(unsigned target, const TensorMap& map, unsigned barrier, int x, int y)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
        :: "r"(target), "l"(&map), "r"(barrier), "r"(x), "r"(y) : "memory");
}

// Starts to copy the box at (x, y, z) to shared memory; its bytes arrive at the barrier. Elements outside the tensor
// are filled.
__device__ __forceinline__ void load_box_3d(
    unsigned target, const TensorMap& map, unsigned barrier, int x, int y, int z)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5}], [%2];"
        :: "r"(target), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");
}

// Copies the box at (x, y) to the same place of every block in `blocks`, a mask over the cluster, and arrives at the
// barrier of each.
__device__ __forceinline__ void multicast_box_2d(
    unsigned target, const TensorMap& map, unsigned barrier, unsigned short blocks, int x, int y)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%4, %5}], [%2], %3;"
        :: "r"(target), "l"(&map), "r"(barrier), "h"(blocks), "r"(x), "r"(y) : "memory");
}

// Copies the box at (x, y, z) to the same place of every block in `blocks`, a mask over the cluster, and arrives at the
// barrier of each.
__device__ __forceinline__ void multicast_box_3d(
    unsigned target, const TensorMap& map, unsigned barrier, unsigned short blocks, int x, int y, int z)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%4, %5, %6}], [%2], %3;"
        :: "r"(target), "l"(&map), "r"(barrier), "h"(blocks), "r"(x), "r"(y), "r"(z) : "memory");
}

// Starts to copy some channels of a column of pixels to shared memory: of the pixels at a distance of (dx, dy) from
// those of the map's walk, which begins at (x, y) of an image.
__device__ __forceinline__ void load_pixels(
    unsigned target, const TensorMap& map, unsigned barrier, int channel, int x, int y, int image, int dx, int dy)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
        :: "r"(target), "l"(&map), "r"(barrier), "r"(channel), "r"(x), "r"(y), "r"(image),
           "h"(static_cast<unsigned short>(dx)), "h"(static_cast<unsigned short>(dy)) : "memory");
}

// Starts to copy all channels of block `block` of a column of pixels to shared memory: of the pixels at a distance of
// (dx, dy) from those of the map's walk, which begins at (x, y) of an image.
__device__ __forceinline__ void load_block_pixels(
    unsigned target, const TensorMap& map, unsigned barrier, int block, int x, int y, int image, int dx, int dy)
{
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
        " [%0], [%1, {0, %3, %4, 0, %5}], [%2], {%6, %7, %8};"
        :: "r"(target), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(image), "h"(static_cast<unsigned short>(dx)),
           "h"(static_cast<unsigned short>(dy)), "h"(static_cast<unsigned short>(block)) : "memory");
}

// Copies all channels of block `block` of a column of pixels to the same place in every thread block of the mask
// `blocks`, and arrives at the barrier of each. The pixels are at a distance of (dx, dy) from those of the map's walk,
// which begins at (x, y) of an image.
__device__ __forceinline__ void multicast_block_pixels(
    unsigned target, const TensorMap& map, unsigned barrier, unsigned short blocks, int block, int x, int y, int image,
    int dx, int dy)
{
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {0, %4, %5, 0, %6}], [%2], {%7, %8, %9}, %3;"
        :: "r"(target), "l"(&map), "r"(barrier), "h"(blocks), "r"(x), "r"(y), "r"(image),
           "h"(static_cast<unsigned short>(dx)), "h"(static_cast<unsigned short>(dy)),
           "h"(static_cast<unsigned short>(block)) : "memory");
}

// Copies some channels of a column of pixels to the same place in every thread block of the mask `blocks`, and arrives
// at the barrier of each. The pixels are at a distance of (dx, dy) from those of the map's walk, which begins at (x, y)
// of an image.
__device__ __forceinline__ void multicast_pixels(
    unsigned target, const TensorMap& map, unsigned barrier, unsigned short blocks, int channel, int x, int y,
    int image, int dx, int dy)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%4, %5, %6, %7}], [%2], {%8, %9}, %3;"
        :: "r"(target), "l"(&map), "r"(barrier), "h"(blocks), "r"(channel), "r"(x), "r"(y), "r"(image),
           "h"(static_cast<unsigned short>(dx)), "h"(static_cast<unsigned short>(dy)) : "memory");
}

// Starts to copy a box from shared memory to (x, y); elements outside the tensor are skipped.
__device__ __forceinline__ void store_box_2d(const TensorMap& map, unsigned source, int x, int y)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
        :: "l"(&map), "r"(source), "r"(x), "r"(y) : "memory");
}

// Starts to copy a box from shared memory to (x, y, z); elements outside the tensor are skipped.
__device__ __forceinline__ void store_box_3d(const TensorMap& map, unsigned source, int x, int y, int z)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];"
        :: "l"(&map), "r"(source), "r"(x), "r"(y), "r"(z) : "memory");
}

// Closes a group of this thread's copies to global memory.
__device__ __forceinline__ void store_boxes_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until no more than kPending of this thread's groups still read shared memory.
template <int kPending>
__device__ __forceinline__ void store_boxes_wait()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(kPending) : "memory");
}

// Makes this thread's writes to shared memory visible to TMA and to the tensor cores.
__device__ __forceinline__ void fence_async_proxy()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Starts to copy kBoxes boxes side by side, kElements apart in the tensor and kBytes apart in shared memory.
template <int kBoxes, int kElements, int kBytes>
__device__ __forceinline__ void load_boxes_2d(unsigned target, const TensorMap& map, unsigned barrier, int x, int y)
{
    #pragma unroll
    for (int box = 0; box < kBoxes; ++box)
        load_box_2d(target + box * kBytes, map, barrier, x + box * kElements, y);
}

// Has the L2 fetch kBoxes boxes side by side, kElements apart.
template <int kBoxes, int kElements>
__device__ __forceinline__ void prefetch_boxes_2d(const TensorMap& map, int x, int y)
{
    #pragma unroll
    for (int box = 0; box < kBoxes; ++box)
        asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];"
            :: "l"(&map), "r"(x + box * kElements), "r"(y) : "memory");
}

// Starts to copy such boxes of a tensor with three axes.
template <int kBoxes, int kElements, int kBytes>
__device__ __forceinline__ void load_boxes_3d(
    unsigned target, const TensorMap& map, unsigned barrier, int x, int y, int z)
{
    #pragma unroll
    for (int box = 0; box < kBoxes; ++box)
        load_box_3d(target + box * kBytes, map, barrier, x + box * kElements, y, z);
}

// Copies such boxes to the same place of every block in `blocks`.
template <int kBoxes, int kElements, int kBytes>
__device__ __forceinline__ void multicast_boxes_2d(
    unsigned target, const TensorMap& map, unsigned barrier, unsigned short blocks, int x, int y)
{
    #pragma unroll
    for (int box = 0; box < kBoxes; ++box)
        multicast_box_2d(target + box * kBytes, map, barrier, blocks, x + box * kElements, y);
}

// Copies such boxes of a tensor with three axes to the same place of every block in `blocks`.
template <int kBoxes, int kElements, int kBytes>
__device__ __forceinline__ void multicast_boxes_3d(
    unsigned target, const TensorMap& map, unsigned barrier, unsigned short blocks, int x, int y, int z)
{
    #pragma unroll
    for (int box = 0; box < kBoxes; ++box)
        multicast_box_3d(target + box * kBytes, map, barrier, blocks, x + box * kElements, y, z);
}

// Starts to copy the first `pieces` pieces of kRows rows of such boxes, kPieceBytes apart in shared memory.
template <int kBoxes, int kElements, int kBytes, int kRows, int kPieceBytes>
__device__ __forceinline__ void load_pieces_2d(
    unsigned target, const TensorMap& map, unsigned barrier, int x, int y, int pieces)
{
    for (int piece = 0; piece < pieces; ++piece)
        #pragma unroll
        for (int box = 0; box < kBoxes; ++box)
            load_box_2d(
                target + box * kBytes + piece * kPieceBytes, map, barrier, x + box * kElements, y + piece * kRows);
}

// Starts to copy the box at (x, y) to shared memory; the L2 keeps it by a policy.
__device__ __forceinline__ void load_box_2d_by_policy(
    unsigned target, const TensorMap& map, unsigned barrier, int x, int y, unsigned long long policy)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %4}], [%2], %5;"
        :: "r"(target), "l"(&map), "r"(barrier), "r"(x), "r"(y), "l"(policy) : "memory");
}

// Starts to copy the box at (x, y, z) to shared memory; the L2 keeps it by a policy.
__device__ __forceinline__ void load_box_3d_by_policy(
    unsigned target, const TensorMap& map, unsigned barrier, int x, int y, int z, unsigned long long policy)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %4, %5}], [%2], %6;"
        :: "r"(target), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "l"(policy) : "memory");
}

// Copies the box at (x, y) to the same place of every block in `blocks`; the L2 keeps it by a policy.
__device__ __forceinline__ void multicast_box_2d_by_policy(
    unsigned target, const TensorMap& map, unsigned barrier, unsigned short blocks, int x, int y,
    unsigned long long policy)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        ".L2::cache_hint [%0], [%1, {%4, %5}], [%2], %3, %6;"
        :: "r"(target), "l"(&map), "r"(barrier), "h"(blocks), "r"(x), "r"(y), "l"(policy)
        : "memory");
}

// Copies the box at (x, y, z) to the same place of every block in `blocks`; the L2 keeps it by a policy.
__device__ __forceinline__ void multicast_box_3d_by_policy(
    unsigned target, const TensorMap& map, unsigned barrier, unsigned short blocks, int x, int y, int z,
    unsigned long long policy)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        ".L2::cache_hint [%0], [%1, {%4, %5, %6}], [%2], %3, %7;"
        :: "r"(target), "l"(&map), "r"(barrier), "h"(blocks), "r"(x), "r"(y), "r"(z), "l"(policy)
        : "memory");
}

// Starts to copy such boxes, which the L2 keeps by a policy.
template <int kBoxes, int kElements, int kBytes>
__device__ __forceinline__ void load_boxes_2d_by_policy(
    unsigned target, const TensorMap& map, unsigned barrier, int x, int y, unsigned long long policy)
{
    #pragma unroll
    for (int box = 0; box < kBoxes; ++box)
        load_box_2d_by_policy(target + box * kBytes, map, barrier, x + box * kElements, y, policy);
}

// Starts to copy such boxes of a tensor with three axes, which the L2 keeps by a policy.
template <int kBoxes, int kElements, int kBytes>
__device__ __forceinline__ void load_boxes_3d_by_policy(
    unsigned target, const TensorMap& map, unsigned barrier, int x, int y, int z, unsigned long long policy)
{
    #pragma unroll
    for (int box = 0; box < kBoxes; ++box)
        load_box_3d_by_policy(target + box * kBytes, map, barrier, x + box * kElements, y, z, policy);
}

// Copies such boxes to the same place of every block in `blocks`, which the L2 keeps by a policy.
template <int kBoxes, int kElements, int kBytes>
__device__ __forceinline__ void multicast_boxes_2d_by_policy(
    unsigned target, const TensorMap& map, unsigned barrier, unsigned short blocks, int x, int y,
    unsigned long long policy)
{
    #pragma unroll
    for (int box = 0; box < kBoxes; ++box)
        multicast_box_2d_by_policy(target + box * kBytes, map, barrier, blocks, x + box * kElements, y, policy);
}

// Copies such boxes of a tensor with three axes to the same place of every block in `blocks`; the L2 keeps
// them by a policy.
template <int kBoxes, int kElements, int kBytes>
__device__ __forceinline__ void multicast_boxes_3d_by_policy(
    unsigned target, const TensorMap& map, unsigned barrier, unsigned short blocks, int x, int y, int z,
    unsigned long long policy)
{
    #pragma unroll
    for (int box = 0; box < kBoxes; ++box)
        multicast_box_3d_by_policy(target + box * kBytes, map, barrier, blocks, x + box * kElements, y, z, policy);
}
