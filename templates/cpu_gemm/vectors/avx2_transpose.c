enum { SQUARE = 8 };

// Turns a square of eight rows, `stride` apart, into eight columns, `step` apart. Only `rows` of them are read, the
// others count as zeros; columns are written whole, the first one first.
static inline __attribute__((always_inline)) void transpose_square(const float *from, ptrdiff_t stride, const int rows,
                                                                   float *to, ptrdiff_t step)
{
    __m256 x[8], y[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
        x[i] = i < rows ? _mm256_loadu_ps(from + i * stride) : _mm256_setzero_ps();
    // Pairs of neighbours, then pairs of pairs, each within a half of the register; the halves swap places last.
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        x[i] = _mm256_shuffle_ps(y[i], y[i + 2], _MM_SHUFFLE(1, 0, 1, 0));
        x[i + 1] = _mm256_shuffle_ps(y[i], y[i + 2], _MM_SHUFFLE(3, 2, 3, 2));
        x[i + 2] = _mm256_shuffle_ps(y[i + 1], y[i + 3], _MM_SHUFFLE(1, 0, 1, 0));
        x[i + 3] = _mm256_shuffle_ps(y[i + 1], y[i + 3], _MM_SHUFFLE(3, 2, 3, 2));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
        _mm256_storeu_ps(to + i * step, _mm256_permute2f128_ps(x[i], x[i + 4], 0x20));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
        _mm256_storeu_ps(to + (i + 4) * step, _mm256_permute2f128_ps(x[i], x[i + 4], 0x31));
}
