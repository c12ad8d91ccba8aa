// Scales of blocks of elements.

// The power of two with this exponent and bias 127 (ue8m0); 255 is NaN.
__device__ __forceinline__ float exponent_to_float(unsigned char code)
{
    return __uint_as_float(code == 255 ? 0x7fffffffu : code == 0 ? 0x00400000u : static_cast<unsigned>(code) << 23);
}

// The exponent, with bias 127, of the power of two that is no smaller than a positive number (ue8m0).
__device__ __forceinline__ unsigned char float_to_exponent(float value)
{
    const unsigned bits = __float_as_uint(value);
    const unsigned above = bits < 0x00800000u ? 0x00400000u : 0u;  // subnormal numbers up to 2^-127 have the least exponent
    return static_cast<unsigned char>((bits >> 23) + ((bits & 0x7fffffu) > above ? 1u : 0u));
}
