// The attention of values of more than 256 columns, such as a latent cache's: two groups of four warps, each of which
// sums half of the columns. They compute the scores of tiles in turn, one of them the even tiles, so that each is computed
// once, and one group multiplies while the other computes a softmax. Weights go to the other through shared memory.
//
// Keys, or values that lie elsewhere, have a buffer of shared memory each, in two parts: columns that the first group's
// sums need and those of the second's. A part is filled by a warp of its own and left by its own group, so that it can be
// filled anew before the other group has done with its part.

// Boxes of 64 columns belong to part 1 if values of such a number belong to the second group.
#define BOXES_OF_SUMS (COLUMNS / 64)
__device__ __forceinline__ constexpr bool is_of_part(int box, int part) { return (box / BOXES_OF_SUMS == 1) == (part == 1); }
__device__ __forceinline__ constexpr int boxes_of_part(int boxes, int part) {
  int count = 0;
  for (int box = 0; box < boxes; box++) count += is_of_part(box, part);
  return count;
}
__device__ __forceinline__ constexpr int box_of_part(int part, int n) { return part || n >= BOXES_OF_SUMS ? n + BOXES_OF_SUMS : n; }

// A buffer, and the parity of its barriers.
struct Buffer {
  int slot;
  u32 parity;
  __device__ __forceinline__ Buffer next() const { return slot + 1 == STAGES ? Buffer{0, parity ^ 1} : Buffer{slot + 1, parity}; }
};

#if GATHER
// How tiles are brought says gather.cu.
#else
// Brings a part of a tile's keys or values: a lane for each box and as many rows as lie one after the other. `page` has
// the first rows that a lane brings.
template <int PART, bool KEY>
__device__ __forceinline__ void bring_boxes(const Params& p, const Item& item, int tile, int runs, int page, u32 buffer, u32 barrier) {
  constexpr int COUNT = boxes_of_part(KEY ? K_BOXES : V_BOXES, PART), EACH_RUN = COUNT ? COUNT : 1, RUNS = 32 / EACH_RUN;
  const int lane = threadIdx.x & 31;
  if (lane == 0) barrier_expect(barrier, runs * COUNT * PAGE_ROWS * 128);
  __syncwarp();
  if (lane >= RUNS * COUNT) return;
  const int first = lane / EACH_RUN, box = box_of_part(PART, lane % EACH_RUN), from = (item.first + tile) * TILE;
  for (int run = first; run < runs; run += RUNS) {
    const int row = PAGED ? (from + run * PAGE_ROWS) % PAGE : first_row(p, item, KEY) + from + run * PAGE_ROWS;
    copy_box(buffer + box * BOX + run * PAGE_ROWS * 128, KEY ? &p.map_k : &p.map_v, box * 64, item.head, row,
             run == first ? page : page_of(p, item, tile, run, KEY), barrier);
  }
}

// One warp: brings a part of all buffers.
template <int PART>
__device__ __forceinline__ void bring_part(const Params& p, Share share, u32 buffers, u32 full, u32 empty, int* shared_rows) {
  constexpr int OF_KEYS = boxes_of_part(K_BOXES, PART), OF_VALUES = boxes_of_part(V_BOXES, PART);
  const int lane = threadIdx.x & 31, run_of_keys = lane / (OF_KEYS ? OF_KEYS : 1), run_of_values = lane / (OF_VALUES ? OF_VALUES : 1);
  Item item = share.item;
  int tile = share.at;
  Buffer buffer{0, 1};
  for (int left = (int)(share.to - share.from); left > 0; left--) {
    // All that is read of tables comes while the buffer is still in use.
    const int runs = min(PARTS, (max(0, item.end - (item.first + tile) * TILE) + PAGE_ROWS - 1) / PAGE_ROWS);
    const int page = page_of(p, item, tile, run_of_keys, true);
    const bool one = values_in_keys(p, item, tile, runs);
    const u32 ready = full + 8 * (2 * buffer.slot + PART);
    barrier_wait(empty + 8 * (2 * buffer.slot + PART), buffer.parity);
    if (lane == 0) shared_rows[2 * buffer.slot + PART] = one;
    bring_boxes<PART, true>(p, item, tile, runs, page, buffers + buffer.slot * STAGE, ready);
    buffer = buffer.next();
    if (!one) {
      barrier_wait(empty + 8 * (2 * buffer.slot + PART), buffer.parity);
      bring_boxes<PART, false>(p, item, tile, runs, page_of(p, item, tile, run_of_values, false), buffers + buffer.slot * STAGE,
                               full + 8 * (2 * buffer.slot + PART));
      buffer = buffer.next();
    }
    if (++tile == item.tiles && left > 1) {
      advance(p, item);
      tile = 0;
    }
  }
}
#endif

// Multiplies queries by the columns of keys in one part of a buffer.
template <int PART>
__device__ __forceinline__ void multiply_part(float (&score)[TILE / 8][4], u64 of_queries, u64 of_keys, bool add) {
#pragma unroll
  for (int step = 0; step < HEAD_DIM / 16; step++) {
    if (!is_of_part(step >> 2, PART)) continue;
    multiply_keys(score, of_queries + ((step >> 2) * ROWS * 8 + (step & 3) * 2), of_keys + ((step >> 2) * (BOX >> 4) + (step & 3) * 2), PART || add);
    add = true;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) attend(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ i64 memory[40];
  __shared__ __align__(8) u64 barriers[4 * STAGES];
  __shared__ int shared_rows[2 * STAGES];  // of a part of a buffer with keys: whether the values are columns of them
  // The compiler must see that whole warps take a branch, or it lets no products run beside other work.
  const int thread = threadIdx.x, lane = thread & 31, warp = __shfl_sync(~0u, thread >> 5, 0), warp_row = warp & 3, group = warp >> 2;
  const u32 buffers = (u32)__cvta_generic_to_shared(shared), full = (u32)__cvta_generic_to_shared(barriers);
  const u32 empty = full + 16 * STAGES;
  unsigned char *const queries = shared + STAGES * STAGE, *const weights = queries + QUERY_BYTES;
  // Of each row: the largest score so far, what sums fade by, and the sums of weights of both groups.
  float *const tops = (float*)(weights + ROWS * 128), *const fades = tops + ROWS, *const halves = fades + ROWS;
  if (thread == 0) {
    for (int i = 0; i < 2 * STAGES; i++) {
#if GATHER
      barrier_init(full + 8 * i, GATHER_ARRIVALS);
#else
      barrier_init(full + 8 * i, 1);
#endif
      barrier_init(empty + 8 * i, 4);
    }
    fence_barriers();
  }
#if LENGTHS
  wait_for_previous();
#endif
  const Share share = share_of(p, blockIdx.x, THREADS, memory);
#if !LENGTHS
  wait_for_previous();
#endif
  let_next_begin();
  int left = (int)(share.to - share.from);
  if (left == 0) return;
  if (warp >= WARPS) {
    give_registers();
#if GATHER
    gather(p, share, buffers, full, empty, shared_rows);
#else
    if (warp == WARPS) bring_part<0>(p, share, buffers, full, empty, shared_rows);
    if (warp == WARPS + 1) bring_part<1>(p, share, buffers, full, empty, shared_rows);
#endif
    return;
  }
  take_registers();
  const Signs signs(p.scale);
  const float unit = unit_of(p.scale);
  const int column_from = group * COLUMNS;
  const u64 of_queries = matrix((u32)__cvta_generic_to_shared(queries), 1, 64);
  const u64 of_weights = matrix((u32)__cvta_generic_to_shared(weights), 1, 64);
  Item item = share.item;
  int tile = share.at;
  Buffer at{0, 0};
  // Lets this group's part of a buffer be filled anew.
  auto release = [&](const Buffer& buffer) {
    __syncwarp();
    if (lane == 0) barrier_arrive(empty + 8 * (2 * buffer.slot + group));
  };
  // Whether the values of a tile are columns of its keys, which are in a buffer or on their way.
  auto one_buffer = [&](const Buffer& buffer) {
    barrier_wait(full + 8 * (2 * buffer.slot + group), buffer.parity);
    return MAY_SHARE && shared_rows[2 * buffer.slot + group] != 0;
  };
  auto await_part = [&](const Buffer& buffer, int part) {
    barrier_wait(full + 8 * (2 * buffer.slot + part), buffer.parity);
#if GATHER
    // As in attend.cu: products read what single copies wrote.
    fence_async();
#endif
  };
  while (left > 0) {
    const int count = __shfl_sync(~0u, min(left, item.tiles - tile), 0);
    const bool begins = tile == 0, ends = tile + count == item.tiles;
    const int rows = min(ROWS, rows_of(p, item.queries) - item.rows_from);
    set_drafts(p, item, warp_row);
    sync_consumers();
    bring_queries(p, item, rows, signs, queries);
    fence_async();
    sync_consumers();
    float out[COLUMNS / 8][4], top[2] = {-INFINITE, -INFINITE}, sum[2] = {0.f, 0.f}, fade[2];
    float score[TILE / 8][4];
    u32 weight[TILE / 16][4];
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0.f;
    // Begins to multiply queries by the keys of a tile.
    auto multiply_tile = [&](const Buffer& buffer) {
      const u64 of_keys = matrix(buffers + buffer.slot * STAGE, 1, 64);
      await_part(buffer, 0);
      products_begin();
      multiply_part<0>(score, of_queries, of_keys, false);
      await_part(buffer, 1);
      multiply_part<1>(score, of_queries, of_keys, true);
      products_commit();
    };
    // Waits for the values of tile `i` and readies them: rows that no copy brought, or that lie beyond the sequence, may
    // hold no numbers.
    auto await_values = [&](int i, const Buffer& buffer) {
      await_part(buffer, group);
      const int key_from = (item.first + tile + i) * TILE;
      if (key_from + TILE <= item.end) return;
      unsigned char* const to = shared + buffer.slot * STAGE;
      for (int x = max(0, item.end - key_from) * (COLUMNS / 8) + (thread & 127); x < TILE * (COLUMNS / 8); x += 128)
        *(uint4*)(to + place(x / (COLUMNS / 8), column_from / 8 + x % (COLUMNS / 8), TILE)) = make_uint4(0, 0, 0, 0);
      fence_async();
      sync_some(2 + group, 128);
    };
    auto values_at = [&](const Buffer& buffer) {
      return matrix(buffers + buffer.slot * STAGE + column_from / 64 * BOX, BOX >> 4, 64);
    };
    // Weighs a tile whose scores there are, for both groups, and multiplies the weights by this group's values. All
    // products end here: over a branch that some threads might take, the compiler lets none run beside other work.
    auto weigh = [&](int i, bool one) {
      const Buffer values = one ? at : at.next();
      settle_all(score);
      if (!one) release(at);
      soften(p, item, (item.first + tile + i) * TILE, warp_row, unit, score, top, sum, fade);
      pack_weights(weight, score);
      const int row = warp_row * 16 + (lane >> 2);
#pragma unroll
      for (int k = 0; k < TILE / 16; k++)
#pragma unroll
        for (int n = 0; n < 4; n++)
          *(u32*)(weights + place(row + (n & 1) * 8, k * 2 + (n >> 1), ROWS) + (lane & 3) * 4) = weight[k][n];
      if ((lane & 3) == 0) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          tops[row + half * 8] = top[half];
          fades[row + half * 8] = fade[half];
        }
      }
      fence_async();
      arrive_some(6 + (i & 1), CONSUMERS);
      await_values(i, values);
      fade_sums(out, fade);
      const u64 of_values = values_at(values);
      products_begin();
#pragma unroll
      for (int k = 0; k < TILE / 16; k++) multiply_values(out, weight[k], of_values + k * 128);
      products_commit();
      products_wait<0>();
      settle_all(out);
      release(values);
      at = values.next();
    };
    // Begins to multiply the weights of a tile that the other group weighs, and returns where its values are.
    auto follow = [&](int i, bool one) {
      const Buffer values = one ? at : at.next();
      sync_some(6 + (i & 1), CONSUMERS);
      if (!one) release(at);
      const int row = warp_row * 16 + (lane >> 2);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        top[half] = tops[row + half * 8];
        fade[half] = fades[row + half * 8];
        sum[half] *= fade[half];
      }
      await_values(i, values);
      fade_sums(out, fade);
      const u64 of_values = values_at(values);
      products_begin();
#pragma unroll
      for (int k = 0; k < TILE / 16; k++) multiply_shared(out, of_weights + k * 2, of_values + k * 128);
      products_commit();
      at = values.next();
      return values;
    };
    if (group == 0) {
      multiply_tile(at);
      products_wait<0>();
      weigh(0, one_buffer(at));
    }
    for (int i = 2 - group; i < count; i += 2) {
      // Behind the products of the other group's tile those of the next scores begin.
      const Buffer before = follow(i - 1, one_buffer(at));
      const bool next = one_buffer(at);
      multiply_tile(at);
      products_wait<1>();
      settle_all(out);
      release(before);
      products_wait<0>();
      weigh(i, next);
    }
    if ((count & 1) == group) {
      const Buffer last = follow(count - 1, one_buffer(at));
      products_wait<0>();
      settle_all(out);
      release(last);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
      if ((lane & 3) == 0) halves[group * ROWS + warp_row * 16 + (lane >> 2) + half * 8] = sum[half];
    }
    // With this the next queries may be written, too.
    sync_consumers();
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = warp_row * 16 + (lane >> 2) + half * 8;
      sum[half] = halves[row] + halves[ROWS + row];
    }
    write_rows(p, item, begins, ends, rows, warp_row, column_from, top, sum, out);
    left -= count;
    tile += count;
    if (left > 0) {
      advance(p, item);
      tile = 0;
    }
  }
}
