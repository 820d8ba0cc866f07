// Instructions of the GPU that CUDA C has no words for: asynchronous copies, barriers in shared memory, matrix products.
// No other file has machine code, so that a test can run the rest on a CPU, with a machine of its own (EMULATED).
#ifdef EMULATED
#include EMULATED
#else

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f
#define INFINITE __int_as_float(0x7f800000)

struct __align__(64) TensorMap { u64 words[16]; };

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// One of two numbers, both of which are computed: what a branch would save is less than what it costs.
__device__ __forceinline__ float choose(bool first, float a, float b) {
  float y;
  asm("{\n.reg .pred first;\nsetp.ne.u32 first, %3, 0;\nselp.f32 %0, %1, %2, first;\n}" : "=f"(y) : "f"(a), "f"(b), "r"((u32)first));
  return y;
}

// Two numbers in 16 bits each, the first in the lower half.
__device__ __forceinline__ u32 pack(float low, float high) {
  u32 both;
  asm("cvt.rn." HALF_TYPE "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

__device__ __forceinline__ float from_bf16(u16 x) { return __uint_as_float((u32)x << 16); }

__device__ __forceinline__ float from_f16(u16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

__device__ __forceinline__ void barrier_init(u32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN%=:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra AGAIN%=;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Writes to shared memory become visible to copies and products that read or overwrite it asynchronously.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Brings a box of keys or values: 64 columns from `column` on, of `head`, from `row` of `page` on.
__device__ __forceinline__ void copy_box(u32 to, const TensorMap* map, int column, int head, int row, int page, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(map), "r"(column), "r"(head), "r"(row), "r"(page), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void load_matrices(u32 (&to)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}

__device__ __forceinline__ void load_transposed(u32 (&to)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}

// sum += a * b, of 16 rows and 8 columns over 16 columns of a, by one warp.
__device__ __forceinline__ void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." HALF_TYPE "." HALF_TYPE
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#if NARROW
// Four numbers of 8 bits as f16, which has room for each of them: the first two, and the others.
__device__ __forceinline__ void widen(u32 four, u32& low, u32& high) {
  asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.rn.f16x2." NARROW_TYPE "x2 %0, a;\ncvt.rn.f16x2." NARROW_TYPE "x2 %1, b;\n}"
      : "=r"(low), "=r"(high)
      : "r"(four));
}

__device__ __forceinline__ u32 pack_f16(float low, float high) {
  u32 both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// `multiply` of f16, whatever the type of queries is.
__device__ __forceinline__ void multiply_f16(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

// Waits until the kernel before this one has ended and its writes are seen.
__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The next kernel may begin, though this one has not ended.
__device__ __forceinline__ void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;"); }

// Threads of a block wait for each other, at one of 16 barriers.
__device__ __forceinline__ void sync_some(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// The same without waiting, for threads that others wait for.
__device__ __forceinline__ void arrive_some(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Barriers in shared memory are seen by asynchronous copies.
__device__ __forceinline__ void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;"); }

#if GATHER
// Copies 16 bytes of global memory to shared memory some time later, or writes zeros and reads nothing, or does nothing.
// A branch around it would end the compiler's overlap of one copy with the next.
__device__ __forceinline__ void copy_part(u32 to, u64 from, bool zeros, bool wanted) {
  asm volatile(
      "{\n.reg .pred zeros, wanted;\nsetp.ne.u32 zeros, %2, 0;\nsetp.ne.u32 wanted, %3, 0;\n"
      "@wanted cp.async.cg.shared.global [%0], [%1], 16, zeros;\n}" ::"r"(to),
      "l"(from), "r"((u32)zeros), "r"((u32)wanted)
      : "memory");
}

// Arrives at a barrier as soon as all copies that this thread has asked for are there. Nothing waits for that here. The
// barrier expects this arrival like any other (`noinc`).
__device__ __forceinline__ void barrier_arrive_copied(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Waits for all copies that this thread has asked for.
__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#endif

#if MOVE_REGISTERS
// Warps that copy rows, or parts of tiles, need more registers than the one that asks for boxes.
#if GATHER || WARPS_COLUMNS > 1
__device__ __forceinline__ void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); }
__device__ __forceinline__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 232;"); }
#else
__device__ __forceinline__ void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); }
__device__ __forceinline__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); }
#endif
#endif

#if WARPGROUPS
// A matrix in shared memory with 128-byte swizzle, for products by four warps: offsets in 16 bytes between blocks of 64
// columns and between groups of 8 rows.
__device__ __forceinline__ u64 matrix(u32 address, u32 blocks, u32 groups) {
  return (u64)((address & 0x3ffff) >> 4) | (u64)blocks << 16 | (u64)groups << 32 | 1ull << 62;
}
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all products but those of so many commits before.
template <int Running>
__device__ __forceinline__ void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Running) : "memory"); }
// The compiler moves no use of a number over this.
__device__ __forceinline__ void settle(float& x) { asm volatile("" : "+f"(x)::"memory"); }
#else
template <int Running>
__device__ __forceinline__ void products_wait() {}
#endif
#endif
