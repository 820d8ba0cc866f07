// The attention of values of more than 256 columns, such as a latent cache's: two groups of four warps, each of which
// sums half of the columns. They compute the scores of tiles in turn, one of them the even tiles, so that the scores of
// a tile are multiplied beside the softmax of the one before. Weights go to the other group through shared memory.
//
// Keys, or values that lie elsewhere, have a buffer of shared memory each, in two parts: columns that the first group's
// sums need and those of the second's. A part is filled by a warp of its own and left by its own group, so that it can be
// filled anew before the other group has done with its part.

// 64 columns of a buffer's rows belong to part 1 if values of such a number belong to the second group.
#define BOXES_OF_SUMS (COLUMNS / 64)
__device__ __forceinline__ constexpr int part_of_box(int box) { return box / BOXES_OF_SUMS == 1; }
__device__ __forceinline__ constexpr int boxes_of_part(int boxes, int part) {
  int count = 0;
  for (int box = 0; box < boxes; box++) count += part_of_box(box) == part;
  return count;
}
__device__ __forceinline__ constexpr int box_of_part(int part, int number) {
  int box = 0;
  for (;; box++)
    if (part_of_box(box) == part && number-- == 0) return box;
}

// A buffer, and the parity of its barriers.
struct Buffer {
  int slot;
  u32 parity;
  __device__ __forceinline__ Buffer next() const { return slot + 1 == STAGES ? Buffer{0, parity ^ 1} : Buffer{slot + 1, parity}; }
};

// One warp: brings a part of all buffers. A lane copies a box of 64 columns and as many rows as lie one after the other.
__device__ __forceinline__ void bring_part(const Params& p, Share share, int part, u32 buffers, u32 full, u32 empty, int* shared_rows) {
  const int lane = threadIdx.x & 31;
  Item item = share.item;
  int tile = share.at;
  Buffer buffer{0, 1};
  for (int left = (int)(share.to - share.from); left > 0; left--) {
    const int from = (item.first + tile) * TILE, runs = min(PARTS, (max(0, item.end - from) + PAGE_ROWS - 1) / PAGE_ROWS);
    const bool one = values_in_keys(p, item, tile, runs);
    for (int key = 1; key >= one; key--) {
      const int boxes = boxes_of_part(key ? K_BOXES : V_BOXES, part);
      const int rows_before = first_row(p, item, key);
      barrier_wait(empty + 8 * (2 * buffer.slot + part), buffer.parity);
      if (key && lane == 0) shared_rows[2 * buffer.slot + part] = one;
      if (lane == 0) barrier_expect(full + 8 * (2 * buffer.slot + part), runs * boxes * PAGE_ROWS * 128);
      __syncwarp();
      for (int i = lane; i < runs * boxes; i += 32) {
        const int run = i / boxes, box = box_of_part(part, i % boxes), row = run * PAGE_ROWS;
        copy_box(buffers + buffer.slot * STAGE + box * BOX + row * 128, key ? &p.map_k : &p.map_v, box * 64, item.head,
                 PAGED ? (from + row) % PAGE : rows_before + from + row, page_of(p, item, tile, run, key), full + 8 * (2 * buffer.slot + part));
      }
      buffer = buffer.next();
    }
    if (++tile == item.tiles && left > 1) {
      advance(p, item);
      tile = 0;
    }
  }
}

// Multiplies queries by the columns of keys in one part of a buffer.
template <int PART>
__device__ __forceinline__ void multiply_part(float (&score)[TILE / 8][4], u64 of_queries, u64 of_keys, bool add) {
#pragma unroll
  for (int step = 0; step < HEAD_DIM / 16; step++) {
    if (part_of_box(step >> 2) != PART) continue;
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
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, 4);
    }
    fence_barriers();
  }
  wait_for_previous();
  const Share share = share_of(p, blockIdx.x, THREADS, memory);
  let_next_begin();
  int left = (int)(share.to - share.from);
  if (left == 0) return;
  if (warp >= WARPS) {
    give_registers();
    if (warp < WARPS + 2) bring_part(p, share, warp - WARPS, buffers, full, empty, shared_rows);
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
    return shared_rows[2 * buffer.slot + group] != 0;
  };
  while (left > 0) {
    const int count = __shfl_sync(~0u, min(left, item.tiles - tile), 0);
    const bool begins = tile == 0, ends = tile + count == item.tiles;
    const int rows = min(ROWS, rows_of(p, item.queries) - item.rows_from);
#if VARLEN_Q
    const u16* const q = p.q + p.offsets_q[item.batch];
#else
    const u16* const q = p.q + item.batch * p.q_batch;
#endif
    sync_consumers();
    for (int i = thread; i < ROWS * (HEAD_DIM / 8); i += CONSUMERS) {
      const int row = i / (HEAD_DIM / 8), part = i % (HEAD_DIM / 8), from = item.rows_from + (row < rows ? row : 0);
      uint4 value = *(const uint4*)(q + from / GROUP * p.q_row + (item.head * GROUP + from % GROUP) * p.q_head + part * 8);
      value = row < rows ? make_uint4(signs.of(value.x), signs.of(value.y), signs.of(value.z), signs.of(value.w)) : make_uint4(0, 0, 0, 0);
      *(uint4*)(queries + place(row, part, ROWS)) = value;
    }
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
      barrier_wait(full + 8 * 2 * buffer.slot, buffer.parity);
      products_begin();
      multiply_part<0>(score, of_queries, of_keys, false);
      barrier_wait(full + 8 * (2 * buffer.slot + 1), buffer.parity);
      multiply_part<1>(score, of_queries, of_keys, true);
      products_commit();
    };
    // Waits for the values of tile `i` and readies them: rows that no copy brought, or that lie beyond the sequence, may
    // hold no numbers.
    auto await_values = [&](int i, const Buffer& buffer) {
      barrier_wait(full + 8 * (2 * buffer.slot + group), buffer.parity);
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
    // A tile whose scores this group was asked for: they become weights, for both groups.
    auto weigh = [&](int i) {
      const bool one = one_buffer(at);
      const Buffer values = one ? at : at.next();
      products_wait<0>();
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
    // A tile that the other group weighs. Behind its products those of the next scores begin.
    auto follow = [&](int i) {
      const bool one = one_buffer(at);
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
      if (i + 1 < count) {
        multiply_tile(values.next());
        products_wait<1>();
      } else {
        products_wait<0>();
      }
      settle_all(out);
      release(values);
      at = values.next();
    };
    if (group == 0) multiply_tile(at);
    else follow(0);
    for (int i = group; i < count; i += 2) {
      weigh(i);
      if (i + 1 < count) follow(i + 1);
    }
    products_wait<0>();
    settle_all(score);
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
