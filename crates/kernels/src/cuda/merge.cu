// Puts the pieces of an item together. Block x has the rows of the block behind x where that continues an item which the
// end of the share before is the first to cut. Each warp has a row, of which block z takes some columns: a row of a latent
// cache may have 128 pieces of 512 columns.

#define MERGE_THREADS 128
#define EACH ((MERGE_COLUMNS + 31) / 32)
#define WHOLE_COLUMNS (MERGE_COLUMNS % 32 == 0 && VALUE_DIM % MERGE_COLUMNS == 0)
// More loads at a time where there are more pieces of fewer columns.
#if MERGE_COLUMNS < VALUE_DIM
#define MERGE_UNROLL 16
#else
#define MERGE_UNROLL 8
#endif

extern "C" __global__ void __launch_bounds__(MERGE_THREADS) merge(const __grid_constant__ Params p) {
  __shared__ i64 memory[40];
  let_next_begin();
  const int next = blockIdx.x + 1, lane = threadIdx.x & 31;
  const Share share = share_of(p, next, MERGE_THREADS, memory);
  // Every block waits, so that this kernel never ends before the one whose pieces it reads.
  wait_for_previous();
  if (share.from == share.to || share.at == 0) return;
  const Item item = share.item;
  const i64 start = share.from - share.at, end = start + item.tiles;
  const int first = share.number - 1;
  if (first * share.each > start) return;
  const int row = blockIdx.y * (MERGE_THREADS / 32) + threadIdx.x / 32;
  if (row >= min(ROWS, rows_of(p, item.queries) - item.rows_from)) return;
  const int column = blockIdx.z * MERGE_COLUMNS + lane;
  // Shares first to first + count - 1 have a piece each; the first of them begins the item, the others continue it.
  const int count = (int)((min(end, share.all) - 1) / share.each) - first + 1;
  float most = -INFINITE, sum = 0.f, out[EACH];
#pragma unroll
  for (int n = 0; n < EACH; n++) out[n] = 0.f;
  for (int i = lane; i < count; i += 32) most = fmaxf(most, p.ends[piece_at(p, block_of(first + i), i == 0, row) * 2]);
#pragma unroll
  for (int step = 16; step; step >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
  const float base = most == -INFINITE ? 0.f : most;
  for (int from = 0; from < count; from += 32) {
    float factor = 0.f;
    if (from + lane < count) {
      const float2 ends = *(const float2*)&p.ends[piece_at(p, block_of(first + from + lane), from + lane == 0, row) * 2];
      factor = exponential(ends.x - base);
      sum += factor * ends.y;
    }
    const int pieces = min(32, count - from);
#pragma unroll MERGE_UNROLL
    for (int i = 0; i < pieces; i++) {
      const float of_piece = __shfl_sync(~0u, factor, i);
      const float* const piece = p.sums + piece_at(p, block_of(first + from + i), from + i == 0, row) * VALUE_DIM;
#pragma unroll
      for (int n = 0; n < EACH; n++)
        if (WHOLE_COLUMNS || n * 32 + column < VALUE_DIM) out[n] += of_piece * piece[n * 32 + column];
    }
  }
#pragma unroll
  for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
  const int query = (item.rows_from + row) / GROUP, head = item.head * GROUP + (item.rows_from + row) % GROUP;
  const float fade = take_sink(p, head, most, sum);
  if (query >= item.queries) sum = 0.f;
  const float factor = sum == 0.f ? 0.f : fade / sum;
  u16* const to = p.o + out_at(p, item.batch, head, query);
#pragma unroll
  for (int n = 0; n < EACH; n++)
    if (WHOLE_COLUMNS || n * 32 + column < VALUE_DIM) to[n * 32 + column] = (u16)pack(out[n] * factor, 0.f);
  if (column == 0) write_stats(p, item.batch, head, query, most, sum);
}
