/* Sums an array with an exported kernel that needs a workspace, checks the result, and prints how long it took. C99.
 *
 *   ./sum [length]
 *
 * The header is made by: gemmgen export reduction/sum_last_block --format header --prefix sum -o sum.h */

#include "sum.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program if a call of the driver failed. */
static void check(CUresult result, const char *what)
{
    const char *name = "an unknown error";
    if (result == CUDA_SUCCESS) return;
    cuGetErrorName(result, &name);
    fprintf(stderr, "%s: %s\n", what, name);
    exit(1);
}

int main(int argc, char **argv)
{
    const long long length = argc > 1 ? atoll(argv[1]) : 1 << 22;
    const int repetitions = 20;
    CUdevice device;
    CUcontext context;
    CUdeviceptr input, output, workspace = 0;
    CUevent start, stop;
    sum_t kernel;
    sum_problem_t problem;
    const char *reason;
    float *values, result, milliseconds;
    double expected = 0, magnitude = 0, bound, microseconds;
    size_t bytes;
    int i;

    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(sum_load(&kernel), "sum_load");

    problem = sum_problem(length);
    reason = sum_complete(&problem);
    if (reason != NULL) {
        fprintf(stderr, "%lld numbers: %s\n", length, reason);
        return 2;
    }
    bytes = (size_t)length * sizeof *values;
    values = malloc(bytes + sizeof *values);
    if (values == NULL) {
        fprintf(stderr, "no memory for %lld numbers\n", length);
        return 2;
    }
    for (long long at = 0; at < length; ++at) {
        values[at] = (float)((at * 7919) % 1000) / 1000.0f - 0.3f;
        expected += (double)values[at];
        magnitude += fabs((double)values[at]);
    }
    check(cuMemAlloc(&input, bytes + sizeof *values), "cuMemAlloc");
    check(cuMemAlloc(&output, sizeof result), "cuMemAlloc");
    check(cuMemcpyHtoD(input, values, bytes), "cuMemcpyHtoD");
    if (sum_workspace_bytes(&problem) > 0) check(cuMemAlloc(&workspace, sum_workspace_bytes(&problem)), "cuMemAlloc");

    check(sum_launch(&kernel, NULL, &problem, (const float *)(uintptr_t)input, (float *)(uintptr_t)output,
                     (void *)(uintptr_t)workspace), "sum_launch");
    check(cuMemcpyDtoH(&result, output, sizeof result), "cuMemcpyDtoH");
    /* Whatever the order of the additions, no number takes part in more than length of them. */
    bound = (double)length * ldexp(1.0, -24) * magnitude;
    if (!(fabs((double)result - expected) <= bound)) {
        fprintf(stderr, "the sum is %.9g, expected %.9g within %.3g\n", (double)result, expected, bound);
        return 1;
    }

    check(cuEventCreate(&start, CU_EVENT_DEFAULT), "cuEventCreate");
    check(cuEventCreate(&stop, CU_EVENT_DEFAULT), "cuEventCreate");
    check(cuEventRecord(start, NULL), "cuEventRecord");
    /* The workspace is as the launch above left it, so that these need not prepare it. */
    for (i = 0; i < repetitions; ++i)
        check(sum_launch_again(&kernel, NULL, &problem, (const float *)(uintptr_t)input, (float *)(uintptr_t)output,
                               (void *)(uintptr_t)workspace), "sum_launch_again");
    check(cuEventRecord(stop, NULL), "cuEventRecord");
    check(cuEventSynchronize(stop), "cuEventSynchronize");
    check(cuEventElapsedTime(&milliseconds, start, stop), "cuEventElapsedTime");
    check(cuMemcpyDtoH(values, output, sizeof result), "cuMemcpyDtoH");
    if (values[0] != result) {
        fprintf(stderr, "the sum is %.9g in one run and %.9g in another\n", (double)result, (double)values[0]);
        return 1;
    }
    microseconds = (double)milliseconds * 1e3 / repetitions;
    printf("%lld numbers: %.6g, right; %.1f us, %.0f GB/s\n", length, (double)result, microseconds,
           microseconds > 0 ? (double)bytes / microseconds * 1e-3 : 0.0);

    free(values);
    cuEventDestroy(start);
    cuEventDestroy(stop);
    cuMemFree(input);
    cuMemFree(output);
    if (workspace != 0) cuMemFree(workspace);
    check(sum_unload(&kernel), "sum_unload");
    cuDevicePrimaryCtxRelease(device);
    return 0;
}
