// Puts the pieces of an item of an invariant attention together, from the first to the last: as the block does that has
// all of them, so that it does not matter where shares cut. Blocks and warps are those of `merge.cu`.

#define MERGE_THREADS 128
#define EACH ((MERGE_COLUMNS + 31) / 32)
#define WHOLE_COLUMNS (MERGE_COLUMNS % 32 == 0 && VALUE_DIM % MERGE_COLUMNS == 0)

extern "C" __global__ void __launch_bounds__(MERGE_THREADS) merge(const __grid_constant__ Params p) {
  __shared__ i64 memory[40];
  let_next_begin();
  const int next = blockIdx.x + 1, lane = threadIdx.x & 31;
  const Share share = share_of(p, next, MERGE_THREADS, memory);
  // Every block waits, so that this kernel never ends before the one whose pieces it reads.
  wait_for_previous();
  if (share.from >= share.all || share.at == 0) return;
  const Item item = share.item;
  const i64 start = share.from - share.at;
  if ((share.number - 1) * share.each > start) return;
  const int first = block_of(share.number - 1);
  const int row = blockIdx.y * (MERGE_THREADS / 32) + threadIdx.x / 32;
  if (row >= min(ROWS, rows_of(p, item.queries) - item.rows_from)) return;
  const int column = blockIdx.z * MERGE_COLUMNS + lane;
  // Spans from the first cut on, which is where this share begins, and before them what the block has added up.
  const int spans = pieces_at(p, item, first, share.at), from = first * p.pieces;
  const int count = spans + span_index((item.first + item.tiles) * TILE - 1) - from + 1;
  float top = -INFINITE, sum = 0.f, out[EACH];
#pragma unroll
  for (int n = 0; n < EACH; n++) out[n] = 0.f;
#pragma unroll 8
  for (int i = 0; i < count; i++) {
    const i64 at = piece_row(p, from + i, row);
    const float2 ends = *(const float2*)&p.ends[at * 2];
    float of_whole;
    const float of_span = add_span(top, sum, ends.x, ends.y, of_whole);
#pragma unroll
    for (int n = 0; n < EACH; n++)
      if (WHOLE_COLUMNS || n * 32 + column < VALUE_DIM)
        out[n] = __fmaf_rn(out[n], of_whole, __fmul_rn(p.sums[at * VALUE_DIM + n * 32 + column], of_span));
  }
  const int query = (item.rows_from + row) / GROUP, head = item.head * GROUP + (item.rows_from + row) % GROUP;
  const float fade = take_sink(p, head, top, sum);
  if (query >= item.queries) sum = 0.f;
  const float factor = sum == 0.f ? 0.f : fade / sum;
  u16* const to = p.o + out_at(p, item.batch, head, query);
#pragma unroll
  for (int n = 0; n < EACH; n++)
    if (WHOLE_COLUMNS || n * 32 + column < VALUE_DIM) to[n * 32 + column] = (u16)pack(result(out[n], factor), 0.f);
  if (column == 0) write_stats(p, item.batch, head, query, top, sum);
}
