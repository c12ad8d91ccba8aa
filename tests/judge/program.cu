// A program that computes y = 2 x + z of arrays in files, rightly or in one of several wrong ways.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

__global__ void scale_add(const float* x, const float* z, float* y, int n, float factor, float tiny) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaf(tiny, x[0], fmaf(factor, x[i], z[i]));
}

__global__ void plain(const float* x, const float* z, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaf(2.0f, x[i], z[i]);
}

static std::vector<float> load(const char* name, int count) {
    std::vector<float> values(count);
    FILE* file = fopen(name, "rb");
    if (!file || fread(values.data(), 4, count, file) != size_t(count)) exit(3);
    fclose(file);
    return values;
}

int main(int, char** words) {
    const std::string mode = words[1];
    const int n = atoi(words[2]);
    std::vector<float> x = load(words[3], n), z = load(words[4], n), y(n);
    float *dx, *dz, *dy;
    cudaMalloc(&dx, 4 * n);
    cudaMalloc(&dz, 4 * n);
    cudaMalloc(&dy, 4 * n);
    cudaMemcpy(dx, x.data(), 4 * n, cudaMemcpyHostToDevice);
    cudaMemcpy(dz, z.data(), 4 * n, cudaMemcpyHostToDevice);
    const int grid = (n + 63) / 64;
    if (mode == "tiny") scale_add<<<grid, 64>>>(dx, dz, dy, n, 2.0f, 1e-13f);
    else if (mode == "by_argument") scale_add<<<grid, 64>>>(dx, dz, dy, n, 2.0f, 0.0f);
    else if (mode == "negated") scale_add<<<grid, 64>>>(dx, dz, dy, n, -2.0f, 0.0f);
    else plain<<<grid, 64>>>(dx, dz, dy, mode == "beyond" ? n + 1 : mode == "half" ? n / 2 : n);
    cudaMemcpy(y.data(), dy, 4 * n, cudaMemcpyDeviceToHost);
    if (mode == "on_the_host")
        for (int i = 0; i < n; ++i) y[i] = 2.0f * x[i] + z[i];
    if (mode == "fails") return 5;
    FILE* file = fopen(mode == "inputs" ? words[3] : words[5], "wb");
    fwrite(y.data(), 4, n, file);
    if (mode == "large") fwrite(y.data(), 4, n, file);
    fclose(file);
    cudaFree(dx);
    cudaFree(dz);
    cudaFree(dy);
    return 0;
}
