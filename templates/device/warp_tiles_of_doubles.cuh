// Fragments of doubles from shared memory, for tiles whose rows there have pieces of 128 bytes.

// The value of k, of 16, that lane `quad` of a quad takes of the step of 4: for each step, the four lanes of a quad
// read vectors of 16 bytes that differ in the lower bits of their places, and halves of them that differ with the rest.
// The eight or four rows that half a warp reads are permuted by an exclusive or, so that no two lanes meet a bank,
// whether rows run along k or not.
__device__ __forceinline__ int double_k(int step, int quad)
{
    constexpr int kPeriod = 16;
    return step / 4 * kPeriod + ((quad % 2 * 3 + quad / 2 * 12) ^ (step % 2 + step / 2 % 2 * 4));
}

// Reads a double from shared memory.
__device__ __forceinline__ double load_double(unsigned address)
{
    double value;
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(value) : "r"(address) : "memory");
    return value;
}

// Reads a warp's fragments of A for one instruction's part of k: kBlocks of 16 rows, from row `first` on.
template <class Tile, int kInstructionK, int kBlocks>
__device__ __forceinline__ void load_doubles_a(
    double (&fragments)[kBlocks][kInstructionK / 2], unsigned tile, int first, int part, int lane)
{
    constexpr int kInstructionM = 16;
    constexpr int kMatrix = 8;
    constexpr int kSteps = kInstructionK / 4;
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        const int k = double_k(part * kSteps + step, lane % 4);
        #pragma unroll
        for (int i = 0; i < kBlocks; ++i)
            #pragma unroll
            for (int half = 0; half < 2; ++half)
                fragments[i][2 * step + half] =
                    load_double(tile + tile_offset<Tile>(first + lane / 4 + i * kInstructionM + half * kMatrix, k));
    }
}

// Reads a warp's fragments of B for one instruction's part of k: kBlocks of 8 columns, from column `first` on.
template <class Tile, int kInstructionK, int kBlocks>
__device__ __forceinline__ void load_doubles_b(
    double (&fragments)[kBlocks][kInstructionK / 4], unsigned tile, int first, int part, int lane)
{
    constexpr int kMatrix = 8;
    constexpr int kSteps = kInstructionK / 4;
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        const int k = double_k(part * kSteps + step, lane % 4);
        #pragma unroll
        for (int j = 0; j < kBlocks; ++j)
            fragments[j][step] = load_double(tile + tile_offset<Tile>(first + lane / 4 + j * kMatrix, k));
    }
}
