typedef __mmask16 lane_mask;

static inline lane_mask first_lanes(int lanes) { return (lane_mask)((1u << lanes) - 1); }
static inline vector vector_load_masked(const float *from, lane_mask mask) { return _mm512_maskz_loadu_ps(mask, from); }
static inline void vector_store_first(float *to, int lanes, vector x) { _mm512_mask_storeu_ps(to, first_lanes(lanes), x); }
