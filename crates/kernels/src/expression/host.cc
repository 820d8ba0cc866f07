// What generated functions need of CUDA C, on the host.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
#define __device__
#define __align__(x) __attribute__((aligned(x)))
#define __forceinline__ inline
using std::max;
using std::min;
static float __uint_as_float(u32 bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
template <typename T> static T __ldg(const T* at) { return *at; }
static float rsqrtf(float x) { return 1.f / sqrtf(x); }
static float from_bf16(u16 x) { return __uint_as_float((u32)x << 16); }
static float from_f16(u16 x) {
  const int exponent = x >> 10 & 31, mantissa = x & 1023;
  const float size = exponent ? ldexpf(1024 + mantissa, exponent - 25) : ldexpf(mantissa, -24);
  return x >> 15 ? -size : size;
}
struct Point { int batch, head, query, key, queries, keys; };
