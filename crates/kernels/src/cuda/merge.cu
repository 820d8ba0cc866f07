// Puts the pieces of an item together.
//
// An item in so many pieces is cut by the ends of as many shares less one. The blocks x behind these ends put it
// together, of each rank the rows of its own tile: so there are more blocks where there are more pieces. A unit of work
// is some columns of a row, for a warp, or for several that share its pieces: a row may have 128 of them.

#define MERGE_WARPS (MERGE_THREADS / 32)
// Numbers of 16 bytes that a lane has of each piece, and the pieces of which it loads them at a time.
#define EACH ((MERGE_COLUMNS + 127) / 128)
#define AHEAD (EACH == 1 ? 8 : EACH == 2 ? 4 : 2)
#define CHUNKS ((VALUE_DIM + MERGE_COLUMNS - 1) / MERGE_COLUMNS)

// The column of a lane's number `n` of a unit, and whether there is one.
__device__ __forceinline__ int merge_column(int chunk, int n, bool& there) {
  const int at = n * 128 + (threadIdx.x & 31) * 4, column = chunk * MERGE_COLUMNS + at;
  there = at < MERGE_COLUMNS && column < VALUE_DIM;
  return column;
}

// Writes a unit of O, and the Stats of its row.
__device__ __forceinline__ void write_merged(const Params& p, const Item& item, int row, int chunk, const float4 (&out)[EACH], float most, float sum) {
  const int query = (item.rows_from + row) / GROUP, head = item.head * GROUP + (item.rows_from + row) % GROUP;
  const float fade = take_sink(p, head, most, sum);
  if (query >= item.queries) sum = 0.f;
  const float factor = sum == 0.f ? 0.f : fade / sum;
  u16* const to_row = p.o + out_at(p, item.batch, head, query);
#pragma unroll
  for (int n = 0; n < EACH; n++) {
    bool there;
    const int column = merge_column(chunk, n, there);
    if (!there) continue;
    *(u32*)(to_row + column) = pack(out[n].x * factor, out[n].y * factor);
    *(u32*)(to_row + column + 2) = pack(out[n].z * factor, out[n].w * factor);
  }
  if (chunk == 0 && (threadIdx.x & 31) == 0) write_stats(p, item.batch, head, query, most, sum);
}

// Items of so few pieces, as short caches and prompts have: each lane finds what a piece counts, and a warp loads more
// than one unit at a time.
#define FEW 4
#define UNITS_AHEAD (AHEAD > FEW ? AHEAD / FEW : 1)

__device__ __forceinline__ void merge_few(const Params& p, const Item& item, int first, int count, int units, int begin, int step) {
  for (; begin < units; begin += step) {
    float4 ahead[UNITS_AHEAD][FEW][EACH];
    float2 ends[UNITS_AHEAD][FEW];
#pragma unroll
    for (int u = 0; u < UNITS_AHEAD; u++)
#pragma unroll
      for (int i = 0; i < FEW; i++) {
        const int unit = begin + u, chunk = unit % CHUNKS;
        const bool works = unit < units && i < count;
        const i64 at = piece_at(p, block_of(first + i), i == 0, unit / CHUNKS);
        ends[u][i] = works ? *(const float2*)&p.ends[at * 2] : make_float2(-INFINITE, 0.f);
#pragma unroll
        for (int n = 0; n < EACH; n++) {
          bool there;
          const int column = merge_column(chunk, n, there);
          ahead[u][i][n] = works && there ? *(const float4*)&p.sums[at * VALUE_DIM + column] : make_float4(0.f, 0.f, 0.f, 0.f);
        }
      }
#pragma unroll
    for (int u = 0; u < UNITS_AHEAD; u++) {
      if (begin + u >= units) continue;
      float4 out[EACH];
#pragma unroll
      for (int n = 0; n < EACH; n++) out[n] = make_float4(0.f, 0.f, 0.f, 0.f);
      float most = -INFINITE, sum = 0.f;
#pragma unroll
      for (int i = 0; i < FEW; i++) most = fmaxf(most, ends[u][i].x);
      const float base = most == -INFINITE ? 0.f : most;
#pragma unroll
      for (int i = 0; i < FEW; i++) {
        const float factor = exponential(ends[u][i].x - base);
        sum += factor * ends[u][i].y;
#pragma unroll
        for (int n = 0; n < EACH; n++) {
          out[n].x += factor * ahead[u][i][n].x;
          out[n].y += factor * ahead[u][i][n].y;
          out[n].z += factor * ahead[u][i][n].z;
          out[n].w += factor * ahead[u][i][n].w;
        }
      }
      write_merged(p, item, (begin + u) / CHUNKS, (begin + u) % CHUNKS, out, most, sum);
    }
  }
}

extern "C" __global__ void __launch_bounds__(MERGE_THREADS, 3) merge(const __grid_constant__ Params p) {
  __shared__ i64 memory[40];
  __shared__ float2 shared_ends[MERGE_WARPS][BLOCKS];
  __shared__ float4 parts[MERGE_WARPS][EACH][32];
  let_next_begin();
  const Share share = share_of(p, blockIdx.x + 1, MERGE_THREADS, memory);
  // Every block waits, so that this kernel never ends before the one whose pieces it reads.
  wait_for_previous();
  if (share.from == share.to || share.at == 0) return;
  const Item item = share.item;
  const i64 start = share.from - share.at, end = start + item.tiles;
  // Shares first to first + count - 1 have a piece each; the first of them begins the item, the others continue it.
  const int first = (int)quotient(start, share.each), count = (int)quotient(end - 1, share.each) - first + 1;
  const int units = min(ROWS, rows_of(p, item.queries) - item.rows_from) * CHUNKS, blocks = (count - 1) * gridDim.y;
  const int block = (share.number - first - 1) * gridDim.y + blockIdx.y;
  if (count <= FEW) {
    const int at = block * MERGE_WARPS + (threadIdx.x >> 5);
    return merge_few(p, item, first, count, units, at * UNITS_AHEAD, blocks * MERGE_WARPS * UNITS_AHEAD);
  }
  // Warps of a unit: more where a warp has more pieces than it loads at a time, and warps are left.
  int split = 1;
  while (split < MERGE_WARPS && split * AHEAD < count && units * split * 2 <= blocks * MERGE_WARPS) split *= 2;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, part = warp % split;
  const int from = (count + split - 1) / split * part, to = min(count, from + (count + split - 1) / split);
  const int at_once = MERGE_WARPS / split;
  // All sums are some ten million numbers.
  const u32 begins = p.piece_rows * VALUE_DIM, step = (block_of(1) - block_of(0)) * 2 * begins;
  for (int begin = block * at_once; begin < units; begin += blocks * at_once) {
    const int unit = begin + warp / split, row = unit / CHUNKS, chunk = unit % CHUNKS;
    const bool works = unit < units;
    float4 out[EACH];
#pragma unroll
    for (int n = 0; n < EACH; n++) out[n] = make_float4(0.f, 0.f, 0.f, 0.f);
    float most = -INFINITE, sum = 0.f;
    float2* const ends = shared_ends[warp];
    // Sums of pieces that continue the item are as far from each other as shares are; the first piece begins it.
    u32 sums = (u32)piece_at(p, block_of(first + from), false, row) * VALUE_DIM;
    for (int piece = from; works && (piece < to || piece == from); piece += AHEAD) {
      float4 ahead[AHEAD][EACH];
#pragma unroll
      for (int i = 0; i < AHEAD; i++)
#pragma unroll
        for (int n = 0; n < EACH; n++) {
          bool there;
          const int column = merge_column(chunk, n, there);
          const u32 at = sums + i * step + (piece + i == 0 ? begins : 0) + column;
          ahead[i][n] = there && piece + i < to ? *(const float4*)&p.sums[at] : make_float4(0.f, 0.f, 0.f, 0.f);
        }
      sums += AHEAD * step;
      if (piece == from) {
        // While the first sums come: what each piece counts.
#pragma unroll 4
        for (int i = lane; i < count; i += 32) {
          ends[i] = *(const float2*)&p.ends[piece_at(p, block_of(first + i), i == 0, row) * 2];
          most = fmaxf(most, ends[i].x);
        }
#pragma unroll
        for (int step = 16; step; step >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
        const float base = most == -INFINITE ? 0.f : most;
        for (int i = lane; i < count; i += 32) {
          ends[i].x = exponential(ends[i].x - base);
          sum += ends[i].x * ends[i].y;
        }
#pragma unroll
        for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
        __syncwarp();
      }
#pragma unroll
      for (int i = 0; i < AHEAD; i++) {
        const float factor = piece + i < to ? ends[piece + i].x : 0.f;
#pragma unroll
        for (int n = 0; n < EACH; n++) {
          out[n].x += factor * ahead[i][n].x;
          out[n].y += factor * ahead[i][n].y;
          out[n].z += factor * ahead[i][n].z;
          out[n].w += factor * ahead[i][n].w;
        }
      }
    }
    if (split > 1) {
#pragma unroll
      for (int n = 0; n < EACH; n++) parts[warp][n][lane] = out[n];
      __syncthreads();
      for (int other = 1; part == 0 && other < split; other++) {
#pragma unroll
        for (int n = 0; n < EACH; n++) {
          const float4 more = parts[warp + other][n][lane];
          out[n].x += more.x;
          out[n].y += more.y;
          out[n].z += more.z;
          out[n].w += more.w;
        }
      }
      __syncthreads();
    }
    if (!works || part > 0) continue;
    write_merged(p, item, row, chunk, out, most, sum);
    __syncwarp();
  }
}
