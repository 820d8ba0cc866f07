// Rows of operands that belong to no sequence, and Stats in another order.

// Writes zeros into rows of 16-bit elements, counted in words of four: into rows behind the lengths of the sequences, or
// into all if there are no lengths.
__device__ __forceinline__ void fill(u64* at, const int* lengths, int batch, int rows, i64 batch_step, i64 row_step, int heads, i64 head_step,
                                     int words) {
  for (i64 i = blockIdx.x; i < (i64)batch * rows; i += gridDim.x) {
    const int sequence = (int)(i / rows), row = (int)(i % rows);
    if (lengths && row < lengths[sequence]) continue;
    u64* const to = at + sequence * batch_step + row * row_step;
    for (int word = threadIdx.x; word < heads * words; word += THREADS) to[word / words * head_step + word % words] = 0;
  }
}

// Minus infinity for each row and head.
__device__ __forceinline__ void fill_stats(float* at, i64 rows, i64 row_step, int heads) {
  for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < rows * heads; i += (i64)gridDim.x * THREADS) {
    at[i / heads * row_step + i % heads] = -INFINITE;
  }
}
