typedef __m256i lane_mask;

static inline lane_mask first_lanes(int lanes)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), lane);
}
static inline vector vector_load_masked(const float *from, lane_mask mask) { return _mm256_maskload_ps(from, mask); }
static inline void vector_store_masked(float *to, lane_mask mask, vector x) { _mm256_maskstore_ps(to, mask, x); }
