// What expressions call.

__device__ __forceinline__ int wrap_add(int a, int b) { return (int)((u32)a + (u32)b); }
__device__ __forceinline__ int wrap_sub(int a, int b) { return (int)((u32)a - (u32)b); }
__device__ __forceinline__ int wrap_mul(int a, int b) { return (int)((u32)a * (u32)b); }

__device__ __forceinline__ int rem_int(int a, int b) { return b == 0 || b == -1 ? 0 : a % b; }

__device__ __forceinline__ int floor_rem_int(int a, int b) {
  const int rest = rem_int(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

__device__ __forceinline__ int floor_div_int(int a, int b) {
  if (b == -1) return wrap_sub(0, a);
  const int whole = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? whole - 1 : whole;
}

__device__ __forceinline__ float floor_rem(float a, float b) {
  const float rest = fmodf(a, b);
  return rest != 0.f && (rest < 0.f) != (b < 0.f) ? rest + b : rest;
}

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
__device__ __forceinline__ float relu(float x) { return x < 0.f ? 0.f : x; }
__device__ __forceinline__ float elu(float x) { return x > 0.f ? x : expm1f(x); }
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.f + erff(x * 0.70710678118654752f)); }
__device__ __forceinline__ float gelu_tanh(float x) {
  return 0.5f * x * (1.f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))); }
__device__ __forceinline__ float swish(float x) { return x * sigmoid(x); }
