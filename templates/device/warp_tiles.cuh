// Tiles of A and B for warps that multiply fragments. A Tile says how one lies in memory: rows of global memory run
// along k if kAlongK, else along m or n; so do those of shared memory, or along k (kSharedAlongK) where elements are
// transposed on their way.

// Offset of a byte of a row in shared memory: kRowBytes of a row are contiguous, the next kRowBytes lie kSpanBytes
// further. Vectors of 16 bytes are permuted by an exclusive or with the row; rows that fill all banks together are
// permuted alike.
template <int kRowBytes, int kSpanBytes>
__device__ __forceinline__ int swizzled_offset(int row, int byte)
{
    constexpr int kVectorBytes = 16;
    constexpr int kVectors = kRowBytes / kVectorBytes;  // of a row
    constexpr int kRowsAlike = 128 / kRowBytes;
    const int permutation = row / kRowsAlike & (kVectors - 1);
    if constexpr (kSpanBytes == 0) {
        const int vector = byte / kVectorBytes ^ permutation;
        return row * kRowBytes + vector * kVectorBytes + byte % kVectorBytes;
    } else {
        const int vector = byte / kVectorBytes % kVectors ^ permutation;
        return byte / kRowBytes * kSpanBytes + row * kRowBytes + vector * kVectorBytes + byte % kVectorBytes;
    }
}

// Bytes from a tile's start in shared memory to an element: of a line, a row of A or a column of B, at some k.
template <class Tile>
__device__ __forceinline__ int tile_offset(int line, int k)
{
    if constexpr (Tile::kSharedAlongK)
        return swizzled_offset<Tile::kRowBytes, Tile::kSpanBytes>(line, k * Tile::kElementBytes);
    else
        return swizzled_offset<Tile::kRowBytes, Tile::kSpanBytes>(k, line * Tile::kElementBytes);
}

// Reads a warp's fragments of A for one instruction's part of k: kBlocks of 16 rows, from row `first` on.
template <class Tile, int kInstructionK, int kBlocks>
__device__ __forceinline__ void load_fragments_a(
    unsigned (&fragments)[kBlocks][4], unsigned tile, int first, int part, int lane)
{
    constexpr int kInstructionM = 16;
    constexpr int kMatrix = 8;  // rows of a matrix, each of 16 bytes
    if constexpr (Tile::kSharedAlongK) {
        const int m = first + lane % kInstructionM;
        const int k = part * kInstructionK + lane / kInstructionM * (kInstructionK / 2);
        #pragma unroll
        for (int i = 0; i < kBlocks; ++i)
            load_matrices(fragments[i], tile + tile_offset<Tile>(m + i * kInstructionM, k));
    } else {
        const int m = first + lane / kMatrix % 2 * kMatrix;
        const int k = part * kInstructionK + lane % kMatrix + lane / (2 * kMatrix) * kMatrix;
        #pragma unroll
        for (int i = 0; i < kBlocks; ++i)
            load_matrices_transposed(fragments[i], tile + tile_offset<Tile>(m + i * kInstructionM, k));
    }
}

// Reads a warp's fragments of B for one instruction's part of k: kBlocks of 8 columns, from column `first` on.
template <class Tile, int kInstructionK, int kBlocks>
__device__ __forceinline__ void load_fragments_b(
    unsigned (&fragments)[kBlocks][2], unsigned tile, int first, int part, int lane)
{
    constexpr int kMatrix = 8;  // rows of a matrix, each of 16 bytes
    const int n = first + lane / (2 * kMatrix) * kMatrix + (Tile::kSharedAlongK ? lane % kMatrix : 0);
    const int k = part * kInstructionK
        + (Tile::kSharedAlongK ? lane / kMatrix % 2 * (kInstructionK / 2) : lane % (2 * kMatrix));
    #pragma unroll
    for (int j = 0; j < kBlocks; j += 2) {
        unsigned words[4];
        if constexpr (Tile::kSharedAlongK)
            load_matrices(words, tile + tile_offset<Tile>(n + j * kMatrix, k));
        else
            load_matrices_transposed(words, tile + tile_offset<Tile>(n + j * kMatrix, k));
        fragments[j][0] = words[0];
        fragments[j][1] = words[1];
        fragments[j + 1][0] = words[2];
        fragments[j + 1][1] = words[3];
    }
}

// Starts to copy a tile to shared memory, in vectors of Tile::kVector elements by kThreads threads: `along` counts
// elements of a row in global memory, `row` these. Elements outside the matrix are not read and become 0.
template <class Tile, int kThreads>
__device__ __forceinline__ void copy_tile(
    unsigned target, const typename Tile::Element* __restrict__ matrix, int ld, int first_row, int first_along,
    int end_row, int end_along)
{
    constexpr int kVector = Tile::kVector;
    constexpr int kBytes = kVector * Tile::kElementBytes;
    constexpr int kRowVectors = (Tile::kAlongK ? Tile::kDepth : Tile::kLines) / kVector;
    constexpr int kVectors = Tile::kLines * Tile::kDepth / kVector;
    constexpr int kPasses = (kVectors + kThreads - 1) / kThreads;
    if constexpr (kVectors % kThreads == 0 && kThreads % kRowVectors == 0) {
        constexpr int kRowsPerPass = kThreads / kRowVectors;
        const int first = static_cast<int>(threadIdx.x) / kRowVectors;
        const int along = static_cast<int>(threadIdx.x) % kRowVectors * kVector;
        const int available = end_along - first_along - along;
        const int inside = kVector == 1 ? (available > 0 ? kBytes : 0)
                                        : min(max(available, 0), kVector) * (kBytes / kVector);
        const typename Tile::Element* source =
            matrix + (static_cast<long long>(first_row + first) * ld + first_along + along);
        #pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
            const int row = first + pass * kRowsPerPass;
            const int offset = Tile::kAlongK ? tile_offset<Tile>(row, along) : tile_offset<Tile>(along, row);
            copy_async<kBytes>(target + offset, source, first_row + row < end_row ? inside : 0);
            source += static_cast<long long>(kRowsPerPass) * ld;
        }
    } else {
        #pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
            const int index = pass * kThreads + threadIdx.x;
            const int row = index / kRowVectors;
            const int along = index % kRowVectors * kVector;
            const int available = first_row + row < end_row ? end_along - first_along - along : 0;
            const typename Tile::Element* source =
                matrix + static_cast<long long>(first_row + row) * ld + first_along + along;
            const int bytes = kVector == 1 ? (available > 0 ? kBytes : 0)
                                           : min(max(available, 0), kVector) * (kBytes / kVector);
            const int offset = Tile::kAlongK ? tile_offset<Tile>(row, along) : tile_offset<Tile>(along, row);
            if (kVectors % kThreads == 0 || index < kVectors)
                copy_async<kBytes>(target + offset, source, bytes);
        }
    }
}

// Starts to copy a tile whose rows are those of the matrix that `rows` names, from `first_row` to `end_row`. Rows that
// the matrix, of `matrix_rows`, lacks become 0, as do elements outside of it along k.
template <class Tile, int kThreads>
__device__ __forceinline__ void copy_gathered_tile(
    unsigned target, const typename Tile::Element* __restrict__ matrix, int ld, const int* __restrict__ rows,
    int matrix_rows, int first_row, int first_along, int end_row, int end_along)
{
    constexpr int kVector = Tile::kVector;
    constexpr int kBytes = kVector * Tile::kElementBytes;
    constexpr int kRowVectors = Tile::kDepth / kVector;
    constexpr int kVectors = Tile::kLines * kRowVectors;
    #pragma unroll
    for (int pass = 0; pass < (kVectors + kThreads - 1) / kThreads; ++pass) {
        const int index = pass * kThreads + threadIdx.x;
        const int row = index / kRowVectors;
        const int along = index % kRowVectors * kVector;
        if (kVectors % kThreads != 0 && index >= kVectors)
            break;
        const int gathered = first_row + row < end_row ? rows[first_row + row] : -1;
        const bool exists = static_cast<unsigned>(gathered) < static_cast<unsigned>(matrix_rows)
            && first_along + along < end_along;
        const int available = min(max(end_along - first_along - along, 0), kVector);
        copy_async<kBytes>(
            target + tile_offset<Tile>(row, along),
            matrix + (exists ? static_cast<long long>(gathered) * ld + first_along + along : 0),
            exists ? available * (kBytes / kVector) : 0);
    }
}
