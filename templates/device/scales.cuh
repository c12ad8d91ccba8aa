// Scales of blocks of elements.

// The power of two with this exponent and bias 127 (ue8m0); 255 is NaN.
__device__ __forceinline__ float exponent_to_float(unsigned char code)
{
    return __uint_as_float(code == 255 ? 0x7fffffffu : code == 0 ? 0x00400000u : static_cast<unsigned>(code) << 23);
}
