// What kernels of ours need of a GPU, on a CPU: threads and shared memory of CUDA C, and the functions of `machine.cu`.
#pragma once

#include "memory.h"
#include "words.h"

#define __shared__ thread_local
#define threadIdx (emulated::now->thread)
#define blockIdx emulated::block
#define gridDim emulated::grid
#define blockDim emulated::extent

template <typename T> u64 __cvta_generic_to_shared(T* at) { return (u32)((const unsigned char*)at - shared); }

namespace emulated {
constexpr bool is_f16(const char* type) { return type[0] == 'f'; }
inline float half(u16 x) { return is_f16(HALF_TYPE) ? from_f16(x) : from_bf16(x); }
enum Kind { SYNC, SHUFFLE_UP, SHUFFLE_XOR, SHUFFLE, ANY, MATRICES, MULTIPLY, PRODUCTS };
template <typename T> T brought(const unsigned char (*all)[Warp::BYTES], int lane) {
  T value;
  memcpy(&value, all[lane], sizeof value);
  return value;
}
inline int lane_number() { return now->number & 31; }
}  // namespace emulated

inline u32 pack(float low, float high) {
  const auto one = [](float x) { return (u32)(emulated::is_f16(HALF_TYPE) ? to_f16(x) : to_bf16(x)); };
  return one(low) | one(high) << 16;
}

inline u32 pack_f16(float low, float high) { return to_f16(low) | (u32)to_f16(high) << 16; }
#ifdef NARROW_TYPE
inline void widen(u32 four, u32& low, u32& high) {
  const auto one = [&](int n) { return (u32)f16_of_narrow(four >> 8 * n, NARROW_TYPE[1] == '5'); };
  low = one(0) | one(1) << 16;
  high = one(2) | one(3) << 16;
}
#endif

inline void __syncthreads() { emulated::sync_threads(0, blockDim.x * blockDim.y * blockDim.z); }
inline void sync_some(int barrier, int threads) { emulated::sync_threads(barrier, threads); }
inline void arrive_some(int barrier, int threads) { emulated::arrive_threads(barrier, threads); }
inline void __syncwarp() { emulated::meet(emulated::SYNC, "", 1); }
template <typename T> T __shfl_up_sync(u32, T x, int by) {
  const auto all = emulated::meet(emulated::SHUFFLE_UP, &x, sizeof x);
  const int lane = emulated::lane_number();
  return emulated::brought<T>(all, lane >= by ? lane - by : lane);
}
template <typename T> T __shfl_xor_sync(u32, T x, int mask) {
  return emulated::brought<T>(emulated::meet(emulated::SHUFFLE_XOR, &x, sizeof x), emulated::lane_number() ^ mask);
}
template <typename T> T __shfl_sync(u32, T x, int lane) {
  return emulated::brought<T>(emulated::meet(emulated::SHUFFLE, &x, sizeof x), lane & 31);
}
inline int __any_sync(u32, bool x) {
  const auto all = emulated::meet(emulated::ANY, &x, sizeof x);
  for (int lane = 0; lane < 32; lane++)
    if (emulated::brought<bool>(all, lane)) return 1;
  return 0;
}
inline int __all_sync(u32, bool x) { return !__any_sync(~0u, !x); }

inline void wait_for_previous() {}
inline void let_next_begin() {}
inline void fence_barriers() {}
inline void fence_async() { emulated::now->fenced = emulated::writes; }
inline void give_registers() {}
inline void take_registers() {}
inline void products_begin() {}
inline void products_commit() {}
template <int Running>
inline void products_wait() {}
inline void settle(float&) {}

inline void barrier_init(u32 barrier, int arrivals) { emulated::counters[barrier] = {arrivals, arrivals, 0, 0}; }
inline void barrier_arrive(u32 barrier) {
  emulated::Counter& found = emulated::counter(barrier);
  found.missing--;
  emulated::end_phase(found);
}
inline void barrier_expect(u32 barrier, u32 bytes) {
  emulated::counter(barrier).bytes += bytes;
  barrier_arrive(barrier);
}
inline void barrier_wait(u32 barrier, u32 parity) {
  emulated::now->address = barrier;
  emulated::now->parity = parity;
  while (!emulated::copies_are_there(barrier, parity)) emulated::pause(emulated::Wait::Copies);
}
inline void copy_box(u32 to, const TensorMap* map, int column, int head, int row, int page, u32 barrier) {
  emulated::Copy copy{to, barrier, {}, {column, head, row, page}};
  memcpy(&copy.map, map, sizeof copy.map);
  emulated::copies.push_back(copy);
}
inline void copy_part(u32 to, u64 from, bool zeros, bool wanted) {
  if (wanted) emulated::ask_for_part(to, (const void*)from, zeros);
}
inline void barrier_arrive_copied(u32 barrier) { emulated::arrive_with_parts(barrier); }
inline void copies_wait() {
  while (emulated::has_parts(*emulated::now)) emulated::pause(emulated::Wait::Parts);
}

#include "products.h"
