// Adds tensors in the order of EACH_PART, which names each part, where the elements of a place lie in it, and whether
// the row counts there.

#define ADD(part, at_part, counts)                 \
  if (counts) {                                    \
    float x[CHUNK];                                \
    read((part) + (at_part), at.count, whole, x);  \
    _Pragma("unroll") for (int i = 0; i < CHUNK; i++) sum[i] += x[i]; \
  }

#define OR(part, at_part, counts) || (counts)

extern "C" __global__ void __launch_bounds__(THREADS) combine(const __grid_constant__ Params p) {
  const Index n = (Index)blockIdx.x * THREADS + threadIdx.x;
  if (n >= ALL_CHUNKS) return;
  const Place at = place(n);
  const bool whole = VECTOR && at.count == CHUNK && ALIGNED;
  float sum[CHUNK];
  // Minus zero and x make x, whatever its sign.
#pragma unroll
  for (int i = 0; i < CHUNK; i++) sum[i] = -0.f;
  EACH_PART(ADD)
  // Where no part counts, the sum is zero and not minus zero.
  if (!(false EACH_PART(OR))) {
#pragma unroll
    for (int i = 0; i < CHUNK; i++) sum[i] = 0.f;
  }
  write(p.into + (AT_INTO), at.count, whole, sum);
}
