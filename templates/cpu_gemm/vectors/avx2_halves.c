static inline __m256 sum_of_halves(const __m256 x[2]) { return _mm256_add_ps(x[0], x[1]); }
static inline __m256 eight_of(vector x, int half) { return (void)half, x; }
