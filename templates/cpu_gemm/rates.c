// Peak rates of a processor: independent fused multiply-adds, and reads of memory that no cache holds.
#include <stddef.h>

typedef float vector __attribute__((vector_size(VECTOR_BYTES)));

// As many chains as hide the latency of one multiply-add on today's processors; each takes one step a turn.
enum { CHAINS = 12 };

// A register of vectors, as the compiler names it.
#ifdef __x86_64__
#define CONSTRAINT "+v"
#else
#define CONSTRAINT "+w"
#endif

void fma_chains(long turns, float *out)
{
    const vector factor = (vector){0} + 0.5f, addend = (vector){0} + 0.25f;
    vector sum[CHAINS];
#pragma GCC unroll 12
    for (int chain = 0; chain < CHAINS; ++chain)
        sum[chain] = addend;
    for (long turn = 0; turn < turns; ++turn)
#pragma GCC unroll 12
        for (int chain = 0; chain < CHAINS; ++chain) {
            sum[chain] = sum[chain] * factor + addend;
            __asm__ volatile("" : CONSTRAINT(sum[chain]));  // the compiler must neither merge nor move the chains
        }
#pragma GCC unroll 12
    for (int chain = 0; chain < CHAINS; ++chain)
        out[chain] = sum[chain][0];
}

void read_floats(const float *from, size_t count, float *out)
{
    vector sum[4] = {{0}};
    const size_t lanes = VECTOR_BYTES / sizeof(float);
    for (size_t i = 0; i + 4 * lanes <= count; i += 4 * lanes)
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part)
            sum[part] += *(const vector *)(from + i + part * lanes);
    *out = sum[0][0] + sum[1][0] + sum[2][0] + sum[3][0];
}
