// What one warp of a block does: it brings tiles of keys and values for the others. Where values are wide two warps do it
// (latent.cu), where pages have few rows four (gather.cu).

#define WARPS (WARPS_ROWS * WARPS_KEYS * WARPS_COLUMNS)
#define CONSUMERS (32 * WARPS)
// Columns of values that a warp sums. The last of several warps may have room for more than there are.
#define COLUMNS (WARPS_COLUMNS == 1 ? VALUE_DIM : (VALUE_DIM / WARPS_COLUMNS + 63) / 64 * 64)
// The warp that brings tiles comes with three idle ones where registers move from them to those that compute.
#if GATHER
#define THREADS (CONSUMERS + 128)
#else
#define THREADS (CONSUMERS + (MOVE_REGISTERS ? 128 : 32))
#endif
#if NARROW
// Columns of a box: tiles that warps read as they are have 8 bits, and rows of no more bytes than they need.
#define ROW_BYTES (SHORT_ROWS ? 64 : 128)
#define BOX_COLUMNS (WARPGROUPS ? 64 : ROW_BYTES)
#define BOX (TILE * ROW_BYTES)
#define K_BOXES ((HEAD_DIM + BOX_COLUMNS - 1) / BOX_COLUMNS)
#define V_BOXES ((VALUE_DIM + BOX_COLUMNS - 1) / BOX_COLUMNS)
#else
#define BOX (TILE * 128)
#define K_BOXES ((HEAD_DIM + 63) / 64)
#define V_BOXES ((VALUE_DIM + 63) / 64)
#endif
#define BOXES (K_BOXES + V_BOXES)
// Two groups of warps bring keys and values to places of the same size.
#define STAGE ((WARPS_COLUMNS == 1 ? K_BOXES + VALUE_BOXES : K_BOXES > VALUE_BOXES ? K_BOXES : VALUE_BOXES) * BOX)
// Boxes of 64 columns that values have room for.
#define VALUE_BOXES (WARPS_COLUMNS == 1 ? V_BOXES : COLUMNS / 64 * WARPS_COLUMNS)
#define WARP_KEYS (TILE / WARPS_KEYS)
#define PARTS (TILE / PAGE_ROWS)

// Offset of 16 bytes of a row: boxes have 64 columns, and the eight parts of a row change places by its number.
__device__ __forceinline__ u32 place(int row, int part, int rows) {
#if NARROW
  // In rows of 64 bytes four parts change places by the number of two rows, as 64 bytes of swizzle do.
  if (SHORT_ROWS) return row * 64 + ((part ^ (row >> 1 & 3)) << 4);
#endif
  return (part >> 3) * rows * 128 + row * 128 + (((part & 7) ^ (row & 7)) << 4);
}

__device__ __forceinline__ void sync_consumers() { sync_some(1, CONSUMERS); }

// Two groups of warps take turns at the products, so that one multiplies while the other computes a softmax. Ends of
// spans would hold both up.
#define TAKES_TURNS (WARPGROUPS && WARPS == 8 && !INVARIANT)
__device__ __forceinline__ void take_turn(int warp) {
  if (TAKES_TURNS) sync_some(4 + warp / 4, CONSUMERS);
}
__device__ __forceinline__ void give_turn(int warp) {
  if (TAKES_TURNS) arrive_some(5 - warp / 4, CONSUMERS);
}

// The page of a part of a tile of keys or values. Without pages it is the sequence.
__device__ __forceinline__ int page_of(const Params& p, const Item& item, int tile, int part, bool key) {
#if PAGED
  const int at = (item.first + tile) * TILE + part * PAGE_ROWS;
  const int* table = (key ? p.table_k : p.table_v) + (i64)item.batch * p.table;
  return at < item.end ? __ldg(table + at / PAGE) : 0;
#else
  return VARLEN_K ? 0 : item.batch;
#endif
}

// Where the keys or values of an item begin among the rows of their map.
__device__ __forceinline__ int first_row(const Params& p, const Item& item, bool key) {
#if VARLEN_K
  return (int)(key ? p.offsets_k[item.batch] / p.k_row : p.offsets_v[item.batch] / p.v_row);
#else
  return 0;
#endif
}

#if GATHER
// Whether values are brought with keys, and how tiles are, says gather.cu.
#else
// Whether the values of a tile are the first columns of its keys in memory, as in a latent cache: then they are brought
// once. All lanes of a warp ask.
__device__ __forceinline__ bool values_in_keys(const Params& p, const Item& item, int tile, int parts) {
#if MAY_SHARE
  if (p.keys != p.values || first_row(p, item, true) != first_row(p, item, false)) return false;
  bool same = true;
  if (PAGED)
    for (int part = threadIdx.x & 31; part < parts; part += 32)
      same &= page_of(p, item, tile, part, true) == page_of(p, item, tile, part, false);
  return __all_sync(~0u, same);
#else
  return false;
#endif
}

// One warp: a lane for each box of 64 columns and as many rows as lie one after the other.
__device__ __forceinline__ void bring(const Params& p, Share share, u32 stages, u32 full, u32 empty, int* shared_rows) {
  const int lane = threadIdx.x & 31, which = lane % BOXES, at_once = 32 / BOXES;
  const bool key = which < K_BOXES, works = lane < at_once * BOXES;
#if NARROW
  const int column = (key ? which : which - K_BOXES) * BOX_COLUMNS;
#else
  const int column = (key ? which : which - K_BOXES) * 64;
#endif
  const TensorMap* map = key ? &p.map_k : &p.map_v;
  Item item = share.item;
  int tile = share.at, slot = 0;
  u32 parity = 1;
  int page = page_of(p, item, tile, lane / BOXES, key);
  for (int left = (int)(share.to - share.from); left > 0; left--) {
    const Item now = item;
    const int tile_now = tile, page_now = page;
    tile++;
    if (left > 1) {
      if (tile == item.tiles) {
        advance(p, item);
        tile = 0;
#if INVARIANT
        left = 1 + reach(item, 0, left - 1);
#endif
      }
      page = page_of(p, item, tile, lane / BOXES, key);
    }
    const int from = (now.first + tile_now) * TILE, rows_before = first_row(p, now, key);
    const int parts = min(PARTS, (max(0, now.end - from) + PAGE_ROWS - 1) / PAGE_ROWS);
    const bool one = values_in_keys(p, now, tile_now, parts);
    barrier_wait(empty + 8 * slot, parity);
    if (MAY_SHARE && lane == 0) shared_rows[slot] = one;
#if NARROW
    if (lane == 0) barrier_expect(full + 8 * slot, parts * (one ? K_BOXES : BOXES) * PAGE_ROWS * ROW_BYTES);
#else
    if (lane == 0) barrier_expect(full + 8 * slot, parts * (one ? K_BOXES : BOXES) * PAGE_ROWS * 128);
#endif
    __syncwarp();
    for (int part = lane / BOXES; works && (key || !one) && part < parts; part += at_once) {
      const int found = part == lane / BOXES ? page_now : page_of(p, now, tile_now, part, key);
      const int row = PAGED ? (from + part * PAGE_ROWS) % PAGE : rows_before + from + part * PAGE_ROWS;
#if NARROW
      const u32 to = stages + slot * STAGE + which * BOX + part * PAGE_ROWS * ROW_BYTES;
      copy_box(to, map, column, now.head, row, found, full + 8 * slot);
#else
      copy_box(stages + slot * STAGE + which * BOX + part * PAGE_ROWS * 128, map, column, now.head, row, found, full + 8 * slot);
#endif
    }
    if (++slot == STAGES) {
      slot = 0;
      parity ^= 1;
    }
  }
}
#endif
