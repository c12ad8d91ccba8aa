// Activations for results of 16 bits or fewer, on the instructions that approximate 2^x, 1 / x and tanh x. Their
// relative errors are below those of rounding to the result's type, in the tails as well.

// 2^x, within 2 units of the last place; subnormal results are kept.
__device__ __forceinline__ float approximate_power(float x)
{
    float power;
    asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// 2^x, within 2 units of the last place; results below 2^-126 become 0.
__device__ __forceinline__ float flushed_power(float x)
{
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// 1 / x, within 1 unit of the last place; results below 2^-126 become 0.
__device__ __forceinline__ float approximate_reciprocal(float x)
{
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    return inverse;
}

// e^x.
__device__ __forceinline__ float quick_exp(float x)
{
    return approximate_power(1.44269504f * x);
}

// tanh x, for bfloat16 and narrower.
__device__ __forceinline__ float quick_tanh(float x)
{
    float result;
    asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// 1 / (1 + 2^x). The power is scaled by 2^-64, so that it overflows only where the result is 0.
__device__ __forceinline__ float logistic(float scaled_exponent)
{
    constexpr float kScale = 5.42101086e-20f;  // 2^-64
    return approximate_reciprocal(kScale + flushed_power(scaled_exponent)) * kScale;
}

// 1 / (1 + e^-x).
__device__ __forceinline__ float quick_sigmoid(float x)
{
    return logistic(fmaf(-1.44269504f, x, -64.0f));
}

// x / (1 + e^-x).
__device__ __forceinline__ float quick_silu(float x)
{
    return x * logistic(fmaf(-1.44269504f, x, -64.0f));
}

// The same function for bfloat16 and narrower: max(x, 0) - |x| / (1 + e^|x|), with a polynomial of e^-|x| in place of
// the reciprocal, where nothing runs beside it. The power is 2^8 times as large, so that it does not become 0 where the
// result is a normal number.
__device__ __forceinline__ float single_silu(float x)
{
    const float power = flushed_power(fmaf(-1.44269504f, fabsf(x), 8.0f));
    float tail = fmaf(power, 1.4591833e-13f, -1.284001e-10f);
    tail = fmaf(power, tail, 5.245303e-08f);
    tail = fmaf(power, tail, -1.5087939e-05f);
    tail = fmaf(power, tail, 3.90625e-03f);
    return fmaf(-fabsf(fminf(x, 100.0f)), power * tail, fmaxf(x, 0.0f));
}

// x times the distribution function of the normal distribution: max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2, where erfc(z)
// e^(z^2) is t times a polynomial of t = 1 / (1 + 0.54 z). Beyond |x| = 20 the second term is 0.
__device__ __forceinline__ float quick_gelu(float x)
{
    const float size = fminf(fabsf(x), 20.0f);
    const float t = approximate_reciprocal(fmaf(0.38183766f, size, 1.0f));
    float tail = fmaf(t, -0.089395f, 0.18425135f);
    tail = fmaf(t, tail, 0.09527471f);
    tail = fmaf(t, tail, 0.15782835f);
    tail = fmaf(t, tail, 0.15202129f);
    const float power = flushed_power(-0.72134752f * x * x);
    return fmaf(-size * t * power, tail, fmaf(0.5f, x, 0.5f * fabsf(x)));
}

// The same function for bfloat16 and narrower, by a shorter polynomial, with a constant term in place of the factor t:
// multiply-adds keep the tensor cores waiting, and approximate instructions do not. It is NaN at minus infinity, as the
// exact form. Beyond |x| = 13.2 the second term is 0.
__device__ __forceinline__ float coarse_gelu(float x)
{
    const float bounded = fminf(x, 20.0f);
    const float t = approximate_reciprocal(fmaf(0.35700923f, fabsf(bounded), 1.0f));
    float tail = fmaf(t, 0.28570315f, 0.053823389f);
    tail = fmaf(t, tail, 0.16228047f);
    tail = fmaf(t, tail, -0.0015527548f);
    return fmaf(-fabsf(bounded), tail * flushed_power(-0.72134752f * x * x), fmaxf(x, 0.0f));
}

// The same function with one approximate instruction, where nothing runs beside it: a polynomial of |x| is the
// logarithm to base 2 of erfc(|x| / sqrt(2)) / 2. It is NaN at minus infinity, as the exact form. Below
// x = -12.9 it may be 0.
__device__ __forceinline__ float single_gelu(float x)
{
    float exponent = fmaf(fabsf(x), -3.1948125e-07f, 1.7816788e-05f);
    exponent = fmaf(fabsf(x), exponent, -0.00041845438f);
    exponent = fmaf(fabsf(x), exponent, 0.005455837f);
    exponent = fmaf(fabsf(x), exponent, -0.044406723f);
    exponent = fmaf(fabsf(x), exponent, -0.4729459f);
    exponent = fmaf(fabsf(x), exponent, -1.1429328f);
    exponent = fmaf(fabsf(x), exponent, -1.0007819f);
    return fmaf(-fabsf(fminf(x, 20.0f)), flushed_power(exponent), fmaxf(x, 0.0f));
}

// x / (1 + e^-w) with w = 1.5957691 x + 0.07135482 x^3, in units of ln 2 here.
__device__ __forceinline__ float quick_gelu_tanh(float x)
{
    return x * logistic(fmaf(x, fmaf(-0.10294324f, x * x, -2.3022082f), -64.0f));
}

// The same function for bfloat16 and narrower: max(x, 0) - |x| / (1 + e^|w|), with a polynomial of e^-|w| in place of
// the reciprocal, where nothing runs beside it. It is NaN at minus infinity, as the exact form.
__device__ __forceinline__ float coarse_gelu_tanh(float x)
{
    const float power = flushed_power(-fabsf(x * fmaf(0.10294324f, x * x, 2.3022082f)));
    float tail = fmaf(power, 0.15224489f, -0.53285746f);
    tail = fmaf(power, tail, 0.86589361f);
    tail = fmaf(power, tail, -0.98483504f);
    tail = fmaf(power, tail, 0.99970266f);
    return fmaf(-fabsf(fminf(x, 20.0f)), power * tail, fmaxf(x, 0.0f));
}

// log(e^a + e^b) on approximate instructions. Its error is below 2^-20 beside one rounding of the result.
__device__ __forceinline__ float log_add(float a, float b)
{
    const float larger = a < b ? b : a;
    const float smaller = a < b ? a : b;
    // Equal infinities have no difference; a NaN passes both choices.
    return a == b ? a + 0.693147181f : larger + __logf(1.0f + approximate_power(1.44269504f * (smaller - larger)));
}
