// Barriers in shared memory that count arrivals of threads and bytes of asynchronous copies (mbarrier). They are named
// by their addresses in shared memory.

// Initializes a barrier: its phase ends when `arrivals` threads and all bytes announced to it have arrived.
__device__ __forceinline__ void mbarrier_init(unsigned barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}

// Makes new barriers known to the other blocks of the cluster and to TMA.
__device__ __forceinline__ void mbarrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives, and announces bytes that copies will bring in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect(unsigned barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

// Arrives at a barrier of another block of the cluster, and announces bytes that copies will bring there in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect_remote(unsigned barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

// Arrives at a barrier of this block.
__device__ __forceinline__ void mbarrier_arrive(unsigned barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

// Arrives at a barrier of this block when all copies that this thread has started (cp.async) have arrived.
__device__ __forceinline__ void mbarrier_arrive_with_copies(unsigned barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(barrier) : "memory");
}

// Arrives at a barrier of another block of the cluster.
__device__ __forceinline__ void mbarrier_arrive_remote(unsigned barrier)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(barrier) : "memory");
}

// True if the phase of this parity is over; waits for that up to a time that the hardware sets.
__device__ __forceinline__ bool mbarrier_try_wait(unsigned barrier, int parity)
{
    int over;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.s32 %0, 1, 0, p;\n"
        "}"
        : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
    return over;
}

// Waits until the phase of this parity is over.
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, int parity)
{
    while (!mbarrier_try_wait(barrier, parity)) {
    }
}

// Passes the number of a piece of work on to the consumers of a block; -1 after the last. Each of kTickets places has a
// barrier for its arrival and, kTickets further, one for its completed read.
template <int kTickets>
__device__ __forceinline__ void pass_ticket(unsigned barriers, int* tickets, int count, int index)
{
    constexpr int kBarrierBytes = 8;
    const int place = count % kTickets;
    mbarrier_wait(barriers + kBarrierBytes * (kTickets + place), (count / kTickets & 1) ^ 1);
    tickets[place] = index;
    mbarrier_arrive(barriers + kBarrierBytes * place);
}

// Waits for the next number, which the lane reads that gives the place free.
template <int kTickets>
__device__ __forceinline__ int take_ticket(unsigned barriers, const int* tickets, int count, int lane)
{
    constexpr int kBarrierBytes = 8;
    const int place = count % kTickets;
    mbarrier_wait(barriers + kBarrierBytes * place, count / kTickets & 1);
    int index = 0;
    if (lane == 0) {
        index = tickets[place];
        mbarrier_arrive(barriers + kBarrierBytes * (kTickets + place));
    }
    return __shfl_sync(0xFFFFFFFF, index, 0);
}
