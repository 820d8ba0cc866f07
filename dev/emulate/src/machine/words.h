// The words of CUDA C that need no GPU: qualifiers, types, and functions of one thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f
#define INFINITE __int_as_float(0x7f800000)

using std::max;
using std::min;

struct float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
struct __align__(64) TensorMap { u64 words[16]; };

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float __uint_as_float(u32 bits) { float x; memcpy(&x, &bits, 4); return x; }
inline float __int_as_float(int bits) { return __uint_as_float((u32)bits); }
inline u32 __float_as_uint(float x) { u32 bits; memcpy(&bits, &x, 4); return bits; }
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
// The memory between two of them is that of a number, so that no compiler makes one rounding of two.
inline float __fmul_rn(float a, float b) { volatile float product = a * b; return product; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fdiv_rn(float a, float b) { volatile float quotient = a / b; return quotient; }
template <typename T> T __ldg(const T* at) { return *at; }

// Blocks run one after the other, so these are plain.
inline void __threadfence() {}
inline u32 atomicMax(u32* at, u32 x) { const u32 old = *at; *at = max(old, x); return old; }
inline u32 atomicAdd(u32* at, u32 x) { const u32 old = *at; *at += x; return old; }

inline float exp2_fast(float x) { return exp2f(x); }
inline float reciprocal_fast(float x) { return 1.f / x; }
inline float choose(bool first, float a, float b) { return first ? a : b; }
inline float from_bf16(u16 x) { return __uint_as_float((u32)x << 16); }
inline float from_f16(u16 x) { _Float16 half; memcpy(&half, &x, 2); return (float)half; }
inline u16 to_f16(float x) { const _Float16 half = (_Float16)x; u16 bits; memcpy(&bits, &half, 2); return bits; }
// A number of 8 bits, in f16: with 5 bits of exponent as in its upper half, or with 4.
inline u16 f16_of_narrow(u32 bits, bool e5m2) {
  bits &= 0xff;
  if (e5m2) return (u16)(bits << 8);
  const u32 magnitude = bits & 0x7f;
  if (magnitude == 0x7f) return 0x7fff;
  const float real = magnitude < 8 ? ldexpf((float)magnitude, -9) : ldexpf(1.f + (magnitude & 7) / 8.f, (int)(magnitude >> 3) - 7);
  return to_f16(bits & 0x80 ? -real : real);
}
inline u32 __byte_perm(u32 a, u32 b, u32 places) {
  const u64 both = (u64)b << 32 | a;
  u32 found = 0;
  for (int n = 0; n < 4; n++) found |= (u32)(both >> (places >> 4 * n & 7) * 8 & 0xff) << 8 * n;
  return found;
}
inline u16 to_bf16(float x) {
  const u32 bits = __float_as_uint(x);
  if (std::isnan(x)) return 0x7fff;
  return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
