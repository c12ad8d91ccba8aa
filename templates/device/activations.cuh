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

// The smaller of two floats, or doubles; NaN if either is one.
template <class T>
__device__ __forceinline__ T smaller(T a, T b)
{
    return a != a || b != b ? a + b : fmin(a, b);
}

// The larger of two floats, or doubles; NaN if either is one.
template <class T>
__device__ __forceinline__ T larger(T a, T b)
{
    return a != a || b != b ? a + b : fmax(a, b);
}
