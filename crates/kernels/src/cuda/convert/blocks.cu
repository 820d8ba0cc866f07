// A power of two for every 32 elements. Four neighbouring threads have a block of a row, eight columns each; of blocks of
// columns, eight at once, eight rows each. Places beyond the tensor, up to whole tiles of scales, are blocks of zeros.

// What a thread converts: a head, a row and the first of eight columns.
struct Place { u32 head, row, column; };

__device__ __forceinline__ i64 wide_at(const Place& at, u32 row) {
  return (i64)(at.head / HEADS) * WIDE_B + (i64)(at.head % HEADS) * WIDE_H + (i64)row * WIDE_S + at.column;
}

__device__ __forceinline__ i64 narrow_at(const Place& at, u32 row) {
  return (i64)(at.head / HEADS) * NARROW_B + (i64)(at.head % HEADS) * NARROW_H + (i64)row * NARROW_S + at.column;
}

// Columns of the tensor from here on, up to eight; none beyond it.
__device__ __forceinline__ int columns(u32 row, u32 column) {
  return row < ROWS && column < COLUMNS ? (int)min(8u, COLUMNS - column) : 0;
}

#if NARROWS && ALONG_SEQUENCE
// A warp has 32 rows of 64 columns: a thread every fourth row of eight columns.
extern "C" __global__ void __launch_bounds__(THREADS) quantize_columns(const Params p) {
  const u32 lane = threadIdx.x % 32, warps = THREADS / 32;
  for (Index n = (Index)blockIdx.x * warps + threadIdx.x / 32; n < ALL_TILES; n += (Index)gridDim.x * warps) {
    const u32 tile = (u32)(n % (PADDED_OUTER / 64));
    const Index rest = n / (PADDED_OUTER / 64);
    const u32 block = (u32)(rest % PADDED_INNER);
    const Place at = {(u32)(rest / PADDED_INNER), block * 32 + lane / 8, tile * 64 + lane % 8 * 8};
    float x[8][8];
    u32 amax[8] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const u32 row = at.row + 4 * i;
      const int count = columns(row, at.column);
      read_wide(p.wide + (count ? wide_at(at, row) : 0), count, x[i]);
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
#pragma unroll
      for (int i = 0; i < 8; i++) amax[j] = max(amax[j], magnitude(x[i][j]));
      amax[j] = max(amax[j], __shfl_xor_sync(0xffffffffu, amax[j], 8));
      amax[j] = max(amax[j], __shfl_xor_sync(0xffffffffu, amax[j], 16));
      const int exponent = block_exponent(amax[j]);
      const bool number = amax[j] <= INFINITE;
      const float factor = number ? power_of_two(-exponent) : __uint_as_float(NOT_A_NUMBER);
#pragma unroll
      for (int i = 0; i < 8; i++) x[i][j] = __fmul_rn(x[i][j], factor);
      if (lane < 8) p.scales[scale_place(at.head, at.row, at.column + j)] = number ? (u8)(exponent + 127) : (u8)255;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const u32 row = at.row + 4 * i;
      const int count = columns(row, at.column);
      if (count) write_narrow(p.narrow + narrow_at(at, row), count, x[i]);
    }
  }
}
#elif NARROWS
extern "C" __global__ void __launch_bounds__(THREADS) quantize_rows(const Params p) {
  // All four threads of a block of elements take the same turns.
  for (Index n = (Index)blockIdx.x * THREADS + threadIdx.x; n < ALL_TILES * 4; n += (Index)gridDim.x * THREADS) {
    const u32 column = (u32)(n % (PADDED_INNER * 4)) * 8;
    const Index rest = n / (PADDED_INNER * 4);
    const Place at = {(u32)(rest / PADDED_OUTER), (u32)(rest % PADDED_OUTER), column};
    const int count = columns(at.row, at.column);
    float x[8];
    read_wide(p.wide + (count ? wide_at(at, at.row) : 0), count, x);
    u32 amax = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) amax = max(amax, magnitude(x[j]));
    amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
    amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
    const int exponent = block_exponent(amax);
    const bool number = amax <= INFINITE;
    const float factor = number ? power_of_two(-exponent) : __uint_as_float(NOT_A_NUMBER);
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = __fmul_rn(x[j], factor);
    if (count) write_narrow(p.narrow + narrow_at(at, at.row), count, x);
    if (threadIdx.x % 4 == 0) p.scales[scale_place(at.head, at.row, at.column)] = number ? (u8)(exponent + 127) : (u8)255;
  }
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) dequantize_blocks(const Params p) {
  const Index chunks = (COLUMNS + 7) / 8;
  for (Index n = (Index)blockIdx.x * THREADS + threadIdx.x; n < ALL_CHUNKS; n += (Index)gridDim.x * THREADS) {
    const Index rest = n / chunks;
    const Place at = {(u32)(rest / ROWS), (u32)(rest % ROWS), (u32)(n % chunks) * 8};
    const int count = columns(at.row, at.column);
    float x[8];
    read_narrow(p.narrow + narrow_at(at, at.row), count, x);
    float factor = 0.f;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      if (j == 0 || ALONG_SEQUENCE) {
        const u32 code = p.scales[scale_place(at.head, at.row, at.column + j)];
        factor = code == 255u ? __uint_as_float(NOT_A_NUMBER) : power_of_two((int)code - 127);
      }
      x[j] = __fmul_rn(x[j], factor);
    }
    write_wide(p.wide + wide_at(at, at.row), count, x);
  }
}
#endif
