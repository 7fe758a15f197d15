#include "msl_rt.h"
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sys/mman.h>
#include <thread>
#include <vector>
#include "msl_internal.h"
using namespace mslrt;

#if defined(__x86_64__)
asm(R"(.text
.globl msl_switch
.type msl_switch,@function
msl_switch:
 pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
 movq %rsp,(%rdi); movq %rsi,%rsp
 popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
 ret
)");
#elif defined(__aarch64__)
asm(R"(.text
.globl msl_switch
msl_switch:
 sub sp,sp,#160
 stp x19,x20,[sp,#0]; stp x21,x22,[sp,#16]; stp x23,x24,[sp,#32]; stp x25,x26,[sp,#48]; stp x27,x28,[sp,#64]; stp x29,x30,[sp,#80]
 stp d8,d9,[sp,#96]; stp d10,d11,[sp,#112]; stp d12,d13,[sp,#128]; stp d14,d15,[sp,#144]
 mov x9,sp; str x9,[x0]; mov sp,x1
 ldp x19,x20,[sp,#0]; ldp x21,x22,[sp,#16]; ldp x23,x24,[sp,#32]; ldp x25,x26,[sp,#48]; ldp x27,x28,[sp,#64]; ldp x29,x30,[sp,#80]
 ldp d8,d9,[sp,#96]; ldp d10,d11,[sp,#112]; ldp d12,d13,[sp,#128]; ldp d14,d15,[sp,#144]
 add sp,sp,#160
 ret
)");
#endif
extern "C" void msl_switch(void** save, void* load);

namespace mslrt {
thread_local Worker* W = nullptr;
static std::atomic<uint64_t> g_errors;
static std::mutex g_mu;

void fail(const char* fmt, ...) {
  uint64_t n = g_errors.fetch_add(1);
  if (n >= 12) return;
  std::lock_guard<std::mutex> l(g_mu);
  va_list ap;
  va_start(ap, fmt);
  fprintf(stderr, "MSL-CPU error: ");
  vfprintf(stderr, fmt, ap);
  fputc('\n', stderr);
  va_end(ap);
}
const Lane& lane() { return W->cur->lane; }

static uint64_t rnd(Worker& w) {
  w.rng ^= w.rng << 13;
  w.rng ^= w.rng >> 7;
  w.rng ^= w.rng << 17;
  return w.rng;
}
static inline void push(Worker& w, Fiber* f) {
  f->state = READY;
  w.ready[(w.head + w.nready++) % w.cap] = f;
}
static inline Fiber* pop(Worker& w) {
  if (!w.nready) return nullptr;
  if (w.rng && w.nready > 1) std::swap(w.ready[w.head], w.ready[(w.head + rnd(w) % w.nready) % w.cap]);
  Fiber* f = w.ready[w.head];
  w.head = (w.head + 1) % w.cap;
  w.nready--;
  return f;
}
static void yield_to_next(Worker& w, Fiber* self) {  // self is blocked or finished
  Fiber* n = pop(w);
  if (n == self) {
    w.cur = n;
    n->state = RUNNING;
    return;
  }
  w.switches++;
  if (n) {
    w.cur = n;
    n->state = RUNNING;
    msl_switch(&self->sp, n->sp);
  } else {
    w.cur = nullptr;
    msl_switch(&self->sp, w.sched_sp);
  }
}
static void fiber_main() {
  Worker& w = *W;
  Fiber* f = w.cur;
  w.entry(w.bufptrs, f->lane);
  f->state = DONE;
  w.alive--;
  Simd& s = w.simd[f->lane.simdgroup_index_in_threadgroup];
  s.alive &= ~(1u << f->lane.thread_index_in_simdgroup);
  simd_try(w, s, false);
  barrier_try(w);
  yield_to_next(w, f);
  abort();
}
static void arm(Fiber* f) {  // (re)start a fiber at fiber_main
  uintptr_t top = ((uintptr_t)f->stack + STACK) & ~(uintptr_t)15;
  memset(f->stack, 0xC5, 64);  // overflow canary at the low end
#if defined(__x86_64__)
  void** sp = (void**)(top - 8);
  *sp = nullptr;
  *--sp = (void*)fiber_main;
  for (int i = 0; i < 6; i++) *--sp = nullptr;
  f->sp = sp;
#else
  char* sp = (char*)(top - 160);
  memset(sp, 0, 160);
  ((void**)sp)[11] = (void*)fiber_main;
  f->sp = sp;
#endif
}
// Release lanes that wait on one simdgroup operation. force: divergent code, nobody else can arrive any more.
void simd_try(Worker& w, Simd& s, bool force) {
  uint32_t waiting = s.waiting;
  if (!waiting || (!force && waiting != s.alive)) return;
  uint32_t first = __builtin_ctz(waiting), site = s.f[first]->site, m = 0;
  for (uint32_t k = 0; k < 32; k++)
    if ((waiting >> k & 1) && s.f[k]->site == site) m |= 1u << k;
  if (m != s.alive || s.alive != s.full) w.divergent++;
  Gen& g = s.gen[s.n++ & 3];
  g.active = m;
  g.have = false;
  for (uint32_t k = 0; k < 32; k++)
    if (m >> k & 1) {
      Fiber* f = s.f[k];
      memcpy(g.slot[k], f->pub, f->pubn);
      f->got = &g;
      if (f->sgflags) {
        f->ep_sg[0] += f->sgflags & 1;
        f->ep_sg[1] += f->sgflags >> 1 & 1;
      }
      push(w, f);
    }
  s.waiting &= ~m;
  if (s.waiting && s.waiting == s.alive) simd_try(w, s, false);
}
void barrier_try(Worker& w) {
  if (!w.bar_n || w.bar_n != w.alive) return;
  if (w.alive != w.n)
    fail("threadgroup_barrier (line %u) reached by %u of %u threads; the others have returned: undefined in MSL",
         w.bar_site & 0xffffff, w.bar_n, w.n);
  w.ep_tg[0] += w.bar_flags & 1;
  w.ep_tg[1] += w.bar_flags >> 1 & 1;
  w.bar_n = 0;
  for (uint32_t i = 0; i < w.n; i++)
    if (w.fib[i].state == BARRIER) push(w, &w.fib[i]);
}
Gen* collective(const void* in, uint32_t size, uint32_t site) {
  Worker& w = *W;
  Fiber* f = w.cur;
  Simd& s = w.simd[f->lane.simdgroup_index_in_threadgroup];
  for (uint32_t i = 0; i < size; i++) f->pub[i] = ((const uint8_t*)in)[i];
  f->pubn = size;
  f->site = site;
  f->sgflags = 0;
  f->state = SIMD;
  s.waiting |= 1u << f->lane.thread_index_in_simdgroup;
  simd_try(w, s, false);
  yield_to_next(w, f);
  return f->got;
}
void simd_barrier(uint32_t flags, uint32_t site) {
  Worker& w = *W;
  Fiber* f = w.cur;
  Simd& s = w.simd[f->lane.simdgroup_index_in_threadgroup];
  f->pubn = 0;
  f->site = site;
  f->sgflags = flags;
  f->state = SIMD;
  s.waiting |= 1u << f->lane.thread_index_in_simdgroup;
  simd_try(w, s, false);
  yield_to_next(w, f);
}
void barrier(uint32_t flags, uint32_t site) {
  Worker& w = *W;
  Fiber* f = w.cur;
  if (w.bar_n == 0) {
    w.bar_site = site;
    w.bar_flags = flags;
  } else if (w.bar_site != site)
    fail("threads of one threadgroup wait at different barriers (lines %u and %u)", w.bar_site & 0xffffff,
         site & 0xffffff);
  w.bar_flags &= flags;
  w.bar_n++;
  f->state = BARRIER;
  barrier_try(w);
  yield_to_next(w, f);
}
void* tg_alloc(const void* key, size_t bytes, size_t align) {
  Worker& w = *W;
  for (int i = 0; i < w.ntg; i++)
    if (w.tg[i].key == key) return w.arena + w.tg[i].off;
  if (align < 16) align = 16;
  size_t off = (w.tg_top + align - 1) / align * align;
  w.tg_used += (bytes + 15) / 16 * 16;
  if (w.ntg >= 32 || off + bytes + 64 > ARENA) {
    fail("threadgroup memory arena exhausted");
    abort();
  }
  if (w.tg_used > 32768 && !w.tg_warned) {
    w.tg_warned = true;
    fail("threadgroup memory %zu B exceeds Apple's 32768 B", w.tg_used);
  }
  w.tg[w.ntg++] = {key, (uint32_t)off, (uint32_t)bytes};
  w.tg_top = off + bytes + 64;         // 64 B red zone
  memset(w.arena + off, 0xFF, bytes);  // NaN in every float type
  return w.arena + off;
}

static void run_tg(Worker& w, const Launch& L, uint64_t id) {
  U3 ng = L.ngroups, t{(uint32_t)(id % ng.x), (uint32_t)(id / ng.x % ng.y), (uint32_t)(id / ng.x / ng.y)};
  U3 o{t.x * L.tg.x, t.y * L.tg.y, t.z * L.tg.z};
  auto mn = [](uint32_t a, uint32_t b) { return a < b ? a : b; };
  U3 sz{mn(L.tg.x, L.grid.x - o.x), mn(L.tg.y, L.grid.y - o.y),
        mn(L.tg.z, L.grid.z - o.z)};  // dispatchThreads: ragged edge groups
  uint32_t n = sz.x * sz.y * sz.z, nd = L.tg.x * L.tg.y * L.tg.z;
  w.n = w.alive = n;
  w.bar_n = 0;
  w.head = w.nready = 0;
  w.ntg = 0;
  w.tg_top = 64;
  w.tg_used = 0;
  w.tgid = id;
  w.tggen++;
  w.ep_tg[0] = w.ep_tg[1] = 0;
  for (uint32_t i = 0; i < n; i++) {
    Fiber& f = w.fib[i];
    Lane& l = f.lane;
    U3 p{i % sz.x, i / sz.x % sz.y, i / sz.x / sz.y};
    l.thread_position_in_threadgroup = p;
    l.thread_position_in_grid = {o.x + p.x, o.y + p.y, o.z + p.z};
    l.threadgroup_position_in_grid = t;
    l.threads_per_threadgroup = sz;
    l.dispatch_threads_per_threadgroup = L.tg;
    l.threadgroups_per_grid = ng;
    l.threads_per_grid = l.grid_size = L.grid;
    l.grid_origin = {0, 0, 0};
    l.thread_index_in_threadgroup = i;
    l.thread_index_in_simdgroup = i & 31;
    l.simdgroup_index_in_threadgroup = i >> 5;
    l.simdgroups_per_threadgroup = (n + 31) / 32;
    l.dispatch_simdgroups_per_threadgroup = (nd + 31) / 32;
    l.threads_per_simdgroup = l.thread_execution_width = 32;
    l.thread_index_in_quadgroup = i & 3;
    l.quadgroup_index_in_threadgroup = i >> 2;
    l.quadgroups_per_threadgroup = (n + 3) / 4;
    l.dispatch_quadgroups_per_threadgroup = (nd + 3) / 4;
    f.ep_sg[0] = f.ep_sg[1] = 0;
    f.sgflags = 0;
    Simd& s = w.simd[i >> 5];
    if (!(i & 31)) {
      s.alive = s.full = s.waiting = 0;
    }
    s.f[i & 31] = &f;
    s.alive |= 1u << (i & 31);
    s.full = s.alive;
    arm(&f);
    push(w, &f);
  }
  for (;;) {
    Fiber* f = pop(w);
    if (!f) {
      if (!w.alive) break;
      bool freed = false;  // only waiters left: release divergent simdgroup operations
      for (uint32_t s = 0; s < (n + 31) / 32 && !freed; s++)
        if (w.simd[s].waiting) {
          simd_try(w, w.simd[s], true);
          freed = true;
        }
      if (freed) continue;
      fail("deadlock: barrier at line %u reached by %u of %u live threads", w.bar_site & 0xffffff, w.bar_n,
           w.alive);
      break;
    }
    w.cur = f;
    f->state = RUNNING;
    w.switches++;
    msl_switch(&w.sched_sp, f->sp);
  }
  for (uint32_t i = 0; i < n; i++) {
    uint64_t c;
    memcpy(&c, w.fib[i].stack, 8);
    if (c != 0xC5C5C5C5C5C5C5C5ull) {
      fail("thread stack overflow");
      break;
    }
  }
  if (w.tg_used > w.tg_max) w.tg_max = w.tg_used;
}
}  // namespace mslrt
extern "C" uint64_t msl_launch(Entry entry, Buf* bufs, uint32_t nb, const uint32_t grid[3], const uint32_t tg[3],
                               uint32_t nthreads, uint64_t seed, Stats* st) {
  Launch L;
  L.grid = {grid[0], grid[1], grid[2]};
  L.tg = {std::min(tg[0], grid[0]), std::min(tg[1], grid[1]), std::min(tg[2], grid[2])};  // as MLX: min(tg, grid)
  L.ngroups = {(grid[0] + L.tg.x - 1) / L.tg.x, (grid[1] + L.tg.y - 1) / L.tg.y, (grid[2] + L.tg.z - 1) / L.tg.z};
  uint64_t total = (uint64_t)L.ngroups.x * L.ngroups.y * L.ngroups.z;
  uint32_t n = L.tg.x * L.tg.y * L.tg.z;
  static std::mutex one;
  std::lock_guard<std::mutex> only(one);  // error counter and checker state are per library
  g_errors = 0;
  if (n > 1024) {
    fail("threadgroup of %u threads: more than 1024", n);
    return 1;
  }
  check_begin(bufs, nb);
  if (check_active()) nthreads = 1;
  std::atomic<uint64_t> next{0};
  std::vector<void*> ptrs;
  for (uint32_t i = 0; i < nb; i++) ptrs.push_back(bufs[i].ptr);
  std::mutex mu;
  Stats s{};
  auto work = [&](uint32_t k) {
    Worker* w = new Worker();
    W = w;
    w->entry = entry;
    w->bufptrs = ptrs.data();
    w->cap = n;
    w->rng = seed ? seed * 0x9E3779B97F4A7C15ull + k + 1 : 0;
    w->fib = new Fiber[n];
    w->ready = new Fiber*[n];
    w->simd = new Simd[(n + 31) / 32];
    w->stacks = (uint8_t*)mmap(nullptr, (size_t)n * STACK, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    w->arena = (uint8_t*)aligned_alloc(64, ARENA);
    for (uint32_t i = 0; i < n; i++) w->fib[i].stack = w->stacks + (size_t)i * STACK;
    for (uint64_t id; (id = next.fetch_add(1)) < total;)
      run_tg(*w, L, seed & 1 ? total - 1 - id : id);  // odd seeds: threadgroups in reverse order
    {
      std::lock_guard<std::mutex> l(mu);
      s.divergent += w->divergent;
      s.switches += w->switches;
      if (w->tg_max > s.tg_bytes) s.tg_bytes = w->tg_max;
    }
    munmap(w->stacks, (size_t)n * STACK);
    free(w->arena);
    delete[] w->fib;
    delete[] w->ready;
    delete[] w->simd;
    delete w;
    W = nullptr;
  };
  if (nthreads <= 1)
    work(0);
  else {
    std::vector<std::thread> ts;
    for (uint32_t k = 0; k < nthreads; k++) ts.emplace_back(work, k);
    for (auto& t : ts) t.join();
  }
  check_end();
  s.errors = g_errors;
  if (st) *st = s;
  return g_errors;
}
