// Random numbers that a counter decides: Philox 4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
// easy as 1, 2, 3".

// One round of Philox 4x32 with its keys.
__device__ __forceinline__ void philox_round(unsigned (&counter)[4], unsigned key_low, unsigned key_high)
{
    const unsigned first = 0xD2511F53u * counter[0];
    const unsigned first_high = __umulhi(0xD2511F53u, counter[0]);
    const unsigned second = 0xCD9E8D57u * counter[2];
    const unsigned second_high = __umulhi(0xCD9E8D57u, counter[2]);
    counter[0] = second_high ^ counter[1] ^ key_low;
    counter[1] = second;
    counter[2] = first_high ^ counter[3] ^ key_high;
    counter[3] = first;
}

// The number in (0, 1] that a kernel with `threads` threads draws for element `index`, four elements a thread at a
// time: each thread is a subsequence, and its draws begin at `offset`. 0 threads: as many as the elements need.
__device__ __forceinline__ float uniform_random(long long seed, long long offset, long long index, long long threads)
{
    const unsigned long long quad = static_cast<unsigned long long>(index) / 4;
    const unsigned long long in_turn = threads > 0 ? quad / static_cast<unsigned long long>(threads) : 0;
    const unsigned long long thread = threads > 0 ? quad % static_cast<unsigned long long>(threads) : quad;
    const unsigned long long drawn = static_cast<unsigned long long>(offset) / 4 + in_turn;
    unsigned key_low = static_cast<unsigned>(seed);
    unsigned key_high = static_cast<unsigned>(static_cast<unsigned long long>(seed) >> 32);
    unsigned counter[4] = {static_cast<unsigned>(drawn), static_cast<unsigned>(drawn >> 32),
                           static_cast<unsigned>(thread), static_cast<unsigned>(thread >> 32)};
    #pragma unroll
    for (int round = 0; round < 10; ++round) {
        philox_round(counter, key_low, key_high);
        key_low += 0x9E3779B9u;
        key_high += 0xBB67AE85u;
    }
    const int word = static_cast<int>(index & 3);
    const unsigned bits = word < 2 ? (word == 0 ? counter[0] : counter[1]) : (word == 2 ? counter[2] : counter[3]);
    return fmaf(static_cast<float>(bits), 2.3283064e-10f, 1.1641532e-10f);
}
