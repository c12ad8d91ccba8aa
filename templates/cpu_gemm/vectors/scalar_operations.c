static inline vector vector_zero(void) { return 0.0f; }
static inline vector vector_broadcast(const float *from) { return *from; }
static inline vector vector_load(const float *from) { return *from; }
static inline void vector_store(float *to, vector x) { *to = x; }
static inline vector vector_multiply(vector x, vector y) { return x * y; }
static inline vector vector_fma(vector x, vector y, vector sum) { return fmaf(x, y, sum); }
