// Which block computes what.
//
// An item is a sequence, a head of keys, and a tile of rows: the queries of the heads that share the keys, a row each.
// The tiles of keys of all items stand in one line, and every block takes an equal share of it, whatever the lengths
// are. An item that the end of a share cuts is computed in pieces, which `merge` puts together.
//
// With ROW_BLOCKS there are two lines. One has items of so many tiles of rows, and a share of it belongs to as many
// blocks, each of which computes one of these tiles: over the same keys at the same time, so that they are read from
// memory once. What is left of a sequence's rows, or all if they are few, stands in the other line, in items of one tile of
// rows and shares of one block. Blocks are divided between the lines as their work is.

struct Item {
  int batch, head, rows_from;    // rows from the first of the block's own tile on
  int queries, keys;             // lengths of the sequence
  int first, tiles, end;         // the first tile of keys, their number, and where keys end
#if DRAFT_TREE
  u64 drafts[2];                 // the bits of a thread's two rows
#endif
};

// A block's rank says which of an item's tiles of rows is its own; ALONE: the items of its line have no others.
#define ALONE (-1)
#if ROW_BLOCKS > 1
// The rank, and the block of this rank that has the line's first share: in shared memory, because what multiplies has
// no register to keep them in.
struct Own { int rank, first; };
__device__ __forceinline__ Own& own() {
  __shared__ Own own;
  return own;
}
#else
struct Own { static constexpr int rank = ALONE, first = 0; };
__device__ __forceinline__ Own own() { return {}; }
#endif
__device__ __forceinline__ bool together(int rank) { return ROW_BLOCKS > 1 && rank != ALONE; }
__device__ __forceinline__ int rows_before(int rank) { return together(rank) ? rank * ROWS : 0; }
// Rows of an item.
__device__ __forceinline__ int rows_at_once(int rank) { return together(rank) ? ROW_BLOCKS * ROWS : ROWS; }

// Where the first item begins among a sequence's rows in the line of a rank, and where the items end.
__device__ __forceinline__ int rows_together(int rows) {
  return ROW_BLOCKS > 1 ? (rows + ROWS - 1) / (ROW_BLOCKS * ROWS) * (ROW_BLOCKS * ROWS) : 0;
}
__device__ __forceinline__ int rows_begin(int rank, int rows) { return together(rank) ? 0 : rows_together(rows); }
__device__ __forceinline__ int rows_end(int rank, int rows) { return together(rank) ? rows_together(rows) : rows; }

#if LENGTHS
__device__ __forceinline__ int queries_of(const Params& p, int batch) { return p.len_q[batch]; }
__device__ __forceinline__ int keys_of(const Params& p, int batch) { return p.len_k[batch]; }
#else
__device__ __forceinline__ int queries_of(const Params& p, int) { return p.most_queries; }
__device__ __forceinline__ int keys_of(const Params& p, int) { return p.most_keys; }
#endif

// Rows of a sequence that are written: padding too, if it becomes zeros.
__device__ __forceinline__ int rows_of(const Params& p, int queries) { return (ZERO_PADDING ? p.most_queries : queries) * GROUP; }

// The keys that a query sees, by its band: from `from` to before `to`. Both may lie outside the sequence.
__device__ __forceinline__ void seen(const Params& p, int query, int queries, int keys, int& from, int& to) {
#if ORIGINS
  const int ahead = p.query_origin - p.key_origin;
#else
  const int ahead = 0;
#endif
  const int diagonal = query + ahead + (BOTTOM_RIGHT ? keys - queries : 0);
  from = 0;
  to = keys;
  (void)diagonal;
#ifdef RIGHT
  to = min(to, diagonal + RIGHT + 1);
#endif
#ifdef LEFT
  from = max(from, diagonal - LEFT + 1);
#endif
  if (ZERO_PADDING && query >= queries) to = 0;
}

#if DRAFT_TREE
// The bits of a query for the keys of the sequence's queries, which are its last ones. Rows behind the last query have
// those of the last.
__device__ __forceinline__ u64 drafts_of(const Params& p, const Item& item, int query) {
  const int row = max(0, min(query, item.queries - 1));
#if VARLEN_Q
  return __ldg(p.drafts + p.offsets_q[item.batch] / p.q_row + row);
#else
  return __ldg(p.drafts + (i64)item.batch * p.most_queries + row);
#endif
}

// Whether a query with such bits sees 64 keys from a draft's on, a bit each: keys before the drafts, which have numbers
// below 0, and drafts that have their bits.
__device__ __forceinline__ u64 seen_from(u64 bits, int draft) {
  if (draft >= 0) return draft < 64 ? bits >> draft : 0;
  return draft > -64 ? bits << -draft | ((1ull << -draft) - 1) : ~0ull;
}
#endif

__device__ __forceinline__ void set_tiles(const Params& p, Item& item, int rank) {
  const int begin = item.rows_from - rows_before(rank);
  const int last = min(rows_of(p, item.queries), begin + rows_at_once(rank)) - 1;
  int from, to, unused;
  seen(p, begin / GROUP, item.queries, item.keys, from, unused);
  seen(p, min(last / GROUP, max(item.queries - 1, 0)), item.queries, item.keys, unused, to);
  item.first = from / TILE;
  item.end = to;
  item.tiles = max(1, (to + TILE - 1) / TILE - item.first);
}

// The item of a line that begins at a row.
__device__ __forceinline__ Item item_at(const Params& p, int batch, int head, int begin, int rank) {
  Item item;
  item.batch = batch;
  item.head = head;
  item.rows_from = begin + rows_before(rank);
  item.queries = queries_of(p, batch);
  item.keys = keys_of(p, batch);
  set_tiles(p, item, rank);
  return item;
}

// Tiles of a sequence in a line, of each head of keys. 2^20 queries over as many keys have 2^26 or more, so counts of
// several heads or sequences have 64 bits.
__device__ __forceinline__ i64 tiles_of_head(const Params& p, int batch, int rank) {
  const int rows = rows_of(p, queries_of(p, batch)), end = rows_end(rank, rows);
  Item item = item_at(p, batch, 0, rows_begin(rank, rows), rank);
  i64 tiles = 0;
  for (; item.rows_from < end; item.rows_from += rows_at_once(rank)) {
    set_tiles(p, item, rank);
    tiles += item.tiles;
  }
  return tiles;
}

// A quotient of numbers that are not negative. Few need the division of 64 bits, which takes some hundred cycles.
__device__ __forceinline__ i64 quotient(i64 a, i64 b) {
  return (u64)(a | b) >> 32 == 0 ? (i64)((u32)a / (u32)b) : a / b;
}

// A block's share of all tiles of its line, and the item in which it begins, at the item's tile `at`.
struct Share {
  Item item;
  int at;
  i64 from, to, each, all;
  int number;  // its own in the line
};

// The block that has a share of the line, of the same rank.
__device__ __forceinline__ int block_of(int share) {
  return own().first + share * (together(own().rank) ? ROW_BLOCKS : 1);
}

#if INVARIANT
__device__ __forceinline__ void advance(const Params& p, Item& item);

// Where an item may be cut at its tile `at` or behind: shares of an invariant attention begin with items and spans.
__device__ __forceinline__ int cut_at(const Item& item, int at) {
  const int key = (item.first + at) * TILE, size = span_size(key);
  return at == 0 || key % size == 0 ? at : min(item.tiles, (key / size * size + size) / TILE - item.first);
}

// The tiles of a share that has so many more, from a tile of an item on: more where it ends within the item, because the
// next share begins where the item may be cut.
__device__ __forceinline__ int reach(const Item& item, int at, int left) {
  return left < item.tiles - at ? cut_at(item, at + left) - at : left;
}

// Moves the begin of a share to where its item may be cut.
__device__ __forceinline__ void begin_at_span(const Params& p, Share& share) {
  if (share.from >= share.all) return;
  const int at = cut_at(share.item, share.at);
  share.from += at - share.at;
  share.at = at;
  if (at < share.item.tiles) return;
  share.at = 0;
  if (share.from < share.all) advance(p, share.item);
}
#endif

// Sums a number of each thread over all threads, and over those before this one. All threads of a block call it.
__device__ __forceinline__ void sum_up(i64 mine, int threads, i64* memory, i64& before, i64& all) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  i64 sum = mine;
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    const i64 other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) memory[warp] = sum;
  __syncthreads();
  before = sum - mine;
  all = 0;
  for (int i = 0; i < threads / 32; i++) {
    const i64 of_warp = memory[i];
    if (i < warp) before += of_warp;
    all += of_warp;
  }
}

// How many shares of ROW_BLOCKS blocks the line of such items gets, so that the longest share of both lines is short.
__device__ __forceinline__ int shares_together(i64 tiles, i64 alone) {
  const int shares = BLOCKS / ROW_BLOCKS;
  if (alone == 0 || tiles == 0) return tiles ? shares : 0;
  const i64 work = tiles * ROW_BLOCKS + alone;
  const int even = max(1, min(shares - 1, (int)(tiles * BLOCKS / work)));
  // With one more, the blocks of the other line have more each than these have now, or not.
  if (even == shares - 1 || tiles * (shares - even - 1) * ROW_BLOCKS <= alone * even) return even;
  return even + 1;
}

// Tiles of a line: of the sequences that this thread counts, of those before them, and of all.
struct Line { i64 mine, before, all; };

// Finds the share of a block, whose threads all call it and wait for each other; `memory` has room for 40 numbers.
// Without lengths all sequences have as many tiles: each thread finds the share for itself, and reads nothing that the
// launch before may write.
__device__ __forceinline__ Share share_of(const Params& p, int block, int threads, i64* memory) {
  const int thread = threadIdx.x;
#if LENGTHS
  const int each = (p.batch + threads - 1) / threads;
  const int begin = min(p.batch, thread * each), end = min(p.batch, begin + each);
  auto line_of = [&](int rank, i64* memory) {
    Line line = {0, 0, 0};
    for (int batch = begin; batch < end; batch++) line.mine += tiles_of_head(p, batch, rank) * p.key_heads;
    sum_up(line.mine, threads, memory, line.before, line.all);
    return line;
  };
#else
  auto line_of = [&](int rank, i64*) {
    const i64 mine = tiles_of_head(p, 0, rank) * p.key_heads;
    return Line{mine, 0, mine * p.batch};
  };
#endif
  Line line = line_of(ALONE, memory + 4);
  Share share;
  int shares = BLOCKS, rank = ALONE;
  share.number = block;
#if ROW_BLOCKS > 1
  const Line line_together = line_of(0, memory + 20);
  const int of_together = shares_together(line_together.all, line.all);
  if (block < of_together * ROW_BLOCKS) {
    rank = block % ROW_BLOCKS;
    share.number = block / ROW_BLOCKS;
    shares = of_together;
    line = line_together;
  } else {
    share.number = block - of_together * ROW_BLOCKS;
    shares = BLOCKS - of_together * ROW_BLOCKS;
  }
  if (thread == 0) own() = Own{rank, rank == ALONE ? of_together * ROW_BLOCKS : rank};
#endif
  share.all = line.all;
  // No block is left for a line without work.
  share.each = max((i64)LEAST_TILES, quotient(line.all + shares - 1, max(1, shares)));
  share.from = min(line.all, share.number * share.each);
  share.to = min(line.all, share.from + share.each);
  share.at = 0;
  i64 start = line.before;
#if LENGTHS
  int batch = begin;
  const bool is_mine = start <= share.from && share.from < start + line.mine;
#else
  int batch = 0;
  const bool is_mine = share.from < share.to;
  if (is_mine) batch = (int)quotient(share.from, line.mine);
  start = batch * line.mine;
#endif
  if (is_mine) {
    i64 of_head = tiles_of_head(p, batch, rank);
#if LENGTHS
    while (share.from >= start + of_head * p.key_heads) {
      start += of_head * p.key_heads;
      of_head = tiles_of_head(p, ++batch, rank);
    }
#endif
    const i64 rest = share.from - start, head = quotient(rest, of_head);
    i64 at = rest - head * of_head;
    int row = rows_begin(rank, rows_of(p, queries_of(p, batch)));
    Item item = item_at(p, batch, (int)head, row, rank);
    while (at >= item.tiles) {
      at -= item.tiles;
      row += rows_at_once(rank);
      item.rows_from += rows_at_once(rank);
      set_tiles(p, item, rank);
    }
#if LENGTHS
    memory[0] = batch;
    memory[1] = head;
    memory[2] = row;
    memory[3] = at;
#else
    share.item = item;
    share.at = (int)at;
#endif
  }
  __syncthreads();
#if LENGTHS
  if (share.from < share.to) {
    share.item = item_at(p, (int)memory[0], (int)memory[1], (int)memory[2], rank);
    share.at = (int)memory[3];
  }
#endif
#if INVARIANT
  begin_at_span(p, share);
#endif
  return share;
}

// The item after this one, in the same line.
__device__ __forceinline__ void advance(const Params& p, Item& item) {
  const int rank = own().rank, rows = rows_of(p, item.queries);
  int batch = item.batch, head = item.head, begin = item.rows_from - rows_before(rank) + rows_at_once(rank);
  if (begin >= rows_end(rank, rows)) {
    begin = rows_begin(rank, rows);
    head++;
  }
  if (head == p.key_heads) {
    head = 0;
    int end;
    do {
      if (++batch == p.batch) return;
      const int of_batch = rows_of(p, queries_of(p, batch));
      begin = rows_begin(rank, of_batch);
      end = rows_end(rank, of_batch);
    } while (begin >= end);
  }
  item = item_at(p, batch, head, begin, rank);
}

// Where a piece's sums lie: each block has room for two, of an item that it continues and of one that it begins.
__device__ __forceinline__ i64 piece_at(const Params& p, int block, bool begins, int row) {
  return (i64)(block * 2 + begins) * p.piece_rows + row;
}

__device__ __forceinline__ i64 out_at(const Params& p, int batch, int head, int query) {
#if VARLEN_O
  return p.offsets_o[batch] + query * p.o_row + head * p.o_head;
#else
  return batch * p.o_batch + query * p.o_row + head * p.o_head;
#endif
}

// The exponential of a difference of scores. Without an expression they have the unit of the base-2 logarithm, a factor
// that is in the scale already. With one they have that of the natural logarithm: it may be as low as the lowest float,
// as a padding mask's is, and a row of such scores must not become one of infinities.
__device__ __forceinline__ float exponential(float x) { return exp2_fast(NATURAL ? x * LOG2E : x); }

// What products of queries and keys are multiplied with on their way to scores of the base-2 logarithm's unit; an
// expression has done that already. It is above 0, so that the largest product is the largest score.
__device__ __forceinline__ float unit_of(float scale) { return NATURAL || scale == 0.f ? 1.f : fabsf(scale) * LOG2E; }

// The signs of queries with such a unit: products change theirs with a scale below 0, and with one of 0 they are 0.
struct Signs {
  u32 flip, keep;
  __device__ __forceinline__ explicit Signs(float scale)
      : flip(!NATURAL && scale < 0.f ? 0x80008000u : 0u), keep(!NATURAL && scale == 0.f ? 0u : ~0u) {}
  __device__ __forceinline__ u32 of(u32 two) const { return (two ^ flip) & keep; }
};

// Whether the rounding of a row's base is so large that it counts as an exponent.
__device__ __forceinline__ bool is_rough(float base) { return !NATURAL && fabsf(base) >= 4194304.f; }

// The exponential of a score less the base of its row. With a rough base the score is rounded as the base was, so that
// the largest one has a weight of 1.
__device__ __forceinline__ float weight_of(float product, float unit, float base, bool rough) {
  if (NATURAL) return exponential(product - base);
  return exp2_fast(rough ? __fmul_rn(product, unit) - base : __fmaf_rn(product, unit, -base));
}

#if INVARIANT
// The share in which an item begins that starts at a tile of all.
__device__ __forceinline__ int first_share(const Share& share, i64 start) { return (int)(start / share.each); }

// Where the span ends that has a key.
__device__ __forceinline__ int end_of_span(int key) {
  const int size = span_size(key);
  return key / size * size + size;
}

// Pieces that shares cut an item into lie behind each other, by the block in which it begins: first what that block has
// added up, then one for each span behind the first cut, which is at tile `cut`. The number of a span's piece is its own
// and this one.
__device__ __forceinline__ int pieces_at(const Params& p, const Item& item, int block, int cut) {
  return block * p.pieces + 1 - span_index((item.first + cut) * TILE);
}

// The same in a block that continues an item.
__device__ __forceinline__ int pieces_before(const Params& p, const Item& item, const Share& share) {
  const i64 start = share.from - share.at;
  const int first = first_share(share, start);
  return pieces_at(p, item, block_of(first), cut_at(item, (int)((first + 1) * share.each - start)));
}

// Where a row of a piece lies.
__device__ __forceinline__ i64 piece_row(const Params& p, int piece, int row) { return (i64)piece * p.piece_rows + row; }

// Adds a span's sums to those before it. `factor` is for what was summed before, the result for the span.
__device__ __forceinline__ float add_span(float& top, float& sum, float span_top, float span_sum, float& factor) {
  const float most = fmaxf(top, span_top), base = most == -INFINITE ? 0.f : most;
  factor = exponential(top - base);
  const float of_span = exponential(span_top - base);
  sum = __fmaf_rn(sum, factor, __fmul_rn(span_sum, of_span));
  top = most;
  return of_span;
}

// A number of O: of both zeros the positive one, because a span that a row does not see adds one.
__device__ __forceinline__ float result(float sum, float factor) { return __fmul_rn(sum, factor) + 0.f; }
#endif

// Writes the log-sum-exp of a row: of `sum` over keys, of exponentials less `top`. Without any key it is minus infinity; a
// sum that is no number gives none.
__device__ __forceinline__ void write_stats(const Params& p, int batch, int head, int query, float top, float sum) {
#if STATS
  const float end = log2f(sum) * LN2, value = sum == 0.f ? -INFINITE : NATURAL ? top + end : top * LN2 + end;
#if VARLEN_STATS
  p.stats[p.offsets_stats[batch] + query * p.stats_row + head * p.stats_head] = value;
#else
  p.stats[batch * p.stats_batch + query * p.stats_row + head * p.stats_head] = value;
#endif
#endif
}

// Adds the sink of a head, which takes part in the softmax and has no value, to a sum of exponentials less `top`. Both may change; the returned factor is for what was summed with them.
__device__ __forceinline__ float take_sink(const Params& p, int head, float& top, float& sum) {
#if SINK
  const float sink = p.sink[head] * (NATURAL ? 1.f : LOG2E), most = fmaxf(top, sink);
  if (most == -INFINITE) return 1.f;
  const float fade = exponential(top - most);
  sum = sum * fade + exponential(sink - most);
  top = most;
  return fade;
#else
  return 1.f;
#endif
}
