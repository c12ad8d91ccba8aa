// Halves as their bits: conversions between float16 or bfloat16 and float. No header names these types where NVRTC runs
// alone.

// The value of a float16.
__device__ __forceinline__ float f16_to_float(unsigned short bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// The value of a bfloat16: the upper half of a float.
__device__ __forceinline__ float bf16_to_float(unsigned short bits)
{
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

// The value of an 8-bit float with 5 bits of exponent: the upper half of a float16.
__device__ __forceinline__ float e5m2_to_float(unsigned char bits)
{
    return f16_to_float(static_cast<unsigned short>(bits << 8));
}

// The value of an 8-bit float with 4 bits of exponent: the bits of a float16 that is smaller by 2^8. The largest
// is NaN.
__device__ __forceinline__ float e4m3_to_float(unsigned char bits)
{
    const float scaled = f16_to_float(static_cast<unsigned short>((bits & 0x80) << 8 | (bits & 0x7f) << 7));
    return (bits & 0x7f) == 0x7f ? __uint_as_float(0x7fffffff) : 256.0f * scaled;
}

// The nearest float16; ties go to the even one.
__device__ __forceinline__ unsigned short float_to_f16(float value)
{
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// The nearest bfloat16; ties go to the even one.
__device__ __forceinline__ unsigned short float_to_bf16(float value)
{
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// A double as a float: exactly, or as the neighbour with an odd last bit.
// Rounded again, to a half, that gives what the double does.
__device__ __forceinline__ float double_to_odd_float(double value)
{
    const float shorter = __double2float_rz(value);
    const bool same = static_cast<double>(shorter) == value || value != value;
    return same ? shorter : __uint_as_float(__float_as_uint(shorter) | 1u);
}
