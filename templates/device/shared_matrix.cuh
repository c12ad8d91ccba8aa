// Stores of fragments to shared memory.

// Stores four matrices of 8 rows of 16 bytes: each group of eight lanes gives the addresses of one matrix's rows.
__device__ __forceinline__ void store_matrices(unsigned row, unsigned a, unsigned b, unsigned c, unsigned d)
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
        :: "r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// Stores four matrices, each transposed: the row that lanes hold becomes a column.
__device__ __forceinline__ void store_matrices_transposed(unsigned row, unsigned a, unsigned b, unsigned c, unsigned d)
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
        :: "r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// Stores two matrices as they are; the lanes of the first two groups give addresses.
__device__ __forceinline__ void store_two_matrices(unsigned row, unsigned a, unsigned b)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" :: "r"(row), "r"(a), "r"(b) : "memory");
}

// The same, each transposed.
__device__ __forceinline__ void store_two_matrices_transposed(unsigned row, unsigned a, unsigned b)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" :: "r"(row), "r"(a),
        "r"(b) : "memory");
}

// Writes two words to shared memory.
__device__ __forceinline__ void store_words(unsigned target, unsigned first, unsigned second)
{
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" :: "r"(target), "r"(first), "r"(second) : "memory");
}

// Writes a word to shared memory.
__device__ __forceinline__ void store_word(unsigned target, unsigned value)
{
    asm volatile("st.shared.b32 [%0], %1;" :: "r"(target), "r"(value) : "memory");
}

// Writes 16 bytes to shared memory.
__device__ __forceinline__ void store_vector(unsigned target, unsigned a, unsigned b, unsigned c, unsigned d)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" :: "r"(target), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// Writes half a word to shared memory.
__device__ __forceinline__ void store_half(unsigned target, unsigned short value)
{
    asm volatile("st.shared.b16 [%0], %1;" :: "r"(target), "h"(value) : "memory");
}

// Reads a word from shared memory.
__device__ __forceinline__ unsigned load_word(unsigned source)
{
    unsigned value;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(source) : "memory");
    return value;
}

// Reads two floats from shared memory.
__device__ __forceinline__ float2 load_pair(unsigned source)
{
    float2 value;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(source) : "memory");
    return value;
}

// Reads four integers from shared memory.
__device__ __forceinline__ int4 load_integers(unsigned source)
{
    int4 value;
    asm volatile(
        "ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "r"(source) : "memory");
    return value;
}

// Reads four floats from shared memory.
__device__ __forceinline__ float4 load_floats(unsigned source)
{
    float4 value;
    asm volatile(
        "ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "r"(source) : "memory");
    return value;
}

// Reads 16 bytes from shared memory.
__device__ __forceinline__ uint4 load_vector(unsigned source)
{
    uint4 value;
    asm volatile(
        "ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "r"(source) : "memory");
    return value;
}
