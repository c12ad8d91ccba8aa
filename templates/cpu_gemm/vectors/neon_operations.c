static inline vector vector_zero(void) { return vdupq_n_f32(0.0f); }
static inline vector vector_broadcast(const float *from) { return vld1q_dup_f32(from); }
static inline vector vector_load(const float *from) { return vld1q_f32(from); }
static inline void vector_store(float *to, vector x) { vst1q_f32(to, x); }
static inline vector vector_multiply(vector x, vector y) { return vmulq_f32(x, y); }
static inline vector vector_fma(vector x, vector y, vector sum) { return vfmaq_f32(sum, x, y); }
