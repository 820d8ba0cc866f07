// Shared memory, its barriers, and the copies that bring tiles of tensors.
//
// A copy is done some time after it was asked for, when its turn is drawn, so that a kernel that does not wait reads
// what was there before.
#pragma once

#include <map>

#include "threads.h"

extern thread_local unsigned char shared[];

namespace emulated {

enum { SHARED = 232448 };

// The bytes of a tensor map, as `TensorMap` of the kernels is laid out here.
struct Map {
  const unsigned char* at;
  uint64_t dims[5];      // the fastest first; the last is 0 if the operand's end says it
  uint64_t strides[4];   // bytes
  uint32_t box[5];
  uint16_t element, rank;
  uint32_t swizzle;
};
static_assert(sizeof(Map) <= 128, "a tensor map has 128 bytes");

// A barrier in shared memory counts arrivals and bytes; its phase ends when none of either is missing.
struct Counter { int expected, missing; int64_t bytes; uint32_t phase; };

struct Copy { uint32_t to, barrier; Map map; int at[4]; };

inline std::map<uint32_t, Counter> counters;
inline std::vector<Copy> copies;

inline unsigned char* shared_at(uint32_t address) { return shared + (int32_t)address; }

inline Counter& counter(uint32_t address) {
  const auto found = counters.find(address);
  if (found == counters.end()) fail("no barrier was set up at %u", address);
  return found->second;
}

inline void end_phase(Counter& of) {
  if (of.missing < 0) fail("more arrivals at a barrier than the %d it expects", of.expected);
  if (of.missing || of.bytes) return;
  of.phase ^= 1;
  of.missing = of.expected;
}

inline bool copies_are_there(uint32_t address, uint32_t parity) { return counter(address).phase != parity; }

// With 128 bytes of swizzle, 16-byte parts of a row change places by the row's number, which is in the address.
inline uint32_t swizzled(uint32_t address, uint32_t swizzle) {
  return swizzle == 128 ? address ^ ((address >> 7 & 7) << 4) : address;
}

inline void deliver(const Copy& copy) {
  const Map& map = copy.map;
  if (map.rank != 4 || map.swizzle != 128) fail("a copy of rank %d and swizzle %u", map.rank, map.swizzle);
  uint64_t element[4], bytes = map.element;
  for (int i = 0; i < 4; i++) bytes *= map.box[i];
  uint32_t done = 0;
  for (uint64_t n = 0; n < bytes / map.element; n++, done += map.element) {
    uint64_t rest = n;
    bool inside = true;
    const unsigned char* from = map.at;
    for (int i = 0; i < 4; i++) {
      element[i] = copy.at[i] + rest % map.box[i];
      rest /= map.box[i];
      inside &= element[i] < map.dims[i];
      from += element[i] * (i ? map.strides[i - 1] : map.element);
    }
    unsigned char* const to = shared_at(swizzled(copy.to + done, map.swizzle));
    if (inside) memcpy(to, from, map.element);
    else memset(to, 0, map.element);
  }
  Counter& found = counter(copy.barrier);
  found.bytes -= bytes;
  end_phase(found);
}

inline bool deliver_one() {
  if (copies.empty()) return false;
  const size_t which = draw() % copies.size();
  const Copy copy = copies[which];
  copies[which] = copies.back();
  copies.pop_back();
  deliver(copy);
  return true;
}

}  // namespace emulated
