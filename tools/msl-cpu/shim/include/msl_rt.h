// MSL-on-CPU runtime interface. One OS thread runs one threadgroup at a time; each MSL thread is a fiber.
#pragma once
#include <cstddef>
#include <cstdint>
namespace mslrt {
struct U3 {
  uint32_t x, y, z;
};
struct Lane {  // everything a [[attribute]] parameter can ask for
  U3 thread_position_in_grid, thread_position_in_threadgroup, threadgroup_position_in_grid;
  U3 threads_per_threadgroup, dispatch_threads_per_threadgroup, threadgroups_per_grid, threads_per_grid, grid_size,
      grid_origin;
  uint32_t thread_index_in_threadgroup, thread_index_in_simdgroup, simdgroup_index_in_threadgroup;
  uint32_t simdgroups_per_threadgroup, dispatch_simdgroups_per_threadgroup, threads_per_simdgroup,
      thread_execution_width;
  uint32_t thread_index_in_quadgroup, quadgroup_index_in_threadgroup, quadgroups_per_threadgroup,
      dispatch_quadgroups_per_threadgroup;
};
constexpr int SLOT = 64;  // bytes a lane may publish in one simdgroup operation
struct alignas(64) Gen {  // one simdgroup operation: what each active lane published + cached reduction
  uint8_t slot[32][SLOT];
  uint8_t result[SLOT];
  uint32_t active;
  bool have;
};
struct Buf {
  void* ptr;
  uint64_t bytes;
  uint32_t writable;
};
using Entry = void (*)(void** bufs, const Lane& lane);
struct Stats {
  uint64_t errors, divergent, tg_bytes, switches;
};

// kernel-side hooks
Gen* collective(const void* in, uint32_t size, uint32_t site);
enum : uint32_t { MEM_NONE = 0, MEM_DEVICE = 1, MEM_THREADGROUP = 2 };
void barrier(uint32_t flags, uint32_t site);
void simd_barrier(uint32_t flags, uint32_t site);
void* tg_alloc(const void* key, size_t bytes, size_t align);
const Lane& lane();
void fail(const char* fmt, ...);
struct AnyPtr {
  void* p;
  template <class T>
  __attribute__((no_sanitize("thread"))) operator T*() const {
    return (T*)p;
  }
};
struct AnyRef {
  void* p;
  template <class T>
  __attribute__((no_sanitize("thread"))) operator T&() const {
    return *(T*)p;
  }
};
}  // namespace mslrt
extern "C" {
// host-side: returns number of errors
uint64_t msl_launch(mslrt::Entry entry, mslrt::Buf* bufs, uint32_t nbufs, const uint32_t grid[3],
                    const uint32_t tg[3], uint32_t nthreads, uint64_t seed, mslrt::Stats* stats);
}
