// One table for attention kernels that read one: for each page of a sequence that of its keys, and behind it that of its
// values. A sequence cannot be read if a pool does not have one of its pages: kernels would leave the pool.

extern "C" __global__ void __launch_bounds__(THREADS) pages(const __grid_constant__ Params p) {
  __shared__ int wrong;
  if (threadIdx.x == 0) wrong = 0;
  __syncthreads();
  const int batch = (int)blockIdx.x, keys = p.len_k[batch];
  const int count = keys > 0 && keys <= KEYS ? (keys - 1) / PAGE + 1 : 0;
  const int *of_keys = p.table_k + (i64)batch * TABLE, *of_values = p.table_v + (i64)batch * TABLE;
  for (int i = threadIdx.x; i < count; i += THREADS) {
    const int key = of_keys[i], value = of_values[i];
    if (key < 0 || key >= KEY_PAGES || value < 0 || value >= VALUE_PAGES) wrong = 1;
    int* const both = p.tables + ((i64)batch * TABLE + i) * 2;
    both[0] = key;
    both[1] = value;
  }
  __syncthreads();
  if (threadIdx.x == 0) p.pages_good[batch] = !wrong;
}

__device__ __forceinline__ i64 key_row(const Params& p, int batch) { return 0; }
__device__ __forceinline__ bool keys_agree(const Params& p, int batch, i64 at) { return p.pages_good[batch] != 0; }
