// What tiles of scores are, by a look at the scores themselves.

#define THREADS 256
#define WARPS (THREADS / 32)
// Runs of keys that a thread reads before it looks at them, so that as many reads are under way.
#define AHEAD 4
#define STEP (32 * AHEAD)
// Runs of a row of a tile, and of all of it. Lanes have neighbouring ones.
#define ROW_RUNS (TILE_K / KEYS_AT_ONCE)
#define RUNS (TILE_Q * ROW_RUNS)

enum { HIDDEN, CUT, WHOLE };

__device__ __forceinline__ int kind(bool some, bool hidden) { return !some ? HIDDEN : hidden ? CUT : WHOLE; }

__device__ __forceinline__ Tile tile_at(int batch, int head, int row, int column) {
  const int query = (BY_KEYS ? column : row) * TILE_Q, key = (BY_KEYS ? row : column) * TILE_K;
  return Tile{batch, head, {query, min(query + TILE_Q, QUERIES) - 1}, {key, min(key + TILE_K, KEYS) - 1}};
}

// Looks at the runs of a tile from `from` on, as many as a warp reads ahead: whether some are seen, and some hidden.
// Scores beyond the last query and key count for nothing, and nothing of them is read.
__device__ __forceinline__ void look_at(const Params& p, const Tile& tile, int from, int lane, bool& some, bool& hidden) {
  Run runs[AHEAD];
#pragma unroll
  for (int i = 0; i < AHEAD; i++) {
    const int at = from + i * 32 + lane;
    const int query = min(tile.query.least + at / ROW_RUNS, QUERIES - 1);
    const int key = min(tile.key.least + at % ROW_RUNS * KEYS_AT_ONCE, KEYS - KEYS_AT_ONCE);
    read_run(p, Point{tile.batch, tile.head, query, key, QUERIES, KEYS}, runs[i]);
  }
#pragma unroll
  for (int i = 0; i < AHEAD; i++) {
    const int at = from + i * 32 + lane;
    const int query = tile.query.least + at / ROW_RUNS, key = tile.key.least + at % ROW_RUNS * KEYS_AT_ONCE;
    if (at >= RUNS || query > tile.query.greatest || key > tile.key.greatest) continue;
#pragma unroll
    for (int n = 0; n < KEYS_AT_ONCE; n++) {
      const bool is = seen(p, Point{tile.batch, tile.head, query, key + n, QUERIES, KEYS}, runs[i], n);
      some |= is;
      hidden |= !is;
    }
  }
}

#if DENSE
// A block for each tile, whose warps look at parts in turn until one of them has seen both or knows that another has.
extern "C" __global__ void __launch_bounds__(THREADS) look(const __grid_constant__ Params p) {
  __shared__ volatile unsigned char found[2];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int row = blockIdx.x / COLUMNS, column = blockIdx.x % COLUMNS, head = blockIdx.y, batch = blockIdx.z;
  let_next_begin();
  if (threadIdx.x < 2) found[threadIdx.x] = 0;
  __syncthreads();
  const Tile tile = tile_at(batch, head, row, column);
  const Truth may = may_be_seen(p, tile, lane);
  bool some = !may.no, hidden = !may.yes;
  if (may.no && may.yes) {
    for (int from = warp * STEP; from < RUNS; from += WARPS * STEP) {
      look_at(p, tile, from, lane, some, hidden);
      some = __any_sync(~0u, some | found[0]);
      hidden = __any_sync(~0u, hidden | found[1]);
      if (lane == 0 && some) found[0] = 1;
      if (lane == 0 && hidden) found[1] = 1;
      if (some && hidden) break;
    }
    __syncthreads();
    some = found[0];
    hidden = found[1];
  }
  const i64 line = ((i64)batch * HEADS + head) * ROWS + row;
  if (threadIdx.x == 0) p.kinds[line * COLUMNS + column] = (unsigned char)kind(some, hidden);
}
#endif
