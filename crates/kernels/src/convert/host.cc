// A block of threads on the host: threads are contexts that run one after the other, each until it waits for others.
// Blocks run one after the other too.
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(n)
#define __align__(n) alignas(n)
using std::max;
using std::min;

struct Index3 { unsigned x; };
static Index3 threadIdx, blockIdx, gridDim;

static float __uint_as_float(unsigned bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static unsigned __float_as_uint(float x) {
  unsigned bits;
  memcpy(&bits, &x, 4);
  return bits;
}
static float __fmul_rn(float a, float b) { return a * b; }
static float __fdiv_rn(float a, float b) { return a / b; }
static void __threadfence() {}
static unsigned atomicMax(unsigned* at, unsigned x) {
  const unsigned old = *at;
  *at = max(old, x);
  return old;
}
static unsigned atomicAdd(unsigned* at, unsigned x) {
  const unsigned old = *at;
  *at += x;
  return old;
}

// A group of threads that wait for each other: who arrives last lets all go on.
struct Barrier {
  unsigned size = 0, arrived = 0, round = 0;
};
struct Thread {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(128 * 1024);
  bool done = false;
};
static std::vector<Thread> threads;
static ucontext_t scheduler;
static Barrier of_block;
static std::vector<Barrier> of_warps;
static std::vector<unsigned> exchanged;
static std::function<void()> kernel;

static void wait(Barrier& barrier) {
  const unsigned round = barrier.round;
  if (++barrier.arrived == barrier.size) {
    barrier.arrived = 0;
    barrier.round++;
    return;
  }
  const unsigned self = threadIdx.x;
  while (barrier.round == round) {
    swapcontext(&threads[self].context, &scheduler);
    threadIdx.x = self;
  }
}
static void __syncthreads() { wait(of_block); }
static unsigned __shfl_xor_sync(unsigned, unsigned value, unsigned mask) {
  const unsigned self = threadIdx.x;
  exchanged[self] = value;
  wait(of_warps[self / 32]);
  const unsigned other = exchanged[self ^ mask];
  wait(of_warps[self / 32]);
  return other;
}
static void body() {
  const unsigned self = threadIdx.x;
  kernel();
  threads[self].done = true;
  swapcontext(&threads[self].context, &scheduler);
}
static void launch(unsigned blocks, unsigned size, std::function<void()> run) {
  kernel = run;
  gridDim.x = blocks;
  threads.resize(size);
  exchanged.resize(size);
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
    of_block = Barrier{size};
    of_warps.assign(size / 32, Barrier{32});
    for (Thread& thread : threads) {
      getcontext(&thread.context);
      thread.context.uc_stack = {thread.stack.data(), 0, thread.stack.size()};
      thread.context.uc_link = nullptr;
      thread.done = false;
      makecontext(&thread.context, body, 0);
    }
    for (bool more = true; more;) {
      more = false;
      for (unsigned at = 0; at < size; at++) {
        if (threads[at].done) continue;
        more = true;
        threadIdx.x = at;
        swapcontext(&scheduler, &threads[at].context);
      }
    }
  }
}

// Memory of an operand at a multiple of 16 bytes, from a file and back.
struct Memory {
  std::string path;
  std::vector<char> room;
  char* bytes;
  size_t size;
  explicit Memory(const std::string& from) : path(from) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    size = all.size();
    room.resize(size + 16);
    bytes = room.data() + (16 - (size_t)room.data() % 16) % 16;
    memcpy(bytes, all.data(), size);
  }
  template <typename T> operator T*() const { return (T*)bytes; }
  void save() const { std::ofstream(path, std::ios::binary).write(bytes, (std::streamsize)size); }
};
