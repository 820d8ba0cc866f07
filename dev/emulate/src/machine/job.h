// Reads a job, runs its steps, writes what the buffers hold then. `job.rs` writes jobs.
#pragma once

#include <string>
#include <utility>

#include "memory.h"

alignas(1024) thread_local unsigned char shared[emulated::SHARED];

namespace emulated {

enum { PAGE = 4096, AROUND = 0xa5 };

// A buffer that ends where a page begins which nobody may touch, and begins behind one.
struct Buffer {
  unsigned char *at, *from;
  uint64_t bytes, whole;

  explicit Buffer(uint64_t bytes) : bytes(bytes) {
    const uint64_t room = (bytes + 255) / 256 * 256;
    whole = (room + PAGE - 1) / PAGE * PAGE + 2 * PAGE;
    void* memory = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("no memory for a buffer of %llu bytes", (unsigned long long)bytes);
    from = (unsigned char*)memory;
    memset(from + PAGE, AROUND, whole - 2 * PAGE);
    mprotect(from, PAGE, PROT_NONE);
    mprotect(from + whole - PAGE, PAGE, PROT_NONE);
    at = from + whole - PAGE - room;
  }

  // Whether only the buffer's own bytes were written.
  bool intact() const {
    for (const unsigned char* p = from + PAGE; p < from + whole - PAGE; p++)
      if ((p < at || p >= at + bytes) && *p != AROUND) return false;
    return true;
  }
};

struct Reader {
  FILE* file;
  void bytes(void* to, uint64_t count) {
    if (fread(to, 1, count, file) != count) fail("the job ends early");
  }
  uint64_t number() {
    uint64_t n;
    bytes(&n, 8);
    return n;
  }
};

struct Kernel { const char* name; void (*call)(unsigned char* const* params); };

template <typename... A, size_t... I>
void call_with(void (*kernel)(A...), unsigned char* const* params, std::index_sequence<I...>) {
  kernel(*(const std::remove_const_t<A>*)params[I]...);
}
template <typename... A> void call(void (*kernel)(A...), unsigned char* const* params) {
  call_with(kernel, params, std::index_sequence_for<A...>());
}

// A parameter: its bytes, and what is written over them.
inline unsigned char* parameter(Reader& job, const std::vector<Buffer>& buffers) {
  const uint64_t bytes = job.number();
  unsigned char* const param = (unsigned char*)aligned_alloc(128, (bytes + 127) / 128 * 128);
  job.bytes(param, bytes);
  for (uint64_t patches = job.number(); patches > 0; patches--) {
    const uint64_t at = job.number(), kind = job.number(), which = job.number(), offset = job.number();
    const Buffer& buffer = buffers.at(which);
    if (kind == 0) {
      const unsigned char* const address = buffer.at + offset;
      memcpy(param + at, &address, 8);
      continue;
    }
    Map map{};
    map.at = buffer.at;
    map.element = (uint16_t)job.number();
    map.swizzle = (uint32_t)job.number();
    map.rank = (uint16_t)job.number();
    for (int i = 0; i < map.rank; i++) map.dims[i] = job.number();
    for (int i = 0; i + 1 < map.rank; i++) map.strides[i] = job.number();
    for (int i = 0; i < map.rank; i++) map.box[i] = (uint32_t)job.number();
    const int last = map.rank - 1;
    if (map.dims[last] == 0 && last > 0) map.dims[last] = buffer.bytes / map.strides[last - 1];
    memcpy(param + at, &map, sizeof map);
  }
  return param;
}

inline void run_kernel(const Kernel& kernel, uint64_t dynamic, const std::vector<unsigned char*>& params) {
  if (dynamic > SHARED) fail("%llu bytes of shared memory", (unsigned long long)dynamic);
  // Blocks begin in any order.
  std::vector<uint32_t> order(grid.x * grid.y * grid.z);
  for (size_t i = 0; i < order.size(); i++) {
    const size_t place = draw() % (i + 1);
    order[i] = order[place];
    order[place] = (uint32_t)i;
  }
  const std::function<void()> what = [&] { kernel.call(params.data()); };
  for (const uint32_t number : order) {
    block = Index{number % grid.x, number / grid.x % grid.y, number / (grid.x * grid.y)};
    memset(shared, 0xff, SHARED);
    begin_block();
    run_block(what);
    if (!copies.empty()) fail("block %u of %s ends before %zu of its copies", number, kernel.name, copies.size());
    // Each byte equals the next one.
    if (dynamic < SHARED && (shared[dynamic] != 0xff || memcmp(shared + dynamic, shared + dynamic + 1, SHARED - dynamic - 1)))
      fail("block %u of %s writes shared memory beyond its %llu bytes", number, kernel.name, (unsigned long long)dynamic);
  }
}

inline void run_step(Reader& job, const std::vector<Buffer>& buffers, const std::vector<Kernel>& kernels) {
  if (job.number() == 0) {
    const uint64_t which = job.number(), at = job.number(), bytes = job.number(), value = job.number();
    memset(buffers.at(which).at + at, (int)value, bytes);
    return;
  }
  std::string name(job.number(), ' ');
  job.bytes(name.data(), name.size());
  for (Index* index : {&grid, &extent}) *index = Index{(unsigned)job.number(), (unsigned)job.number(), (unsigned)job.number()};
  const uint64_t dynamic = job.number();
  std::vector<unsigned char*> params;
  for (uint64_t count = job.number(); count > 0; count--) params.push_back(parameter(job, buffers));
  for (const Kernel& kernel : kernels)
    if (name == kernel.name) {
      run_kernel(kernel, dynamic, params);
      for (unsigned char* param : params) free(param);
      return;
    }
  fail("no kernel is named %s", name.c_str());
}

inline int run_job(char** arguments, const std::vector<Kernel>& kernels) {
  Reader job{fopen(arguments[1], "rb")};
  if (!job.file) fail("the job cannot be opened");
  random_state = job.number();
  std::vector<Buffer> buffers;
  for (uint64_t count = job.number(); count > 0; count--) {
    buffers.emplace_back(job.number());
    job.bytes(buffers.back().at, buffers.back().bytes);
    operands.push_back({buffers.back().at, buffers.back().bytes});
  }
  for (uint64_t steps = job.number(); steps > 0; steps--) run_step(job, buffers, kernels);
  FILE* const result = fopen(arguments[2], "wb");
  for (size_t i = 0; i < buffers.size(); i++) {
    if (!buffers[i].intact()) fail("bytes beside buffer %zu were written", i);
    fwrite(buffers[i].at, 1, buffers[i].bytes, result);
  }
  return fclose(result);
}

}  // namespace emulated
