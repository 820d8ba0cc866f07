// The attention of a block's share: one warp brings tiles of keys and values (bring.cu), or four (gather.cu), the others
// compute.

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) attend(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ i64 memory[40];
  __shared__ __align__(8) u64 barriers[2 * STAGES];
  __shared__ int shared_rows[STAGES];  // whether the values of a stage are columns of its keys
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const int warp_row = warp % WARPS_ROWS, warp_key = warp / WARPS_ROWS;
  const u32 stages = (u32)__cvta_generic_to_shared(shared), full = (u32)__cvta_generic_to_shared(barriers);
  const u32 empty = full + 8 * STAGES;
  unsigned char* const queries = shared + STAGES * STAGE;
  if (thread == 0) {
    for (int i = 0; i < STAGES; i++) {
#if GATHER
      barrier_init(full + 8 * i, GATHER_ARRIVALS);
#else
      barrier_init(full + 8 * i, 1);
#endif
      barrier_init(empty + 8 * i, WARPS);
    }
    fence_barriers();
  }
#if LENGTHS
  wait_for_previous();
#endif
#if INVARIANT
  Share share = share_of(p, blockIdx.x, THREADS, memory);
  if (share.from < share.to) share.to = share.from + reach(share.item, share.at, (int)(share.to - share.from));
  else share.to = share.from;
#else
  const Share share = share_of(p, blockIdx.x, THREADS, memory);
#endif
#if !LENGTHS
  wait_for_previous();
#endif
  let_next_begin();
  int left = (int)(share.to - share.from);
  if (left == 0) return;
  if (warp >= WARPS) {
#if MOVE_REGISTERS
    give_registers();
#endif
#if GATHER
    gather(p, share, stages, full, empty, shared_rows);
#else
    if (warp == WARPS) bring(p, share, stages, full, empty, shared_rows);
#endif
    return;
  }
#if MOVE_REGISTERS
  take_registers();
#endif
  if (warp >= 4) give_turn(warp);
  const Signs signs(p.scale);
  const float unit = unit_of(p.scale);
  Item item = share.item;
  int tile = share.at, slot = 0;
  u32 parity = 0;
  while (left > 0) {
    const int count = min(left, item.tiles - tile);
    const bool begins = tile == 0, ends = tile + count == item.tiles;
    const int rows = min(ROWS, rows_of(p, item.queries) - item.rows_from);
    set_drafts(p, item, warp_row);
#if NARROW
    float key_unit[2] = {1.f, 1.f};
#endif
#if QUERIES_IN_REGISTERS
#if NARROW
    u32 held[HEAD_DIM / 16][4];
    hold_queries(p, item, rows, warp_row, signs, held, key_unit);
#else
#if VARLEN_Q
    const u16* const q = p.q + p.offsets_q[item.batch];
#else
    const u16* const q = p.q + item.batch * p.q_batch;
#endif
    u32 held[HEAD_DIM / 16][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = warp_row * 16 + half * 8 + (lane >> 2), at = item.rows_from + (row < rows ? row : 0);
      const u16* const from = q + at / GROUP * p.q_row + (item.head * GROUP + at % GROUP) * p.q_head + (lane & 3) * 2;
#pragma unroll
      for (int step = 0; step < HEAD_DIM / 16; step++) {
        const u32 low = signs.of(*(const u32*)(from + step * 16)), high = signs.of(*(const u32*)(from + step * 16 + 8));
        held[step][half] = row < rows ? low : 0;
        held[step][2 + half] = row < rows ? high : 0;
      }
    }
#endif
#else
    sync_consumers();
    bring_queries(p, item, rows, signs, queries);
#if WARPGROUPS
    fence_async();
#endif
    sync_consumers();
#endif
#if NARROW
    const float value_unit = *p.descale_v / WEIGHT_UNIT;
    key_unit[0] *= *p.descale_k;
    key_unit[1] *= *p.descale_k;
#endif
    float out[COLUMNS / 8][4], top[2] = {-INFINITE, -INFINITE}, sum[2] = {0.f, 0.f};
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0.f;
    float score[WARP_KEYS / 8][4];
    u32 weight[WARP_KEYS / 16][4], values = 0;
#if INVARIANT
    // The sums of the spans before, in this thread's own places, and where the span ends that is being summed.
#if SPANS_SHARED
#define SPAN_STEP CONSUMERS
    float* const whole = (float*)(queries + QUERY_BYTES) + thread;
#else
#define SPAN_STEP 1
    float whole[COLUMNS / 2];
#endif
    float whole_top[2] = {-INFINITE, -INFINITE}, whole_sum[2] = {0.f, 0.f};
#pragma unroll
    for (int n = 0; n < COLUMNS / 2; n++) whole[n * SPAN_STEP] = 0.f;
    const int pieces = begins ? 0 : pieces_before(p, item, share);
    int span_end = end_of_span((item.first + tile) * TILE);
    // Adds a span's sums to those before it, or writes them as a piece of their own; the next span begins with nothing.
    auto end_span = [&](const float (&span_top)[2], const float (&span_sum)[2]) {
#if NARROW
      real_sums(out, value_unit);
#endif
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float all = span_sum[half] + __shfl_xor_sync(~0u, span_sum[half], 1);
        all += __shfl_xor_sync(~0u, all, 2);
        if (begins) {
          float of_whole;
          const float of_span = add_span(whole_top[half], whole_sum[half], span_top[half], all, of_whole);
#pragma unroll
          for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
            for (int e = half * 2; e < half * 2 + 2; e++) {
              float& at = whole[(n * 4 + e) * SPAN_STEP];
              at = __fmaf_rn(at, of_whole, __fmul_rn(out[n][e], of_span));
            }
        } else if (const int row = warp_row * 16 + half * 8 + (lane >> 2); row < rows) {
          const i64 at = piece_row(p, pieces + span_index(span_end - 1), row);
          float* const to = p.sums + at * VALUE_DIM + (lane & 3) * 2;
#pragma unroll
          for (int n = 0; n < COLUMNS / 8; n++) *(float2*)(to + n * 8) = make_float2(out[n][half * 2], out[n][half * 2 + 1]);
          if ((lane & 3) == 0) *(float2*)&p.ends[at * 2] = make_float2(span_top[half], all);
        }
      }
    };
#endif
    // Waits for tile `i`.
    auto await_tile = [&](int i) {
      barrier_wait(full + 8 * slot, parity);
#if GATHER
#if WARPGROUPS
      // Copies of single rows are no asynchronous proxy's writes, as copies of boxes are, and products read by it. A
      // fence between the two counts in any thread that has seen the writes, so each that multiplies has one here; one of
      // the threads that copy would have to wait for its copies first, and would ask for no others meanwhile.
      fence_async();
#endif
#endif
      const u32 keys = stages + slot * STAGE;
      values = keys + (MAY_SHARE && shared_rows[slot] ? 0 : K_BOXES * BOX);
      const int key_from = (item.first + tile + i) * TILE + warp_key * WARP_KEYS;
      if (key_from + WARP_KEYS > item.end) {
        // Rows that no copy brought, or that lie beyond the sequence: they may hold no numbers.
        unsigned char* const to = shared + (values - stages);
#if NARROW
        for (int x = max(0, item.end - key_from) * VALUE_PARTS + lane; x < WARP_KEYS * VALUE_PARTS; x += 32)
          *(uint4*)(to + place(warp_key * WARP_KEYS + x / VALUE_PARTS, x % VALUE_PARTS, TILE)) = make_uint4(0, 0, 0, 0);
#else
        for (int x = max(0, item.end - key_from) * (COLUMNS / 8) + lane; x < WARP_KEYS * (COLUMNS / 8); x += 32)
          *(uint4*)(to + place(warp_key * WARP_KEYS + x / (COLUMNS / 8), x % (COLUMNS / 8), TILE)) = make_uint4(0, 0, 0, 0);
#endif
        fence_async();
        __syncwarp();
#if WARPGROUPS
        sync_some(2 + warp / 4, 128);
#endif
      }
    };
    // Multiplies queries by the keys of the tile.
    auto multiply_tile = [&] {
      const u32 keys = stages + slot * STAGE;
#if WARPGROUPS
      // Matrices lie at fixed distances, which descriptors count in 16 bytes.
      const u64 of_queries = matrix((u32)__cvta_generic_to_shared(queries) + (warp_row >> 2) * 8192, 1, 64);
      const u64 of_keys = matrix(keys + warp_key * WARP_KEYS * 128, 1, 64);
      products_begin();
#pragma unroll
      for (int step = 0; step < HEAD_DIM / 16; step++)
        multiply_keys(score, of_queries + ((step >> 2) * ROWS * 8 + (step & 3) * 2), of_keys + ((step >> 2) * (BOX >> 4) + (step & 3) * 2), step > 0);
      products_commit();
#else
#if NARROW
      multiply_narrow(score, held, keys, warp_key);
#else
#pragma unroll
      for (int n = 0; n < WARP_KEYS / 8; n++) score[n][0] = score[n][1] = score[n][2] = score[n][3] = 0.f;
#pragma unroll
      for (int step = 0; step < HEAD_DIM / 16; step++) {
#if QUERIES_IN_REGISTERS
        const u32 (&of_rows)[4] = held[step];
#else
        u32 of_rows[4];
        load_matrices(of_rows, (u32)__cvta_generic_to_shared(queries) + place(warp_row * 16 + (lane & 15), step * 2 + (lane >> 4), ROWS));
#endif
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 16; n++) {
          u32 of_keys[4];
          const int row = warp_key * WARP_KEYS + n * 16 + (lane & 7) + ((lane >> 4) << 3);
          load_matrices(of_keys, keys + place(row, step * 2 + ((lane >> 3) & 1), TILE));
          multiply(score[2 * n], of_rows, of_keys[0], of_keys[1]);
          multiply(score[2 * n + 1], of_rows, of_keys[2], of_keys[3]);
        }
      }
#endif
#endif
    };
    // Multiplies the weights of a tile by its values.
    auto multiply_weights = [&](u32 values) {
#if WARPGROUPS
      const u64 of_values = matrix(values + warp_key * WARP_KEYS * 128, BOX >> 4, 64);
      products_begin();
#pragma unroll
      for (int k = 0; k < WARP_KEYS / 16; k++) multiply_values(out, weight[k], of_values + k * 128);
      products_commit();
#else
#if NARROW
      sum_narrow(out, weight, values, warp_key);
#else
#pragma unroll
      for (int k = 0; k < WARP_KEYS / 16; k++)
#pragma unroll
        for (int n = 0; n < VALUE_DIM / 16; n++) {
          u32 of_values[4];
          load_transposed(of_values, values + place(warp_key * WARP_KEYS + k * 16 + (lane & 15), n * 2 + (lane >> 4), TILE));
          multiply(out[2 * n], weight[k], of_values[0], of_values[1]);
          multiply(out[2 * n + 1], weight[k], of_values[2], of_values[3]);
        }
#endif
#endif
    };
    // Lets the place of a tile be filled anew.
    auto release = [&](int slot) {
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + 8 * slot);
    };
    float fade[2];
    auto soften_tile = [&](int i) {
#if NARROW
      scale_scores(score, key_unit);
#endif
      soften(p, item, (item.first + tile + i) * TILE + warp_key * WARP_KEYS, warp_row, unit, score, top, sum, fade);
    };
    await_tile(0);
    multiply_tile();
    products_wait<0>();
    settle_all(score);
    soften_tile(0);
    pack_weights(weight, score);
    for (int i = 1; i < count; i++) {
      const u32 values_before = values;
      const int slot_before = slot;
      if (++slot == STAGES) {
        slot = 0;
        parity ^= 1;
      }
#if WARPGROUPS
      // The values of the tile before are multiplied beside the softmax of this one.
      await_tile(i);
      take_turn(warp);
      multiply_tile();
      multiply_weights(values_before);
      give_turn(warp);
      products_wait<1>();
      settle_all(score);
#else
      multiply_weights(values_before);
      release(slot_before);
      await_tile(i);
      multiply_tile();
#endif
#if INVARIANT
      const bool new_span = (item.first + tile + i) * TILE == span_end;
      const float span_top[2] = {top[0], top[1]}, span_sum[2] = {sum[0], sum[1]};
      if (new_span) {
        top[0] = top[1] = -INFINITE;
        sum[0] = sum[1] = 0.f;
      }
#endif
      soften_tile(i);
#if WARPGROUPS
      products_wait<0>();
      settle_all(out);
      release(slot_before);
#endif
#if INVARIANT
      if (new_span) {
        end_span(span_top, span_sum);
        span_end = end_of_span(span_end);
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0.f;
      } else
#endif
      fade_sums(out, fade);
      pack_weights(weight, score);
    }
    multiply_weights(values);
    products_wait<0>();
    settle_all(out);
    release(slot);
    if (++slot == STAGES) {
      slot = 0;
      parity ^= 1;
    }
#if INVARIANT
    span_end = end_of_span((item.first + tile + count) * TILE - 1);
    end_span(top, sum);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      top[half] = whole_top[half];
      sum[half] = whole_sum[half];
    }
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) out[n][e] = whole[(n * 4 + e) * SPAN_STEP];
#else
#pragma unroll
    for (int half = 0; half < 2; half++) {
      sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
    }
#if NARROW
    real_sums(out, value_unit);
#endif
#endif
#if WARPS_KEYS > 1
    // The warps that share rows: the first one takes the sums of the others.
    float* const sums = (float*)(queries + QUERY_BYTES);
    float* const ends_of = sums + (WARPS_KEYS - 1) * p.piece_rows * VALUE_DIM;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = warp_row * 16 + half * 8 + (lane >> 2);
      if (warp_key > 0 && row < rows) {
        const int at = (warp_key - 1) * p.piece_rows + row;
        if ((lane & 3) == 0) {
          ends_of[at * 2] = top[half];
          ends_of[at * 2 + 1] = sum[half];
        }
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++)
          *(float2*)&sums[at * VALUE_DIM + n * 8 + (lane & 3) * 2] = make_float2(out[n][half * 2], out[n][half * 2 + 1]);
      }
    }
    sync_consumers();
    if (warp_key == 0) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int row = warp_row * 16 + half * 8 + (lane >> 2);
        if (row >= rows) continue;
        float most = top[half];
#pragma unroll
        for (int w = 0; w < WARPS_KEYS - 1; w++) most = fmaxf(most, ends_of[(w * p.piece_rows + row) * 2]);
        const float base = most == -INFINITE ? 0.f : most, fade = exponential(top[half] - base);
        top[half] = most;
        sum[half] *= fade;
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++) {
          out[n][half * 2] *= fade;
          out[n][half * 2 + 1] *= fade;
        }
#pragma unroll
        for (int w = 0; w < WARPS_KEYS - 1; w++) {
          const int at = w * p.piece_rows + row;
          const float factor = exponential(ends_of[at * 2] - base);
          sum[half] += factor * ends_of[at * 2 + 1];
#pragma unroll
          for (int n = 0; n < COLUMNS / 8; n++) {
            const float2 more = *(const float2*)&sums[at * VALUE_DIM + n * 8 + (lane & 3) * 2];
            out[n][half * 2] += factor * more.x;
            out[n][half * 2 + 1] += factor * more.y;
          }
        }
      }
    }
#endif
    if (warp_key == 0) write_rows(p, item, begins, ends, rows, warp_row, 0, top, sum, out);
    left -= count;
    tile += count;
    if (left > 0) {
      advance(p, item);
      tile = 0;
#if INVARIANT
      left = reach(item, 0, left);
#endif
    }
#if WARPS_KEYS > 1
    sync_consumers();
#endif
  }
}
