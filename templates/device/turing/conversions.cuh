// Conversions for architectures before sm_80, which have no instruction for bfloat16.

// The nearest bfloat16; ties go to the even one.
__device__ __forceinline__ unsigned short float_to_bf16(float value)
{
    const unsigned bits = __float_as_uint(value);
    if (value != value)
        return 0x7fff;
    return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
