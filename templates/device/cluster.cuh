// Clusters: blocks that run together and reach one another's shared memory.

// This block's index within its cluster.
__device__ __forceinline__ int block_of_cluster()
{
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Waits for all threads of the cluster.
__device__ __forceinline__ void sync_cluster()
{
    asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}

// The address of the same object in the shared memory of another block of the cluster.
__device__ __forceinline__ unsigned address_in_block(unsigned address, int block)
{
    unsigned remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(block));
    return remote;
}

// Writes four floats to the shared memory of a block of the cluster.
__device__ __forceinline__ void store_remote(unsigned target, float a, float b, float c, float d)
{
    asm volatile(
        "st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" :: "r"(target), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

// Writes four integers to the shared memory of a block of the cluster.
__device__ __forceinline__ void store_remote_integers(unsigned target, int a, int b, int c, int d)
{
    asm volatile(
        "st.shared::cluster.v4.s32 [%0], {%1, %2, %3, %4};" :: "r"(target), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// Arrives at the barrier of the cluster without waiting; orders no memory accesses; fences do.
__device__ __forceinline__ void arrive_at_cluster()
{
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

// Waits until all threads of the cluster have arrived.
__device__ __forceinline__ void wait_for_cluster()
{
    asm volatile("barrier.cluster.wait;" ::: "memory");
}

// Writes two floats to the shared memory of a block of the cluster, where their bytes arrive at a barrier;
// asynchronous.
__device__ __forceinline__ void send_pair(unsigned target, unsigned barrier, float a, float b)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
        :: "r"(target), "f"(a), "f"(b), "r"(barrier) : "memory");
}
