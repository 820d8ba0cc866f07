// Whether the pages of each sequence can be read: the tables of keys and of values name the same ones, and the pools have
// them. Attention kernels that read one table for both would bring other rows, or leave the pools.

extern "C" __global__ void __launch_bounds__(THREADS) pages(const __grid_constant__ Params p) {
  __shared__ int wrong;
  if (threadIdx.x == 0) wrong = 0;
  __syncthreads();
  const int batch = (int)blockIdx.x, keys = p.len_k[batch];
  const int count = keys > 0 && keys <= KEYS ? (keys - 1) / PAGE + 1 : 0;
  const int *of_keys = p.table_k + (i64)batch * TABLE, *of_values = p.table_v + (i64)batch * TABLE;
  for (int i = threadIdx.x; i < count; i += THREADS) {
    const int page = of_keys[i];
    if (page < 0 || page >= PAGES || page != of_values[i]) wrong = 1;
  }
  __syncthreads();
  if (threadIdx.x == 0) p.pages_good[batch] = !wrong;
}

__device__ __forceinline__ i64 key_row(const Params& p, int batch) { return 0; }
__device__ __forceinline__ bool keys_agree(const Params& p, int batch, i64 at) { return p.pages_good[batch] != 0; }
