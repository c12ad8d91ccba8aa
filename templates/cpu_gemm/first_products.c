// Products of float32 matrices until a kernel is compiled for them: one tile, and the compiler's own vectors, because the header of the
// intrinsics takes longer to read than all of this takes to compile. Sums have the order of the kernels that follow, so bits are the same.
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

// Columns up to which long sums are dot products, in the kernels that follow on this processor.
#ifndef MOST_DOT_COLUMNS
#define MOST_DOT_COLUMNS 4
#endif

enum {
    LANES = 8,
    TILE_ROWS = 6,
    TILE_COLUMNS = 2 * LANES,
    SLICE = 256,      // steps along k whose products are added up before they are added to C
    SLICE_UNIT = 16,  // that slices are multiples of
    BLOCK_ROWS = 96,  // rows of the left operand that are packed together
    // Few columns, or rows, are multiplied by dot products; these are the limits of the kernels that follow.
    DOT_SUMS = 16,
    DOT_COLUMNS = 3,
    SHORT_DOT = 8,
    MOST_TRANSPOSED = 8,
    LONG_DOT = 80,
    DOT_FLOATS = 24576,
};

typedef float vector __attribute__((vector_size(32)));
typedef float stored_vector __attribute__((vector_size(32), aligned(4), may_alias));

static inline vector load(const float *from) { return *(const stored_vector *)from; }
static inline vector repeated(float x) { return (vector){x, x, x, x, x, x, x, x}; }
static inline float fused(float x, float y, float sum) { return __builtin_fmaf(x, y, sum); }

// Where an operand lies: elements from one row of the left operand (column of the right one) to the next, and from one k to the next.
struct operand {
    const float *data;
    ptrdiff_t line, step;
};

struct problem {
    ptrdiff_t rows, columns, depth;
    float alpha, beta;
    struct operand left, right;
    float *c;
    ptrdiff_t ldc;
};

static inline ptrdiff_t smaller(ptrdiff_t x, ptrdiff_t y) { return x < y ? x : y; }
static inline ptrdiff_t multiple(ptrdiff_t x, ptrdiff_t unit) { return (x + unit - 1) / unit * unit; }

static inline void store(float *c, float alpha, float sum, float beta)
{
    const float product = alpha * sum;
    *c = beta == 0.0f ? product : fused(beta, *c, product);
}

// Panels of `width` lines of an operand, from `line` and `step` on; the last panel is filled up with zeros.
static void pack(ptrdiff_t width, ptrdiff_t lines, ptrdiff_t depth, const struct operand *x, ptrdiff_t line, ptrdiff_t step, float *to)
{
    const float *const from = x->data + line * x->line + step * x->step;
    for (ptrdiff_t first = 0; first < lines; first += width, to += width * depth)
        for (ptrdiff_t i = 0; i < width; ++i)
            for (ptrdiff_t k = 0; k < depth; ++k)
                to[k * width + i] = first + i < lines ? from[(first + i) * x->line + k * x->step] : 0.0f;
}

// Sums of a tile over packed operands.
static void multiply_tile(ptrdiff_t depth, const float *a, const float *b, float *sums)
{
    vector sum[TILE_ROWS][2] = {0};
    for (ptrdiff_t k = 0; k < depth; ++k, a += TILE_ROWS, b += TILE_COLUMNS) {
        const vector first = load(b), second = load(b + LANES);
#pragma GCC unroll 6
        for (int r = 0; r < TILE_ROWS; ++r) {
            const vector left = repeated(a[r]);
            sum[r][0] = __builtin_ia32_vfmaddps256(left, first, sum[r][0]);
            sum[r][1] = __builtin_ia32_vfmaddps256(left, second, sum[r][1]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < TILE_ROWS; ++r) {
        *(stored_vector *)(sums + r * TILE_COLUMNS) = sum[r][0];
        *(stored_vector *)(sums + r * TILE_COLUMNS + LANES) = sum[r][1];
    }
}

static int multiply_by_tiles(const struct problem *p)
{
    const ptrdiff_t slices = (p->depth + SLICE - 1) / SLICE, slice = multiple((p->depth + slices - 1) / slices, SLICE_UNIT);
    float *const packed_left = malloc((BLOCK_ROWS + TILE_COLUMNS) * SLICE * sizeof(float));
    if (packed_left == NULL)
        return ENOMEM;
    float *const packed_right = packed_left + BLOCK_ROWS * SLICE;
    for (ptrdiff_t k = 0; k < p->depth; k += slice)
        for (ptrdiff_t i = 0; i < p->rows; i += BLOCK_ROWS) {
            const ptrdiff_t depth = smaller(slice, p->depth - k), rows = smaller(BLOCK_ROWS, p->rows - i);
            const float beta = k == 0 ? p->beta : 1.0f;
            pack(TILE_ROWS, rows, depth, &p->left, i, k, packed_left);
            for (ptrdiff_t j = 0; j < p->columns; j += TILE_COLUMNS) {
                const ptrdiff_t columns = smaller(TILE_COLUMNS, p->columns - j);
                pack(TILE_COLUMNS, columns, depth, &p->right, j, k, packed_right);
                for (ptrdiff_t row = 0; row < rows; row += TILE_ROWS) {
                    float sums[TILE_ROWS * TILE_COLUMNS];
                    multiply_tile(depth, packed_left + row * depth, packed_right, sums);
                    for (ptrdiff_t r = 0; r < TILE_ROWS && row + r < rows; ++r)
                        for (ptrdiff_t c = 0; c < columns; ++c)
                            store(p->c + (i + row + r) * p->ldc + j + c, p->alpha, sums[r * TILE_COLUMNS + c], beta);
                }
            }
        }
    free(packed_left);
    return 0;
}

// Dot products of a row or column, `x`, with `lines` lines of an operand; all lie along k. Element k belongs to sum k % DOT_SUMS.
static void multiply_by_dots(const struct problem *p, const struct operand *y, ptrdiff_t lines, const float *x, float *c, ptrdiff_t step)
{
    for (ptrdiff_t i = 0; i < lines; ++i) {
        const float *const a = y->data + i * y->line;
        vector sum[2] = {0};
        ptrdiff_t k = 0;
        for (; k + DOT_SUMS <= p->depth; k += DOT_SUMS) {
            sum[0] = __builtin_ia32_vfmaddps256(load(a + k), load(x + k), sum[0]);
            sum[1] = __builtin_ia32_vfmaddps256(load(a + k + LANES), load(x + k + LANES), sum[1]);
        }
        float parts[DOT_SUMS];
        *(stored_vector *)parts = sum[0];
        *(stored_vector *)(parts + LANES) = sum[1];
        for (; k < p->depth; ++k)
            parts[k % DOT_SUMS] = fused(a[k], x[k], parts[k % DOT_SUMS]);
        for (int half = DOT_SUMS / 2; half > 0; half /= 2)
            for (int s = 0; s < half; ++s)
                parts[s] += parts[s + half];
        store(c + i * step, p->alpha, parts[0], p->beta);
    }
}

// The line of an operand along k: itself, or a copy.
static const float *line_along(const struct operand *x, ptrdiff_t line, ptrdiff_t depth, float *copy)
{
    const float *const from = x->data + line * x->line;
    for (ptrdiff_t k = 0; x->step != 1 && k < depth; ++k)
        copy[k] = from[k * x->step];
    return x->step == 1 ? from : copy;
}

static int can_be_copied(const struct operand *x, ptrdiff_t lines, ptrdiff_t depth)
{
    return x->step == 1 || lines * multiple(depth, SLICE_UNIT) <= DOT_FLOATS;
}

static int multiply(const struct problem *p)
{
    if (p->depth <= 0 || p->alpha == 0.0f) {
        for (ptrdiff_t i = 0; i < p->rows; ++i)
            for (ptrdiff_t j = 0; j < p->columns; ++j) {
                float *const c = p->c + i * p->ldc + j;
                *c = p->beta == 0.0f ? 0.0f : p->beta * *c;
            }
        return 0;
    }
    float copy[DOT_FLOATS];
    const ptrdiff_t least = (p->columns <= DOT_COLUMNS ? SHORT_DOT : 2 * SHORT_DOT) * p->columns;
    if (p->columns <= MOST_DOT_COLUMNS && p->left.step == 1 && p->depth >= least && can_be_copied(&p->right, p->columns, p->depth)) {
        for (ptrdiff_t j = 0; j < p->columns; ++j)
            multiply_by_dots(p, &p->left, p->rows, line_along(&p->right, j, p->depth, copy), p->c + j, p->ldc);
        return 0;
    }
    if (p->rows <= MOST_TRANSPOSED && p->right.step == 1 && p->right.line != 1 && p->depth >= LONG_DOT
        && can_be_copied(&p->left, p->rows, p->depth)) {
        for (ptrdiff_t i = 0; i < p->rows; ++i)
            multiply_by_dots(p, &p->right, p->columns, line_along(&p->left, i, p->depth, copy), p->c + i * p->ldc, 1);
        return 0;
    }
    return multiply_by_tiles(p);
}

// C = alpha op(A) op(B) + beta C, stored by rows; a letter for each operand, `n` by rows and `t` by columns. Returns 0, or ENOMEM.
#define FUNCTION(letters, left_line, left_step, right_line, right_step) \
    int first_product_##letters(int m, int n, int k, float alpha, const float *A, int lda, const float *B, int ldb, float beta, float *C, \
                                int ldc) \
    { \
        const struct operand left = {A, left_line, left_step}, right = {B, right_line, right_step}; \
        const struct problem p = {m, n, k, alpha, beta, left, right, C, ldc}; \
        return multiply(&p); \
    }

FUNCTION(nn, lda, 1, 1, ldb)
FUNCTION(nt, lda, 1, ldb, 1)
FUNCTION(tn, 1, lda, 1, ldb)
FUNCTION(tt, 1, lda, ldb, 1)
