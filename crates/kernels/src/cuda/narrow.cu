// Keys and values of 8 bits beside queries of 16. Single warps read tiles of 8 bits and turn them into f16 in registers;
// before four warps multiply them, the warps that bring tiles turn them into the type of queries (`gather`). Scales of
// the two tensors are factors of scores and of sums.

#if NARROW
#if WARPGROUPS
#define GATHER_ARRIVALS 128
// Tiles of 8 bits lie behind everything else in shared memory, in boxes of 128 columns.
#define RAW_K_BOXES ((HEAD_DIM + 127) / 128)
#define RAW_BOXES (RAW_K_BOXES + (VALUE_DIM + 127) / 128)
#define RAW_TILE (RAW_BOXES * BOX)
static_assert(!SHORT_ROWS, "boxes of 8 bits have the rows of those of 16");
// Sixteen bytes that a thread reads before it turns the first of them.
#define AT_A_TIME 4
// The barrier of the four warps that turn tiles into 16 bits.
#define WIDENERS 6

// Sixteen numbers in the type of queries.
__device__ __forceinline__ void widen_part(uint4 narrow, uint4& low, uint4& high) {
  const u32 words[4] = {narrow.x, narrow.y, narrow.z, narrow.w};
  u32 wide[8];
#pragma unroll
  for (int n = 0; n < 4; n++) {
    widen(words[n], wide[2 * n], wide[2 * n + 1]);
#if BF16
#pragma unroll
    for (int e = 2 * n; e < 2 * n + 2; e++) wide[e] = pack(from_f16((u16)wide[e]), from_f16((u16)(wide[e] >> 16)));
#endif
  }
  low = make_uint4(wide[0], wide[1], wide[2], wide[3]);
  high = make_uint4(wide[4], wide[5], wide[6], wide[7]);
}

// Turns a tile of keys or values, of so many 16 bytes a row, into the type of queries. Rows that no copy brought hold
// anything, as their places did before.
template <int Parts>
__device__ __forceinline__ void widen_tile(unsigned char* to, const unsigned char* from, int thread) {
#pragma unroll 1
  for (int i = thread; i < TILE * Parts; i += 128 * AT_A_TIME) {
    uint4 narrow[AT_A_TIME];
#pragma unroll
    for (int n = 0; n < AT_A_TIME; n++) {
      const int at = i + n * 128;
      if (at < TILE * Parts) narrow[n] = *(const uint4*)(from + place(at / Parts, at % Parts, TILE));
    }
#pragma unroll
    for (int n = 0; n < AT_A_TIME; n++) {
      const int at = i + n * 128, row = at / Parts, part = at % Parts;
      if (at >= TILE * Parts) continue;
      uint4 wide[2];
      widen_part(narrow[n], wide[0], wide[1]);
      // Lanes of both halves of a row begin with other parts, which lie in other banks.
      const bool second = part & 4;
      *(uint4*)(to + place(row, part * 2 + second, TILE)) = second ? wide[1] : wide[0];
      *(uint4*)(to + place(row, part * 2 + !second, TILE)) = second ? wide[0] : wide[1];
    }
  }
}

// A tile of a share.
struct Cursor { Item item; int tile, left; };

__device__ __forceinline__ void next_tile(const Params& p, Cursor& at) {
  at.left--;
  at.tile++;
  if (at.left > 0 && at.tile == at.item.tiles) {
    advance(p, at.item);
    at.tile = 0;
#if INVARIANT
    at.left = reach(at.item, 0, at.left);
#endif
  }
}

// One warp asks for a tile: a lane for each box of as many rows as lie one after the other.
__device__ __forceinline__ void ask_for(const Params& p, const Cursor& at, u32 to, u32 barrier, int lane) {
  const Item& item = at.item;
  const int from = (item.first + at.tile) * TILE;
  const int parts = min(PARTS, (max(0, item.end - from) + PAGE_ROWS - 1) / PAGE_ROWS);
  if (lane == 0) barrier_expect(barrier, parts * RAW_BOXES * PAGE_ROWS * 128);
  __syncwarp();
  for (int i = lane; i < parts * RAW_BOXES; i += 32) {
    const int which = i % RAW_BOXES, part = i / RAW_BOXES;
    const bool key = which < RAW_K_BOXES;
    const int row = PAGED ? (from + part * PAGE_ROWS) % PAGE : first_row(p, item, key) + from + part * PAGE_ROWS;
    copy_box(to + which * BOX + part * PAGE_ROWS * 128, key ? &p.map_k : &p.map_v, (key ? which : which - RAW_K_BOXES) * 128,
             item.head, row, page_of(p, item, at.tile, part, key), barrier);
  }
}

// Four warps, as `bring` is one: the first of them asks for tiles ahead.
__device__ __forceinline__ void gather(const Params& p, Share share, u32 stages, u32 full, u32 empty, int*) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(8) u64 raw_barriers[RAW_SLOTS];
  const int thread = threadIdx.x - CONSUMERS, lane = thread & 31;
  const bool asks = thread < 32;
  const u32 raw_full = (u32)__cvta_generic_to_shared(raw_barriers);
  if (thread == 0) {
    for (int i = 0; i < RAW_SLOTS; i++) barrier_init(raw_full + 8 * i, 1);
    fence_barriers();
  }
  sync_some(WIDENERS, 128);
  Cursor ahead{share.item, share.at, (int)(share.to - share.from)};
  // Other warps count tiles; where cuts depend on the item they follow it too.
  int left = ahead.left;
#if INVARIANT
  Cursor now = ahead;
#endif
  for (int slot = 0; slot < RAW_SLOTS; slot++)
    if (asks && ahead.left > 0) {
      ask_for(p, ahead, stages + RAW_AT + slot * RAW_TILE, raw_full + 8 * slot, lane);
      next_tile(p, ahead);
    }
  int slot = 0, raw = 0;
  u32 parity = 1, raw_parity = 0;
  while (left > 0) {
    barrier_wait(raw_full + 8 * raw, raw_parity);
    barrier_wait(empty + 8 * slot, parity);
    const unsigned char* const from = shared + RAW_AT + raw * RAW_TILE;
    unsigned char* const keys = shared + slot * STAGE;
    widen_tile<HEAD_DIM / 16>(keys, from, thread);
    widen_tile<VALUE_DIM / 16>(keys + K_BOXES * BOX, from + RAW_K_BOXES * BOX, thread);
    barrier_arrive(full + 8 * slot);
    // All have read the tile of 8 bits, and its place may be filled anew.
    sync_some(WIDENERS, 128);
    if (asks && ahead.left > 0) {
      ask_for(p, ahead, stages + RAW_AT + raw * RAW_TILE, raw_full + 8 * raw, lane);
      next_tile(p, ahead);
    }
    if (++slot == STAGES) {
      slot = 0;
      parity ^= 1;
    }
    if (++raw == RAW_SLOTS) {
      raw = 0;
      raw_parity ^= 1;
    }
#if INVARIANT
    next_tile(p, now);
    left = now.left;
#else
    left--;
#endif
  }
}

#define VALUE_PARTS (COLUMNS / 8)
#define WEIGHT_UNIT 1.f
__device__ __forceinline__ int out_column(int n, int lane) { return n * 8 + (lane & 3) * 2; }

#else
#define VALUE_PARTS (VALUE_DIM / 16)
// Weights are f16, which has more bits than bf16 and a smaller range: with this factor those are exact down to 2^-29 that
// are 1 at most.
#define WEIGHT_UNIT 32768.f
static_assert(WARP_KEYS == 32 && HEAD_DIM <= 128 && VALUE_DIM <= 128, "a lane gives the address of a key's row");

// The columns of two sums of a thread: it has four neighbours of each 16.
__device__ __forceinline__ int out_column(int n, int lane) { return (n >> 1) * 16 + (lane & 3) * 4 + (n & 1) * 2; }

// Reads the queries of a thread's rows, four neighbouring columns of each 16 as of keys. Those of bf16 become f16: each
// row is multiplied with the power of two that makes its largest magnitude 2^14 or more, which `unit` undoes.
__device__ __forceinline__ void hold_queries(const Params& p, const Item& item, int rows, int warp_row, const Signs& signs,
                                             u32 (&held)[HEAD_DIM / 16][4], float (&unit)[2]) {
  const int lane = threadIdx.x & 31;
#if VARLEN_Q
  const u16* const q = p.q + p.offsets_q[item.batch];
#else
  const u16* const q = p.q + item.batch * p.q_batch;
#endif
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = warp_row * 16 + half * 8 + (lane >> 2), at = item.rows_from + (row < rows ? row : 0);
    const u16* const from = q + at / GROUP * p.q_row + (item.head * GROUP + at % GROUP) * p.q_head + (lane & 3) * 4;
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 16; step++) {
      const uint2 four = *(const uint2*)(from + step * 16);
      held[step][half] = row < rows ? signs.of(four.x) : 0;
      held[step][2 + half] = row < rows ? signs.of(four.y) : 0;
    }
    unit[half] = 1.f;
#if BF16
    float most = 0.f;
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 16; step++)
#pragma unroll
      for (int e = half; e < 4; e += 2)
        most = fmaxf(most, fmaxf(fabsf(from_bf16((u16)held[step][e])), fabsf(from_bf16((u16)(held[step][e] >> 16)))));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    // The exponent of the largest, of those whose inverse is a number.
    const int exponent = max((int)(__float_as_uint(most) >> 23) - 127, -100);
    const float factor = __uint_as_float((u32)(14 - exponent + 127) << 23);
    unit[half] = __uint_as_float((u32)(exponent - 14 + 127) << 23);
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 16; step++)
#pragma unroll
      for (int e = half; e < 4; e += 2)
        held[step][e] = pack_f16(from_bf16((u16)held[step][e]) * factor, from_bf16((u16)(held[step][e] >> 16)) * factor);
#endif
  }
}

// Scores of 32 keys: a matrix of eight rows of 16 bytes has eight keys, and a lane four columns of one.
__device__ __forceinline__ void multiply_narrow(float (&score)[WARP_KEYS / 8][4], const u32 (&held)[HEAD_DIM / 16][4], u32 keys,
                                                int warp_key) {
  const int row = warp_key * WARP_KEYS + (threadIdx.x & 31);
#pragma unroll
  for (int n = 0; n < WARP_KEYS / 8; n++) score[n][0] = score[n][1] = score[n][2] = score[n][3] = 0.f;
#pragma unroll
  for (int step = 0; step < HEAD_DIM / 16; step++) {
    u32 narrow[4];
    load_matrices(narrow, keys + place(row, step, TILE));
#pragma unroll
    for (int n = 0; n < 4; n++) {
      u32 low, high;
      widen(narrow[n], low, high);
      multiply_f16(score[n], held[step], low, high);
    }
  }
}

// Sums of 32 values: a transposed matrix gives a lane two columns of two keys, which are those of two products.
__device__ __forceinline__ void sum_narrow(float (&out)[COLUMNS / 8][4], const u32 (&weight)[WARP_KEYS / 16][4], u32 values,
                                           int warp_key) {
  const int row = warp_key * WARP_KEYS + (threadIdx.x & 31);
#pragma unroll
  for (int n = 0; n < VALUE_DIM / 16; n++) {
    u32 narrow[4], even[4], odd[4];
    load_transposed(narrow, values + place(row, n, TILE));
#pragma unroll
    for (int m = 0; m < 4; m++) widen(__byte_perm(narrow[m], 0, 0x3120), even[m], odd[m]);
#pragma unroll
    for (int k = 0; k < 2; k++) {
      multiply_f16(out[2 * n], weight[k], even[2 * k], even[2 * k + 1]);
      multiply_f16(out[2 * n + 1], weight[k], odd[2 * k], odd[2 * k + 1]);
    }
  }
}

__device__ __forceinline__ void pack_narrow(u32 (&weight)[WARP_KEYS / 16][4], const float (&score)[WARP_KEYS / 8][4]) {
#pragma unroll
  for (int k = 0; k < WARP_KEYS / 16; k++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const float (&two)[4] = score[2 * k + (e >> 1)];
      weight[k][e] = pack_f16(two[(e & 1) * 2] * WEIGHT_UNIT, two[(e & 1) * 2 + 1] * WEIGHT_UNIT);
    }
}
#endif

// Products become those of real keys.
__device__ __forceinline__ void scale_scores(float (&score)[WARP_KEYS / 8][4], const float (&unit)[2]) {
#pragma unroll
  for (int n = 0; n < WARP_KEYS / 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) score[n][e] *= unit[e >> 1];
}

// Sums become those of real values, in the order of columns that `out_column` tells.
__device__ __forceinline__ void real_sums(float (&out)[COLUMNS / 8][4], float unit) {
#pragma unroll
  for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) out[n][e] *= unit;
#if !WARPGROUPS
#pragma unroll
  for (int n = 0; n < COLUMNS / 8; n += 2)
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
      const float odd = out[n + 1][e];
      out[n + 1][e] = out[n][e + 1];
      out[n][e + 1] = odd;
    }
#endif
}
#endif
