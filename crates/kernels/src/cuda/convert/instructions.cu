// The instructions of a GPU that round; each gives what the function of the same name by hand gives.

// Two numbers in 8 bits each, the first in the lower half.
__device__ __forceinline__ u32 narrowed(float low, float high) {
  u16 both;
#if NARROW_E5M2
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
#else
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
#endif
  return both;
}

__device__ __forceinline__ u32 to_bf16(float x) { return bf16_by_hand(x); }

__device__ __forceinline__ u32 to_f16(float x) {
  if (magnitude(x) > INFINITE) return 0x7e00u;
  u16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float from_f16(u32 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"((u16)x));
  return y;
}
