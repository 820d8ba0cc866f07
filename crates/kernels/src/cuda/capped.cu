
// Caps of scores. Arguments of a hyperbolic tangent are small in most rows of a model, and up to NEAR a polynomial
// computes it, to 2.2e-7 of itself (a minimax fit of tanh(x) / x in x * x). The special function unit, which the weights
// of a softmax need, has no part in it. Beyond it two results of that unit are as exact.
#define NEAR 0.625f

// What the tangent of a number up to NEAR is of that number.
__device__ __forceinline__ float slope(float x) {
  const float u = x * x;
  float y = __fmaf_rn(u, 0.0150509449f, -0.0518218651f);
  y = __fmaf_rn(y, u, 0.133045256f);
  y = __fmaf_rn(y, u, -0.333319545f);
  return __fmaf_rn(y, u, 0.999999881f);
}

__device__ __forceinline__ float far_tanh(float x) {
  return __fmaf_rn(-2.f, reciprocal_fast(1.f + exp2_fast(x * (2.f * LOG2E))), 1.f);
}

__device__ __forceinline__ float any_tanh(float x) { return choose(fabsf(x) <= NEAR, __fmul_rn(x, slope(x)), far_tanh(x)); }

// The same of arguments up to NEAR, of which `furthest` is the furthest afterwards. It has the same bits: a product that
// becomes part of a sum is not rounded with it.
__device__ __forceinline__ float near_tanh(float x, float& furthest) {
  furthest = fmaxf(furthest, fabsf(x));
  return __fmul_rn(x, slope(x));
}

// A cap of scores, which are products of queries and keys times a scale: up to the limit, a polynomial of the product.
// Its coefficients are no floats where the cap is 50,000 times the scale, and then nothing is near.
struct Cap { float limit, k0, k1, k2, k3, k4; };

__device__ __forceinline__ Cap cap_of(float cap, float scale) {
  const float ratio = fabsf(scale * (1.f / cap)), u = ratio * ratio;
  return Cap{ratio > 2e-5f && ratio < 1e4f ? NEAR / ratio : -1.f, scale * 0.999999881f, scale * -0.333319545f * u,
             scale * 0.133045256f * u * u, scale * -0.0518218651f * u * u * u, scale * 0.0150509449f * u * u * u * u};
}

__device__ __forceinline__ float near_capped(const Cap& cap, float product, float& furthest) {
  furthest = fmaxf(furthest, fabsf(product));
  const float u = product * product;
  float y = __fmaf_rn(u, cap.k4, cap.k3);
  y = __fmaf_rn(y, u, cap.k2);
  y = __fmaf_rn(y, u, cap.k1);
  return product * __fmaf_rn(y, u, cap.k0);
}
