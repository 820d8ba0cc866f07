
// The least and the greatest of some numbers in a row, which the lanes of a warp read together.
__device__ __forceinline__ Bounds bounds_of(const int* at, int first, int last, int lane) {
  Bounds found = {0x7fffffff, (int)0x80000000u};
  for (int i = first + lane; i <= last; i += 32) {
    const int x = __ldg(at + i);
    found = Bounds{min(found.least, x), max(found.greatest, x)};
  }
  for (int step = 16; step; step >>= 1) {
    found.least = min(found.least, __shfl_xor_sync(~0u, found.least, step));
    found.greatest = max(found.greatest, __shfl_xor_sync(~0u, found.greatest, step));
  }
  return found;
}
