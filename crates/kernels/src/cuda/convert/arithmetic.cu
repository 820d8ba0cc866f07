// Numbers and their formats, without instructions of a GPU: the host's compiler takes these functions too.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define INFINITE 0x7f800000u
#define NOT_A_NUMBER 0x7fc00000u

__device__ __forceinline__ u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// Two to the power of n, from -127 to 127.
__device__ __forceinline__ float power_of_two(int n) {
  return __uint_as_float(n < -126 ? 0x00400000u : (u32)(n + 127) << 23);
}

// The nearest number in 8 bits, ties to even: BITS of mantissa, exponents from 1 - BIAS on, at most LARGEST.
template <int BITS, int BIAS, u32 LARGEST> __device__ __forceinline__ u32 narrowed_by_hand(float x) {
  const u32 a = magnitude(x), sign = __float_as_uint(x) >> 24 & 0x80u;
  if (a > INFINITE) return 0x7fu;
  if (a < (u32)(128 - BIAS) << 23) {
    // Below the smallest normal number, steps are as far apart as the units of a float from 2^23 on.
    const float steps = __uint_as_float(a) * power_of_two(BIAS - 1 + BITS) + 8388608.f;
    return sign | (__float_as_uint(steps) & 0x7fffffu);
  }
  const u32 rounded = a + ((1u << (22 - BITS)) - 1u) + (a >> (23 - BITS) & 1u);
  const u32 code = (rounded >> (23 - BITS)) - ((u32)(127 - BIAS) << BITS);
  return sign | min(code, LARGEST);
}

__device__ __forceinline__ float widened(u32 code) {
  const u32 sign = (code & 0x80u) << 24, a = code & 0x7fu;
#if NARROW_E5M2
  if (a > 0x7cu) return __uint_as_float(NOT_A_NUMBER);
  if (a == 0x7cu) return __uint_as_float(sign | INFINITE);
  return __uint_as_float(sign | __float_as_uint(__uint_as_float(a << 21) * power_of_two(112)));
#else
  if (a == 0x7fu) return __uint_as_float(NOT_A_NUMBER);
  return __uint_as_float(sign | __float_as_uint(__uint_as_float(a << 20) * power_of_two(120)));
#endif
}

__device__ __forceinline__ u32 bf16_by_hand(float x) {
  const u32 bits = __float_as_uint(x);
  if (magnitude(x) > INFINITE) return NOT_A_NUMBER >> 16;
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

__device__ __forceinline__ u32 f16_by_hand(float x) {
  const u32 a = magnitude(x), sign = __float_as_uint(x) >> 16 & 0x8000u;
  if (a > INFINITE) return 0x7e00u;
  if (a < 113u << 23) return sign | (__float_as_uint(__uint_as_float(a) * power_of_two(24) + 8388608.f) & 0x7fffffu);
  const u32 rounded = a + 0xfffu + (a >> 13 & 1u);
  return sign | min((rounded >> 13) - (112u << 10), 0x7c00u);
}
