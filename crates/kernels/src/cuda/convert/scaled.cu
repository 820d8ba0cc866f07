// One scale for all elements. Rows are those of the whole tensor: dims that lie one after the other in both tensors are
// one dim, so a contiguous tensor is a single row.

// Where a chunk begins, and how many elements it has.
struct Chunk { i64 wide, narrow; int count; };

__device__ __forceinline__ Chunk chunk(Index n) {
  const Index row = n / CHUNKS, column = (n - row * CHUNKS) * 8;
  const Index c = row % N2, b = row / N2 % N1, a = row / N2 / N1;
  const i64 wide = (i64)a * WIDE_0 + (i64)b * WIDE_1 + (i64)c * WIDE_2 + column;
  const i64 narrow = (i64)a * NARROW_0 + (i64)b * NARROW_1 + (i64)c * NARROW_2 + column;
  return {wide, narrow, (int)min((Index)8, ROW - column)};
}

#if NARROWS
// Numbers that the blocks of a launch share. They are zeros when it begins.
struct Shared { u32 amax, done; };

// The largest magnitude of all blocks, in the thread that returns true: the first one of the block that is last.
__device__ __forceinline__ bool largest(Shared* shared, u32& amax) {
  __shared__ u32 of_warps[THREADS / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, step));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = amax;
  __syncthreads();
  if (threadIdx.x != 0) return false;
  for (int warp = 1; warp < THREADS / 32; warp++) amax = max(amax, of_warps[warp]);
  atomicMax(&shared->amax, amax);
  __threadfence();
  if (atomicAdd(&shared->done, 1u) != gridDim.x - 1) return false;
  __threadfence();
  amax = atomicMax(&shared->amax, 0u);
  return true;
}

__device__ __forceinline__ u32 largest_of(const float (&x)[8]) {
  u32 amax = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) amax = max(amax, magnitude(x[i]));
  return amax;
}

__device__ __forceinline__ void write_amax(const Params& p, u32 amax) {
  *p.amax = __uint_as_float(amax > INFINITE ? NOT_A_NUMBER : amax);
}
#endif

// Every block takes every so many chunks; a thread has READ of them in flight.
#define FOR_CHUNKS(n) \
  for (Index n##_first = (Index)blockIdx.x * THREADS + threadIdx.x; n##_first < ALL_CHUNKS; n##_first += (Index)gridDim.x * THREADS * READ)
#define STEP ((Index)gridDim.x * THREADS)

#if MEASURE
extern "C" __global__ void __launch_bounds__(THREADS) measure(const Params p) {
  u32 amax = 0;
  FOR_CHUNKS(n) {
    float x[READ][8];
#pragma unroll
    for (int i = 0; i < READ; i++) {
      const Index n = n_first + i * STEP;
      const Chunk at = chunk(n < ALL_CHUNKS ? n : 0);
      read_wide(p.wide + at.wide, at.count, x[i]);
    }
#pragma unroll
    for (int i = 0; i < READ; i++) amax = max(amax, largest_of(x[i]));
  }
  if (!largest((Shared*)p.shared, amax)) return;
  const float scale = scale_for(amax);
  write_amax(p, amax);
  *p.scale = scale;
  *p.descale = __fdiv_rn(1.f, scale);
}
#endif

#if NARROWS
extern "C" __global__ void __launch_bounds__(THREADS) quantize(const Params p) {
  const float scale = *p.scale;
  u32 amax = 0;
  FOR_CHUNKS(n) {
    float x[READ][8];
    Chunk at[READ];
#pragma unroll
    for (int i = 0; i < READ; i++) {
      const Index n = n_first + i * STEP;
      at[i] = chunk(n < ALL_CHUNKS ? n : 0);
      read_wide(p.wide + at[i].wide, at[i].count, x[i]);
    }
#pragma unroll
    for (int i = 0; i < READ; i++) {
      if (!MEASURE) amax = max(amax, largest_of(x[i]));
#pragma unroll
      for (int j = 0; j < 8; j++) x[i][j] = __fmul_rn(x[i][j], scale);
      if (n_first + i * STEP < ALL_CHUNKS) write_narrow(p.narrow + at[i].narrow, at[i].count, x[i]);
    }
  }
#if !MEASURE
  if (!largest((Shared*)p.shared, amax)) return;
  write_amax(p, amax);
  *p.descale = __fdiv_rn(1.f, scale);
#endif
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) dequantize(const Params p) {
  const float descale = *p.descale;
  FOR_CHUNKS(n) {
    float x[READ][8];
    Chunk at[READ];
#pragma unroll
    for (int i = 0; i < READ; i++) {
      const Index n = n_first + i * STEP;
      at[i] = chunk(n < ALL_CHUNKS ? n : 0);
      read_narrow(p.narrow + at[i].narrow, at[i].count, x[i]);
    }
#pragma unroll
    for (int i = 0; i < READ; i++) {
#pragma unroll
      for (int j = 0; j < 8; j++) x[i][j] = __fmul_rn(x[i][j], descale);
      if (n_first + i * STEP < ALL_CHUNKS) write_wide(p.wide + at[i].wide, at[i].count, x[i]);
    }
  }
}
#endif
