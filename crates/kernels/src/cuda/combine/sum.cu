// Adds tensors in the order of EACH_PART, which names each part and where the elements of a place lie in it.

#define ADD(part, at_part)                         \
  {                                                \
    float x[CHUNK];                                \
    read((part) + (at_part), at.count, whole, x);  \
    _Pragma("unroll") for (int i = 0; i < CHUNK; i++) sum[i] += x[i]; \
  }

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
  write(p.into + (AT_INTO), at.count, whole, sum);
}
