// Which tiles of scores a mask leaves whole, cuts or hides: for each tile of rows, lists of the tiles of columns.
//
// Rows are queries and columns keys, or the reverse (BY_KEYS). A block makes the lists of one row of one head; a warp
// looks at a tile: at its scores only if bounds leave it open what it is. Scores beyond the last query and key count for
// nothing, so a tile at the end may be whole.

#define THREADS 256
#define CHUNK 1024
#define LOOK 512

enum { HIDDEN, CUT, WHOLE };

__device__ __forceinline__ int kind_of(const Params& p, int batch, int head, int row, int column, int lane) {
  const int first_query = (BY_KEYS ? column : row) * TILE_Q, first_key = (BY_KEYS ? row : column) * TILE_K;
  const Bounds queries = {first_query, min(first_query + TILE_Q, QUERIES) - 1};
  const Bounds keys = {first_key, min(first_key + TILE_K, KEYS) - 1};
  const Truth may = may_be_seen(p, Tile{batch, head, queries, keys}, lane);
  if (!may.yes) return HIDDEN;
  if (!may.no) return WHOLE;
  bool some = false, all = true;
  for (int from = 0; from < TILE_Q * TILE_K; from += LOOK) {
    for (int i = from + lane; i < min(from + LOOK, TILE_Q * TILE_K); i += 32) {
      const int query = first_query + i / TILE_K, key = first_key + i % TILE_K;
      if (query >= QUERIES || key >= KEYS) continue;
      const bool is = seen(p, Point{batch, head, query, key, QUERIES, KEYS});
      some |= is;
      all &= is;
    }
    if (__any_sync(~0u, some) && __any_sync(~0u, !all)) return CUT;
  }
  return __any_sync(~0u, some) ? WHOLE : HIDDEN;
}

extern "C" __global__ void __launch_bounds__(THREADS) blocks(const __grid_constant__ Params p) {
  __shared__ unsigned char kinds[CHUNK];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int row = blockIdx.x, head = blockIdx.y, batch = blockIdx.z;
  const i64 line = ((i64)batch * HEADS + head) * ROWS + row;
  int count = 0;
  for (int from = 0; from < COLUMNS; from += CHUNK) {
    const int to = min(COLUMNS, from + CHUNK);
    for (int column = from + warp; column < to; column += THREADS / 32) {
      const int kind = kind_of(p, batch, head, row, column, lane);
      if (lane == 0) kinds[column - from] = (unsigned char)kind;
    }
    __syncthreads();
    // Warps 0 and 1 write one list each: 32 tiles at a time, each behind those of its kind before it.
    if (warp < 2) {
      const int kind = warp ? WHOLE : CUT;
      int* list = (warp ? p.whole : p.cut) + line * COLUMNS;
      for (int first = from; first < to; first += 32) {
        const int column = first + lane;
        const bool is = column < to && kinds[column - from] == kind;
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
