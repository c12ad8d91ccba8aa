// The smaller of two floats: NaN if either is one; -0 is smaller than +0. One instruction does it from sm_80 on.
__device__ __forceinline__ float smallerf(float a, float b)
{
    if (a != a || b != b)
        return a + b;
    return a < b || (a == b && __float_as_int(a) < 0) ? a : b;
}

// The larger of two floats: NaN if either is one; +0 is larger than -0.
__device__ __forceinline__ float largerf(float a, float b)
{
    if (a != a || b != b)
        return a + b;
    return a > b || (a == b && __float_as_int(a) >= 0) ? a : b;
}
