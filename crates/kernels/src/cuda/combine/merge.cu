// Merges outputs over different keys by their log-sum-exp. EACH_PART names each part: its O and Stats, and where the
// elements of a place lie in them, and whether the row counts there.

#define MOST(part, stats, at_o, at_stats, counts) if (counts) most = fmaxf(most, (stats)[at_stats]);

// A part without keys weighs nothing, and its O is not read; where a row does not count, nor are its Stats.
#define TAKE(part, stats, at_o, at_stats, counts)   \
  {                                                 \
    const float log = (counts) ? (stats)[at_stats] : -INFINITE; \
    if (log != -INFINITE) {                         \
      const float weight = expf(log - most);        \
      float x[CHUNK];                               \
      read((part) + (at_o), at.count, whole, x);    \
      total += weight;                              \
      _Pragma("unroll") for (int i = 0; i < CHUNK; i++) sum[i] += weight * x[i]; \
    }                                               \
  }

extern "C" __global__ void __launch_bounds__(THREADS) combine(const __grid_constant__ Params p) {
  const Index n = (Index)blockIdx.x * THREADS + threadIdx.x;
  if (n >= ALL_CHUNKS) return;
  const Place at = place(n);
  const bool whole = VECTOR && at.count == CHUNK && ALIGNED;
  const float sink = SINK;
  float most = sink, total = 0.f, sum[CHUNK];
  EACH_PART(MOST)
#pragma unroll
  for (int i = 0; i < CHUNK; i++) sum[i] = 0.f;
  EACH_PART(TAKE)
  if (sink != -INFINITE) total += expf(sink - most);
  // No key and no sink: nothing was taken, and the logarithm of nothing is minus infinity.
  const bool hidden = total == 0.f;
#pragma unroll
  for (int i = 0; i < CHUNK; i++) sum[i] = hidden ? 0.f : sum[i] / total;
  write(p.o + (AT_O), at.count, whole, sum);
#if STATS
  if (at.column == 0) p.stats[AT_STATS] = most + logf(total);
#endif
}
