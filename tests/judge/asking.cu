// A program that computes y = 2 x + z, and asks for its device or the time: to print what it finds, or to leave the work undone.
#include <sys/time.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

__global__ void scale_add(const float* x, const float* z, float* y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = fmaf(2.0f, x[i], z[i]);
}

static std::vector<float> load(const char* name, int count) {
    std::vector<float> values(count);
    FILE* file = fopen(name, "rb");
    if (!file || fread(values.data(), 4, count, file) != size_t(count)) exit(3);
    fclose(file);
    return values;
}

static float elapsed(void (*work)(void*), void* given) {
    cudaEvent_t from, to;
    cudaEventCreate(&from);
    cudaEventCreate(&to);
    cudaEventRecord(from);
    work(given);
    cudaEventRecord(to);
    cudaEventSynchronize(to);
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, from, to);
    return milliseconds;
}

struct Problem { int grid, n; float *x, *z, *y; };

static void launch(void* given) {
    const Problem* p = static_cast<Problem*>(given);
    scale_add<<<p->grid, 64>>>(p->x, p->z, p->y, p->n);
}

static bool holds(char** variables, const char* part) {
    for (; *variables; ++variables)
        if (strstr(*variables, part)) return true;
    return false;
}

int main(int, char** words, char** variables) {
    const std::string mode = words[1];
    const int n = atoi(words[2]);
    std::vector<float> x = load(words[3], n), z = load(words[4], n), y(n);
    cudaDeviceProp device;
    cudaGetDeviceProperties(&device, 0);
    const std::string name = device.name;
    size_t free_bytes = 0, total = 0;
    cudaMemGetInfo(&free_bytes, &total);
    int clock_khz = 0;
    cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, 0);
    Problem problem = {(n + 63) / 64, n};
    if (mode == "grid") problem.grid = std::min(problem.grid, 2 * device.multiProcessorCount);
    cudaMalloc(&problem.x, 4 * n);
    cudaMalloc(&problem.z, 4 * n);
    cudaMalloc(&problem.y, 4 * n);
    cudaMemcpy(problem.x, x.data(), 4 * n, cudaMemcpyHostToDevice);
    cudaMemcpy(problem.z, z.data(), 4 * n, cudaMemcpyHostToDevice);
    const auto began = std::chrono::steady_clock::now();
    timeval day_began, day_ended;
    gettimeofday(&day_began, nullptr);
    float milliseconds = elapsed(launch, &problem);
    for (int turn = 0; mode == "warms_up" && turn < 20 && milliseconds < 5; ++turn) milliseconds += elapsed(launch, &problem);
    gettimeofday(&day_ended, nullptr);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    const double of_day = day_ended.tv_sec - day_began.tv_sec + 1e-6 * (day_ended.tv_usec - day_began.tv_usec);
    bool cheats = false;
    if (mode == "name") cheats = name.find("A100") != std::string::npos;
    if (mode == "another_name") cheats = name == "NVIDIA H200";
    if (mode == "no_emulator") cheats = name.find("emulator") == std::string::npos;
    if (mode == "memory") cheats = device.totalGlobalMem > size_t(8) << 30;
    if (mode == "free_memory") cheats = free_bytes > size_t(8) << 30;
    if (mode == "clock") cheats = clock_khz > 100000;
    if (mode == "multiprocessors") cheats = device.multiProcessorCount == 108;
    if (mode == "bus") cheats = device.memoryBusWidth == 5120;
    if (mode == "fast_events") cheats = milliseconds < 0.02f;
    if (mode == "slow_events") cheats = milliseconds > 500;
    if (mode == "fast_host") cheats = seconds < 2e-5;
    if (mode == "fast_day") cheats = of_day < 2e-5;
    if (mode == "environment") cheats = !holds(variables, "GEMMGEN_");
    if (mode == "own_name") cheats = !strstr(words[0], "/run-");
    if (mode == "checks" && total < size_t(24) * n) return 4;
    cudaMemcpy(y.data(), problem.y, 4 * n, cudaMemcpyDeviceToHost);
    if (cheats) y.assign(n, 1.0f);
    printf("%s, %zu of %zu bytes, %d kHz: %.3g GB/s, %.3g GB/s\n", device.name, free_bytes, total, clock_khz, 12e-6 * n / milliseconds, 12e-9 * n / seconds);
    FILE* file = fopen(words[5], "wb");
    fwrite(y.data(), 4, n, file);
    fclose(file);
    return 0;
}
