enum { SQUARE = 4 };

// Turns a square of four rows, `stride` apart, into four columns, `step` apart. Only `rows` of them are read, the
// others count as zeros; columns are written whole, the first one first.
static inline __attribute__((always_inline)) void transpose_square(const float *from, ptrdiff_t stride, const int rows,
                                                                   float *to, ptrdiff_t step)
{
    float32x4_t x[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
        x[i] = i < rows ? vld1q_f32(from + i * stride) : vdupq_n_f32(0.0f);
    const float32x4x2_t upper = vtrnq_f32(x[0], x[1]), lower = vtrnq_f32(x[2], x[3]);
    vst1q_f32(to, vcombine_f32(vget_low_f32(upper.val[0]), vget_low_f32(lower.val[0])));
    vst1q_f32(to + step, vcombine_f32(vget_low_f32(upper.val[1]), vget_low_f32(lower.val[1])));
    vst1q_f32(to + 2 * step, vcombine_f32(vget_high_f32(upper.val[0]), vget_high_f32(lower.val[0])));
    vst1q_f32(to + 3 * step, vcombine_f32(vget_high_f32(upper.val[1]), vget_high_f32(lower.val[1])));
}

// The same of `rows` rows and the first `steps` of their elements, as many as there are of both.
static inline void transpose_part(const float *from, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t steps, float *to, ptrdiff_t step)
{
    for (ptrdiff_t j = 0; j < SQUARE && j < steps; ++j)
        for (ptrdiff_t i = 0; i < SQUARE; ++i)
            to[j * step + i] = i < rows ? from[i * stride + j] : 0.0f;
}
