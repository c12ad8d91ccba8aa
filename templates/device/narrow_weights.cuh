// Weights of 4 and 8 bits as fragments of 16-bit floats: a code is put into the lowest bits of a float whose exponent
// makes it an integer, and the zero point, with the same offset, is subtracted. All of that is exact; the product by a
// scale, where weights are scaled, is rounded once.

// Differences of two pairs of float16.
__device__ __forceinline__ unsigned subtract_f16(unsigned pair, unsigned offsets)
{
    unsigned result;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(pair), "r"(offsets));
    return result;
}

// Differences of two pairs of bfloat16.
__device__ __forceinline__ unsigned subtract_bf16(unsigned pair, unsigned offsets)
{
    unsigned result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(pair), "r"(0x3f803f80u), "r"(offsets ^ 0x80008000u));
    return result;
}

// The offset that `weights` subtracts for a zero point, 0 to 256: of float16, twice 1024 + zero.
__device__ __forceinline__ unsigned zero_offset_f16(float zero)
{
    return float_to_f16(1024.0f + zero) * 0x10001u;
}

// Of bfloat16 and 4 bits, twice 128 + zero, which fits the upper half of a float.
__device__ __forceinline__ unsigned zero_offset_bf16(float zero)
{
    return __byte_perm(__float_as_uint(128.0f + zero), 0u, 0x3232);
}

// The low nibbles of two halves, put into the floats `magic` by one instruction: ptxas would make two of two masks that
// it knows.
__device__ __forceinline__ unsigned place_nibbles(unsigned word, unsigned magic)
{
    unsigned result;
    asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;" : "=r"(result) : "r"(word), "r"(magic));
    return result;
}

// Two neighbours along k of eight weights of 4 bits, less their zero point: kPart 2 s + r of a word.
template <int kPart>
__device__ __forceinline__ unsigned nibbles_to_f16(unsigned word, unsigned offset)
{
    return subtract_f16(place_nibbles(word >> 4 * kPart, 0x64006400u), offset);
}

// The same as bfloat16.
template <int kPart>
__device__ __forceinline__ unsigned nibbles_to_bf16(unsigned word, unsigned offset)
{
    return subtract_bf16(place_nibbles(word >> 4 * kPart, 0x43004300u), offset);
}

// Products of two pairs of float16, plus a third.
__device__ __forceinline__ unsigned multiply_add_f16(unsigned pair, unsigned factors, unsigned summands)
{
    unsigned result;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(pair), "r"(factors), "r"(summands));
    return result;
}

// Of bfloat16.
__device__ __forceinline__ unsigned multiply_add_bf16(unsigned pair, unsigned factors, unsigned summands)
{
    unsigned result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(pair), "r"(factors), "r"(summands));
    return result;
}

// Two neighbours along k of eight weights of 4 bits, less their zero point, times 2^-9: kPart 2 s + r of a word. A
// nibble in the lowest eight bits of a float16 is a subnormal number, or of the first exponent, which continues them:
// of two nibbles in a byte, neither has to be shifted. `offset`: -2^-9 times the zero point, twice.
template <int kPart>
__device__ __forceinline__ unsigned small_nibbles_to_f16(unsigned word, unsigned offset)
{
    const unsigned bytes = kPart < 2 ? word : word >> 8;
    return kPart % 2 == 0 ? multiply_add_f16(bytes & 0x000f000fu, 0x78007800u, offset)
                          : multiply_add_f16(bytes & 0x00f000f0u, 0x68006800u, offset);
}

// The same as bfloat16, times 2^-6.
template <int kPart>
__device__ __forceinline__ unsigned small_nibbles_to_bf16(unsigned word, unsigned offset)
{
    const unsigned bytes = kPart < 2 ? word : word >> 8;
    return kPart % 2 == 0 ? multiply_add_bf16(bytes & 0x000f000fu, 0x7f007f00u, offset)
                          : multiply_add_bf16(bytes & 0x00f000f0u, 0x7d007d00u, offset);
}

// The high nibbles of the bytes of two halves, put into the floats `magic`.
__device__ __forceinline__ unsigned place_high_nibbles(unsigned word, unsigned magic)
{
    unsigned result;
    asm("lop3.b32 %0, %1, 0x00f000f0, %2, 0xea;" : "=r"(result) : "r"(word), "r"(magic));
    return result;
}

// Two neighbours along k of eight weights of 4 bits, less their zero point: kPart 2 s + r of a word. Of two nibbles in
// a byte, neither has to be shifted: 1024 plus a high one is 16 times 64 plus its code. `offset`: twice 1024 + zero.
template <int kPart>
__device__ __forceinline__ unsigned spread_nibbles_to_f16(unsigned word, unsigned offset)
{
    const unsigned bytes = kPart < 2 ? word : word >> 8;
    if constexpr (kPart % 2 == 0)
        return subtract_f16(place_nibbles(bytes, 0x64006400u), offset);
    const unsigned high_offset = (offset & 0x001f001fu) << 4 | 0xd400d400u;  // twice -(64 + zero)
    return multiply_add_f16(place_high_nibbles(bytes, 0x64006400u), 0x2c002c00u, high_offset);
}

// Two neighbours along k of four weights of 8 bits, less their zero point: kPart r of a word.
template <int kPart>
__device__ __forceinline__ unsigned bytes_to_f16(unsigned word, unsigned offset)
{
    return subtract_f16(__byte_perm(word, 0x64646464u, kPart == 0 ? 0x4140 : 0x4342), offset);
}

// The same as bfloat16, times 2^-6: eight bits in the lowest ones of a bfloat16 are a subnormal number, or of the first
// exponent, which continues them. `offset`: -2^-6 times the zero point, twice.
template <int kPart>
__device__ __forceinline__ unsigned small_bytes_to_bf16(unsigned word, unsigned offset)
{
    return multiply_add_bf16(__byte_perm(word, 0u, kPart == 0 ? 0x4140 : 0x4342), 0x7f007f00u, offset);
}

// Two integers times two equal scales of float16.
__device__ __forceinline__ unsigned scale_f16(unsigned pair, unsigned scales)
{
    unsigned result;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(pair), "r"(scales));
    return result;
}

// Two integers times two equal scales of bfloat16.
__device__ __forceinline__ unsigned scale_bf16(unsigned pair, unsigned scales)
{
    unsigned result;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(pair), "r"(scales));
    return result;
}

// Beside activations of 8 bits: the offset for a zero point, 0 to 16, four times.
__device__ __forceinline__ unsigned zero_offset_bytes(float zero)
{
    return static_cast<unsigned>(__float2int_rn(zero)) * 0x01010101u;
}

// Four neighbours along k of eight weights of 4 bits, less their zero point, as signed bytes: kPart h of a word. The
// highest bit of a byte keeps the difference from its neighbour, and becomes its sign.
template <int kPart>
__device__ __forceinline__ unsigned nibbles_to_s8(unsigned word, unsigned offset)
{
    return ((word >> 4 * kPart & 0x0f0f0f0fu | 0x80808080u) - offset) ^ 0x80808080u;
}

// The same as e4m3: the bits of an integer up to 16, with a sign in front, are 2^-9 times it.
template <int kPart>
__device__ __forceinline__ unsigned nibbles_to_e4m3(unsigned word, unsigned offset)
{
    const unsigned integers = nibbles_to_s8<kPart>(word, offset);
    const unsigned signs = integers & 0x80808080u;
    const unsigned ones = signs >> 7;  // of negative bytes
    return (integers ^ (signs - ones)) + ones;  // the magnitude of a byte; its highest bit stays
}

// Four neighbours along k of eight floats of 4 bits, e2m1, as e4m3: 2^-6 times them.
template <int kPart>
__device__ __forceinline__ unsigned nibbles_e2m1_to_e4m3(unsigned word)
{
    const unsigned codes = word >> 4 * kPart & 0x0f0f0f0fu;
    return (codes & 0x08080808u) << 4 | (codes & 0x07070707u) << 2;
}

// Products of two pairs of float16.
__device__ __forceinline__ unsigned multiply_f16(unsigned pair, unsigned factors)
{
    unsigned result;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(pair), "r"(factors));
    return result;
}

// Products of two pairs of bfloat16; sm_80 has them with an addition only, here of -0.
__device__ __forceinline__ unsigned multiply_bf16(unsigned pair, unsigned factors)
{
    unsigned result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(pair), "r"(factors), "r"(0x80008000u));
    return result;
}

// Two neighbours along k of eight weights that are floats of 4 bits, e2m1: kPart 2 s + r of a word. Their bits, in
// those of float16, are 2^-14 times them.
template <int kPart>
__device__ __forceinline__ unsigned nibble_floats_to_f16(unsigned word)
{
    const unsigned codes = word >> 4 * kPart;
    return multiply_f16((codes & 0x00080008u) << 12 | (codes & 0x00070007u) << 9, 0x74007400u);
}

// The same as bfloat16: 2^-126 times them.
template <int kPart>
__device__ __forceinline__ unsigned nibble_floats_to_bf16(unsigned word)
{
    const unsigned codes = word >> 4 * kPart;
    return multiply_bf16((codes & 0x00080008u) << 12 | (codes & 0x00070007u) << 6, 0x7e807e80u);
}

// Two bytes of a word, 2 kPart and the next, as halves whose upper byte repeats the sign of the lower one.
template <int kPart>
__device__ __forceinline__ unsigned extend_signs(unsigned word)
{
    unsigned result;
    asm("prmt.b32 %0, %1, %1, %2;" : "=r"(result) : "r"(word), "n"(kPart == 0 ? 0x9180 : 0xb3a2));
    return result;
}

// Two neighbours along k of four weights that are 8-bit floats, e4m3, as float16: kPart r of a word. Their bits, in
// those of float16, are 2^-8 times them; codes of NaN count as 480.
template <int kPart>
__device__ __forceinline__ unsigned byte_floats_to_f16(unsigned word)
{
    return multiply_f16(extend_signs<kPart>(word) << 7 & 0xbf80bf80u, 0x5c005c00u);
}

// Two neighbours along k of four weights that are 8-bit floats, e4m3, as bfloat16: kPart r of a word. Their bits, in
// those of bfloat16, are 2^-120 times them; codes of NaN count as 480.
template <int kPart>
__device__ __forceinline__ unsigned byte_floats_to_bf16(unsigned word)
{
    return multiply_bf16(extend_signs<kPart>(word) << 4 & 0x87f087f0u, 0x7b807b80u);
}
