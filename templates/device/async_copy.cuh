// Copies from global to shared memory that threads start and that go on without them (cp.async).

// Starts to copy kBytes, 4, 8 or 16, to an address in shared memory: the first `bytes` of them are read, the others become 0.
template <int kBytes>
__device__ __forceinline__ void copy_async(unsigned target, const void* source, int bytes)
{
    if constexpr (kBytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(target), "l"(source), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" :: "r"(target), "l"(source), "r"(bytes), "n"(kBytes) : "memory");
}

// The same for 16 bytes that stay in the L1, where they are soon read again.
__device__ __forceinline__ void copy_async_cached(unsigned target, const void* source, int bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" :: "r"(target), "l"(source), "r"(bytes) : "memory");
}

// Closes a group of asynchronous copies.
__device__ __forceinline__ void copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until no more than kPending of this thread's groups are still under way.
template <int kPending>
__device__ __forceinline__ void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" :: "n"(kPending) : "memory");
}
