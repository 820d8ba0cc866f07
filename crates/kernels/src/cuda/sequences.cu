// Where sequences begin, in rows, and how long they are: lists for attention kernels that read one for all operands
// with queries and one for those with keys. Offsets of operands are in elements, and each operand has its own.
//
// Sequences that such lists cannot say, or that would leave an operand, become sequences without rows, and what would
// be written of any sequence is no number.

#define THREADS 256

// The row at an offset; -1 if no row begins there.
__device__ __forceinline__ i64 row_of(i64 offset, i64 step) {
  return offset >= 0 && offset % step == 0 ? offset / step : -1;
}

// Writes no number into some rows of an operand, those of them that it has.
__device__ __forceinline__ void spoil(u16* at, i64 offset, int rows, i64 capacity, i64 step, int heads, i64 head_step, int columns) {
  const i64 first = offset / step;
  if (offset < 0 || rows < 0) return;
  for (i64 row = first; row < first + rows && row < capacity; row++) {
    for (int i = threadIdx.x; i < heads * columns; i += THREADS) {
      at[row * step + i / columns * head_step + i % columns] = 0x7fff;
    }
  }
}

// Where sequences of the operands begin.

extern "C" __global__ void __launch_bounds__(THREADS) sequences(const __grid_constant__ Params p) {
  __shared__ int wrong;
  if (threadIdx.x == 0) wrong = 0;
  __syncthreads();
  for (int batch = threadIdx.x; batch < BATCH; batch += THREADS) {
    const int queries = p.len_q[batch], keys = p.len_k[batch];
    const i64 query = query_row(p, batch), key = key_row(p, batch);
    const bool good = queries >= 0 && queries <= QUERIES && keys >= 0 && keys <= KEYS &&
                      (queries == 0 || (query >= 0 && query + queries <= QUERY_ROWS && queries_agree(p, batch, query))) &&
                      (keys == 0 || (key >= 0 && key + keys <= KEY_ROWS && keys_agree(p, batch, key)));
    if (!good) wrong = 1;
#if ASCENDING
    // Sums of gradients lie in the order of the sequences.
    int next = batch + 1;
    while (next < BATCH && p.len_q[next] == 0) next++;
    if (queries > 0 && next < BATCH && query_row(p, next) < query + queries) wrong = 1;
    next = batch + 1;
    while (next < BATCH && p.len_k[next] == 0) next++;
    if (keys > 0 && next < BATCH && key_row(p, next) < key + keys) wrong = 1;
#endif
    p.rows_q[batch] = good && queries > 0 ? (int)query : 0;
    p.rows_k[batch] = good && keys > 0 ? (int)key : 0;
    p.used_q[batch] = queries;
    p.used_k[batch] = keys;
  }
  if (threadIdx.x == 0) {
    p.rows_q[BATCH] = QUERY_ROWS;
    p.rows_k[BATCH] = KEY_ROWS;
  }
  __syncthreads();
  if (!wrong) return;
  for (int batch = 0; batch < BATCH; batch++) {
    spoil_outputs(p, batch);
    if (threadIdx.x == 0) {
      p.used_q[batch] = 0;
      p.used_k[batch] = 0;
    }
  }
}
