// Adds up eight vectors: halves, then halves of the halves, and so on.
static inline __attribute__((always_inline)) __m256 sums_of_eight(const __m256 x[8])
{
    __m256 y[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
        y[i] = _mm256_add_ps(_mm256_permute2f128_ps(x[i], x[i + 4], 0x20), _mm256_permute2f128_ps(x[i], x[i + 4], 0x31));
    const __m256 even = _mm256_add_ps(_mm256_shuffle_ps(y[0], y[1], _MM_SHUFFLE(1, 0, 1, 0)), _mm256_shuffle_ps(y[0], y[1], _MM_SHUFFLE(3, 2, 3, 2)));
    const __m256 odd = _mm256_add_ps(_mm256_shuffle_ps(y[2], y[3], _MM_SHUFFLE(1, 0, 1, 0)), _mm256_shuffle_ps(y[2], y[3], _MM_SHUFFLE(3, 2, 3, 2)));
    return _mm256_add_ps(_mm256_shuffle_ps(even, odd, _MM_SHUFFLE(2, 0, 2, 0)), _mm256_shuffle_ps(even, odd, _MM_SHUFFLE(3, 1, 3, 1)));
}
