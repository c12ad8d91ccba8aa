// Multiplies two matrices with an exported kernel, checks the result against the CPU, and prints how long it took.
//
//   ./sgemm [m n k]
//
// The header is made by: gemmgen export gemm/simt/blocked/128x128x8 --format header --prefix sgemm -o sgemm.h

#include "sgemm.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

// Ends the program if a call of the driver failed.
static void check(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS) return;
    const char *name = "an unknown error";
    cuGetErrorName(result, &name);
    std::fprintf(stderr, "%s: %s\n", what, name);
    std::exit(1);
}

static CUdeviceptr to_device(const std::vector<float> &values)
{
    CUdeviceptr address;
    check(cuMemAlloc(&address, values.size() * sizeof(float)), "cuMemAlloc");
    check(cuMemcpyHtoD(address, values.data(), values.size() * sizeof(float)), "cuMemcpyHtoD");
    return address;
}

// A few numbers that differ, without a library: the linear congruential generator of Numerical Recipes.
static std::vector<float> some_numbers(std::size_t count, unsigned seed)
{
    std::vector<float> values(count);
    for (float &value : values) {
        seed = seed * 1664525u + 1013904223u;
        value = static_cast<float>(seed >> 8) / 16777216.0f - 0.5f;
    }
    return values;
}

int main(int argc, char **argv)
{
    const long long m = argc > 3 ? std::atoll(argv[1]) : 1000;
    const long long n = argc > 3 ? std::atoll(argv[2]) : 700;
    const long long k = argc > 3 ? std::atoll(argv[3]) : 500;
    const float alpha = 1.5f, beta = 0.5f;

    check(cuInit(0), "cuInit");
    CUdevice device;
    CUcontext context;
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    char device_name[256];
    check(cuDeviceGetName(device_name, sizeof device_name, device), "cuDeviceGetName");

    sgemm_t kernel;
    check(sgemm_load(&kernel), "sgemm_load");

    // The header fills in the leading dimensions, here such that every row starts where the kernel needs it to.
    sgemm_problem_t problem = sgemm_problem(m, n, k);
    const char *reason = sgemm_complete(&problem);
    if (reason != NULL) {
        std::fprintf(stderr, "%lld x %lld x %lld: %s\n", m, n, k, reason);
        return 2;
    }
    const std::size_t lda = static_cast<std::size_t>(problem.lda), ldb = static_cast<std::size_t>(problem.ldb);
    const std::size_t ldc = static_cast<std::size_t>(problem.ldc);
    const std::vector<float> a = some_numbers(static_cast<std::size_t>(m) * lda + 1, 1);
    const std::vector<float> b = some_numbers(static_cast<std::size_t>(k) * ldb + 1, 2);
    const std::vector<float> c = some_numbers(static_cast<std::size_t>(m) * ldc + 1, 3);
    const CUdeviceptr device_a = to_device(a), device_b = to_device(b), device_c = to_device(c);
    const float *A = reinterpret_cast<const float *>(device_a);
    const float *B = reinterpret_cast<const float *>(device_b);
    float *C = reinterpret_cast<float *>(device_c);

    reason = sgemm_why(&problem, A, B, C);
    if (reason != NULL) {
        std::fprintf(stderr, "the launch would be refused: %s\n", reason);
        return 2;
    }
    check(sgemm_launch(&kernel, NULL, &problem, A, B, C, alpha, beta), "sgemm_launch");
    std::vector<float> result(c.size());
    check(cuMemcpyDtoH(result.data(), device_c, result.size() * sizeof(float)), "cuMemcpyDtoH");

    // Each element may be wrong by the rounding of k products and sums, no more: gamma(k + 3) times the sum of magnitudes.
    const double unit = std::ldexp(1.0, -24), terms = static_cast<double>(k) + 3;
    const double gamma = terms * unit / (1 - terms * unit);
    double worst = 0;
    for (std::size_t row = 0; row < static_cast<std::size_t>(m); ++row) {
        for (std::size_t column = 0; column < static_cast<std::size_t>(n); ++column) {
            double sum = 0, magnitude = 0;
            for (std::size_t step = 0; step < static_cast<std::size_t>(k); ++step) {
                const double product = static_cast<double>(a[row * lda + step]) * b[step * ldb + column];
                sum += product;
                magnitude += std::fabs(product);
            }
            const double old = c[row * ldc + column];
            const double expected = alpha * sum + beta * old;
            const double bound = gamma * (alpha * magnitude + beta * std::fabs(old));
            const double error = std::fabs(result[row * ldc + column] - expected);
            if (!(error <= bound)) {
                std::fprintf(stderr, "C[%zu, %zu] is %.9g, expected %.9g within %.3g\n", row, column,
                             static_cast<double>(result[row * ldc + column]), expected, bound);
                return 1;
            }
            if (bound > 0 && error / bound > worst) worst = error / bound;
        }
    }

    const int repetitions = 20;
    CUevent start, stop;
    check(cuEventCreate(&start, CU_EVENT_DEFAULT), "cuEventCreate");
    check(cuEventCreate(&stop, CU_EVENT_DEFAULT), "cuEventCreate");
    check(cuEventRecord(start, NULL), "cuEventRecord");
    for (int i = 0; i < repetitions; ++i)
        check(sgemm_launch(&kernel, NULL, &problem, A, B, C, alpha, beta), "sgemm_launch");
    check(cuEventRecord(stop, NULL), "cuEventRecord");
    check(cuEventSynchronize(stop), "cuEventSynchronize");
    float milliseconds;
    check(cuEventElapsedTime(&milliseconds, start, stop), "cuEventElapsedTime");
    const double seconds = milliseconds * 1e-3 / repetitions;
    std::printf("%s: %lld x %lld x %lld right (worst error %.2f of its bound), %.1f us, %.2f TFLOP/s\n", device_name, m, n, k,
                worst, seconds * 1e6, seconds > 0 ? 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / seconds * 1e-12 : 0.0);

    cuEventDestroy(start);
    cuEventDestroy(stop);
    cuMemFree(device_a);
    cuMemFree(device_b);
    cuMemFree(device_c);
    check(sgemm_unload(&kernel), "sgemm_unload");
    cuDevicePrimaryCtxRelease(device);
    return 0;
}
