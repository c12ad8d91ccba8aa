enum { SQUARE = 4 };

// Turns a square of four rows, `stride` apart, into four columns, `step` apart. Only `rows` of them are read, the
// others count as zeros; columns are written whole, the first one first.
static inline void transpose_square(const float *from, ptrdiff_t stride, const int rows, float *to, ptrdiff_t step)
{
    for (int j = 0; j < 4; ++j)
        for (int i = 0; i < 4; ++i)
            to[j * step + i] = i < rows ? from[i * stride + j] : 0.0f;
}

// The same of `rows` rows and the first `steps` of their elements, as many as there are of both.
static inline void transpose_part(const float *from, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t steps, float *to, ptrdiff_t step)
{
    for (ptrdiff_t j = 0; j < SQUARE && j < steps; ++j)
        for (ptrdiff_t i = 0; i < SQUARE; ++i)
            to[j * step + i] = i < rows ? from[i * stride + j] : 0.0f;
}
