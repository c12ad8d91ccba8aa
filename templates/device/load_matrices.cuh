// Fragments from shared memory, as tensor cores take them (ldmatrix).

// Reads four matrices of 8 rows of 16 bytes: each group of eight lanes gives the addresses of one matrix's rows, every
// lane gets a word of each matrix.
__device__ __forceinline__ void load_matrices(unsigned (&words)[4], unsigned row)
{
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "r"(row) : "memory");
}

// Reads four matrices of 8 rows of eight 16-bit elements, each transposed: each group of eight lanes gives the
// addresses of one matrix's rows, every lane gets a word of each transposed matrix.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&words)[4], unsigned row)
{
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "r"(row) : "memory");
}
