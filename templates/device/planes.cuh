// Parts of float32 numbers in types of the tensor core, and powers of two.

// 2 to the power of `exponent`, which is from -126 to 127.
__device__ __forceinline__ float power_of_two(int exponent)
{
    return __int_as_float((exponent + 127) << 23);
}

// value * 2^exponent, rounded once: in two steps, since the factor itself may be no float. Below -250 nothing is left
// of a sum.
__device__ __forceinline__ float scaled(float value, int exponent)
{
    const int bounded = max(exponent, -250);
    const int half = bounded >> 1;
    return value * power_of_two(half) * power_of_two(bounded - half);
}

// The float16 nearest to a value, and the remainder, times 2^11, as another: 22 to 24 bits together. The second is
// rounded in the direction of the value, away from zero: on average this compensates for the bits that tensor cores
// truncate from sums.
__device__ __forceinline__ void split_f16x2(float value, unsigned short (&parts)[2])
{
    float high;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(parts[0]) : "f"(value));
    asm("cvt.f32.f16 %0, %1;" : "=f"(high) : "h"(parts[0]));
    const unsigned sign = __float_as_uint(value) & 0x80000000;
    const float rest = __uint_as_float(__float_as_uint((value - high) * 2048.0f) ^ sign);
    asm("cvt.rp.f16.f32 %0, %1;" : "=h"(parts[1]) : "f"(rest));
    parts[1] ^= sign >> 16;
}

// The bfloat16 nearest to a value, the one nearest to the remainder, and once more: all 24 bits.
__device__ __forceinline__ void split_bf16x3(float value, unsigned short (&parts)[3])
{
    #pragma unroll
    for (int i = 0; i < 3; ++i) {
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(parts[i]) : "f"(value));
        value -= __uint_as_float(static_cast<unsigned>(parts[i]) << 16);
    }
}

// The bfloat16 numbers nearest to two values, the first in the lower half; the values become the remainders.
__device__ __forceinline__ unsigned split_off_bf16(float2& values)
{
    unsigned nearest;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(nearest) : "f"(values.y), "f"(values.x));
    values.x -= __uint_as_float(nearest << 16);
    values.y -= __uint_as_float(nearest & 0xffff0000);
    return nearest;
}

// The tf32 nearest to a value, and the remainder as another: 22 to 24 bits together. The second is rounded in the
// direction of the value, away from zero, as for float16.
__device__ __forceinline__ void split_tf32x2(float value, unsigned (&parts)[2])
{
    constexpr unsigned kBits = 0xffffe000;  // of a float32 that tf32 has
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(parts[0]) : "f"(value));
    parts[0] &= kBits;
    const unsigned rest = __float_as_uint(value - __uint_as_float(parts[0]));
    const bool same_sign = static_cast<int>(rest ^ __float_as_uint(value)) >= 0;
    parts[1] = (same_sign ? rest + ~kBits : rest) & kBits;
}

// Adds a value to a sum, and returns the rounding error of that addition.
__device__ __forceinline__ float add_compensated(float& sum, float value)
{
    const float before = sum;
    sum = before + value;
    return value - (sum - before);
}
