// Cluster launch control of sm_100a: a running cluster cancels the launch of one that waits, and takes over its work.

// Asks for a waiting cluster. The 16 bytes of the answer come to this place of shared memory, where they arrive at a
// barrier.
__device__ __forceinline__ void ask_for_cluster(unsigned answer, unsigned barrier)
{
    asm volatile(
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%0], [%1];"
        :: "r"(answer), "r"(barrier) : "memory");
}

// Asks for a waiting cluster; the answer comes to all blocks of this one.
__device__ __forceinline__ void ask_for_cluster_for_all(unsigned answer, unsigned barrier)
{
    asm volatile(
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128"
        " [%0], [%1];"
        :: "r"(answer), "r"(barrier) : "memory");
}

// The first block of the cluster that an answer names; -1 if none was left.
__device__ __forceinline__ int block_of_answer(unsigned answer)
{
    int block;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        ".reg .b128 answer;\n"
        "ld.shared.b128 answer, [%1];\n"
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, answer;\n"
        "mov.b32 %0, -1;\n"
        "@p clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %0, answer;\n"
        "}"
        : "=r"(block) : "r"(answer) : "memory");
    return block;
}

// Waits for answer number `count`, reads it, and gives its place back at a barrier of the cluster's first block.
template <int kPlaces>
__device__ __forceinline__ int take_answer(unsigned answers, unsigned arrived, unsigned read, int& count)
{
    constexpr int kAnswerBytes = 16;
    constexpr int kBarrierBytes = 8;
    const int place = count % kPlaces;
    mbarrier_wait(arrived + kBarrierBytes * place, count / kPlaces & 1);
    const int block = block_of_answer(answers + kAnswerBytes * place);
    fence_async_proxy();  // the next answer is written asynchronously
    mbarrier_arrive_remote(address_in_block(read + kBarrierBytes * place, 0));
    ++count;
    return block;
}
