// Appends the keys and values of a step to caches. All tokens of a launch stand in one line, of which each warp takes
// every so many parts: READ chunks of eight elements for each lane, those of all heads of K and then those of V, so that
// neighbouring lanes have neighbouring bytes. Nothing is followed that was not compared with what there is.

#define WARPS (THREADS / 32)

// Where tokens of K or of V come from and go to, besides what `Keys` and `Values` say.
struct Side {
  const u16* from;
  const i64* offsets;
  i64 from_batch, tokens;
  Cache* to;
  const int* table;
  int table_row, pages;
  i64 to_outer;
};

// SIDES

// The first element of a token in the new tensor; -1 if it has no such row. Offsets may say any number.
template <typename Of> __device__ __forceinline__ i64 source(const Side& side, int batch, i64 row) {
  if constexpr (!Of::VARLEN) return batch * side.from_batch + row * Of::FROM_ROW;
  else {
    const i64 offset = side.offsets[batch];
    if (offset < 0 || offset % Of::FROM_ROW != 0 || row >= side.tokens - offset / Of::FROM_ROW) return -1;
    return offset + row * Of::FROM_ROW;
  }
}

// The first element of a position in the cache; -1 if it has no such row. Tables may say any number.
template <typename Of> __device__ __forceinline__ i64 place(const Side& side, int batch, i64 position, int keys) {
  if (position < 0 || position >= keys) return -1;
  const int at = (int)position;
  if constexpr (!Of::PAGED) return batch * side.to_outer + at * Of::TO_ROW;
  else {
    const int page = side.table[(i64)batch * side.table_row + at / Of::PAGE];
    if ((u32)page >= (u32)side.pages) return -1;
    return page * side.to_outer + at % Of::PAGE * Of::TO_ROW;
  }
}

// Eight elements of a row, or those that are left of it; none of a token that has no row here or there.
struct Chunk { const u16* from; Cache* to; int count; };

template <typename Of> __device__ __forceinline__ Chunk chunk(const Side& side, i64 from, i64 to, int n) {
  const int head = n / Of::CHUNKS, column = (n - head * Of::CHUNKS) * 8;
  if (from < 0 || to < 0) return Chunk{side.from, side.to, 0};
  return {side.from + (from + head * Of::FROM_HEAD + column), side.to + (to + head * Of::TO_HEAD + column),
          min(8, Of::COLUMNS - column)};
}

#if NARROWS
struct Numbers { float x[8]; };

__device__ __forceinline__ void read(const Chunk& at, Numbers& of) { read_wide(at.from, at.count, of.x); }

__device__ __forceinline__ void write(const Chunk& at, Numbers& of, float descale) {
#pragma unroll
  for (int i = 0; i < 8; i++) of.x[i] = __fdiv_rn(of.x[i], descale);
  write_narrow(at.to, at.count, of.x);
}
#else
struct __align__(16) Words { u32 x, y, z, w; };
struct Numbers { Words all; u16 x[8]; };

__device__ __forceinline__ void read(const Chunk& at, Numbers& of) {
  if (VECTOR && at.count == 8) {
    of.all = *(const Words*)at.from;
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) if (i < at.count) of.x[i] = at.from[i];
}

__device__ __forceinline__ void write(const Chunk& at, Numbers& of, float) {
  if (VECTOR && at.count == 8) {
    *(Words*)at.to = of.all;
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) if (i < at.count) at.to[i] = of.x[i];
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) append(const __grid_constant__ Params p) {
  // Of each of some sequences: where its tokens end in the line of these, and the position of its first one.
  __shared__ i64 ends[THREADS];
  __shared__ i64 begins[THREADS];
  __shared__ i64 of_warps[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Side keys = keys_of(p), values = values_of(p);
#if NARROWS
  const float of_keys = *p.descale_k, of_values = *p.descale_v;
#else
  const float of_keys = 1.f, of_values = 1.f;
#endif
  // The part that the warp takes next, counted from the first one of these sequences.
  i64 next = (i64)blockIdx.x * WARPS + warp;
  for (int first = 0; first < p.batch; first += THREADS) {
    const int mine = first + (int)threadIdx.x;
    i64 sum = 0;
    if (mine < p.batch) {
      const int count = p.len_q[mine];
      begins[threadIdx.x] = (i64)p.len_kv[mine] - count;
      sum = max(0, min(count, p.rows));
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const i64 other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) of_warps[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warp; i++) sum += of_warps[i];
    ends[threadIdx.x] = sum;
    __syncthreads();
    const i64 parts = ends[THREADS - 1] * PARTS;
    for (; next < parts; next += (i64)gridDim.x * WARPS) {
      const i64 token = next / PARTS;
      const int from = (int)(next - token * PARTS) * (32 * READ) + lane;
      // The number of sequences that end at the token or before it.
      int at = 0;
#pragma unroll
      for (int step = THREADS / 2; step > 0; step /= 2) if (ends[at + step - 1] <= token) at += step;
      const i64 row = at > 0 ? token - ends[at - 1] : token, position = begins[at] + row;
      const int batch = first + at;
      const i64 key = source<Keys>(keys, batch, row), key_place = place<Keys>(keys, batch, position, p.keys);
      const i64 value = source<Values>(values, batch, row), value_place = place<Values>(values, batch, position, p.keys);
      Chunk chunks[READ];
      Numbers numbers[READ];
#pragma unroll
      for (int i = 0; i < READ; i++) {
        const int n = from + i * 32;
        if (n < Keys::ALL) chunks[i] = chunk<Keys>(keys, key, key_place, n);
        else chunks[i] = chunk<Values>(values, value, n < Keys::ALL + Values::ALL ? value_place : -1, n - Keys::ALL);
        read(chunks[i], numbers[i]);
      }
#pragma unroll
      for (int i = 0; i < READ; i++) write(chunks[i], numbers[i], from + i * 32 < Keys::ALL ? of_keys : of_values);
    }
    next -= parts;
    // All have found their tokens before the next sequences take the place of these.
    __syncthreads();
  }
}
