// A sum of 256 elements a block, as in step 2 of the reductions, with one thing left out.
__global__ void sum(const float* x, float* y)
{
    __shared__ float states[256];
    states[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
    __syncthreads();
    for (int stride = 128; stride > 0; stride /= 2) {
        if (threadIdx.x < stride)
            states[threadIdx.x] += states[threadIdx.x + stride];
    }
    if (threadIdx.x == 0)
        y[blockIdx.x] = states[0];
}
