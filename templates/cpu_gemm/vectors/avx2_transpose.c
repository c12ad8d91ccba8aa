enum { SQUARE = 8 };

// Turns the square of eight rows.
static inline __attribute__((always_inline)) void turn_rows(__m256 x[8])
{
    // Pairs of neighbours, then pairs of pairs, each within a half of the register; the halves swap places last.
    __m256 y[8];
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
    for (int i = 0; i < 4; ++i) {
        const __m256 first = x[i], second = x[i + 4];
        x[i] = _mm256_permute2f128_ps(first, second, 0x20);
        x[i + 4] = _mm256_permute2f128_ps(first, second, 0x31);
    }
}

// Turns the square of eight rows: columns are written whole, the first one first.
static inline __attribute__((always_inline)) void transpose_rows(__m256 x[8], float *to, ptrdiff_t step)
{
    turn_rows(x);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
        _mm256_storeu_ps(to + i * step, x[i]);
}

// Turns a square of eight rows, `stride` apart, into eight columns, `step` apart. Only `rows` of them are read, the
// others count as zeros.
static inline __attribute__((always_inline)) void transpose_square(const float *from, ptrdiff_t stride, const int rows,
                                                                   float *to, ptrdiff_t step)
{
    __m256 x[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
        x[i] = i < rows ? _mm256_loadu_ps(from + i * stride) : _mm256_setzero_ps();
    transpose_rows(x, to, step);
}

// The same of `rows` rows and the first `steps` of their elements, as many as there are of both.
static inline void transpose_part(const float *from, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t steps, float *to, ptrdiff_t step)
{
    const int lanes = steps < 8 ? (int)steps : 8;
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256 x[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
        x[i] = i < rows ? _mm256_maskload_ps(from + i * stride, mask) : _mm256_setzero_ps();
    if (lanes == 8) {
        transpose_rows(x, to, step);
        return;
    }
    float columns[64];
    transpose_rows(x, columns, 8);
    for (int j = 0; j < lanes; ++j)
        _mm256_storeu_ps(to + j * step, _mm256_loadu_ps(columns + 8 * j));
}

// The first four columns of eight rows. Rows four apart lie side by side, so that halves need not swap places.
static inline __attribute__((always_inline)) void load_four(const float *from, ptrdiff_t stride, __m256 x[4])
{
    __m256 y[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
        y[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from + i * stride)), _mm_loadu_ps(from + (i + 4) * stride), 1);
    const __m256 low = _mm256_unpacklo_ps(y[0], y[1]), high = _mm256_unpackhi_ps(y[0], y[1]);
    const __m256 next_low = _mm256_unpacklo_ps(y[2], y[3]), next_high = _mm256_unpackhi_ps(y[2], y[3]);
    x[0] = _mm256_shuffle_ps(low, next_low, _MM_SHUFFLE(1, 0, 1, 0));
    x[1] = _mm256_shuffle_ps(low, next_low, _MM_SHUFFLE(3, 2, 3, 2));
    x[2] = _mm256_shuffle_ps(high, next_high, _MM_SHUFFLE(1, 0, 1, 0));
    x[3] = _mm256_shuffle_ps(high, next_high, _MM_SHUFFLE(3, 2, 3, 2));
}

// The first `steps` columns, eight at most, of eight rows: a register for each, of which those beyond are undefined.
static inline __attribute__((always_inline)) void load_transposed(const float *from, ptrdiff_t stride, ptrdiff_t steps, __m256 x[8])
{
    if (steps >= 8) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i)
            x[i] = _mm256_loadu_ps(from + i * stride);
        turn_rows(x);
    } else if (steps > 4) {
        const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)steps), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i)
            x[i] = _mm256_maskload_ps(from + i * stride, mask);
        turn_rows(x);
    } else {
        // Rows four apart lie side by side, so that halves need not swap places.
        const __m128i mask = _mm_cmpgt_epi32(_mm_set1_epi32((int)steps), _mm_setr_epi32(0, 1, 2, 3));
        __m256 y[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i)
            y[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_maskload_ps(from + i * stride, mask)),
                                        _mm_maskload_ps(from + (i + 4) * stride, mask), 1);
        const __m256 low = _mm256_unpacklo_ps(y[0], y[1]), high = _mm256_unpackhi_ps(y[0], y[1]);
        const __m256 next_low = _mm256_unpacklo_ps(y[2], y[3]), next_high = _mm256_unpackhi_ps(y[2], y[3]);
        x[0] = _mm256_shuffle_ps(low, next_low, _MM_SHUFFLE(1, 0, 1, 0));
        x[1] = _mm256_shuffle_ps(low, next_low, _MM_SHUFFLE(3, 2, 3, 2));
        x[2] = _mm256_shuffle_ps(high, next_high, _MM_SHUFFLE(1, 0, 1, 0));
        x[3] = _mm256_shuffle_ps(high, next_high, _MM_SHUFFLE(3, 2, 3, 2));
        x[4] = x[5] = x[6] = x[7] = _mm256_setzero_ps();
    }
}
