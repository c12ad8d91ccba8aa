static inline vector vector_zero(void) { return _mm512_setzero_ps(); }
static inline vector vector_broadcast(const float *from) { return _mm512_set1_ps(*from); }
static inline vector vector_load(const float *from) { return _mm512_loadu_ps(from); }
static inline void vector_store(float *to, vector x) { _mm512_storeu_ps(to, x); }
static inline vector vector_multiply(vector x, vector y) { return _mm512_mul_ps(x, y); }
static inline vector vector_fma(vector x, vector y, vector sum) { return _mm512_fmadd_ps(x, y, sum); }
