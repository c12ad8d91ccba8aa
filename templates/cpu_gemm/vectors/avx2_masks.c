typedef __m256i lane_mask;

static inline lane_mask first_lanes(int lanes)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), lane);
}
static inline vector vector_load_masked(const float *from, lane_mask mask) { return _mm256_maskload_ps(from, mask); }

// Stores the first `lanes` lanes, fewer than eight, in pieces: many processors take far longer for a store with a mask.
static inline void vector_store_first(float *to, int lanes, vector x)
{
    __m128 rest = _mm256_castps256_ps128(x);
    if ((lanes & 4) != 0) {
        _mm_storeu_ps(to, rest);
        rest = _mm256_extractf128_ps(x, 1);
        to += 4;
    }
    if ((lanes & 2) != 0) {
        _mm_storel_pi((__m64 *)to, rest);
        rest = _mm_movehl_ps(rest, rest);
        to += 2;
    }
    if ((lanes & 1) != 0)
        _mm_store_ss(to, rest);
}
