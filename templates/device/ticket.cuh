// Meetings of blocks.

// True in the last of `blocks` blocks to arrive: it sees the writes of the others, and resets the ticket to 0.
__device__ __forceinline__ bool comes_last(unsigned int* ticket, unsigned int blocks)
{
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        last = __nv_atomic_fetch_add(ticket, 1u, __NV_ATOMIC_ACQ_REL, __NV_THREAD_SCOPE_DEVICE) == blocks - 1;
        if (last)
            *ticket = 0;
    }
    __syncthreads();
    return last;
}
