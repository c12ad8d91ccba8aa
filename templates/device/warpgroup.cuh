// Warpgroups: four warps that issue matrix instructions together, and share registers out among themselves.

// Gives registers back, so that this thread keeps kRegisters.
template <int kRegisters>
__device__ __forceinline__ void release_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(kRegisters));
}

// Waits for registers that others gave back, until this thread has kRegisters.
template <int kRegisters>
__device__ __forceinline__ void claim_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(kRegisters));
}

// Orders accesses to accumulators, and the matrix instructions that follow.
__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Closes a group of matrix instructions.
__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until no more than kPending groups of matrix instructions are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(kPending) : "memory");
}

// Waits for the other threads of a group; every group has a separate named barrier, after the block's barrier 0.
template <int kThreads>
__device__ __forceinline__ void sync_group(int group)
{
    asm volatile("bar.sync %0, %1;" :: "r"(group + 1), "n"(kThreads) : "memory");
}

// True in the last of `blocks` blocks to arrive, in those kThreads of its threads that call this: they see the
// writes of the others' threads, and the ticket is 0 again.
template <int kThreads>
__device__ __forceinline__ bool group_comes_last(int group, int thread, unsigned int* ticket, unsigned int blocks)
{
    __shared__ bool last;
    sync_group<kThreads>(group);
    if (thread == 0) {
        last = __nv_atomic_fetch_add(ticket, 1u, __NV_ATOMIC_ACQ_REL, __NV_THREAD_SCOPE_DEVICE) == blocks - 1;
        if (last)
            *ticket = 0;
    }
    sync_group<kThreads>(group);
    return last;
}

// Waits until the other of two groups has passed the turn with this barrier.
__device__ __forceinline__ void wait_for_turn(int barrier)
{
    asm volatile("bar.sync %0, 256;" :: "r"(barrier) : "memory");
}

// Passes the turn to the other of two groups.
__device__ __forceinline__ void pass_turn(int barrier)
{
    asm volatile("bar.arrive %0, 256;" :: "r"(barrier) : "memory");
}
