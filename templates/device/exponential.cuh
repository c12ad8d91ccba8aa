// e^x as 2^n e^r with |r| <= ln(2) / 2, e^r by a polynomial: the same bits on every device, within one unit of the last
// place.
__device__ __forceinline__ float exponential(float x)
{
    const float bounded = fminf(fmaxf(x, -104.0f), 89.0f);
    const float n = rintf(bounded * 1.442695041f);
    const float r = fmaf(n, -1.42860677e-6f, fmaf(n, -0.693145752f, bounded));
    float power = 1.38145395e-3f;
    power = fmaf(power, r, 8.36874545e-3f);
    power = fmaf(power, r, 4.16683890e-2f);
    power = fmaf(power, r, 1.66665211e-1f);
    power = fmaf(power, r, 4.99999940e-1f);
    power = fmaf(power, r, 1.0f);
    power = fmaf(power, r, 1.0f);
    // 2^n in two factors, since it alone may be too small or too large for a float.
    const int exponent = static_cast<int>(n);
    const int half = exponent / 2;
    power = power * __int_as_float((half + 127) << 23) * __int_as_float((exponent - half + 127) << 23);
    return x != x ? x : power;
}
