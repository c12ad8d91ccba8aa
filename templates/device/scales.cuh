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
    // Subnormal numbers up to 2^-127 have the least exponent.
    const unsigned above = bits < 0x00800000u ? 0x00400000u : 0u;
    return static_cast<unsigned char>((bits >> 23) + ((bits & 0x7fffffu) > above ? 1u : 0u));
}

// Reads scales for `count` of kCount blocks of k, at once where they are adjacent and their address allows it.
template <int kCount, typename T>
__device__ __forceinline__ void read_scales(T (&scales)[kCount], const T* source, int stride, int count)
{
    struct alignas(sizeof(T) * kCount) Vector {
        T elements[kCount];
    };
    if (stride == 1 && count == kCount && reinterpret_cast<unsigned long long>(source) % alignof(Vector) == 0) {
        const Vector vector = *reinterpret_cast<const Vector*>(source);
        #pragma unroll
        for (int i = 0; i < kCount; ++i)
            scales[i] = vector.elements[i];
    } else {
        #pragma unroll
        for (int i = 0; i < kCount; ++i)
            if (i < count)
                scales[i] = source[static_cast<long long>(i) * stride];
    }
}
