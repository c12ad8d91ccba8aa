// Divisions by numbers that the host prepared: a multiplication and a shift.

// A divisor, as the multiplier and the shift that the host prepared for it.
struct Divisor {
    unsigned multiplier;
    unsigned shift;
};

// n / d for 0 <= n < 2^31.
__device__ __forceinline__ int divide(int n, const Divisor& d)
{
    return static_cast<int>((__umulhi(static_cast<unsigned>(n), d.multiplier) + n) >> d.shift);
}
