// The scale that brings a largest magnitude to LARGEST_NUMBER; the reciprocal of what it returns is a normal number.
__device__ __forceinline__ float scale_for(u32 amax) {
  if (amax == 0u || amax >= INFINITE) return 1.f;
  const float scale = min(__fdiv_rn(LARGEST_NUMBER, __uint_as_float(amax)), power_of_two(126));
  return POWER_OF_TWO ? __uint_as_float(__float_as_uint(scale) & INFINITE) : scale;
}

// The smallest exponent, from -127 on, with which a magnitude does not exceed 1.75 * 2^LARGEST_EXPONENT.
__device__ __forceinline__ int block_exponent(u32 amax) {
  return max((int)(amax >> 23) - 127 - LARGEST_EXPONENT + ((amax & 0x7fffffu) > 0x600000u ? 1 : 0), -127);
}

// The place of a scale of a head among those of all heads: tiles of 128 by 4, in which four rows that are 32 apart
// share 16 bytes. Along the sequence, the tiles of 128 columns of every head stand before those of the next 128.
__device__ __forceinline__ i64 scale_place(u32 head, u32 row, u32 column) {
  const u32 outer = ALONG_SEQUENCE ? column : row, inner = ALONG_SEQUENCE ? row / 32u : column / 32u;
  const i64 first = ALONG_SEQUENCE ? (i64)(outer / 128u) * (HEADS * BATCH) + head : (i64)head * (PADDED_OUTER / 128) + outer / 128u;
  const i64 tile = first * (PADDED_INNER / 4) + inner / 4u;
  return tile * 512 + outer % 32u * 16u + outer % 128u / 32u * 4u + inner % 4u;
}
