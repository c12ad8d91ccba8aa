// Asynchronous copies from global to shared memory, started by threads that do not wait for them (cp.async).

// Starts to copy kBytes (4, 8 or 16) to shared memory: reads the first `bytes` and fills the rest with 0.
template <int kBytes>
__device__ __forceinline__ void copy_async(unsigned target, const void* source, int bytes)
{
    if constexpr (kBytes == 16)
        asm volatile(
            "cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(target), "l"(source), "r"(bytes) : "memory");
    else
        asm volatile(
            "cp.async.ca.shared.global [%0], [%1], %3, %2;"
            :: "r"(target), "l"(source), "r"(bytes), "n"(kBytes) : "memory");
}

// Starts to copy kBytes (4, 8 or 16) to shared memory: reads the first `bytes` and fills the rest with 0. Prefetches
// the kPrefetch bytes (64, 128 or 256) around the source into the L2.
template <int kBytes, int kPrefetch>
__device__ __forceinline__ void copy_async_prefetching(unsigned target, const void* source, int bytes)
{
    if constexpr (kBytes == 16)
        asm volatile(
            "cp.async.cg.shared.global.L2::%3B [%0], [%1], 16, %2;"
            :: "r"(target), "l"(source), "r"(bytes), "n"(kPrefetch) : "memory");
    else
        asm volatile(
            "cp.async.ca.shared.global.L2::%3B [%0], [%1], %4, %2;"
            :: "r"(target), "l"(source), "r"(bytes), "n"(kPrefetch), "n"(kBytes) : "memory");
}

// Starts to copy 16 bytes that stay in the L1, where they are soon read again.
__device__ __forceinline__ void copy_async_cached(unsigned target, const void* source, int bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" :: "r"(target), "l"(source), "r"(bytes) : "memory");
}

// Starts to copy 16 bytes that stay in the L1, where they are soon read again, and prefetches the kPrefetch bytes (64,
// 128 or 256) around the source into the L2.
template <int kPrefetch>
__device__ __forceinline__ void copy_async_cached_prefetching(unsigned target, const void* source, int bytes)
{
    asm volatile(
        "cp.async.ca.shared.global.L2::%3B [%0], [%1], 16, %2;"
        :: "r"(target), "l"(source), "r"(bytes), "n"(kPrefetch) : "memory");
}

// Starts to copy four times 16 bytes to shared memory, kStep bytes from one to the next there: of each reads the first
// `bytes` and fills the rest with 0. Prefetches the kPrefetch bytes around the sources into the L2. The addresses are
// in separate registers: none of the copies waits until another has read its own.
template <int kStep, int kPrefetch>
__device__ __forceinline__ void copy_four_async(
    unsigned target, const void* const (&sources)[4], const int (&bytes)[4])
{
    asm volatile(
        "cp.async.cg.shared.global.L2::%12B [%0], [%1], 16, %5;\n"
        "cp.async.cg.shared.global.L2::%12B [%0 + %9], [%2], 16, %6;\n"
        "cp.async.cg.shared.global.L2::%12B [%0 + %10], [%3], 16, %7;\n"
        "cp.async.cg.shared.global.L2::%12B [%0 + %11], [%4], 16, %8;"
        :: "r"(target), "l"(sources[0]), "l"(sources[1]), "l"(sources[2]), "l"(sources[3]),
        "r"(bytes[0]), "r"(bytes[1]), "r"(bytes[2]), "r"(bytes[3]),
        "n"(kStep), "n"(2 * kStep), "n"(3 * kStep), "n"(kPrefetch) : "memory");
}

// Cache policy: the L2 evicts the lines read with it first.
__device__ __forceinline__ unsigned long long policy_evict_first()
{
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Cache policy: the L2 evicts the lines read with it last.
__device__ __forceinline__ unsigned long long policy_evict_last()
{
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Starts to copy kBytes (4, 8 or 16) to shared memory, with a cache policy for the L2.
template <int kBytes>
__device__ __forceinline__ void copy_async_by_policy(
    unsigned target, const void* source, int bytes, unsigned long long policy)
{
    if constexpr (kBytes == 16)
        asm volatile(
            "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;"
            :: "r"(target), "l"(source), "r"(bytes), "l"(policy) : "memory");
    else
        asm volatile(
            "cp.async.ca.shared.global.L2::cache_hint [%0], [%1], %4, %2, %3;"
            :: "r"(target), "l"(source), "r"(bytes), "l"(policy), "n"(kBytes) : "memory");
}

// Closes a group of this thread's copies.
__device__ __forceinline__ void copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until no more than kPending of this thread's groups are still in flight.
template <int kPending>
__device__ __forceinline__ void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" :: "n"(kPending) : "memory");
}
