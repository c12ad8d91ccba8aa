static inline __m256 sum_of_halves(const __m512 x[1]) { return _mm256_add_ps(_mm512_castps512_ps256(x[0]), _mm512_extractf32x8_ps(x[0], 1)); }
static inline __m256 eight_of(vector x, int half) { return half ? _mm512_extractf32x8_ps(x, 1) : _mm512_castps512_ps256(x); }
