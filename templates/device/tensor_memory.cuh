// Tensor memory of sm_100a: 128 lanes of 512 columns of 32 bits, in which products of matrices leave their sums. An
// address has a lane in its upper half and a column in its lower one.

// Allocates columns, a power of two from 32, by a whole warp; their address goes to shared memory. The block allocates
// no more.
template <int kColumns>
__device__ __forceinline__ void allocate_tensor_memory(unsigned target)
{
    asm volatile(
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" :: "r"(target), "n"(kColumns) : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
}

// Frees the columns, by a whole warp.
template <int kColumns>
__device__ __forceinline__ void free_tensor_memory(unsigned address)
{
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" :: "r"(address), "n"(kColumns));
}

// Orders this thread's earlier accesses to tensor memory before the synchronization of threads that follows.
__device__ __forceinline__ void tensor_memory_before_sync()
{
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

// Orders this thread's later accesses to tensor memory after the synchronization of threads before it.
__device__ __forceinline__ void tensor_memory_after_sync()
{
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

// Makes a barrier count one arrival when the products that this thread has started are complete.
__device__ __forceinline__ void commit_products(unsigned barrier)
{
    asm volatile(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" :: "r"(barrier) : "memory");
}

// The descriptor of an operand in swizzled rows of kRowBytes, 32, 64 or 128, with this lower half.
template <int kRowBytes>
__device__ __forceinline__ unsigned long long tensor_descriptor(unsigned position)
{
    constexpr int kUnit = 16;  // unit of the addresses and strides in descriptors, in bytes
    constexpr unsigned kSwizzle = kRowBytes == 128 ? 2 : kRowBytes == 64 ? 4 : 6;  // code of the swizzle
    constexpr unsigned kVersion = 1;
    constexpr unsigned kStrideBytes = 8 * kRowBytes;  // from eight rows to the next
    constexpr unsigned kLayout = kSwizzle << 29 | kVersion << 14 | kStrideBytes / kUnit;
    return static_cast<unsigned long long>(kLayout) << 32 | position;
}

// The descriptor of part `part` of an operand in swizzled rows of 128 bytes, kPartBytes of each row at a time. A part
// that crosses the end of a row continues kSpanBytes further.
template <int kSpanBytes, int kPartBytes>
__device__ __forceinline__ unsigned long long deep_descriptor(unsigned position, int part)
{
    constexpr int kUnit = 16;  // unit of the addresses and strides in descriptors, in bytes
    constexpr int kRowBytes = 128;
    constexpr unsigned kAddress = 0x3fff;  // of a descriptor
    constexpr unsigned long long kContinues = 1ull << 52;
    const int row = part * kPartBytes / kRowBytes;
    const int byte = part * kPartBytes % kRowBytes;
    const unsigned first = (position & kAddress) + (row * kSpanBytes + byte) / kUnit;
    if (byte + kPartBytes <= kRowBytes)
        return tensor_descriptor<kRowBytes>(first);
    const unsigned next = (position & kAddress) + (row + 1) * kSpanBytes / kUnit;
    return tensor_descriptor<kRowBytes>(first | next << 16) | kContinues;
}

// Waits for this warp's loads from tensor memory.
__device__ __forceinline__ void wait_for_tensor_loads()
{
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}

// Starts to load 32 columns of 16 lanes: in every 8 columns, a thread gets two adjacent elements of row lane / 4, and
// two of the row 8 below.
__device__ __forceinline__ void load_tensor_columns(float (&values)[16], unsigned address)
{
    asm volatile(
        "tcgen05.ld.sync.aligned.16x256b.x4.b32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, [%16];"
        : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3]), "=f"(values[4]), "=f"(values[5]),
          "=f"(values[6]), "=f"(values[7]), "=f"(values[8]), "=f"(values[9]), "=f"(values[10]), "=f"(values[11]),
          "=f"(values[12]), "=f"(values[13]), "=f"(values[14]), "=f"(values[15])
        : "r"(address));
}

// Starts to load as many columns of integers.
__device__ __forceinline__ void load_tensor_integers(int (&values)[16], unsigned address)
{
    asm volatile(
        "tcgen05.ld.sync.aligned.16x256b.x4.b32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, [%16];"
        : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3]), "=r"(values[4]), "=r"(values[5]),
          "=r"(values[6]), "=r"(values[7]), "=r"(values[8]), "=r"(values[9]), "=r"(values[10]), "=r"(values[11]),
          "=r"(values[12]), "=r"(values[13]), "=r"(values[14]), "=r"(values[15])
        : "r"(address));
}
