// Tiles to shared memory without registers, and fragments from there: what warps do that multiply on tensor cores.

// Starts to copy `bytes` of kBytes from global to shared memory; the rest becomes 0.
template <int kBytes>
__device__ __forceinline__ void copy_vector_async(unsigned target, const void* source, int bytes)
{
    if constexpr (kBytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(target), "l"(source), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" :: "r"(target), "l"(source), "n"(kBytes), "r"(bytes) : "memory");
}

// Closes a group of this thread's copies.
__device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until no more than kPending of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" :: "n"(kPending) : "memory");
}

// Reads four matrices of 8 rows of 16 bytes: each group of eight lanes gives the addresses of one matrix's rows, every lane gets a word
// of each matrix.
__device__ __forceinline__ void load_matrices(unsigned (&words)[4], unsigned row)
{
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "r"(row) : "memory");
}

// The same, of matrices of 16-bit elements that are turned around.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&words)[4], unsigned row)
{
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "r"(row) : "memory");
}
