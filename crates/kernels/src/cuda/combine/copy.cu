// Copies elements bit by bit, or writes one number everywhere (FILL).

extern "C" __global__ void __launch_bounds__(THREADS) combine(const __grid_constant__ Params p) {
  const Index n = (Index)blockIdx.x * THREADS + threadIdx.x;
  if (n >= ALL_CHUNKS) return;
  const Place at = place(n);
  const bool whole = VECTOR && at.count == CHUNK && ALIGNED;
  Element* const to = p.into + (AT_INTO);
#if FILL
  if (whole) {
    *(uint4*)to = make_uint4(WORD, WORD, WORD, WORD);
    return;
  }
  for (int i = 0; i < at.count; i++) to[i] = (Element)WORD;
#else
  const Element* const from = p.part0 + (AT_PART);
  if (whole) {
    *(uint4*)to = *(const uint4*)from;
    return;
  }
  for (int i = 0; i < at.count; i++) to[i] = from[i];
#endif
}
