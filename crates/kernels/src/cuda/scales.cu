
// The scale of a tensor from its largest magnitudes, by a block. Sums and comparisons are those of the host's `Scales`.

extern "C" __global__ void __launch_bounds__(THREADS) update_scales(const Params p) {
  __shared__ float of_warps[THREADS / 32];
  const Cell cell = cell_of(p, blockIdx.x);
  // The memory may hold anything: a place that is none of the history's, a NaN too, is its first.
  const float place = cell.history[0];
  const int next = place >= 0.f && place < (float)cell.steps ? (int)place : 0;
  const float amax = *cell.amax;
  // A NaN is not below anything.
  const bool finite = fabsf(amax) <= 3.402823466e38f;
  const float seen = finite && amax > 0.f ? amax : 0.f;
  float largest = seen;
  for (int i = threadIdx.x; i < cell.steps; i += THREADS)
    if (i != next) largest = fmaxf(largest, cell.history[HISTORY_HEAD + i]);
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < THREADS / 32; warp++) largest = fmaxf(largest, of_warps[warp]);
  cell.history[HISTORY_HEAD + next] = seen;
  cell.history[0] = (float)(next + 1 < cell.steps ? next + 1 : 0);
  if (!finite) cell.history[1] += 1.f;
  if (largest == 0.f) return;
  // The inverses of both bounds are numbers.
  const float scale = fminf(fmaxf(cell.largest / largest * ldexpf(1.f, -MARGIN), 2.938736e-39f), 8.5070592e37f);
  *cell.scale = scale;
  *cell.descale = 1.f / scale;
}
