// Forty kernels, thirty with one fault each and ten that are right, for every tool that looks at kernels.
//
//     nvcc -lineinfo -arch=sm_90 -o tool_comparison tool_comparison.cu && compute-sanitizer ./tool_comparison read_past_the_end
//
// Each takes x, n = 256 integers that are zero, and y, n integers that nobody has written.
#include <cooperative_groups.h>
#include <cstdio>
#include <cstring>
#include <cuda_pipeline.h>

#define HERE [[maybe_unused]] int i = blockIdx.x * blockDim.x + threadIdx.x; [[maybe_unused]] int t = threadIdx.x;

__device__ unsigned ticket;
__device__ int flag, message, counter, total[16];

// -- accesses that leave their memory --------------------------------------------------------------------------------
__global__ void read_past_the_end(int* x, int* y, int n) { HERE if (i < n) y[i] = x[i + 1]; }
__global__ void write_past_the_end(int* x, int* y, int n) { HERE if (i <= n) y[i] = 1; }
__global__ void read_before_the_start(int* x, int* y, int n) { HERE if (i < n) y[i] = x[i - 1]; }
__global__ void read_the_next_array(int* x, int* y, int n) { HERE if (i < n) y[i] = x[i + 256]; }
__global__ void elements_of_another_type(int* x, int* y, int n) { HERE if (i < n) y[i] = (int)((double*)x)[i]; }
__global__ void misaligned_vector(int* x, int* y, int n) { HERE if (i < 60) ((int4*)(y + 1))[i] = make_int4(i, i, i, i); }
__global__ void null_pointer(int* x, int* y, int n) { HERE int* p = (int*)(long long)(n >> 20); p[i] = x[0]; }
__global__ void past_dynamic_shared(int* x, int* y, int n)
{
    HERE extern __shared__ int dynamic[];
    dynamic[t + 1] = i;
    __syncthreads();
    y[i] = dynamic[t + 1];
}
__global__ void into_the_next_shared_array(int* x, int* y, int n)
{
    HERE __shared__ int first[128], second[128];
    first[t] = second[t] = i;
    __syncthreads();
    if (t < 127) y[i] = first[t + (n >> 7)] + second[t];
}
__global__ void past_a_local_array(int* x, int* y, int n)
{
    HERE int local[8];
    for (int k = 0; k < 8; ++k) local[k] = x[(i + k) % n];
    y[i] = local[(i + x[i]) % 9];
}
__global__ void use_after_free(int* x, int* y, int n)
{
    HERE int* p = (int*)malloc(16);
    p[0] = i;
    free(p);
    y[i] = p[0];
}
__global__ void double_free(int* x, int* y, int n)
{
    HERE int* p = (int*)malloc(16);
    y[i] = p != nullptr;
    free(p);
    if (y[i]) free(p);
}

// -- values that nobody has written ---------------------------------------------------------------------------------
__global__ void unwritten_global(int* x, int* y, int n) { HERE if (i < n) x[i] = y[i] + 1; }
__global__ void unwritten_shared(int* x, int* y, int n)
{
    HERE __shared__ int part[128];
    if (t < 100) part[t] = i;
    __syncthreads();
    y[i] = part[127 - t];
}
__global__ void unassigned_variable(int* x, int* y, int n)
{
    HERE int value;
    for (int k = 0; k < x[i]; ++k) value = value / 3 + k;
    y[i] = value;
}

// -- races -------------------------------------------------------------------------------------------------------------
__global__ void missing_barrier(int* x, int* y, int n)
{
    HERE __shared__ int part[128];
    part[t] = i;
    y[i] = part[127 - t];
}
__global__ void missing_second_barrier(int* x, int* y, int n)
{
    HERE __shared__ int part[128];
    int sum = 0;
    for (int k = 0; k < 4; ++k) {
        part[t] = i + k;
        __syncthreads();
        sum += part[127 - t];
    }
    y[i] = sum;
}
__global__ void missing_syncwarp(int* x, int* y, int n)
{
    HERE __shared__ int part[128];
    part[t] = i;
    if (t % 32 < 16) part[t] += part[t + 16];
    __syncthreads();
    y[i] = part[t];
}
__global__ void blocks_write_one_element(int* x, int* y, int n) { HERE y[t] = i; }
__global__ void neighbours_in_global(int* x, int* y, int n) { HERE x[i] = i; y[i] = x[(i + 1) % n]; }
__global__ void plain_counter(int* x, int* y, int n) { HERE counter = counter + 1; y[i] = i; }
__global__ void block_scope_atomic(int* x, int* y, int n) { HERE atomicAdd_block(x, 1); y[i] = i; }
__global__ void flag_without_fence(int* x, int* y, int n)
{
    HERE
    if (i == 0) { message = 42; *(volatile int*)&flag = 1; }
    if (i == 128) { while (*(volatile int*)&flag == 0) {} y[0] = message; }
}
__global__ void last_block_without_fence(int* x, int* y, int n)
{
    HERE __shared__ bool last;
    x[i] = i;
    __syncthreads();
    if (t == 0) last = atomicAdd(&ticket, 1) == gridDim.x - 1;
    __syncthreads();
    if (last) y[t] = x[(t + 128) % n] + x[t];
}
__global__ void copy_without_wait(int* x, int* y, int n)
{
    HERE __shared__ int4 part[128];
    if (t < 64) __pipeline_memcpy_async(part + t, (int4*)x + t, 16);
    __pipeline_commit();
    __syncthreads();
    y[i] = part[t % 64].x;
    __pipeline_wait_prior(0);
}

// -- barriers and warps ----------------------------------------------------------------------------------------------
__global__ void barrier_in_a_branch(int* x, int* y, int n)
{
    HERE
    if (t < 48) { __syncthreads(); y[i] = 1; } else { __syncthreads(); y[i] = 2; }
}
__global__ void return_before_a_barrier(int* x, int* y, int n)
{
    HERE
    if (t >= 100) return;
    __syncthreads();
    y[i] = i;
}
__global__ void warp_barrier_without_a_lane(int* x, int* y, int n)
{
    HERE
    if (t % 32 < 20) __syncwarp(0x0000ffff);
    y[i] = i;
}
__global__ void shuffle_from_an_absent_lane(int* x, int* y, int n)
{
    HERE int value = i;
    if (t % 32 < 16) value = __shfl_down_sync(0x0000ffff, i, 8) + __shfl_xor_sync(0x0000ffff, i, 16);
    y[i] = value;
}
__global__ void barrier_that_never_completes(int* x, int* y, int n)
{
    HERE
    if (t < 64) asm volatile("bar.sync 1, 128;" ::: "memory");
    y[i] = i;
}

// -- kernels that are right --------------------------------------------------------------------------------------------
__global__ void right_own_element(int* x, int* y, int n) { HERE if (i < n) { y[i] = x[i] + 1; x[i] = y[i] * 2; } }
__global__ void right_reversal(int* x, int* y, int n)
{
    HERE __shared__ int part[128];
    part[t] = x[i];
    __syncthreads();
    y[i] = part[127 - t];
}
__global__ void right_warp_sum(int* x, int* y, int n)
{
    HERE int sum = x[i] + t;
    for (int k = 16; k; k /= 2) sum += __shfl_down_sync(0xffffffff, sum, k);
    y[i] = t % 32 == 0 ? sum : 0;
}
__global__ void right_last_block(int* x, int* y, int n)
{
    HERE __shared__ bool last;
    x[i] = i;
    __threadfence();
    __syncthreads();
    if (t == 0) { last = atomicAdd(&ticket, 1) == gridDim.x - 1; __threadfence(); }
    __syncthreads();
    if (last) y[t] = x[(t + 128) % n] + x[t];
}
__global__ void right_compare_and_swap(int* x, int* y, int n)
{
    HERE int old = x[0], seen;
    do { seen = old; old = atomicCAS(x, seen, max(seen, i)); } while (old != seen);
    y[i] = i;
}
__global__ void right_same_value(int* x, int* y, int n) { HERE if (i >= 0) x[0] = 1; y[i] = i; }
__global__ void right_cooperative_group(int* x, int* y, int n)
{
    HERE __shared__ int part[128];
    auto tile = cooperative_groups::tiled_partition<16>(cooperative_groups::this_thread_block());
    part[t] = i;
    tile.sync();
    y[i] = part[t ^ 15];
}
__global__ void right_asynchronous_copy(int* x, int* y, int n)
{
    HERE __shared__ int4 part[64];
    if (t < 64) __pipeline_memcpy_async(part + t, (int4*)x + t, 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    y[i] = part[t % 64].x;
}
__global__ void right_histogram(int* x, int* y, int n)
{
    HERE __shared__ int bins[16];
    if (t < 16) bins[t] = 0;
    __syncthreads();
    atomicAdd(bins + (x[i] + i) % 16, 1);
    __syncthreads();
    if (t < 16) atomicAdd(total + t, bins[t]);
    y[i] = i;
}
__global__ void right_message(int* x, int* y, int n)
{
    HERE
    if (i == 0) { message = 42; __threadfence(); *(volatile int*)&flag = 1; }
    if (i == 128) { while (*(volatile int*)&flag == 0) {} __threadfence(); y[0] = message; }
}

// Name, blocks, bytes of dynamic shared memory.
#define KERNELS(X) \
    X(read_past_the_end, 2, 0) X(write_past_the_end, 3, 0) X(read_before_the_start, 2, 0) X(read_the_next_array, 2, 0) \
    X(elements_of_another_type, 2, 0) X(misaligned_vector, 2, 0) X(null_pointer, 2, 0) X(past_dynamic_shared, 2, 512) \
    X(into_the_next_shared_array, 2, 0) X(past_a_local_array, 2, 0) X(use_after_free, 2, 0) X(double_free, 2, 0) \
    X(unwritten_global, 2, 0) X(unwritten_shared, 2, 0) X(unassigned_variable, 2, 0) \
    X(missing_barrier, 2, 0) X(missing_second_barrier, 2, 0) X(missing_syncwarp, 2, 0) X(blocks_write_one_element, 2, 0) \
    X(neighbours_in_global, 2, 0) X(plain_counter, 2, 0) X(block_scope_atomic, 2, 0) X(flag_without_fence, 2, 0) \
    X(last_block_without_fence, 2, 0) X(copy_without_wait, 2, 0) \
    X(barrier_in_a_branch, 2, 0) X(return_before_a_barrier, 2, 0) X(warp_barrier_without_a_lane, 2, 0) \
    X(shuffle_from_an_absent_lane, 2, 0) X(barrier_that_never_completes, 2, 0) \
    X(right_own_element, 2, 0) X(right_reversal, 2, 0) X(right_warp_sum, 2, 0) X(right_last_block, 2, 0) \
    X(right_compare_and_swap, 2, 0) X(right_same_value, 2, 0) X(right_cooperative_group, 2, 0) X(right_asynchronous_copy, 2, 0) \
    X(right_histogram, 2, 0) X(right_message, 2, 0)

int main(int argc, char** argv)
{
    int *x, *y;
    cudaMalloc(&x, 1024);
    cudaMalloc(&y, 1024);
    cudaMemset(x, 0, 1024);
#define LAUNCH(name, blocks, bytes) \
    if (argc > 1 && !strcmp(argv[1], #name)) name<<<blocks, 128, bytes>>>(x, y, 256);
    KERNELS(LAUNCH)
    cudaError_t error = cudaDeviceSynchronize();
    printf("%s\n", cudaGetErrorString(error));
    return error != cudaSuccess;
}
