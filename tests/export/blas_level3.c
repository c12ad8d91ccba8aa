/* Tests a BLAS that a program is linked with: SGEMM, through its Fortran and its C interface.
 *
 * The method is that of the level 3 test programs of the reference BLAS: every combination of a few extents, transpositions, alpha
 * and beta, with leading dimensions larger than need be; the result is held against sums in double precision, the error against the
 * sum of the absolute values of all terms; nothing but C's elements may change; and every wrong argument must be reported at its
 * position. Prints "passed" and the number of calls, or what is wrong. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sgemm_(const char *, const char *, const int *, const int *, const int *, const float *, const float *, const int *,
            const float *, const int *, const float *, float *, const int *);
void cblas_sgemm(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);

#define LARGEST 72
#define ROOM ((LARGEST + 1) * (LARGEST + 1))
static const float UNTOUCHED = -12345.0f;
static const double THRESHOLD = 16.0; /* errors in units of the roundoff, as the reference's programs allow */
static int reported; /* the position that was last reported as wrong */

void xerbla_(const char *name, const int *position, size_t length)
{
    if (length < 5 || strncmp(name, "SGEMM", 5) != 0)
        printf("xerbla is called for %.*s\n", (int)length, name);
    reported = *position;
}
void cblas_xerbla(int position, const char *name, const char *format, ...)
{
    (void)format;
    if (strcmp(name, "cblas_sgemm") != 0)
        printf("cblas_xerbla is called for %s\n", name);
    reported = position;
}

static unsigned long state = 12345;
static float uniform(void)
{
    state = state * 6364136223846793005ul + 1442695040888963407ul;
    return (float)(state >> 40) / (float)(1 << 24) - 0.5f;
}

/* Fills rows x columns, stored by columns, and the gaps between them. */
static void fill(float *x, int rows, int columns, int ld)
{
    for (int i = 0; i < ROOM; ++i)
        x[i] = UNTOUCHED;
    for (int j = 0; j < columns; ++j)
        for (int i = 0; i < rows; ++i)
            x[i + j * ld] = uniform();
}

static long calls;

static int check_product(int fortran, int by_rows, int ta, int tb, int m, int n, int k, float alpha, float beta)
{
    static float a[ROOM], b[ROOM], c[ROOM], a0[ROOM], b0[ROOM], c0[ROOM];
    const int rows_a = ta ? k : m, columns_a = ta ? m : k, rows_b = tb ? n : k, columns_b = tb ? k : n;
    /* Stored by rows, a matrix is the transpose of one that is stored by columns. */
    const int lda = (by_rows ? columns_a : rows_a) + 1, ldb = (by_rows ? columns_b : rows_b) + 1, ldc = (by_rows ? n : m) + 1;
    fill(a, by_rows ? columns_a : rows_a, by_rows ? rows_a : columns_a, lda);
    fill(b, by_rows ? columns_b : rows_b, by_rows ? rows_b : columns_b, ldb);
    fill(c, by_rows ? n : m, by_rows ? m : n, ldc);
    memcpy(a0, a, sizeof a);
    memcpy(b0, b, sizeof b);
    memcpy(c0, c, sizeof c);
    const char letters[] = "NTC";
    if (fortran)
        sgemm_(&letters[ta], &letters[tb], &m, &n, &k, &alpha, a, &lda, b, &ldb, &beta, c, &ldc);
    else
        cblas_sgemm(by_rows ? 101 : 102, 111 + ta, 111 + tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    ++calls;
    const char *wrong = NULL;
    if (reported)
        wrong = "an argument is reported";
    else if (memcmp(a, a0, sizeof a) != 0 || memcmp(b, b0, sizeof b) != 0)
        wrong = "an input is changed";
#define AT(x, i, j, ld) (x)[by_rows ? (i) * (ld) + (j) : (i) + (j) * (ld)]
    for (int i = 0; i < m && !wrong; ++i)
        for (int j = 0; j < n && !wrong; ++j) {
            double sum = 0.0, gauge = 0.0;
            for (int p = 0; p < k; ++p) {
                const double x = ta ? AT(a0, p, i, lda) : AT(a0, i, p, lda), y = tb ? AT(b0, j, p, ldb) : AT(b0, p, j, ldb);
                sum += x * y;
                gauge += fabs(x * y);
            }
            const double old = AT(c0, i, j, ldc), want = (double)alpha * sum + (double)beta * old;
            gauge = fabs((double)alpha) * gauge + fabs((double)beta * old);
            if (fabs(AT(c, i, j, ldc) - want) > THRESHOLD * 5.9604644775390625e-8 * gauge)
                wrong = "an element is wrong";
            AT(c, i, j, ldc) = AT(c0, i, j, ldc);
        }
    if (!wrong && memcmp(c, c0, sizeof c) != 0)
        wrong = "memory between C's elements is changed";
    if (wrong)
        printf("%s: %s order %s trans %d %d m %d n %d k %d alpha %g beta %g\n", wrong, fortran ? "sgemm_" : "cblas_sgemm",
               by_rows ? "rows" : "columns", ta, tb, m, n, k, alpha, beta);
    return wrong != NULL;
}

static int check_report(const char *what, int want)
{
    const int wrong = reported != want;
    if (wrong)
        printf("%s: reported %d, expected %d\n", what, reported, want);
    reported = 0;
    return wrong;
}

static int check_errors(void)
{
    float x[4] = {0};
    const float one = 1.0f;
    const int zero = 0, two = 2, unit = 1, minus = -1;
    int wrong = 0;
#define FORTRAN(position, ta, tb, m, n, k, lda, ldb, ldc) \
    sgemm_(ta, tb, &m, &n, &k, &one, x, &lda, x, &ldb, &one, x, &ldc); \
    wrong += check_report("sgemm_", position)
    FORTRAN(1, "/", "N", zero, zero, zero, unit, unit, unit);
    FORTRAN(2, "N", "/", zero, zero, zero, unit, unit, unit);
    FORTRAN(3, "N", "N", minus, zero, zero, unit, unit, unit);
    FORTRAN(4, "N", "T", zero, minus, zero, unit, unit, unit);
    FORTRAN(5, "T", "N", zero, zero, minus, unit, unit, unit);
    FORTRAN(8, "N", "N", two, zero, zero, unit, unit, two);
    FORTRAN(8, "T", "N", zero, zero, two, unit, two, unit);
    FORTRAN(10, "N", "N", zero, zero, two, unit, unit, unit);
    FORTRAN(10, "T", "T", zero, two, zero, unit, unit, unit);
    FORTRAN(13, "N", "N", two, zero, zero, two, unit, unit);
#define C(position, order, ta, tb, m, n, k, lda, ldb, ldc) \
    cblas_sgemm(order, ta, tb, m, n, k, one, x, lda, x, ldb, one, x, ldc); \
    wrong += check_report("cblas_sgemm", position)
    C(1, 0, 111, 111, 0, 0, 0, 1, 1, 1);
    C(2, 102, 0, 111, 0, 0, 0, 1, 1, 1);
    C(3, 101, 111, 0, 0, 0, 0, 1, 1, 1);
    C(4, 102, 111, 111, -1, 0, 0, 1, 1, 1);
    C(5, 102, 111, 111, 0, -1, 0, 1, 1, 1);
    C(6, 101, 111, 111, 0, 0, -1, 1, 1, 1);
    C(9, 102, 111, 111, 2, 0, 0, 1, 1, 2);
    C(9, 101, 111, 111, 0, 0, 2, 1, 1, 1);
    C(11, 102, 111, 111, 0, 0, 2, 1, 1, 1);
    C(11, 101, 111, 111, 0, 2, 0, 1, 1, 2);
    C(14, 102, 111, 111, 2, 0, 0, 2, 1, 1);
    C(14, 101, 111, 111, 0, 2, 0, 1, 2, 1);
    return wrong;
}

int main(void)
{
    static const int extents[] = {0, 1, 2, 3, 5, 9, 35, LARGEST - 1};
    static const float scalars[] = {0.0f, 1.0f, 0.7f}, betas[] = {0.0f, 1.0f, 1.3f};
    const int count = sizeof extents / sizeof extents[0];
    int wrong = check_errors();
    for (int form = 0; form < 3 && wrong < 10; ++form)
        for (int ta = 0; ta < 3; ++ta)
            for (int tb = 0; tb < 3; ++tb)
                for (int e = 0; e < count * count * count && wrong < 10; ++e)
                    for (int s = 0; s < 9; ++s) {
                        const int m = extents[e % count], n = extents[e / count % count], k = extents[e / count / count];
                        if ((long)m * n * k > 9 * 9 * 9 && s != 8)
                            continue; /* all scalars on small ones, the last on large ones */
                        wrong += check_product(form == 0, form == 2, ta, tb, m, n, k, scalars[s / 3], betas[s % 3]);
                    }
    if (wrong == 0)
        printf("passed %ld calls\n", calls);
    return wrong != 0;
}
