// Activations with float32 accuracy everywhere, including their tails: no 1 is added to a value that nearly cancels
// it, and no exponential overflows.

// x / (1 + e^-x).
__device__ __forceinline__ float silu(float x)
{
    const float power = expf(-fabsf(x));
    return (x < 0.0f ? x * power : x) / (1.0f + power);
}

// x times the distribution function of the normal distribution.
__device__ __forceinline__ float gelu(float x)
{
    return 0.5f * x * erfcf(-0.70710678f * x);
}

// Its approximation x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 = x / (1 + e^-w).
__device__ __forceinline__ float gelu_tanh(float x)
{
    const float w = 1.5957691f * (x + 0.044715f * x * x * x);
    const float power = expf(-fabsf(w));
    return (x < 0.0f ? x * power : x) / (1.0f + power);
}

// log(1 + e^x).
__device__ __forceinline__ float softplus(float x)
{
    return (x < 0.0f ? 0.0f : x) + log1pf(expf(-fabsf(x)));
}

// The smaller of two floats, by the minimum of IEEE 754: NaN if either is one; -0 is smaller than +0.
__device__ __forceinline__ float smallerf(float a, float b)
{
    float least;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
    return least;
}

// The larger of two floats, by the maximum of IEEE 754: NaN if either is one; +0 is larger than -0.
__device__ __forceinline__ float largerf(float a, float b)
{
    float largest;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(largest) : "f"(a), "f"(b));
    return largest;
}

// The smaller of two doubles: NaN if either is one; -0 is smaller than +0.
__device__ __forceinline__ double smaller(double a, double b)
{
    if (a != a || b != b)
        return a + b;
    return a < b || (a == b && __double_as_longlong(a) < 0) ? a : b;
}

// The larger of two doubles: NaN if either is one; +0 is larger than -0.
__device__ __forceinline__ double larger(double a, double b)
{
    if (a != a || b != b)
        return a + b;
    return a > b || (a == b && __double_as_longlong(a) >= 0) ? a : b;
}
