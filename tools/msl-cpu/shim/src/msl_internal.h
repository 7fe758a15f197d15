#pragma once
#include "msl_rt.h"
namespace mslrt {
constexpr size_t STACK = 128 * 1024, ARENA = 128 * 1024;
enum State : uint8_t { READY, RUNNING, SIMD, BARRIER, DONE };
struct Fiber {
  void* sp;
  uint8_t* stack;
  Lane lane;
  State state;
  uint32_t site, pubn, sgflags;
  Gen* got;
  uint32_t ep_sg[2];  // simdgroup_barrier epochs [device, threadgroup]
  alignas(16) uint8_t pub[SLOT];
};
struct Simd {
  Fiber* f[32];
  uint32_t alive, full, waiting;
  uint64_t n = 0;
  Gen gen[4];
};
struct TgVar {
  const void* key;
  uint32_t off, bytes;
};
struct Worker {
  Entry entry;
  void** bufptrs;
  Fiber *fib, *cur;
  Fiber** ready;
  Simd* simd;
  void* sched_sp;
  uint32_t cap, head, nready, n, alive, bar_n, bar_site, bar_flags, ep_tg[2];
  uint64_t rng, tgid, tggen = 0, divergent = 0, switches = 0;
  uint8_t *stacks, *arena;
  size_t tg_top, tg_used, tg_max = 0;
  bool tg_warned = false;
  TgVar tg[32];
  int ntg;
};
struct Launch {
  U3 grid, tg, ngroups;
};
extern thread_local Worker* W;
void simd_try(Worker&, Simd&, bool);
void barrier_try(Worker&);
// msl_check.cpp (or the empty stub): race / bounds / initialisation checker
void check_begin(Buf*, uint32_t);
void check_end();
bool check_active();
}  // namespace mslrt
