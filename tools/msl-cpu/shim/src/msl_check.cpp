// Race, bounds and initialisation checker: our own callbacks for -fsanitize=thread instrumentation (the TSan
// runtime is not linked).
#include "msl_internal.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>
using namespace mslrt;
namespace {
struct Acc {
  uint64_t gen;
  uint32_t tid, ep, sg, sgep;
  uintptr_t pc;
  bool atomic;
};  // gen 0: none; tid ~0: several readers
struct Cell {
  Acc w, r;
};
struct Reg {
  uintptr_t lo, hi;
  bool writable;
  std::vector<Cell> sh;
  std::vector<uint8_t> touched;
};
std::vector<Reg> regs;
std::vector<Cell> tgsh;
bool on = false;
std::set<std::string> seen;

std::string where(uintptr_t pc) {
  static std::unordered_map<uintptr_t, std::string> cache;
  auto it = cache.find(pc);
  if (it != cache.end()) return it->second;
  Dl_info d;
  char cmd[1200], out[600] = "";
  std::string r = "?";
  if (dladdr((void*)pc, &d) && d.dli_fname) {
    snprintf(cmd, sizeof cmd, "addr2line -s -e %s 0x%zx 2>/dev/null", d.dli_fname,
             (size_t)(pc - 1 - (uintptr_t)d.dli_fbase));
    if (FILE* p = popen(cmd, "r")) {
      if (fgets(out, sizeof out, p)) {
        out[strcspn(out, "\n ")] = 0;
        r = out;
      }
      pclose(p);
    }
  }
  return cache[pc] = r;
}
void report(const char* kind, uintptr_t pc, uintptr_t pc2, const char* what2, uint32_t t1, uint32_t t2,
            const char* space) {
  std::string a = where(pc), key = std::string(kind) + a + where(pc2);
  if (!seen.insert(key).second) return;
  if (pc2)
    fail("%s on %s memory: %s by thread %u, %s %s by thread %d", kind, space, a.c_str(), t1, what2,
         where(pc2).c_str(), (int)t2);
  else
    fail("%s on %s memory at %s by thread %u", kind, space, a.c_str(), t1);
}
// happens-before inside a dispatch: a barrier with the right mem_flags, or a simdgroup_barrier inside one simdgroup
bool ordered(const Acc& a, uint64_t gen, bool tgmem, uint32_t ep, uint32_t sg, uint32_t sgep) {
  if (!tgmem && a.gen != gen) return false;  // two threadgroups of one dispatch never synchronise
  return ep > a.ep || (a.tid != ~0u && a.sg == sg && sgep > a.sgep);
}
void access(uintptr_t p, size_t n, bool write, bool atomic, uintptr_t pc) {
  if (!on || !W || !W->cur) return;
  Worker& w = *W;
  Fiber& f = *w.cur;
  uintptr_t st = (uintptr_t)f.stack;
  if (p - st < STACK) return;
  uint32_t tid = f.lane.thread_index_in_threadgroup, sg = f.lane.simdgroup_index_in_threadgroup;
  uint64_t gen = w.tggen;
  Cell* c = nullptr;
  bool tg = false;
  uint32_t ep = 0, sgep = 0;
  if (p - (uintptr_t)w.arena < ARENA) {
    tg = true;
    bool ok = false;
    size_t off = p - (uintptr_t)w.arena;
    for (int i = 0; i < w.ntg; i++) ok |= off >= w.tg[i].off && off + n <= w.tg[i].off + w.tg[i].bytes;
    if (!ok) {
      report("out-of-bounds access", pc, 0, "", tid, 0, "threadgroup");
      return;
    }
    c = &tgsh[off];
    ep = w.ep_tg[1];
    sgep = f.ep_sg[1];
  } else {
    for (Reg& r : regs)
      if (p >= r.lo && p < r.hi) {
        if (p + n > r.hi) {
          report("out-of-bounds access", pc, 0, "", tid, 0, "device");
          return;
        }
        if (!r.writable) {
          if (write) report("write to an input", pc, 0, "", tid, 0, "device");
          return;
        }
        if (write) memset(&r.touched[p - r.lo], 1, n);
        c = &r.sh[p - r.lo];
        ep = w.ep_tg[0];
        sgep = f.ep_sg[0];
        break;
      }
    if (!c) {
      if (p - (uintptr_t)w.stacks < (size_t)w.cap * STACK) {
        report("access to another thread's private memory", pc, 0, "", tid, 0, "thread");
        return;
      }
      if (p - (uintptr_t)w.fib < sizeof(Fiber) * w.cap ||
          p - (uintptr_t)w.simd < sizeof(Simd) * ((w.cap + 31) / 32))
        return;  // our own state
      Dl_info d;
      if (!write && dladdr((void*)p, &d) && d.dli_fname) return;  // constant tables in the image
      report("out-of-bounds access", pc, 0, "", tid, 0, "device");
      return;
    }
  }
  const char* sp = tg ? "threadgroup" : "device";
  for (size_t i = 0; i < n; i++) {
    Cell& k = c[i];
    bool hw = k.w.gen && (!tg || k.w.gen == gen), hr = k.r.gen && (!tg || k.r.gen == gen);
    if (tg && !write && !hw) {
      report("read of uninitialised", pc, 0, "", tid, 0, sp);
      break;
    }
    if (hw && !(k.w.tid == tid && k.w.gen == gen) && !(atomic && k.w.atomic) &&
        !ordered(k.w, gen, tg, ep, sg, sgep)) {
      report(write ? "data race (write/write)" : "data race (read/write)", pc, k.w.pc, "written at", tid, k.w.tid,
             sp);
      break;
    }
    if (write && hr && !(k.r.tid == tid && k.r.gen == gen) && !(atomic && k.r.atomic) &&
        !ordered(k.r, gen, tg, ep, sg, sgep)) {
      report("data race (write/read)", pc, k.r.pc, "read at", tid, k.r.tid, sp);
      break;
    }
    Acc a{gen, tid, ep, sg, sgep, pc, atomic};
    if (write)
      k.w = a;
    else {
      if (hr && k.r.gen == gen && k.r.tid != tid && k.r.ep == ep) a.tid = ~0u;
      k.r = a;
    }
  }
}
}  // namespace
namespace mslrt {
void check_begin(Buf* b, uint32_t n) {
  regs.clear();
  seen.clear();
  tgsh.assign(ARENA, Cell{});
  for (uint32_t i = 0; i < n; i++) {
    uintptr_t p = (uintptr_t)b[i].ptr;
    Reg r{p, p + b[i].bytes, b[i].writable != 0, {}, {}};
    if (r.writable) {
      r.sh.resize(b[i].bytes);
      r.touched.resize(b[i].bytes);
    }
    regs.push_back(std::move(r));
  }
  on = true;
}
void check_end() {
  on = false;
  for (size_t i = 0; i < regs.size(); i++)
    if (regs[i].writable) {
      size_t miss = 0;
      for (uint8_t t : regs[i].touched) miss += !t;
      if (miss) fail("output buffer %zu: %zu of %zu bytes never written", i, miss, regs[i].touched.size());
    }
}
bool check_active() { return true; }
}  // namespace mslrt
#define PC ((uintptr_t)__builtin_return_address(0))
extern "C" {
#define RW(n)                                                                                           \
  void __tsan_read##n(void* p) { access((uintptr_t)p, n, false, false, PC); }                           \
  void __tsan_write##n(void* p) { access((uintptr_t)p, n, true, false, PC); }                           \
  void __tsan_unaligned_read##n(void* p) { access((uintptr_t)p, n, false, false, PC); }                 \
  void __tsan_unaligned_write##n(void* p) { access((uintptr_t)p, n, true, false, PC); }                 \
  void __tsan_volatile_read##n(void* p) { access((uintptr_t)p, n, false, false, PC); }                  \
  void __tsan_volatile_write##n(void* p) { access((uintptr_t)p, n, true, false, PC); }                  \
  void __tsan_read##n##_pc(void* p, void* pc) { access((uintptr_t)p, n, false, false, (uintptr_t)pc); } \
  void __tsan_write##n##_pc(void* p, void* pc) { access((uintptr_t)p, n, true, false, (uintptr_t)pc); }
RW(1) RW(2) RW(4) RW(8) RW(16) void __tsan_read_range(void* p, size_t n) {
  access((uintptr_t)p, n, false, false, PC);
}
void __tsan_write_range(void* p, size_t n) { access((uintptr_t)p, n, true, false, PC); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void* __tsan_memcpy(void* d, const void* s, size_t n) {
  access((uintptr_t)s, n, false, false, PC);
  access((uintptr_t)d, n, true, false, PC);
  return memcpy(d, s, n);
}
void* __tsan_memmove(void* d, const void* s, size_t n) {
  access((uintptr_t)s, n, false, false, PC);
  access((uintptr_t)d, n, true, false, PC);
  return memmove(d, s, n);
}
void* __tsan_memset(void* d, int v, size_t n) {
  access((uintptr_t)d, n, true, false, PC);
  return memset(d, v, n);
}
void msl_note_atomic(void* p, size_t n, int write) { access((uintptr_t)p, n, write, true, PC); }
}
