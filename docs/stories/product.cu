// C = A B, a block for each tile of 16 x 16; elements outside a matrix count as 0.
extern "C" __global__ void product(int m, int n, int k, const float* a, const float* b, float* c)
{
    __shared__ float tile_a[16][16];
    __shared__ float tile_b[16][16];
    const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0.0f;
    for (int first = 0; first < k; first += 16) {
        const int at_a = first + threadIdx.x, at_b = first + threadIdx.y;
        tile_a[threadIdx.y][threadIdx.x] = row < m && at_a < k ? a[(long long)row * k + at_a] : 0.0f;
        tile_b[threadIdx.y][threadIdx.x] = column < n && at_b < k ? b[(long long)at_b * n + column] : 0.0f;
        __syncthreads();
        for (int i = 0; i < 16; ++i)
            sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && column < n)
        c[(long long)row * n + column] = sum;
}
