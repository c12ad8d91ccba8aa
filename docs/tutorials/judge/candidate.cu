// candidate.cu
extern "C" __global__ void gemm(const float* A, const float* B, float* C, int m, int n, int k) {
    int element = blockIdx.x * blockDim.x + threadIdx.x;
    if (element >= m * n) return;
    int row = element / n, column = element % n;
    float sum = 0;
    for (int step = 0; step < k / 8; ++step)
        for (int i = 8 * step; i < 8 * step + 8; ++i) sum += A[row * k + i] * B[i * n + column];
    C[element] = sum;
}
