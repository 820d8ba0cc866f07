static u32 narrowed(float low, float high) {
#if NARROW_E5M2
  return narrowed_by_hand<2, 15, 0x7bu>(low) | narrowed_by_hand<2, 15, 0x7bu>(high) << 8;
#else
  return narrowed_by_hand<3, 7, 0x7eu>(low) | narrowed_by_hand<3, 7, 0x7eu>(high) << 8;
#endif
}
static u32 to_bf16(float x) { return bf16_by_hand(x); }
static u32 to_f16(float x) { return f16_by_hand(x); }
static float from_f16(u32 x) {
  const u32 a = (x & 0x7fffu) << 13, sign = (x & 0x8000u) << 16;
  if (a >= 31u << 23) return __uint_as_float(a == 31u << 23 ? sign | INFINITE : NOT_A_NUMBER);
  return __uint_as_float(sign | __float_as_uint(__uint_as_float(a) * power_of_two(112)));
}
