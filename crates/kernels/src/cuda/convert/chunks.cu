// Chunks: up to eight neighbouring elements of a row, read and written at once where they begin at multiples of eight.

struct __align__(16) Words { u32 x, y, z, w; };
struct __align__(8) Pair { u32 x, y; };

__device__ __forceinline__ float one_wide(const Wide* at) {
#if WIDE_F32
  return *at;
#elif WIDE_F16
  return from_f16(*at);
#else
  return __uint_as_float((u32)*at << 16);
#endif
}

// Elements beyond `count` are zeros.
__device__ __forceinline__ void read_wide(const Wide* at, int count, float (&x)[8]) {
  if (VECTOR && count == 8) {
#if WIDE_F32
    const Words a = *(const Words*)at, b = *(const Words*)(at + 4);
    const u32 words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = __uint_as_float(words[i]);
#else
    const Words a = *(const Words*)at;
    const u32 words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if WIDE_F16
      x[2 * i] = from_f16(words[i] & 0xffffu), x[2 * i + 1] = from_f16(words[i] >> 16);
#else
      x[2 * i] = __uint_as_float(words[i] << 16), x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
#endif
    }
#endif
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = i < count ? one_wide(at + i) : 0.f;
  }
}

__device__ __forceinline__ void write_wide(Wide* at, int count, const float (&x)[8]) {
#if WIDE_F32
  u32 words[8];
#pragma unroll
  for (int i = 0; i < 8; i++) words[i] = magnitude(x[i]) > INFINITE ? NOT_A_NUMBER : __float_as_uint(x[i]);
  if (VECTOR && count == 8) {
    *(Words*)at = Words{words[0], words[1], words[2], words[3]};
    *(Words*)(at + 4) = Words{words[4], words[5], words[6], words[7]};
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) if (i < count) at[i] = __uint_as_float(words[i]);
#else
  u32 halves[8];
#pragma unroll
  for (int i = 0; i < 8; i++) halves[i] = WIDE_F16 ? to_f16(x[i]) : to_bf16(x[i]);
  if (VECTOR && count == 8) {
    *(Words*)at = Words{halves[0] | halves[1] << 16, halves[2] | halves[3] << 16, halves[4] | halves[5] << 16,
                        halves[6] | halves[7] << 16};
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) if (i < count) at[i] = (Wide)halves[i];
#endif
}

__device__ __forceinline__ void read_narrow(const u8* at, int count, float (&x)[8]) {
  if (VECTOR && count == 8) {
    const Pair a = *(const Pair*)at;
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = widened((i < 4 ? a.x : a.y) >> 8 * (i % 4) & 0xffu);
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = i < count ? widened(at[i]) : 0.f;
  }
}

__device__ __forceinline__ void write_narrow(u8* at, int count, const float (&x)[8]) {
  const Pair a = {narrowed(x[0], x[1]) | narrowed(x[2], x[3]) << 16, narrowed(x[4], x[5]) | narrowed(x[6], x[7]) << 16};
  if (VECTOR && count == 8) {
    *(Pair*)at = a;
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) if (i < count) at[i] = (u8)((i < 4 ? a.x : a.y) >> 8 * (i % 4));
}
