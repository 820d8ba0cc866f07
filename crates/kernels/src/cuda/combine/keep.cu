// Draws a part of a dropout mask: ones and zeros by the place of each score in the whole attention. Philox 4x32-10 of
// (key / 4, query, batch * heads + head, offset) under the seed; four neighbouring keys have the words of one counter.

struct Words { u32 of[4]; };

__device__ __forceinline__ Words philox(u32 c0, u32 c1, u32 c2, u32 c3, u32 k0, u32 k1) {
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const u64 first = (u64)0xd2511f53u * c0, second = (u64)0xcd9e8d57u * c2;
    const u32 low1 = (u32)second, low0 = (u32)first;
    c0 = (u32)(second >> 32) ^ c1 ^ k0;
    c2 = (u32)(first >> 32) ^ c3 ^ k1;
    c1 = low1, c3 = low0;
    k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
  }
  return {{c0, c1, c2, c3}};
}

extern "C" __global__ void __launch_bounds__(THREADS) combine(const __grid_constant__ Params p) {
  const Index n = (Index)blockIdx.x * THREADS + threadIdx.x;
  if (n >= ALL_CHUNKS) return;
  const Place at = place(n);
  const bool whole = VECTOR && at.count == CHUNK && ALIGNED;
  const u64 seed = (u64)p.seed[0], offset = (u64)p.offset[0];
  const u32 k0 = (u32)seed, k1 = (u32)(seed >> 32) ^ (u32)(offset >> 32);
  const u32 query = (u32)(AT_QUERY) + (u32)p.first_query;
  const u32 row = (u32)(AT_BATCH) * HEADS + (u32)(AT_HEAD) + (u32)p.first_head;
  const u32 first = (u32)at.column + (u32)p.first_key;
  float x[CHUNK];
  Words words = philox(first / 4, query, row, (u32)offset, k0, k1);
#pragma unroll
  for (int i = 0; i < CHUNK; i++) {
    const u32 key = first + i;
    if (i > 0 && key % 4 == 0) words = philox(key / 4, query, row, (u32)offset, k0, k1);
    x[i] = words.of[key % 4] >= BELOW ? 1.f : 0.f;
  }
  write(p.into + (AT_INTO), at.count, whole, x);
}
