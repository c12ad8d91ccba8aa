// Raises a number in memory to a value, by the order of the bits of floats; NaN counts as larger than all, and stays.
__device__ __forceinline__ void raise_to(float* target, float value)
{
    const float known = *reinterpret_cast<const volatile float*>(target);
    if (value <= known || known != known)
        return;
    const int bits = value != value ? 0x7fffffff : __float_as_int(value);
    if (bits >= 0)
        atomicMax(reinterpret_cast<int*>(target), bits);
    else
        atomicMin(reinterpret_cast<unsigned*>(target), static_cast<unsigned>(bits));
}

// Lowers a number in memory to a value, by the order of the bits of floats; NaN counts as smaller than all, and stays.
__device__ __forceinline__ void lower_to(float* target, float value)
{
    const float known = *reinterpret_cast<const volatile float*>(target);
    if (value >= known || known != known)
        return;
    const int bits = value != value ? -1 : __float_as_int(value);
    if (bits >= 0)
        atomicMin(reinterpret_cast<int*>(target), bits);
    else
        atomicMax(reinterpret_cast<unsigned*>(target), static_cast<unsigned>(bits));
}
