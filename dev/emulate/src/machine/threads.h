// The threads of a block, as contexts that one thread of the host switches between.
//
// A context runs until it waits for others: for its warp, for a barrier, for copies. Which warp goes on then is drawn
// from a seed, so that runs with other seeds meet in other orders. If nothing can go on, the block hangs, and the
// program ends with the places where its threads wait.
#pragma once

#include <sys/mman.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

namespace emulated {

struct Index { unsigned x, y, z; };

[[noreturn]] inline void fail(const char* text, ...) {
  va_list list;
  va_start(list, text);
  vfprintf(stderr, text, list);
  va_end(list);
  fputc('\n', stderr);
  exit(3);
}

// What a context waits for.
enum class Wait { Nothing, Warp, Block, Copies, Parts, End };

struct Lane {
  Index thread;
  int number, warp;
  void* stack;             // where registers lie while another context runs
  Wait wait;
  uint64_t turn;           // of the warp's meetings or of the barrier's
  int barrier;
  uint32_t address, parity;
  uint64_t fenced;         // the last write of a copy before this thread's last fence
};

// Lanes of a warp meet: each brings some bytes and reads those of the others.
struct Warp {
  enum { BYTES = 64 };
  int kind, arrived;
  uint64_t turn;
  // A lane can be one meeting ahead of another, not two.
  alignas(16) unsigned char brought[2][32][BYTES];
};

struct Barrier { int arrived; uint64_t turn; };

inline std::vector<Lane> lanes;
inline std::vector<Warp> warps;
inline Barrier block_barriers[16];
inline Lane* now;
inline Index block, grid, extent;
inline void* scheduler;
inline uint64_t random_state;
inline const std::function<void()>* body;

inline uint32_t draw() {
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return (uint32_t)(random_state >> 33);
}

// Saves the registers that a call keeps, changes stacks, and returns to where that stack was left.
extern "C" void emulated_switch(void** from, void* to);
asm(R"(
.text
.globl emulated_switch
emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

// Lets others run until what this context waits for has come.
inline void pause(Wait wait) {
  now->wait = wait;
  emulated_switch(&now->stack, scheduler);
}

bool has_parts(const Lane& lane);

extern "C" inline void emulated_begin() {
  (*body)();
  if (has_parts(*now)) fail("thread %d ends before its copies", now->number);
  pause(Wait::End);
  abort();
}

// All lanes of the warp meet in an instruction of a kind. Returns what each brought.
inline const unsigned char (*meet(int kind, const void* bytes, size_t size))[Warp::BYTES] {
  Warp& warp = warps[now->warp];
  const uint64_t turn = warp.turn;
  if (warp.arrived == 0) warp.kind = kind;
  if (warp.kind != kind) fail("lanes of warp %d meet in instructions %d and %d", now->warp, warp.kind, kind);
  memcpy(warp.brought[turn & 1][now->number & 31], bytes, size);
  if (++warp.arrived == 32) {
    warp.arrived = 0;
    warp.turn++;
  } else {
    now->turn = turn;
    pause(Wait::Warp);
  }
  return warp.brought[turn & 1];
}

// Whether it was the last thread to arrive.
inline bool arrive_threads(int barrier, int threads) {
  Barrier& found = block_barriers[barrier];
  if (++found.arrived < threads) return false;
  found.arrived = 0;
  found.turn++;
  return true;
}

inline void sync_threads(int barrier, int threads) {
  const uint64_t turn = block_barriers[barrier].turn;
  if (!arrive_threads(barrier, threads)) {
    now->turn = turn;
    now->barrier = barrier;
    pause(Wait::Block);
  }
}

bool copies_are_there(uint32_t address, uint32_t parity);
bool deliver_one();

inline bool may_go_on(const Lane& lane) {
  switch (lane.wait) {
    case Wait::Nothing: return true;
    case Wait::Warp: return warps[lane.warp].turn != lane.turn;
    case Wait::Block: return block_barriers[lane.barrier].turn != lane.turn;
    case Wait::Copies: return copies_are_there(lane.address, lane.parity);
    case Wait::Parts: return !has_parts(lane);
    case Wait::End: return false;
  }
  return false;
}

[[noreturn]] inline void hang() {
  static const char* const names[] = {"nothing", "its warp", "a barrier of the block", "copies", "its own copies", "nothing: it has ended"};
  for (const Lane& lane : lanes)
    if (lane.number % 32 == 0)
      fprintf(stderr, "  block %u %u, thread %d waits for %s (%u)\n", block.x, block.y, lane.number, names[(int)lane.wait], lane.address);
  fail("no thread of the block can go on");
}

// Runs the threads of one block.
inline void run_block(const std::function<void()>& what) {
  enum { STACK = 256 << 10 };
  static std::vector<unsigned char*> stacks;
  const int threads = extent.x * extent.y * extent.z, count = (threads + 31) / 32;
  if (threads % 32) fail("a block of %d threads: whole warps are emulated alone", threads);
  body = &what;
  lanes.assign(threads, Lane{});
  warps.assign(count, Warp{});
  memset(block_barriers, 0, sizeof block_barriers);
  while ((int)stacks.size() < threads) {
    void* memory = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("no memory for stacks");
    mprotect(memory, 4096, PROT_NONE);
    stacks.push_back((unsigned char*)memory);
  }
  for (int i = 0; i < threads; i++) {
    Lane& lane = lanes[i];
    lane.number = i;
    lane.warp = i / 32;
    lane.thread = Index{i % extent.x, i / extent.x % extent.y, i / (extent.x * extent.y)};
    // Six registers, the address to begin at, and the return address that a call would have left, below what is aligned.
    void** top = (void**)(stacks[i] + STACK) - 1;
    *--top = (void*)emulated_begin;
    for (int k = 0; k < 6; k++) *--top = nullptr;
    lane.stack = top;
  }
  int left = threads;
  while (left > 0) {
    bool moved = false;
    const int first = draw() % count;
    for (int w = 0; w < count; w++) {
      const int warp = (first + w) % count;
      for (int i = warp * 32; i < warp * 32 + 32; i++) {
        if (!may_go_on(lanes[i])) continue;
        now = &lanes[i];
        now->wait = Wait::Nothing;
        emulated_switch(&scheduler, now->stack);
        left -= now->wait == Wait::End;
        moved = true;
      }
      if (draw() % 4 == 0) moved |= deliver_one();
      if (draw() % 2) break;
    }
    if (moved) continue;
    // A turn that was cut short says nothing of the warps behind it.
    for (const Lane& lane : lanes) moved |= may_go_on(lane);
    if (!moved && !deliver_one()) hang();
  }
}

}  // namespace emulated
