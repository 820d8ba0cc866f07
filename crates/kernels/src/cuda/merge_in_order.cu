// Puts the pieces of an item of an invariant attention together, from the first to the last: as the block does that has
// all of them, so that it does not matter where shares cut. Blocks are those of `merge.cu`, and a unit has one warp.

#define MERGE_WARPS (MERGE_THREADS / 32)
// Numbers of 16 bytes that a lane has of each piece, and the pieces of which it loads them at a time.
#define EACH ((MERGE_COLUMNS + 127) / 128)
#define AHEAD (EACH == 1 ? 8 : EACH == 2 ? 4 : 2)
#define CHUNKS ((VALUE_DIM + MERGE_COLUMNS - 1) / MERGE_COLUMNS)

extern "C" __global__ void __launch_bounds__(MERGE_THREADS, 3) merge(const __grid_constant__ Params p) {
  __shared__ i64 memory[40];
  let_next_begin();
  const Share share = share_of(p, blockIdx.x + 1, MERGE_THREADS, memory);
  // Every block waits, so that this kernel never ends before the one whose pieces it reads.
  wait_for_previous();
  if (share.from >= share.all || share.at == 0) return;
  const Item item = share.item;
  const i64 start = share.from - share.at;
  const int first = first_share(share, start), rows = min(ROWS, rows_of(p, item.queries) - item.rows_from);
  // Spans from the first cut on, and before them what the block has added up.
  const int own_piece = block_of(first) * p.pieces, last_key = (item.first + item.tiles) * TILE - 1;
  const int cut = cut_at(item, (int)((first + 1) * share.each - start));
  const int spans = pieces_at(p, item, block_of(first), cut), count = spans + span_index(last_key) - own_piece + 1;
  // Shares whose ends cut the item are those that begin in it, or in the span before: up to the begin of the last one.
  const int last_cut = (end_of_span(last_key) - span_size(last_key)) / TILE - item.first;
  const int blocks = (int)((start + last_cut) / share.each - first) * gridDim.y;
  const int block = (share.number - first - 1) * gridDim.y + blockIdx.y;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int unit = block * MERGE_WARPS + warp; unit < rows * CHUNKS; unit += blocks * MERGE_WARPS) {
    const int row = unit / CHUNKS, chunk = unit % CHUNKS;
    float4 out[EACH];
#pragma unroll
    for (int n = 0; n < EACH; n++) out[n] = make_float4(0.f, 0.f, 0.f, 0.f);
    float top = -INFINITE, sum = 0.f;
    for (int piece = 0; piece < count; piece += AHEAD) {
      float2 ends[AHEAD];
      float4 ahead[AHEAD][EACH];
#pragma unroll
      for (int i = 0; i < AHEAD; i++) {
        if (piece + i >= count) continue;
        const i64 at = piece_row(p, own_piece + piece + i, row);
        ends[i] = *(const float2*)&p.ends[at * 2];
#pragma unroll
        for (int n = 0; n < EACH; n++) {
          const int in_chunk = n * 128 + lane * 4, column = chunk * MERGE_COLUMNS + in_chunk;
          if (in_chunk < MERGE_COLUMNS && column < VALUE_DIM)
            ahead[i][n] = *(const float4*)&p.sums[at * VALUE_DIM + column];
        }
      }
#pragma unroll
      for (int i = 0; i < AHEAD; i++) {
        if (piece + i >= count) continue;
        float of_whole;
        const float of_span = add_span(top, sum, ends[i].x, ends[i].y, of_whole);
#pragma unroll
        for (int n = 0; n < EACH; n++) {
          out[n].x = __fmaf_rn(out[n].x, of_whole, __fmul_rn(ahead[i][n].x, of_span));
          out[n].y = __fmaf_rn(out[n].y, of_whole, __fmul_rn(ahead[i][n].y, of_span));
          out[n].z = __fmaf_rn(out[n].z, of_whole, __fmul_rn(ahead[i][n].z, of_span));
          out[n].w = __fmaf_rn(out[n].w, of_whole, __fmul_rn(ahead[i][n].w, of_span));
        }
      }
    }
    const int query = (item.rows_from + row) / GROUP, head = item.head * GROUP + (item.rows_from + row) % GROUP;
    const float fade = take_sink(p, head, top, sum);
    if (query >= item.queries) sum = 0.f;
    const float factor = sum == 0.f ? 0.f : fade / sum;
    u16* const to = p.o + out_at(p, item.batch, head, query);
#pragma unroll
    for (int n = 0; n < EACH; n++) {
      const int in_chunk = n * 128 + lane * 4, column = chunk * MERGE_COLUMNS + in_chunk;
      if (in_chunk >= MERGE_COLUMNS || column >= VALUE_DIM) continue;
      *(u32*)(to + column) = pack(result(out[n].x, factor), result(out[n].y, factor));
      *(u32*)(to + column + 2) = pack(result(out[n].z, factor), result(out[n].w, factor));
    }
    if (chunk == 0 && lane == 0) write_stats(p, item.batch, head, query, top, sum);
  }
}
