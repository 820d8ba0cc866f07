// The attention of a block's share: one warp brings tiles of keys and values (bring.cu), the others compute.

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) attend(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ i64 memory[40];
  __shared__ __align__(8) u64 barriers[2 * STAGES];
  __shared__ int shared_rows[STAGES];  // whether the values of a stage are columns of its keys
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const int warp_row = warp % WARPS_ROWS, warp_key = warp / WARPS_ROWS % WARPS_KEYS;
  const int column_from = warp / (WARPS_ROWS * WARPS_KEYS) * COLUMNS, columns = min(COLUMNS, VALUE_DIM - column_from);
  const u32 stages = (u32)__cvta_generic_to_shared(shared), full = (u32)__cvta_generic_to_shared(barriers);
  const u32 empty = full + 8 * STAGES;
  unsigned char* const queries = shared + STAGES * STAGE;
  if (thread == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, WARPS);
    }
    fence_barriers();
  }
  wait_for_previous();
  const Share share = share_of(p, blockIdx.x, THREADS, memory);
  let_next_begin();
  int left = (int)(share.to - share.from);
  if (left == 0) return;
  if (warp >= WARPS) {
#if MOVE_REGISTERS
    give_registers();
#endif
    if (warp == WARPS) bring(p, share, stages, full, empty, shared_rows);
    return;
  }
#if MOVE_REGISTERS
  take_registers();
#endif
  Item item = share.item;
  int tile = share.at, slot = 0;
  u32 parity = 0;
  while (left > 0) {
    const int count = min(left, item.tiles - tile);
    const bool begins = tile == 0, ends = tile + count == item.tiles;
    const int rows = min(ROWS, rows_of(item.queries) - item.rows_from);
#if VARLEN_Q
    const u16* const q = p.q + p.offsets_q[item.batch];
#else
    const u16* const q = p.q + (i64)item.batch * Q_BATCH;
#endif
#if QUERIES_IN_REGISTERS
    u32 held[HEAD_DIM / 16][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = warp_row * 16 + half * 8 + (lane >> 2), at = item.rows_from + (row < rows ? row : 0);
      const u16* const from = q + (i64)(at / GROUP) * Q_ROW + (i64)(item.head * GROUP + at % GROUP) * Q_HEAD + (lane & 3) * 2;
#pragma unroll
      for (int step = 0; step < HEAD_DIM / 16; step++) {
        const u32 low = *(const u32*)(from + step * 16), high = *(const u32*)(from + step * 16 + 8);
        held[step][half] = row < rows ? low : 0;
        held[step][2 + half] = row < rows ? high : 0;
      }
    }
#else
    sync_consumers();
    for (int i = thread; i < ROWS * (HEAD_DIM / 8); i += CONSUMERS) {
      const int row = i / (HEAD_DIM / 8), part = i % (HEAD_DIM / 8), at = item.rows_from + (row < rows ? row : 0);
      uint4 value = *(const uint4*)(q + (i64)(at / GROUP) * Q_ROW + (i64)(item.head * GROUP + at % GROUP) * Q_HEAD + part * 8);
      if (row >= rows) value = make_uint4(0, 0, 0, 0);
      *(uint4*)(queries + place(row, part, ROWS)) = value;
    }
#if WARPGROUPS
    fence_async();
#endif
    sync_consumers();
#endif
    float out[COLUMNS / 8][4], top[2] = {-INFINITE, -INFINITE}, sum[2] = {0.f, 0.f};
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0.f;
    for (int i = 0; i < count; i++) {
      barrier_wait(full + 8 * slot, parity);
      const u32 keys = stages + slot * STAGE, values = keys + (MAY_SHARE && shared_rows[slot] ? 0 : K_BOXES * BOX);
      const int key_from = (item.first + tile + i) * TILE + warp_key * WARP_KEYS;
      if (key_from + WARP_KEYS > item.end) {
        // Rows that no copy brought, or that lie beyond the sequence: they may hold no numbers.
        unsigned char* const to = shared + (values - stages);
        for (int x = max(0, item.end - key_from) * (COLUMNS / 8) + lane; x < WARP_KEYS * (COLUMNS / 8); x += 32)
          *(uint4*)(to + place(warp_key * WARP_KEYS + x / (COLUMNS / 8), column_from / 8 + x % (COLUMNS / 8), TILE)) = make_uint4(0, 0, 0, 0);
        fence_async();
        __syncwarp();
#if WARPGROUPS
        sync_some(2 + warp / 4, 128);
#endif
      }
      float score[WARP_KEYS / 8][4];
#if WARPGROUPS
      products_begin();
#pragma unroll
      for (int step = 0; step < HEAD_DIM / 16; step++)
        multiply_keys(score,
                      matrix((u32)__cvta_generic_to_shared(queries) + (step >> 2) * ROWS * 128 + (warp_row >> 2) * 8192 + (step & 3) * 32, 1, 64),
                      matrix(keys + (step >> 2) * BOX + warp_key * WARP_KEYS * 128 + (step & 3) * 32, 1, 64), step > 0);
      products_end();
#pragma unroll
      for (int n = 0; n < WARP_KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) settle(score[n][e]);
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
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int row = item.rows_from + warp_row * 16 + half * 8 + (lane >> 2), query = row / GROUP;
        Point point{item.batch, item.head * GROUP + row % GROUP, query, 0, item.queries, item.keys};
        int from, to;
        seen(p, query, item.queries, item.keys, from, to);
        const bool edge = key_from + WARP_KEYS > to || key_from < from;
        float most = top[half];
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 8; n++)
#pragma unroll
          for (int e = 0; e < 2; e++) {
            point.key = key_from + n * 8 + (lane & 3) * 2 + e;
            float x = modified(p, point, score[n][half * 2 + e]);
            if ((edge && (point.key < from || point.key >= to)) || !visible(p, point)) x = -INFINITE;
            score[n][half * 2 + e] = x;
            most = fmaxf(most, x);
          }
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        const float base = most == -INFINITE ? 0.f : most, fade = exponential(top[half] - base);
        top[half] = most;
        float more = 0.f;
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 8; n++)
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const float x = exponential(score[n][half * 2 + e] - base);
            score[n][half * 2 + e] = x;
            more += x;
          }
        sum[half] = sum[half] * fade + more;
        if (__any_sync(~0u, fade != 1.f)) {
#pragma unroll
          for (int n = 0; n < COLUMNS / 8; n++) {
            out[n][half * 2] *= fade;
            out[n][half * 2 + 1] *= fade;
          }
        }
      }
      u32 weight[WARP_KEYS / 16][4];
#pragma unroll
      for (int k = 0; k < WARP_KEYS / 16; k++) {
        weight[k][0] = pack(score[2 * k][0], score[2 * k][1]);
        weight[k][1] = pack(score[2 * k][2], score[2 * k][3]);
        weight[k][2] = pack(score[2 * k + 1][0], score[2 * k + 1][1]);
        weight[k][3] = pack(score[2 * k + 1][2], score[2 * k + 1][3]);
      }
#if WARPGROUPS
      products_begin();
#pragma unroll
      for (int k = 0; k < WARP_KEYS / 16; k++)
        multiply_values(out, weight[k], matrix(values + column_from / 64 * BOX + warp_key * WARP_KEYS * 128 + k * 2048, BOX >> 4, 64));
      products_end();
#pragma unroll
      for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) settle(out[n][e]);
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
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + 8 * slot);
      if (++slot == STAGES) {
        slot = 0;
        parity ^= 1;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
    }
#if WARPS_KEYS > 1
    // The warps that share rows: the first one takes the sums of the others.
    float* const sums = (float*)(queries + QUERY_BYTES);
    float* const ends_of = sums + (WARPS_KEYS - 1) * PIECE_ROWS * VALUE_DIM;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = warp_row * 16 + half * 8 + (lane >> 2);
      if (warp_key > 0 && row < rows) {
        const int at = (warp_key - 1) * PIECE_ROWS + row;
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
        for (int w = 0; w < WARPS_KEYS - 1; w++) most = fmaxf(most, ends_of[(w * PIECE_ROWS + row) * 2]);
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
          const int at = w * PIECE_ROWS + row;
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
    if (warp_key == 0) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int row = warp_row * 16 + half * 8 + (lane >> 2);
        if (row >= rows) continue;
        const int query = (item.rows_from + row) / GROUP, head = item.head * GROUP + (item.rows_from + row) % GROUP;
        if (begins && ends) {
          float most = top[half], whole = sum[half];
          const float fade = take_sink(p, head, most, whole);
          if (query >= item.queries) whole = 0.f;
          const float factor = whole == 0.f ? 0.f : fade / whole;
          u16* const to = p.o + out_at(p, item.batch, head, query) + column_from + (lane & 3) * 2;
#pragma unroll
          for (int n = 0; n < COLUMNS / 8; n++)
            if (WARPS_COLUMNS == 1 || n * 8 < columns) *(u32*)(to + n * 8) = pack(out[n][half * 2] * factor, out[n][half * 2 + 1] * factor);
          if ((lane & 3) == 0 && column_from == 0) write_stats(p, item.batch, head, query, most, whole);
        } else {
          const i64 at = piece_at(blockIdx.x, begins, row);
          float* const to = p.sums + at * VALUE_DIM + column_from + (lane & 3) * 2;
#pragma unroll
          for (int n = 0; n < COLUMNS / 8; n++)
            if (WARPS_COLUMNS == 1 || n * 8 < columns) *(float2*)(to + n * 8) = make_float2(out[n][half * 2], out[n][half * 2 + 1]);
          if ((lane & 3) == 0 && column_from == 0) *(float2*)&p.ends[at * 2] = make_float2(top[half], sum[half]);
        }
      }
    }
    left -= count;
    tile += count;
    if (left > 0) {
      advance(p, item);
      tile = 0;
    }
#if WARPS_KEYS > 1
    sync_consumers();
#endif
  }
}
