// Which tiles of scores a mask leaves whole, cuts or hides: for each tile of rows, lists of the tiles of columns.
//
// Rows are queries and columns keys, or the reverse (BY_KEYS). A block makes the lists of one row of one head. What a
// tile is, a warp finds by bounds, and by a look at scores only if they leave it open; or another kernel has found it
// (DENSE). Scores beyond the last query and key count for nothing, so a tile at the end may be whole.

#define CHUNK 1024

#if !DENSE
__device__ __forceinline__ int kind_of(const Params& p, int batch, int head, int row, int column, int lane) {
  const Tile tile = tile_at(batch, head, row, column);
  const Truth may = may_be_seen(p, tile, lane);
  if (!may.yes || !may.no) return kind(may.yes, may.no);
  bool some = false, hidden = false;
  for (int from = 0; from < RUNS; from += STEP) {
    look_at(p, tile, from, lane, some, hidden);
    if (__any_sync(~0u, some) && __any_sync(~0u, hidden)) return CUT;
  }
  return __any_sync(~0u, some) ? WHOLE : HIDDEN;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) blocks(const __grid_constant__ Params p) {
  __shared__ unsigned char kinds[CHUNK];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int row = blockIdx.x, head = blockIdx.y, batch = blockIdx.z;
  const i64 line = ((i64)batch * HEADS + head) * ROWS + row;
#if DENSE
  wait_for_previous();
#endif
  int count = 0;
  for (int from = 0; from < COLUMNS; from += CHUNK) {
    const int to = min(COLUMNS, from + CHUNK);
#if DENSE
    for (int column = from + threadIdx.x; column < to; column += THREADS)
      kinds[column - from] = p.kinds[line * COLUMNS + column];
#else
    for (int column = from + warp; column < to; column += WARPS) {
      const int found = kind_of(p, batch, head, row, column, lane);
      if (lane == 0) kinds[column - from] = (unsigned char)found;
    }
#endif
    __syncthreads();
    // Warps 0 and 1 write one list each: 32 tiles at a time, each behind those of its kind before it.
    if (warp < 2) {
      const int wanted = warp ? WHOLE : CUT;
      int* list = (warp ? p.whole : p.cut) + line * COLUMNS;
      for (int first = from; first < to; first += 32) {
        const int column = first + lane;
        const bool is = column < to && kinds[column - from] == wanted;
        int upto = is;
        for (int step = 1; step < 32; step *= 2) {
          const int before = __shfl_up_sync(~0u, upto, step);
          if (lane >= step) upto += before;
        }
        if (is) list[count + upto - 1] = column;
        count += __shfl_sync(~0u, upto, 31);
      }
    }
    __syncthreads();
  }
  if (warp < 2 && lane == 0) (warp ? p.whole_counts : p.cut_counts)[line] = count;
}
