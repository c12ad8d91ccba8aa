// The beginning of every file of compiled runs (gemmgen/emulator/native_runs.py): rows of registers, and the arithmetic of PTX where C's differs.
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

struct Rows {
  uint8_t *pred;
  uint16_t *b16;
  uint32_t *b32;
  uint64_t *b64;
  int64_t lanes;  // of a row
};

static inline float float_of(uint32_t bits) { float value; memcpy(&value, &bits, 4); return value; }
static inline double double_of(uint64_t bits) { double value; memcpy(&value, &bits, 8); return value; }
static inline uint32_t raw_float(float value) { uint32_t bits; memcpy(&bits, &value, 4); return bits; }
static inline uint64_t raw_double(double value) { uint64_t bits; memcpy(&bits, &value, 8); return bits; }

// Every NaN of float32 is 0x7fffffff; those of float64 keep sign and payload, and of several operands the last one counts.
static inline uint32_t bits_of_float(float value) { return value != value ? 0x7fffffffu : raw_float(value); }
static inline uint64_t bits_of_double(double value) { return raw_double(value); }
static inline double quiet(double value) { return double_of(raw_double(value) | 1ull << 51); }
static inline double quieted(double value) { return value != value ? quiet(value) : value; }
#ifdef ONE_BY_ONE  // a branch that is hardly ever taken; vectors of lanes choose without one
#define RARELY(x) __builtin_expect(!!(x), 0)
#else
#define RARELY(x) 1
#endif
static inline double passing(double result, double last) { return RARELY(result != result) && last != last ? quiet(last) : result; }
static inline double multiply_add(double a, double b, double c) {
  double result = fma(a, b, c);
  if (!RARELY(result != result)) return result;
  result = result != result ? double_of(0xfff8000000000000ull) : result;
  return passing(passing(passing(result, a), c), b);
}
static inline float plain_float(float value) { return RARELY(value != value) && value != value ? float_of(0x7fffffffu) : value; }
static inline double plain_double(double value) { return value; }
static inline float multiply_add_down(float a, float b, float c) {
  const double product = (double)a * b, sum = product + c, part = sum - product, rest = (product - (sum - part)) + (c - part);
  const float nearest = (float)sum;
  if (sum == 0) return signbit(product) || signbit(c) ? -0.0f : 0.0f;
  return nearest > sum || (nearest == sum && rest < 0) ? nextafterf(nearest, -INFINITY) : nearest;
}
static inline float flushed(float value) {
  return fabsf(value) < 0x1p-126f ? float_of(raw_float(value) & 0x80000000u) : value;
}
static inline float clipped(float value) { return value > 0 ? (value < 1 ? value : 1.0f) : 0.0f; }

// minimumNumber and maximumNumber: -0 < +0, and a number wins over a NaN.
#define EXTREMES(type, bits, raw, back) \
  static inline type smaller_##type(type a, type b) { \
    const type result = a != a ? b : b != b ? a : a < b ? a : b; \
    return RARELY(a == 0) && a == 0 && b == 0 ? back(raw(a) | raw(b)) : result; \
  } \
  static inline type larger_##type(type a, type b) { \
    const type result = a != a ? b : b != b ? a : a > b ? a : b; \
    return RARELY(a == 0) && a == 0 && b == 0 ? back(raw(a) & raw(b)) : result; \
  }
EXTREMES(float, uint32_t, raw_float, float_of)

// Functions of float32, rounded correctly as instructions/approximate.py does it: float64, and a wider type where that is too close to call.
static inline int is_unsure(double value) {
  const int64_t beside = (int64_t)(raw_double(value) & 0x1FFFFFFF) - 0x10000000;
  return (beside <= 64 && beside >= -64) || (fabs(value) < 0x1p-126 && value != 0);
}
#define ROUNDED(name) \
  static __attribute__((unused)) float rounded_##name(float value) { \
    const double exact = name(value); \
    return is_unsure(exact) ? (float)name##l(value) : (float)exact; \
  }
ROUNDED(exp2)
ROUNDED(log2)
ROUNDED(sin)
ROUNDED(cos)
ROUNDED(tanh)

// float16 and bfloat16 as float64. Results are rounded once: an inexact float64 takes the neighbour with an odd last bit first.
#ifdef __F16C__
static inline double double_of_f16(uint16_t bits) { return (double)_cvtsh_ss(bits); }
#else
static inline double double_of_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double size = exponent == 31 ? (mantissa ? NAN : INFINITY) : exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
  return bits >> 15 ? -size : size;
}
#endif
static inline double double_of_bf16(uint16_t bits) { return (double)float_of((uint32_t)bits << 16); }
// float32 with an odd last bit where it is inexact, so that a further rounding is the only one.
static inline uint32_t odd_bits(double value) {
  const float near = (float)value;
  const uint32_t bits = raw_float(near);
  return (double)near == value || bits & 1 ? bits : bits + (fabs(value) > fabs((double)near) ? 1 : -1);
}
static inline uint16_t bits_of_f16(double value) {
  const uint32_t odd = odd_bits(value), sign = odd >> 16 & 0x8000u, size = odd & 0x7FFFFFFFu;
  if (value != value) return 0x7FFF;
  if (size >= 0x47800000u) return (uint16_t)(sign | 0x7C00);
  if (size < 0x38800000u) return (uint16_t)(sign | raw_float(float_of(size) + 0.5f) - 0x3F000000u);
  return (uint16_t)(sign | (size - 0x38000000u + 0xFFF + (size >> 13 & 1)) >> 13);
}
static inline uint16_t bits_of_bf16(double value) {
  const uint32_t odd = odd_bits(value);
  return value != value ? 0x7FFF : (uint16_t)((odd + 0x7FFF + (odd >> 16 & 1)) >> 16);
}
static inline double odd_sum(double a, double b) {
  const double sum = a + b, part = sum - a, rest = (a - (sum - part)) + (b - part);
  if (rest == 0 || sum - sum != 0 || rest - rest != 0 || raw_double(sum) & 1) return sum;
  return double_of(raw_double(sum) + ((rest > 0) == (sum > 0) ? 1 : -1));
}
static inline double smaller_double(double a, double b) {
  const double result = a != a ? b : b != b ? a : a < b ? a : b;
  return a == 0 && b == 0 ? double_of(raw_double(a) | raw_double(b)) : result;
}
static inline double larger_double(double a, double b) {
  const double result = a != a ? b : b != b ? a : a > b ? a : b;
  return a == 0 && b == 0 ? double_of(raw_double(a) & raw_double(b)) : result;
}
static inline double upper_word(double value) {
  const double upper = double_of(raw_double(value) & 0xFFFFFFFF00000000ull);
  return fabs(upper) < 0x1p-1022 ? double_of(raw_double(upper) & 1ull << 63) : upper;
}

// Integer quotients: by zero all ones; the quotient of the smallest number by -1 wraps.
#define DIVISION(type, unsigned_type) \
  static inline type quotient_##type(type a, type b) { \
    const type safe = b == 0 || b == (type)-1 ? 1 : b; \
    return b == 0 ? (type)-1 : (type)-1 < 0 && b == (type)-1 ? (type)(0 - (unsigned_type)a) : (type)(a / (b == 0 ? 1 : (type)-1 < 0 ? safe : b)); \
  } \
  static inline type remainder_##type(type a, type b) { \
    return b == 0 ? (type)-1 : (type)((unsigned_type)a - (unsigned_type)quotient_##type(a, b) * (unsigned_type)b); \
  }
DIVISION(int16_t, uint32_t)
DIVISION(uint16_t, uint32_t)
DIVISION(int32_t, uint32_t)
DIVISION(uint32_t, uint32_t)
DIVISION(int64_t, uint64_t)
DIVISION(uint64_t, uint64_t)

// Bit fields: start and length as the instruction takes them, 0 to 255.
#define FIELDS(type, width) \
  static inline type ones_##type(uint32_t count) { return count >= width ? (type)-1 : (type)(((type)1 << (count & (width - 1))) - 1); } \
  static inline type extract_##type(type value, uint32_t first, uint32_t count, int is_signed) { \
    const uint32_t top = first + count - 1 < width - 1 ? first + count - 1 : width - 1; \
    const type sign = is_signed && count ? value >> top & 1 : 0; \
    const type shifted = first < width ? value >> (first & (width - 1)) : 0; \
    const uint32_t room = first < width ? width - first : 0; \
    const type mask = ones_##type(count < room ? count : room); \
    return sign ? (shifted & mask) | (type)~mask : shifted & mask; \
  } \
  static inline type insert_##type(type field, type value, uint32_t first, uint32_t count) { \
    const type mask = first < width ? (type)(ones_##type(count) << (first & (width - 1))) : 0; \
    const type moved = first < width ? (type)(field << (first & (width - 1))) : field; \
    return (value & ~mask) | (moved & mask); \
  } \
  static inline type reversed_##type(type value) { \
    type result = 0; \
    for (int i = 0; i < width; ++i) result |= (value >> i & 1) << (width - 1 - i); \
    return result; \
  }
FIELDS(uint32_t, 32)
FIELDS(uint64_t, 64)

static inline uint32_t permuted(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = a | (uint64_t)b << 32;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t nibble = selector >> 4 * i & 15, byte = (uint32_t)(both >> 8 * (nibble & 7)) & 255;
    result |= (nibble & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
  }
  return result;
}

// The lanes from `lanes` (null: all) as stretches of neighbours.
#define EACH_STRETCH(body) \
  if (!lanes) { \
    body(rows, 0, count); \
  } else { \
    for (int64_t i = 0; i < count;) { \
      int64_t end = i + 1; \
      while (end < count && lanes[end] - lanes[i] == end - i) ++end; \
      body(rows, lanes[i], lanes[i] + (end - i)); \
      i = end; \
    } \
  }
