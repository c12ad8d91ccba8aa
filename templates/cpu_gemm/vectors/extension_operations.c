static inline vector vector_zero(void) { return (vector){0}; }
static inline vector vector_broadcast(const float *from)
{
    const float x = *from;
    return (vector){x, x, x, x, x, x, x, x};
}
static inline vector vector_load(const float *from) { return *(const stored_vector *)from; }
static inline void vector_store(float *to, vector x) { *(stored_vector *)to = x; }
static inline vector vector_multiply(vector x, vector y) { return x * y; }
static inline vector vector_fma(vector x, vector y, vector sum) { return __builtin_ia32_vfmaddps256(x, y, sum); }
