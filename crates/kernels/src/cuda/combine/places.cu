// Where the chunks of tensors lie, and their elements. A thread has one chunk of up to CHUNK elements of a row.

typedef unsigned char u8;

// The place of a chunk along the dims around a row, its first element in the row, and its elements.
struct Place { i64 a, b, c, column; int count; };

__device__ __forceinline__ Place place(Index n) {
  const Index row = n / CHUNKS, column = (n - row * CHUNKS) * CHUNK;
  return {(i64)(row / N2 / N1), (i64)(row / N2 % N1), (i64)(row % N2), (i64)column, (int)min((Index)CHUNK, ROW - column)};
}

#if ADDS
__device__ __forceinline__ float widened(float x) { return x; }
__device__ __forceinline__ float widened(u16 x) {
#if PART_F16
  return from_f16(x);
#else
  return from_bf16(x);
#endif
}

// Elements behind the chunk are zeros.
__device__ __forceinline__ void read(const u16* from, int count, bool whole, float (&x)[CHUNK]) {
  if (whole) {
    const uint4 words = *(const uint4*)from;
    const u32 pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < CHUNK; i++) x[i] = widened((u16)(pairs[i / 2] >> i % 2 * 16));
    return;
  }
#pragma unroll
  for (int i = 0; i < CHUNK; i++) x[i] = i < count ? widened(from[i]) : 0.f;
}

__device__ __forceinline__ void read(const float* from, int count, bool whole, float (&x)[CHUNK]) {
  if (whole) {
#pragma unroll
    for (int i = 0; i < CHUNK / 4; i++) {
      const uint4 words = ((const uint4*)from)[i];
      x[4 * i] = __uint_as_float(words.x), x[4 * i + 1] = __uint_as_float(words.y);
      x[4 * i + 2] = __uint_as_float(words.z), x[4 * i + 3] = __uint_as_float(words.w);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < CHUNK; i++) x[i] = i < count ? from[i] : 0.f;
}

__device__ __forceinline__ void write(u16* to, int count, bool whole, const float (&x)[CHUNK]) {
  if (whole) {
    *(uint4*)to = make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
    return;
  }
#pragma unroll
  for (int i = 0; i < CHUNK; i++)
    if (i < count) to[i] = (u16)pack(x[i], 0.f);
}

__device__ __forceinline__ void write(float* to, int count, bool whole, const float (&x)[CHUNK]) {
  if (whole) {
#pragma unroll
    for (int i = 0; i < CHUNK / 4; i++)
      ((uint4*)to)[i] = make_uint4(__float_as_uint(x[4 * i]), __float_as_uint(x[4 * i + 1]),
                                   __float_as_uint(x[4 * i + 2]), __float_as_uint(x[4 * i + 3]));
    return;
  }
#pragma unroll
  for (int i = 0; i < CHUNK; i++)
    if (i < count) to[i] = x[i];
}
#endif
