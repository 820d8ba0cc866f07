// The hyperbolic tangent of what a cap multiplies, in fewer instructions: it is off by at most 1.2e-7, and
// by 6e-5 of itself where it is small. Below 2^-9 it is its argument, which is 1.3e-6 more.
__device__ __forceinline__ float tanh_capped(float x) {
  const float y = __fmaf_rn(-2.f, reciprocal_fast(1.f + exp2_fast(x * (2.f * LOG2E))), 1.f);
  return fabsf(x) < 0.001953125f ? x : y;
}
