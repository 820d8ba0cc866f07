// What four warps of a block do where pages have few rows: they bring tiles of keys and values for the others, row by
// row. One warp that asks for a box for each part of a page cannot ask fast enough: a tile of 128 keys over pages of one
// row has 512 boxes of 128 bytes. Here neighbouring lanes copy neighbouring 16 bytes of a row, and arrive when these are
// there, so copies of as many tiles are under way as there are stages.

#if GATHER
// Each thread arrives with its copies. Whether values are columns of keys says one more, because an arrival with copies
// says nothing of other writes.
#define GATHER_ARRIVALS (128 + MAY_SHARE)
// Rows that a warp copies in a turn, of which there are so many. Each lane finds one row in a turn; where values may be
// columns of keys, every warp finds the rows of all four, so that all decide alike.
#define AT_ONCE (MAY_SHARE ? 8 : TILE / 4 < 32 ? TILE / 4 : 32)
#define TURNS (TILE / 4 / AT_ONCE)
// Parts that a lane copies with one wait for what other lanes found: more do not fit the registers that are left for it
// where others took some.
#define COPIES_AT_ONCE (MOVE_REGISTERS ? 2 : 8)
// A turn begins with the swizzle of row 0.
static_assert(TILE % (4 * AT_ONCE) == 0 && AT_ONCE % 8 == 0, "whole turns of eight rows");

// The row of a tile that a lane finds in a turn.
__device__ __forceinline__ int row_found(int warp, int lane, int turn) {
  return MAY_SHARE ? turn * 32 + lane : (turn * 4 + warp) * AT_ONCE + lane % AT_ONCE;
}

// The pages of a lane's rows. Reading them takes long, so it begins a tile ahead.
struct Pages { int of_keys[TURNS], of_values[TURNS]; };

__device__ __forceinline__ void find_pages(const Params& p, const Item& item, int tile, int warp, int lane,
                                           Pages& pages) {
#pragma unroll
  for (int turn = 0; turn < TURNS; turn++) {
    const int part = row_found(warp, lane, turn) / PAGE_ROWS;
    pages.of_keys[turn] = page_of(p, item, tile, part, true);
    pages.of_values[turn] = page_of(p, item, tile, part, false);
  }
}

// Whether the values of a tile are the first columns of its keys in memory, as in a latent cache: then they are brought
// once. All lanes of a warp ask.
__device__ __forceinline__ bool values_in_keys(const Params& p, const Pages& pages, int rows, int warp, int lane) {
#if MAY_SHARE
  bool same = p.keys == p.values;
#pragma unroll
  for (int turn = 0; turn < TURNS; turn++)
    same &= row_found(warp, lane, turn) >= rows || pages.of_keys[turn] == pages.of_values[turn];
  return __all_sync(~0u, same);
#else
  return false;
#endif
}

// Where a row of a head begins; 0 for one of a page that the pool does not have. A table may say any number, and copies
// of boxes bring zeros for what lies outside of their map.
__device__ __forceinline__ u64 row_at(const u16* pool, int page, int pages, i64 page_step, i64 offset) {
  return (u32)page < (u32)pages ? (u64)(pool + page * page_step + offset) : 0;
}

// Copies a warp's rows of a turn, of so many 16 bytes each, to their places in a tile. `found` is where the lane's row
// begins. Rows behind those that the tile has are left as they are.
template <int Parts>
__device__ __forceinline__ void copy_rows(u32 to, u64 found, int turn, int rows, int warp, int lane) {
  const int first = (turn * 4 + warp) * AT_ONCE, holder = MAY_SHARE ? warp * AT_ONCE : 0;
  to += first * 128;
  rows -= first;
#pragma unroll 1
  for (int i = 0; i < AT_ONCE * Parts; i += 32 * COPIES_AT_ONCE) {
    u64 from[COPIES_AT_ONCE];
#pragma unroll
    for (int n = 0; n < COPIES_AT_ONCE; n++) from[n] = __shfl_sync(~0u, found, holder + (i + n * 32 + lane) / Parts);
#pragma unroll
    for (int n = 0; n < COPIES_AT_ONCE; n++) {
      const int row = (i + n * 32 + lane) / Parts, part = (i + n * 32 + lane) % Parts;
      const bool mine = AT_ONCE * Parts % (32 * COPIES_AT_ONCE) == 0 || row < AT_ONCE;
      copy_part(to + place(row, part, TILE), from[n] + part * 16, from[n] == 0, mine && row < rows);
    }
  }
}

// Four warps, as `bring` is one.
__device__ __forceinline__ void gather(const Params& p, Share share, u32 stages, u32 full, u32 empty,
                                       int* shared_rows) {
  const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) - WARPS;
  Item item = share.item;
  int tile = share.at, slot = 0;
  u32 parity = 1;
  Pages pages;
  find_pages(p, item, tile, warp, lane, pages);
  for (int left = (int)(share.to - share.from); left > 0; left--) {
    const int from = (item.first + tile) * TILE, rows = min(TILE, max(0, item.end - from));
    const bool one = values_in_keys(p, pages, rows, warp, lane);
    u64 keys_at[TURNS], values_at[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      const int in_page = (from + row_found(warp, lane, turn)) % PAGE;
      keys_at[turn] =
          row_at(p.keys, pages.of_keys[turn], p.key_pages, p.k_page, item.head * p.k_head + in_page * p.k_row);
      values_at[turn] =
          row_at(p.values, pages.of_values[turn], p.value_pages, p.v_page, item.head * p.v_head + in_page * p.v_row);
    }
    tile++;
    if (left > 1) {
      if (tile == item.tiles) {
        advance(p, item);
        tile = 0;
#if INVARIANT
        left = 1 + reach(item, 0, left - 1);
#endif
      }
      find_pages(p, item, tile, warp, lane, pages);
    }
#if WARPS_COLUMNS == 1
    const u32 keys = stages + slot * STAGE, values = keys + K_BOXES * BOX;
    barrier_wait(empty + 8 * slot, parity);
    if (MAY_SHARE && warp == 0 && lane == 0) {
      shared_rows[slot] = one;
      barrier_arrive(full + 8 * slot);
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      copy_rows<HEAD_DIM / 8>(keys, keys_at[turn], turn, rows, warp, lane);
      if (!one) copy_rows<VALUE_DIM / 8>(values, values_at[turn], turn, rows, warp, lane);
    }
    barrier_arrive_copied(full + 8 * slot);
    if (++slot == STAGES) {
      slot = 0;
      parity ^= 1;
    }
#else
    // Keys, and values that lie elsewhere, have buffers of two parts: latent.cu.
    for (int key = 1; key >= one; key--) {
      const u32 ready = full + 16 * slot;
      barrier_wait(empty + 16 * slot, parity);
      barrier_wait(empty + 16 * slot + 8, parity);
      if (MAY_SHARE && warp == 0 && lane == 0) {
        shared_rows[2 * slot] = shared_rows[2 * slot + 1] = one;
        barrier_arrive(ready);
        barrier_arrive(ready + 8);
      }
#pragma unroll
      for (int turn = 0; turn < TURNS; turn++) {
        if (key) copy_rows<HEAD_DIM / 8>(stages + slot * STAGE, keys_at[turn], turn, rows, warp, lane);
        else copy_rows<VALUE_DIM / 8>(stages + slot * STAGE, values_at[turn], turn, rows, warp, lane);
      }
      barrier_arrive_copied(ready);
      barrier_arrive_copied(ready + 8);
      if (++slot == STAGES) {
        slot = 0;
        parity ^= 1;
      }
    }
#endif
  }
  // A thread whose copies are under way does not end.
  copies_wait();
}
#endif
