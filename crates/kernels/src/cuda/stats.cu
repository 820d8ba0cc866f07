// Stats of dense queries, whose heads lie apart, and of rows of sequences, whose heads lie together in the scratch
// memory. Each thread moves some of them.

#define EACH_NUMBER                                                                                                    \
  for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < (i64)BATCH * STATS_HEADS * QUERIES; i += (i64)gridDim.x * THREADS)

struct Place { int batch, row; i64 apart, together; };

__device__ __forceinline__ Place place_of(i64 i) {
  const int row = (int)(i % QUERIES), head = (int)(i / QUERIES % STATS_HEADS), batch = (int)(i / QUERIES / STATS_HEADS);
  return {batch, row, batch * STATS_BATCH_STEP + head * STATS_HEAD_STEP + row * STATS_ROW_STEP,
          ((i64)batch * QUERIES + row) * STATS_HEADS + head};
}

extern "C" __global__ void __launch_bounds__(THREADS) gather_stats(const __grid_constant__ Params p) {
  EACH_NUMBER {
    const Place at = place_of(i);
    if (at.row < p.used_q[at.batch]) p.stats_rows[at.together] = p.dense_stats[at.apart];
  }
}

// Rows behind a length are minus infinity. Those of sequences that no lists can say are no numbers, as O is.
extern "C" __global__ void __launch_bounds__(THREADS) spread_stats(const __grid_constant__ Params p) {
  EACH_NUMBER {
    const Place at = place_of(i);
    const float none = at.row < p.len_q[at.batch] ? __int_as_float(0x7fffffff) : -INFINITE;
    p.dense_stats[at.apart] = at.row < p.used_q[at.batch] ? p.stats_rows[at.together] : none;
  }
}
