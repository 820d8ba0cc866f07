// Matrix products, with the registers of the lanes as PTX's manual lays them out.
#pragma once

namespace emulated {
inline u16 shared_half(u32 address) {
  u16 bits;
  memcpy(&bits, shared_at(address), 2);
  return bits;
}

// Four matrices of 8 x 8: a lane gives the address of a row and gets two neighbours of one row, or of one column.
inline void matrices(u32 (&to)[4], u32 address, bool transposed) {
  const auto all = meet(MATRICES + 16 * transposed, &address, sizeof address);
  const int lane = lane_number();
  for (int n = 0; n < 4; n++) {
    u32 both = 0;
    for (int e = 0; e < 2; e++) {
      const int row = transposed ? (lane & 3) * 2 + e : lane >> 2, column = transposed ? lane >> 2 : (lane & 3) * 2 + e;
      both |= (u32)shared_half(brought<u32>(all, n * 8 + row) + column * 2) << 16 * e;
    }
    to[n] = both;
  }
}

struct Fragments { u32 a[4], b[2]; };

inline float part(u32 both, int e) { return half((u16)(both >> 16 * e)); }

// Neighbours of a row of a matrix in shared memory, whose rows of 64 elements lie in groups of 8 and have 128 bytes of
// swizzle: 2 or 8 of them, from a column on that is a multiple of their number.
template <int N> void neighbours(float (&to)[N], u64 matrix, int row, int column) {
  if (matrix >> 62 != 1) fail("a matrix without 128 bytes of swizzle");
  const u32 address = (u32)(matrix & 0x3fff) << 4, blocks = (u32)(matrix >> 16 & 0x3fff) << 4, groups = (u32)(matrix >> 32 & 0x3fff) << 4;
  u16 bits[N];
  memcpy(bits, read_by_product(swizzled(address + column / 64 * blocks + row / 8 * groups + row % 8 * 128 + column % 64 * 2, 128)), sizeof bits);
  for (int i = 0; i < N; i++) to[i] = half(bits[i]);
}
}  // namespace emulated

inline void load_matrices(u32 (&to)[4], u32 address) { emulated::matrices(to, address, false); }
inline void load_transposed(u32 (&to)[4], u32 address) { emulated::matrices(to, address, true); }

// One product of a warp, whose halves `number` reads.
template <typename Number> void multiply_by(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1, Number number) {
  using namespace emulated;
  const auto part = [&](u32 both, int e) { return number((u16)(both >> 16 * e)); };
  const Fragments mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const auto all = meet(MULTIPLY, &mine, sizeof mine);
  const int lane = lane_number(), row = lane >> 2;
  for (int k = 0; k < 16; k++) {
    const int holder = (k & 7) >> 1, upper = k >> 3, e = k & 1;
    const Fragments of_row = brought<Fragments>(all, row * 4 + holder);
    for (int n = 0; n < 2; n++) {
      const float b = part(brought<Fragments>(all, ((lane & 3) * 2 + n) * 4 + holder).b[upper], e);
      sum[n] += part(of_row.a[upper * 2], e) * b;
      sum[2 + n] += part(of_row.a[upper * 2 + 1], e) * b;
    }
  }
}

inline void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  multiply_by(sum, a, b0, b1, [](u16 x) { return emulated::half(x); });
}
inline void multiply_f16(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  multiply_by(sum, a, b0, b1, [](u16 x) { return from_f16(x); });
}

inline u64 matrix(u32 address, u32 blocks, u32 groups) {
  return (u64)((address & 0x3ffff) >> 4) | (u64)blocks << 16 | (u64)groups << 32 | 1ull << 62;
}

// Rows and keys in shared memory: a group of four warps has 64 rows.
template <int N> void multiply_keys(float (&sum)[N][4], u64 rows, u64 keys, int add) {
  using namespace emulated;
  meet(PRODUCTS, "", 1);
  const int lane = lane_number(), row = (now->warp & 3) * 16 + (lane >> 2);
  float of_rows[2][2][8], of_key[2][8];
  for (int i = 0; i < 2; i++)
    for (int part = 0; part < 2; part++) neighbours(of_rows[i][part], rows, row + i * 8, part * 8);
  for (int n = 0; n < N; n++)
    for (int e = 0; e < 2; e++) {
      for (int part = 0; part < 2; part++) neighbours(of_key[part], keys, n * 8 + (lane & 3) * 2 + e, part * 8);
      for (int i = 0; i < 2; i++) {
        float of = add ? sum[n][i * 2 + e] : 0.f;
        for (int k = 0; k < 16; k++) of += of_rows[i][k / 8][k % 8] * of_key[k / 8][k % 8];
        sum[n][i * 2 + e] = of;
      }
    }
}

// Weights and values in shared memory.
template <int N> void multiply_shared(float (&sum)[N][4], u64 rows, u64 values) {
  using namespace emulated;
  meet(PRODUCTS + 2, "", 1);
  const int lane = lane_number(), row = (now->warp & 3) * 16 + (lane >> 2);
  float of_rows[2][2][8];
  for (int i = 0; i < 2; i++)
    for (int part = 0; part < 2; part++) neighbours(of_rows[i][part], rows, row + i * 8, part * 8);
  for (int k = 0; k < 16; k++)
    for (int n = 0; n < N; n++) {
      float value[2];
      neighbours(value, values, k, n * 8 + (lane & 3) * 2);
      for (int e = 0; e < 2; e++)
        for (int i = 0; i < 2; i++) sum[n][i * 2 + e] += of_rows[i][k / 8][k % 8] * value[e];
    }
}

// Rows in registers, values in shared memory with their keys along the rows.
template <int N> void multiply_values(float (&sum)[N][4], const u32 (&rows)[4], u64 values) {
  using namespace emulated;
  const Fragments mine{{rows[0], rows[1], rows[2], rows[3]}, {0, 0}};
  const auto all = meet(PRODUCTS + 1, &mine, sizeof mine);
  const int lane = lane_number(), row = lane >> 2;
  for (int k = 0; k < 16; k++) {
    const int holder = (k & 7) >> 1, upper = k >> 3, of = k & 1;
    const Fragments from = brought<Fragments>(all, row * 4 + holder);
    const float low = part(from.a[upper * 2], of), high = part(from.a[upper * 2 + 1], of);
    for (int n = 0; n < N; n++) {
      float value[2];
      neighbours(value, values, k, n * 8 + (lane & 3) * 2);
      for (int e = 0; e < 2; e++) {
        sum[n][e] += low * value[e];
        sum[n][2 + e] += high * value[e];
      }
    }
  }
}
