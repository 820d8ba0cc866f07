// The softmax of a tile of scores, and what becomes of its sums: functions of the warps that compute.

// Brings the queries of an item to shared memory. A thread asks for all it brings before it waits for the first.
__device__ __forceinline__ void bring_queries(const Params& p, const Item& item, int rows, const Signs& signs, unsigned char* queries) {
  constexpr int PARTS_OF_ROW = HEAD_DIM / 8, LOADS = 8;
#if VARLEN_Q
  const u16* const q = p.q + p.offsets_q[item.batch];
#else
  const u16* const q = p.q + item.batch * p.q_batch;
#endif
  for (int first = threadIdx.x; first < ROWS * PARTS_OF_ROW; first += LOADS * CONSUMERS) {
    uint4 values[LOADS];
#pragma unroll
    for (int n = 0; n < LOADS; n++) {
      const int i = first + n * CONSUMERS, row = i / PARTS_OF_ROW, part = i % PARTS_OF_ROW, at = item.rows_from + row;
      values[n] = make_uint4(0, 0, 0, 0);
      if (row < rows) values[n] = *(const uint4*)(q + at / GROUP * p.q_row + (item.head * GROUP + at % GROUP) * p.q_head + part * 8);
    }
#pragma unroll
    for (int n = 0; n < LOADS; n++) {
      const int i = first + n * CONSUMERS;
      const uint4 value = make_uint4(signs.of(values[n].x), signs.of(values[n].y), signs.of(values[n].z), signs.of(values[n].w));
      if (i < ROWS * PARTS_OF_ROW) *(uint4*)(queries + place(i / PARTS_OF_ROW, i % PARTS_OF_ROW, ROWS)) = value;
    }
  }
}

#if DRAFT_TREE
// Reads what a thread's rows see of the drafts, long before the tile of keys that needs it.
__device__ __forceinline__ void set_drafts(const Params& p, Item& item, int warp_row) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = item.rows_from + warp_row * 16 + half * 8 + ((threadIdx.x & 31) >> 2);
    item.drafts[half] = drafts_of(p, item, row / GROUP);
  }
}
#else
__device__ __forceinline__ void set_drafts(const Params&, Item&, int) {}
#endif

// The softmax of a tile whose first key of this warp is `key_from`, of one or both of a thread's rows: scores become
// weights, less the largest score so far, and what was summed before fades.
template <int FROM, int END>
__device__ __forceinline__ void soften_rows(const Params& p, const Item& item, int key_from, int warp_row, float unit,
                                            float (&score)[WARP_KEYS / 8][4], float (&top)[2], float (&sum)[2], float (&fade)[2]) {
  const int lane = threadIdx.x & 31, first_key = key_from + (lane & 3) * 2;
  Point points[2];
  int from[2], to[2];
  bool edge = PREDICATE;
#pragma unroll
  for (int half = FROM; half < END; half++) {
    const int row = item.rows_from + warp_row * 16 + half * 8 + (lane >> 2), query = row / GROUP;
    points[half] = Point{item.batch, item.head * GROUP + row % GROUP, query, 0, item.queries, item.keys};
    seen(p, query, item.queries, item.keys, from[half], to[half]);
    edge |= key_from + WARP_KEYS > to[half] || key_from < from[half];
  }
#if NATURAL
  auto place_of = [&](int n, int e) -> const Point& {
    points[e >> 1].key = first_key + n * 8 + (e & 1);
    return points[e >> 1];
  };
#if HAS_NEAR
  // Some at a time: those of models are near, and what is far is modified again.
  constexpr int SOME = WARP_KEYS / 8 % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int n = 0; n < WARP_KEYS / 8; n += SOME) {
    float near[SOME][4], furthest = 0.f;
#pragma unroll
    for (int m = 0; m < SOME; m++)
#pragma unroll
      for (int e = FROM * 2; e < END * 2; e++) near[m][e] = modified_near(p, place_of(n + m, e), score[n + m][e], furthest);
    if (furthest > near_limit(p)) {
#pragma unroll
      for (int m = 0; m < SOME; m++)
#pragma unroll
        for (int e = FROM * 2; e < END * 2; e++) near[m][e] = modified(p, place_of(n + m, e), score[n + m][e]);
    }
#pragma unroll
    for (int m = 0; m < SOME; m++)
#pragma unroll
      for (int e = FROM * 2; e < END * 2; e++) score[n + m][e] = near[m][e];
  }
#else
#pragma unroll
  for (int n = 0; n < WARP_KEYS / 8; n++)
#pragma unroll
    for (int e = FROM * 2; e < END * 2; e++) score[n][e] = modified(p, place_of(n, e), score[n][e]);
#endif
#endif
#if DRAFT_TREE
  edge |= key_from + WARP_KEYS > item.keys - item.queries;
#endif
  // Most tiles lie within what all rows see, and compare no keys.
  if (__any_sync(~0u, edge)) {
#if DRAFT_TREE
    u64 drafts[2][(WARP_KEYS + 63) / 64];
#pragma unroll
    for (int half = FROM; half < END; half++)
#pragma unroll
      for (int i = 0; i < (WARP_KEYS + 63) / 64; i++)
        drafts[half][i] = seen_from(item.drafts[half], first_key + i * 64 - (item.keys - item.queries));
#endif
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8; n++)
#pragma unroll
      for (int e = FROM * 2; e < END * 2; e++) {
        Point& point = points[e >> 1];
        const int at = n * 8 + (e & 1);
        point.key = first_key + at;
        if (at < from[e >> 1] - first_key || at >= to[e >> 1] - first_key || !visible(p, point)) score[n][e] = -INFINITE;
#if DRAFT_TREE
        if (!(drafts[e >> 1][at / 64] >> (at % 64) & 1)) score[n][e] = -INFINITE;
#endif
      }
  }
  float most[2], base[2], more[2] = {0.f, 0.f};
#pragma unroll
  for (int half = FROM; half < END; half++) most[half] = score[0][half * 2];
#pragma unroll
  for (int n = 0; n < WARP_KEYS / 8; n++)
#pragma unroll
    for (int half = FROM; half < END; half++)
      most[half] = fmaxf(most[half], fmaxf(score[n][half * 2], score[n][half * 2 + 1]));
#pragma unroll
  for (int half = FROM; half < END; half++) {
    most[half] = fmaxf(most[half], __shfl_xor_sync(~0u, most[half], 1));
    most[half] = fmaxf(top[half], fmaxf(most[half], __shfl_xor_sync(~0u, most[half], 2)) * unit);
    base[half] = most[half] == -INFINITE ? 0.f : most[half];
    // There is nothing yet that could fade.
    fade[half] = top[half] == -INFINITE ? 1.f : exponential(top[half] - base[half]);
    top[half] = most[half];
  }
  bool rough[2], any_rough = false;
#pragma unroll
  for (int half = FROM; half < END; half++) any_rough |= rough[half] = is_rough(base[half]);
  auto weigh = [&](bool select) {
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8; n++)
#pragma unroll
      for (int e = FROM * 2; e < END * 2; e++) {
        score[n][e] = weight_of(score[n][e], unit, base[e >> 1], select && rough[e >> 1]);
        more[e >> 1] += score[n][e];
      }
  };
  if (__any_sync(~0u, any_rough)) weigh(true);
  else weigh(false);
#pragma unroll
  for (int half = FROM; half < END; half++) sum[half] = sum[half] * fade[half] + more[half];
}

__device__ __forceinline__ void soften(const Params& p, const Item& item, int key_from, int warp_row, float unit,
                                       float (&score)[WARP_KEYS / 8][4], float (&top)[2], float (&sum)[2], float (&fade)[2]) {
  // Rows of 64 columns have fewer products to run beside, and are faster one after the other.
#if WARPGROUPS && VALUE_DIM <= 64 && !HAS_NEAR
  soften_rows<0, 1>(p, item, key_from, warp_row, unit, score, top, sum, fade);
  soften_rows<1, 2>(p, item, key_from, warp_row, unit, score, top, sum, fade);
#else
  soften_rows<0, 2>(p, item, key_from, warp_row, unit, score, top, sum, fade);
#endif
}

// Weights in 16 bits, as products take them.
__device__ __forceinline__ void pack_weights(u32 (&weight)[WARP_KEYS / 16][4], const float (&score)[WARP_KEYS / 8][4]) {
#if NARROW
#if !WARPGROUPS
  pack_narrow(weight, score);
  return;
#endif
#endif
#pragma unroll
  for (int k = 0; k < WARP_KEYS / 16; k++) {
    weight[k][0] = pack(score[2 * k][0], score[2 * k][1]);
    weight[k][1] = pack(score[2 * k][2], score[2 * k][3]);
    weight[k][2] = pack(score[2 * k + 1][0], score[2 * k + 1][1]);
    weight[k][3] = pack(score[2 * k + 1][2], score[2 * k + 1][3]);
  }
}

// Products that ran beside other work have ended: no number of theirs is used before.
template <int N>
__device__ __forceinline__ void settle_all(float (&numbers)[N][4]) {
#if WARPGROUPS
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) settle(numbers[n][e]);
#endif
}

__device__ __forceinline__ void scale_sums(float (&out)[COLUMNS / 8][4], const float (&fade)[2]) {
#pragma unroll
  for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) out[n][e] *= fade[e >> 1];
}

__device__ __forceinline__ void fade_sums(float (&out)[COLUMNS / 8][4], const float (&fade)[2]) {
  if (__any_sync(~0u, fade[0] != 1.f || fade[1] != 1.f)) scale_sums(out, fade);
}

// Writes what a thread has of two rows: O and Stats of whole items, else a piece for `merge`.
__device__ __forceinline__ void write_rows(const Params& p, const Item& item, bool begins, bool ends, int rows, int warp_row, int column_from,
                                           const float (&top)[2], const float (&sum)[2], const float (&out)[COLUMNS / 8][4]) {
  const int lane = threadIdx.x & 31, columns = min(COLUMNS, VALUE_DIM - column_from);
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
#if NARROW
      u16* const to = p.o + out_at(p, item.batch, head, query);
#pragma unroll
      for (int n = 0; n < COLUMNS / 8; n++)
#if INVARIANT
        *(u32*)(to + out_column(n, lane)) = pack(result(out[n][half * 2], factor), result(out[n][half * 2 + 1], factor));
#else
        *(u32*)(to + out_column(n, lane)) = pack(out[n][half * 2] * factor, out[n][half * 2 + 1] * factor);
#endif
#else
      u16* const to = p.o + out_at(p, item.batch, head, query) + column_from + (lane & 3) * 2;
#if INVARIANT
#pragma unroll
      for (int n = 0; n < COLUMNS / 8; n++) *(u32*)(to + n * 8) = pack(result(out[n][half * 2], factor), result(out[n][half * 2 + 1], factor));
#else
#pragma unroll
      for (int n = 0; n < COLUMNS / 8; n++)
        if (WARPS_COLUMNS == 1 || n * 8 < columns) *(u32*)(to + n * 8) = pack(out[n][half * 2] * factor, out[n][half * 2 + 1] * factor);
#endif
#endif
      if ((lane & 3) == 0 && column_from == 0) write_stats(p, item.batch, head, query, most, whole);
    } else {
#if INVARIANT
      // Pieces behind the first cut are written.
      if (!begins) continue;
      const i64 at = piece_row(p, blockIdx.x * p.pieces, row);
#else
      const i64 at = piece_at(p, blockIdx.x, begins, row);
#endif
#if NARROW
      float* const to = p.sums + at * VALUE_DIM;
#pragma unroll
      for (int n = 0; n < COLUMNS / 8; n++) *(float2*)(to + out_column(n, lane)) = make_float2(out[n][half * 2], out[n][half * 2 + 1]);
#else
      float* const to = p.sums + at * VALUE_DIM + column_from + (lane & 3) * 2;
#pragma unroll
      for (int n = 0; n < COLUMNS / 8; n++)
        if (WARPS_COLUMNS == 1 || n * 8 < columns) *(float2*)(to + n * 8) = make_float2(out[n][half * 2], out[n][half * 2 + 1]);
#endif
      if ((lane & 3) == 0 && column_from == 0) *(float2*)&p.ends[at * 2] = make_float2(top[half], sum[half]);
    }
  }
}
