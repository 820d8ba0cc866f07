// Which tiles of scores a mask leaves whole, cuts or hides: for each tile of rows, lists of the tiles of columns.
//
// Rows are queries and columns keys, or the reverse (BY_KEYS). A block makes the lists of one row of one head; a warp
// looks at a tile. Scores beyond the last query and key count for nothing, so a tile at the end may be whole.

#define THREADS 256
#define CHUNK 1024
#define LOOK 512

enum { HIDDEN, CUT, WHOLE };

__device__ __forceinline__ int kind_of(const Params& p, int batch, int head, int row, int column, int lane) {
  const int first_query = (BY_KEYS ? column : row) * TILE_Q, first_key = (BY_KEYS ? row : column) * TILE_K;
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
  int cut = 0, whole = 0;
  for (int from = 0; from < COLUMNS; from += CHUNK) {
    const int to = min(COLUMNS, from + CHUNK);
    for (int column = from + warp; column < to; column += THREADS / 32) {
      const int kind = kind_of(p, batch, head, row, column, lane);
      if (lane == 0) kinds[column - from] = (unsigned char)kind;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int column = from; column < to; column++) {
        if (kinds[column - from] == CUT) p.cut[line * COLUMNS + cut++] = column;
        if (kinds[column - from] == WHOLE) p.whole[line * COLUMNS + whole++] = column;
      }
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    p.cut_counts[line] = cut;
    p.whole_counts[line] = whole;
  }
}
