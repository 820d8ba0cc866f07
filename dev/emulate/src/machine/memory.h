// Shared memory, its barriers, and the copies that bring tiles of tensors: boxes, and parts of 16 bytes.
//
// A copy is done some time after it was asked for, when its turn is drawn, so that a kernel that does not wait reads
// what was there before.
//
// Boxes are written by the asynchronous proxy, parts are not. So products that read shared memory by that proxy must be
// of threads that had a fence after the part was written.
#pragma once

#include <deque>
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

// 16 bytes that a thread copies to shared memory, or zeros, and the number of its group.
struct Part { uint32_t to; const unsigned char* from; int lane; uint64_t group; };

// The parts that a thread asks for between two arrivals with copies: how many have not come, and the arrival, once there
// is one.
struct Group { int left; bool closed; uint32_t barrier; };
struct Groups { uint64_t first; std::deque<Group> list; };

struct Range { const unsigned char* from; uint64_t bytes; };

inline std::map<uint32_t, Counter> counters;
inline std::vector<Copy> copies;
inline std::vector<Part> parts;
inline std::map<int, Groups> groups;     // by thread
inline std::vector<Range> operands;      // what a part may be read from
inline uint64_t writes;                  // parts that were written
inline std::vector<uint64_t> written;    // for each 16 bytes of shared memory, which write of a part was the last

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

// With a swizzle, 16-byte parts of a row change places by the row's number, which is in the address: eight of a row of 128
// bytes, four of one of 64.
inline uint32_t swizzled(uint32_t address, uint32_t swizzle) {
  return address ^ ((address >> 7 & (swizzle == 128 ? 7 : 3)) << 4);
}

inline void begin_block() {
  counters.clear();
  groups.clear();
  writes = 0;
  written.assign(SHARED / 16, 0);
}

inline void ask_for_part(uint32_t to, const void* from, bool zeros) {
  const unsigned char* const at = zeros ? nullptr : (const unsigned char*)from;
  if (to % 16 || (uint64_t)from % 16) fail("a copy of 16 bytes to %u from %p", to, from);
  if (to > SHARED - 16) fail("a copy to %u of shared memory", to);
  bool inside = zeros;
  for (const Range& range : operands) inside |= at >= range.from && at + 16 <= range.from + range.bytes;
  if (!inside) fail("a copy reads beside every operand");
  Groups& mine = groups[now->number];
  if (mine.list.empty() || mine.list.back().closed) mine.list.push_back({});
  mine.list.back().left++;
  parts.push_back({to, at, now->number, mine.first + mine.list.size() - 1});
}

// Groups whose parts have all come arrive, in order.
inline void end_groups(Groups& of) {
  while (!of.list.empty() && of.list.front().closed && of.list.front().left == 0) {
    Counter& found = counter(of.list.front().barrier);
    of.list.pop_front();
    of.first++;
    found.missing--;
    end_phase(found);
  }
}

inline void arrive_with_parts(uint32_t barrier) {
  Groups& mine = groups[now->number];
  if (mine.list.empty() || mine.list.back().closed) mine.list.push_back({});
  mine.list.back().closed = true;
  mine.list.back().barrier = barrier;
  end_groups(mine);
}

inline bool has_parts(const Lane& lane) {
  const auto found = groups.find(lane.number);
  if (found == groups.end()) return false;
  for (const Group& group : found->second.list)
    if (group.left) return true;
  return false;
}

// Some parts, of any threads, in any order.
inline void deliver_parts() {
  for (uint32_t count = 1 + draw() % 64; count > 0 && !parts.empty(); count--) {
    const size_t which = draw() % parts.size();
    const Part part = parts[which];
    parts[which] = parts.back();
    parts.pop_back();
    if (part.from) memcpy(shared_at(part.to), part.from, 16);
    else memset(shared_at(part.to), 0, 16);
    written[part.to / 16] = ++writes;
    Groups& of = groups[part.lane];
    of.list[part.group - of.first].left--;
    end_groups(of);
  }
}

// What a product of the current thread reads by the asynchronous proxy.
inline const unsigned char* read_by_product(uint32_t address) {
  if (address >= SHARED) fail("a product reads %u of shared memory", address);
  if (written[address / 16] > now->fenced) fail("thread %d has no fence between a copy and a product that reads it", now->number);
  return shared_at(address);
}

inline void deliver(const Copy& copy) {
  const Map& map = copy.map;
  if (map.rank != 4 || (map.swizzle != 128 && map.swizzle != 64)) fail("a copy of rank %d and swizzle %u", map.rank, map.swizzle);
  if (copy.to % 128) fail("a copy to %u of shared memory", copy.to);
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
    written[(to - shared) / 16] = 0;
    if (inside) memcpy(to, from, map.element);
    else memset(to, 0, map.element);
  }
  Counter& found = counter(copy.barrier);
  found.bytes -= bytes;
  end_phase(found);
}

inline bool deliver_one() {
  if (copies.empty() && parts.empty()) return false;
  if (draw() % (copies.size() + parts.size()) >= copies.size()) {
    deliver_parts();
    return true;
  }
  const size_t which = draw() % copies.size();
  const Copy copy = copies[which];
  copies[which] = copies.back();
  copies.pop_back();
  deliver(copy);
  return true;
}

}  // namespace emulated
