// Numbers by which blocks tell each other how far they are.

// Reads a number that another block writes; that block's earlier writes are visible afterwards.
__device__ __forceinline__ int load_acquire(const int* source)
{
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(source) : "memory");
    return value;
}

// Returns once the condition holds. Between checks it pauses, longer each time, and leaves memory to those waited for.
template <typename Condition>
__device__ __forceinline__ void wait_until(Condition holds)
{
    constexpr unsigned kShortestPause = 32;  // nanoseconds
    constexpr unsigned kLongestPause = 256;
    for (unsigned pause = kShortestPause; !holds(); pause = min(2 * pause, kLongestPause))
        __nanosleep(pause);
}

// Waits until another block has written this value; that block's earlier writes are visible afterwards.
__device__ __forceinline__ void wait_for_value(const int* source, int value)
{
    wait_until([&] { return load_acquire(source) == value; });
}

// Writes a number for another block to read, after all that this thread has written or seen.
__device__ __forceinline__ void store_release(int* target, int value)
{
    asm volatile("st.release.gpu.global.s32 [%0], %1;" :: "l"(target), "r"(value) : "memory");
}
