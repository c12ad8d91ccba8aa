// Conversions from float32 to elements of 8 bits.

// The nearest 8-bit integer; ties go to the even one, values out of range to the nearer end.
__device__ __forceinline__ signed char float_to_s8(float value)
{
    return static_cast<signed char>(max(-128, min(127, __float2int_rn(value))));
}

// Two of them side by side, the first in the lower byte.
__device__ __forceinline__ unsigned short pack_s8(float low, float high)
{
    return static_cast<unsigned short>((float_to_s8(low) & 0xff) | float_to_s8(high) << 8);
}

// The nearest numbers with 4 bits of exponent and 3 of fraction, the first in the lower byte; beyond their range the
// largest.
__device__ __forceinline__ unsigned short pack_e4m3(float low, float high)
{
    unsigned short bits;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
    return bits;
}

// One of them.
__device__ __forceinline__ unsigned char float_to_e4m3(float value)
{
    return static_cast<unsigned char>(pack_e4m3(value, 0.0f));
}

// The nearest numbers with 5 bits of exponent and 2 of fraction, the first in the lower byte; beyond their range the
// largest.
__device__ __forceinline__ unsigned short pack_e5m2(float low, float high)
{
    unsigned short bits;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
    return bits;
}

// One of them.
__device__ __forceinline__ unsigned char float_to_e5m2(float value)
{
    return static_cast<unsigned char>(pack_e5m2(value, 0.0f));
}

// The nearest 8-bit integer without a sign, in the same way.
__device__ __forceinline__ unsigned char float_to_u8(float value)
{
    return static_cast<unsigned char>(max(0, min(255, __float2int_rn(value))));
}

// Two of them side by side, the first in the lower byte.
__device__ __forceinline__ unsigned short pack_u8(float low, float high)
{
    return static_cast<unsigned short>(float_to_u8(low) | float_to_u8(high) << 8);
}
