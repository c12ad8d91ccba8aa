// A layer of the program's own, launched from the header that gemmgen export writes.

#include "mine.h"

#include <cstdio>

// y = gelu(x W^T + bias + residual), on a stream: 300 rows, 768 features out, 512 in. All addresses are of the device.
bool layer(const mine_t &kernel, CUstream stream, const float *x, const float *w, float *y, const float *bias, const float *residual)
{
    const mine_problem_t problem = mine_problem(300, 768, 512);
    if (mine_launch(&kernel, stream, &problem, x, w, y, bias, residual, 1.0f) == CUDA_SUCCESS)
        return true;
    const char *why = mine_why(&problem, x, w, y, bias, residual);
    std::fprintf(stderr, "%s\n", why ? why : "the driver refused the launch");
    return false;
}
