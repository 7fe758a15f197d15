// A CPU stand-in for <metal_stdlib>, enough for quantised GEMV / MoE kernels (g++ >= 11 or clang++ >= 14, C++17).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include "msl_rt.h"
#pragma GCC diagnostic ignored "-Wattributes"
#ifdef __clang__
#pragma clang diagnostic ignored "-Wunknown-attributes"
#pragma clang diagnostic ignored "-Wignored-attributes"
#endif
#define __METAL_VERSION__ 320
#define __METAL__ 1
#define __HAVE_BFLOAT__ 1
#define METAL_FUNC inline __attribute__((always_inline))
#define MSL_NOSAN __attribute__((noinline, no_sanitize("thread")))
#ifndef MSL_LINE
#define MSL_LINE uint32_t line_ = __builtin_LINE()
#endif
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

// ---- half and bfloat: every operator rounds its result to the storage type (round to nearest even) ----
namespace mslrt {
constexpr uint32_t f2u(float f) { return __builtin_bit_cast(uint32_t, f); }
constexpr float u2f(uint32_t u) { return __builtin_bit_cast(float, u); }
constexpr float h2f(uint16_t h) {
  uint32_t s = (h & 0x8000u) << 16, e = h >> 10 & 31, m = h & 1023;
  if (e == 31) return u2f(s | 0x7F800000u | m << 13);
  if (e) return u2f(s | (e + 112) << 23 | m << 13);
  float v = m * 5.9604644775390625e-8f;
  return s ? -v : v;
}
constexpr uint16_t f2h(float f) {
  uint32_t u = f2u(f), s = u >> 16 & 0x8000, a = u & 0x7FFFFFFF;
  if (a > 0x7F800000) return s | 0x7E00;
  if (a >= 0x477FF000) return s | 0x7C00;
  if (a < 0x38800000) {
    if (a < 0x33000000) return s;
    uint32_t sh = 126 - (a >> 23), m = (a & 0x7FFFFF) | 0x800000, r = m >> sh, rem = m & ((1u << sh) - 1),
             half = 1u << (sh - 1);
    return s | (r + (rem > half || (rem == half && (r & 1))));
  }
  uint32_t r = a + 0xFFF + (a >> 13 & 1);
  return s | ((r - 0x38000000) >> 13);
}
#if defined(__F16C__)
typedef float v4sf_ __attribute__((vector_size(16)));
typedef short v8hi_ __attribute__((vector_size(16)));
inline float h2f_rt(uint16_t h) {
  v8hi_ v = {(short)h};
  return __builtin_ia32_vcvtph2ps(v)[0];
}
inline uint16_t f2h_rt(float f) {
  v4sf_ v = {f};
  return __builtin_ia32_vcvtps2ph(v, 0)[0];
}
#define MSL_H2F(x) (__builtin_is_constant_evaluated() ? h2f(x) : h2f_rt(x))
#define MSL_F2H(x) (__builtin_is_constant_evaluated() ? f2h(x) : f2h_rt(x))
#else
#define MSL_H2F(x) h2f(x)
#define MSL_F2H(x) f2h(x)
#endif
constexpr float b2f(uint16_t b) { return u2f((uint32_t)b << 16); }
constexpr uint16_t f2b(float f) {
  uint32_t u = f2u(f);
  if ((u & 0x7FFFFFFF) > 0x7F800000) return u >> 16 | 0x40;
  return (u + 0x7FFF + (u >> 16 & 1)) >> 16;
}
}  // namespace mslrt
#define MSL_FLOAT16(NAME, TOF, FROMF)                                     \
  struct NAME {                                                           \
    uint16_t bits;                                                        \
    NAME() = default;                                                     \
    template <class U, class = std::enable_if_t<std::is_arithmetic_v<U>>> \
    constexpr NAME(U v) : bits(FROMF((float)v)) {}                        \
    static constexpr NAME raw(uint16_t b) {                               \
      NAME h(0.0f);                                                       \
      h.bits = b;                                                         \
      return h;                                                           \
    }                                                                     \
    constexpr operator float() const { return TOF(bits); }                \
    template <class U>                                                    \
    constexpr NAME& operator+=(U v) {                                     \
      return *this = NAME((float)*this + (float)v);                       \
    }                                                                     \
    template <class U>                                                    \
    constexpr NAME& operator-=(U v) {                                     \
      return *this = NAME((float)*this - (float)v);                       \
    }                                                                     \
    template <class U>                                                    \
    constexpr NAME& operator*=(U v) {                                     \
      return *this = NAME((float)*this * (float)v);                       \
    }                                                                     \
    template <class U>                                                    \
    constexpr NAME& operator/=(U v) {                                     \
      return *this = NAME((float)*this / (float)v);                       \
    }                                                                     \
  };                                                                      \
  constexpr NAME operator-(NAME a) { return NAME::raw(a.bits ^ 0x8000); }
namespace mslrt {
MSL_FLOAT16(half_t, MSL_H2F, MSL_F2H)
MSL_FLOAT16(bfloat_t, b2f, f2b)
template <class T>
constexpr bool is16 = std::is_same_v<T, half_t> || std::is_same_v<T, bfloat_t>;
template <class A, class B>
constexpr bool op16 =
    (is16<A> && (std::is_same_v<A, B> || std::is_integral_v<B>)) || (is16<B> && std::is_integral_v<A>);
template <class A, class B>
using r16 = std::conditional_t<is16<A>, A, B>;
#define MSL_OP16(o)                                                 \
  template <class A, class B, class = std::enable_if_t<op16<A, B>>> \
  constexpr r16<A, B> operator o(A a, B b) {                        \
    return r16<A, B>((float)a o(float) b);                          \
  }
MSL_OP16(+) MSL_OP16(-) MSL_OP16(*) MSL_OP16(/)
}  // namespace mslrt
using half = mslrt::half_t;
using bfloat = mslrt::bfloat_t;

namespace metal {
template <class T>
struct numeric_limits : std::numeric_limits<T> {};
template <>
struct numeric_limits<half> {
  static constexpr half max() { return half::raw(0x7BFF); }
  static constexpr half min() { return half::raw(0x0400); }
  static constexpr half infinity() { return half::raw(0x7C00); }
  static constexpr half lowest() { return half::raw(0xFBFF); }
  static constexpr half quiet_NaN() { return half::raw(0x7E00); }
};
template <>
struct numeric_limits<bfloat> {
  static constexpr bfloat max() { return bfloat::raw(0x7F7F); }
  static constexpr bfloat min() { return bfloat::raw(0x0080); }
  static constexpr bfloat infinity() { return bfloat::raw(0x7F80); }
  static constexpr bfloat lowest() { return bfloat::raw(0xFF7F); }
  static constexpr bfloat quiet_NaN() { return bfloat::raw(0x7FC0); }
};
template <class A, class B>
constexpr bool is_same_v = std::is_same_v<A, B>;
template <class T>
constexpr bool is_integral_v = std::is_integral_v<T>;
template <class T>
constexpr bool is_floating_point_v = std::is_floating_point_v<T> || mslrt::is16<T>;
template <bool B, class T = void>
using enable_if_t = std::enable_if_t<B, T>;
template <bool B, class T = void>
using enable_if = std::enable_if<B, T>;
template <bool B, class X, class Y>
using conditional_t = std::conditional_t<B, X, Y>;
using std::bool_constant;
using std::remove_cv;
template <class T>
using remove_addrspace_t = T;
template <class T>
using remove_cv_t = std::remove_cv_t<T>;
using std::conditional;
using std::decay;
using std::declval;
using std::false_type;
using std::integral_constant;
using std::is_arithmetic;
using std::is_class;
using std::is_convertible;
using std::is_convertible_v;
using std::is_floating_point;
using std::is_integral;
using std::is_pointer;
using std::is_same;
using std::is_signed;
using std::is_unsigned;
using std::is_void;
using std::remove_reference;
using std::true_type;
template <class T>
constexpr bool is_unsigned_v = std::is_unsigned_v<T>;
template <class T>
using make_unsigned_t = std::make_unsigned_t<T>;
template <class T, class U>
inline T as_type(U u) {
  static_assert(sizeof(T) == sizeof(U), "as_type size");
  T t;
  __builtin_memcpy(&t, &u, sizeof t);
  return t;
}

// ---- vectors ----
template <class T, int N>
struct vec;
template <class T, int N>
struct vstore {
  T v[N];
};
template <class T, int N, int A, int B>
struct sw2 {
  T v[N];
  operator vec<T, 2>() const { return vec<T, 2>(v[A], v[B]); }
  sw2& operator=(vec<T, 2> o) {
    v[A] = o.x;
    v[B] = o.y;
    return *this;
  }
};
template <class T, int N>
struct sw3 {
  T v[N];
  operator vec<T, 3>() const { return vec<T, 3>(v[0], v[1], v[2]); }
};
template <class T>
struct vec<T, 2> {
  union {
    T v[2];
    struct {
      T x, y;
    };
    struct {
      T r, g;
    };
    sw2<T, 2, 0, 1> xy;
    sw2<T, 2, 1, 0> yx;
  };
  vec() = default;
  constexpr vec(T a) : v{a, a} {}
  constexpr vec(T a, T b) : v{a, b} {}
  template <class U>
  constexpr explicit vec(vec<U, 2> o) : v{(T)o.v[0], (T)o.v[1]} {}
  T& operator[](int i) { return v[i]; }
  T operator[](int i) const { return v[i]; }
};
template <class T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  union {
    T v[3];
    struct {
      T x, y, z;
    };
    struct {
      T r, g, b;
    };
    sw2<T, 3, 0, 1> xy;
  };
  vec() = default;
  constexpr vec(T a) : v{a, a, a} {}
  constexpr vec(T a, T b_, T c) : v{a, b_, c} {}
  constexpr vec(vec<T, 2> a, T c) : v{a.v[0], a.v[1], c} {}
  template <class U>
  constexpr explicit vec(vec<U, 3> o) : v{(T)o.v[0], (T)o.v[1], (T)o.v[2]} {}
  T& operator[](int i) { return v[i]; }
  T operator[](int i) const { return v[i]; }
};
template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  union {
    T v[4];
    struct {
      T x, y, z, w;
    };
    struct {
      T r, g, b, a;
    };
    sw2<T, 4, 0, 1> xy;
    sw2<T, 4, 2, 3> zw;
    sw3<T, 4> xyz;
  };
  vec() = default;
  constexpr vec(T s) : v{s, s, s, s} {}
  constexpr vec(T p, T q, T r_, T s) : v{p, q, r_, s} {}
  constexpr vec(vec<T, 2> p, vec<T, 2> q) : v{p.v[0], p.v[1], q.v[0], q.v[1]} {}
  template <class U>
  constexpr explicit vec(vec<U, 4> o) : v{(T)o.v[0], (T)o.v[1], (T)o.v[2], (T)o.v[3]} {}
  T& operator[](int i) { return v[i]; }
  T operator[](int i) const { return v[i]; }
};
#define MSL_VOP(o)                                                                                        \
  template <class T, int N>                                                                               \
  inline vec<T, N> operator o(vec<T, N> a, vec<T, N> b) {                                                 \
    vec<T, N> r;                                                                                          \
    for (int i = 0; i < N; i++) r.v[i] = T(a.v[i] o b.v[i]);                                              \
    return r;                                                                                             \
  }                                                                                                       \
  template <class T, int N, class S, class = std::enable_if_t<std::is_arithmetic_v<S> || mslrt::is16<S>>> \
  inline vec<T, N> operator o(vec<T, N> a, S b) {                                                         \
    return a o vec<T, N>((T)b);                                                                           \
  }                                                                                                       \
  template <class T, int N, class S, class = std::enable_if_t<std::is_arithmetic_v<S> || mslrt::is16<S>>> \
  inline vec<T, N> operator o(S a, vec<T, N> b) {                                                         \
    return vec<T, N>((T)a) o b;                                                                           \
  }                                                                                                       \
  template <class T, int N, class S>                                                                      \
  inline vec<T, N>& operator o##=(vec<T, N>& a, S b) {                                                    \
    return a = a o b;                                                                                     \
  }
MSL_VOP(+)
MSL_VOP(-) MSL_VOP(*) MSL_VOP(/) MSL_VOP(&) MSL_VOP(|) MSL_VOP(^) MSL_VOP(>>) MSL_VOP(<<) template <class T, int N>
inline vec<T, N> operator-(vec<T, N> a) {
  for (int i = 0; i < N; i++) a.v[i] = -a.v[i];
  return a;
}
template <class T, int N>
inline T dot(vec<T, N> a, vec<T, N> b) {
  T s = a.v[0] * b.v[0];
  for (int i = 1; i < N; i++) s += a.v[i] * b.v[i];
  return s;
}
#define MSL_VT(b, n)      \
  using n##2 = vec<b, 2>; \
  using n##3 = vec<b, 3>; \
  using n##4 = vec<b, 4>;
MSL_VT(float, float)
MSL_VT(half, half) MSL_VT(bfloat, bfloat) MSL_VT(int, int) MSL_VT(uint, uint) MSL_VT(short, short)
    MSL_VT(ushort, ushort) MSL_VT(char, char) MSL_VT(uchar, uchar) MSL_VT(bool, bool) MSL_VT(long, long)
        MSL_VT(ulong, ulong) template <class T>
        struct packed3 {
  T x, y, z;
  operator vec<T, 3>() const { return {x, y, z}; }
};
using packed_float3 = packed3<float>;

// ---- maths ----
namespace {
#define MSL_F1(f, e)                                \
  inline float f(float x) { return e; }             \
  inline half f(half a) {                           \
    float x = a;                                    \
    return half(e);                                 \
  }                                                 \
  inline bfloat f(bfloat a) {                       \
    float x = a;                                    \
    return bfloat(e);                               \
  }                                                 \
  template <int N, class T>                         \
  inline vec<T, N> f(vec<T, N> a) {                 \
    for (int i = 0; i < N; i++) a.v[i] = f(a.v[i]); \
    return a;                                       \
  }
#define MSL_MATHS                                                                                                 \
  MSL_F1(exp, ::expf(x))                                                                                          \
  MSL_F1(exp2, ::exp2f(x)) MSL_F1(log, ::logf(x)) MSL_F1(log2, ::log2f(x)) MSL_F1(sqrt, ::sqrtf(x))               \
      MSL_F1(rsqrt, 1.0f / ::sqrtf(x)) MSL_F1(tanh, ::tanhf(x)) MSL_F1(sin, ::sinf(x)) MSL_F1(cos, ::cosf(x))     \
          MSL_F1(floor, ::floorf(x)) MSL_F1(ceil, ::ceilf(x)) MSL_F1(round, ::roundf(x)) MSL_F1(rint, ::rintf(x)) \
              MSL_F1(trunc, ::truncf(x)) MSL_F1(fabs, ::fabsf(x)) MSL_F1(erf, ::erff(x))
}  // namespace
MSL_MATHS
namespace precise {
MSL_MATHS
}
namespace fast {
MSL_MATHS
}
inline float atan2(float a, float b) { return ::atan2f(a, b); }
inline float atan(float a) { return ::atanf(a); }
inline float pow(float a, float b) { return ::powf(a, b); }
inline float fmod(float a, float b) { return ::fmodf(a, b); }
inline float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
inline half fma(half a, half b, half c) { return half((float)((double)(float)a * (float)b + (float)c)); }
inline float ldexp(float a, int e) { return ::ldexpf(a, e); }
template <class T>
inline T abs(T a) {
  return a < T(0) ? T(-a) : a;
}
#define MSL_MM(n, e)                                         \
  template <class T>                                         \
  inline T n(T a, T b) {                                     \
    return e;                                                \
  }                                                          \
  inline float n(float a, half b) { return n(a, (float)b); } \
  inline float n(half a, float b) { return n((float)a, b); } \
  inline uint n(uint a, int b) { return n(a, (uint)b); }     \
  inline uint n(int a, uint b) { return n((uint)a, b); }
MSL_MM(min, b < a ? b : a)
MSL_MM(max, a < b ? b : a) MSL_MM(fmin, b < a ? b : a) MSL_MM(fmax, a < b ? b : a) template <class T>
inline T clamp(T x, T lo, T hi) {
  return min(max(x, lo), hi);
}
template <class T>
inline T select(T a, T b, bool c) {
  return c ? b : a;
}
template <class T>
inline T sign(T a) {
  return T((a > T(0)) - (a < T(0)));
}
template <class T>
inline T mix(T a, T b, T t) {
  return a + (b - a) * t;
}
inline bool isnan(float x) { return x != x; }
inline bool isinf(float x) { return ::fabsf(x) == INFINITY; }
inline bool isfinite(float x) { return ::fabsf(x) < INFINITY; }
template <class T>
inline T popcount(T x) {
  return (T)__builtin_popcountll((uint64_t)x);
}
inline uint clz(uint x) { return x ? __builtin_clz(x) : 32; }
inline uint ctz(uint x) { return x ? __builtin_ctz(x) : 32; }
inline uint extract_bits(uint x, uint off, uint n) {
  return n == 0 ? 0 : (x >> off) & (n >= 32 ? ~0u : (1u << n) - 1);
}
template <class T>
inline T reverse_bits(T x) {
  T r = 0;
  for (unsigned i = 0; i < sizeof(T) * 8; i++) r |= (x >> i & 1) << (sizeof(T) * 8 - 1 - i);
  return r;
}

// ---- barriers ----
enum class mem_flags : uint32_t {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags((uint32_t)a | (uint32_t)b); }
inline void threadgroup_barrier(mem_flags f, MSL_LINE) {
  asm volatile("" ::: "memory");
  mslrt::barrier((uint32_t)f, line_);
  asm volatile("" ::: "memory");
}
inline void simdgroup_barrier(mem_flags f, MSL_LINE) {
  asm volatile("" ::: "memory");
  mslrt::simd_barrier((uint32_t)f, line_ | 1u << 31);
  asm volatile("" ::: "memory");
}

// ---- simdgroup operations ----
namespace impl {
template <class T>
__attribute__((no_sanitize("thread"))) inline T get(const mslrt::Gen* g, uint32_t k) {
  T t;
  for (unsigned i = 0; i < sizeof(T); i++) ((unsigned char*)&t)[i] = g->slot[k][i];
  return t;
}
template <class T, class F>
MSL_NOSAN T reduce(T v, F f, uint32_t site) {  // butterfly over active lanes
  static_assert(sizeof(T) <= mslrt::SLOT, "");
  mslrt::Gen* g = mslrt::collective(&v, sizeof v, site);
  T r;
  if (!g->have) {
    T t[32];
    bool ok[32];
    for (int k = 0; k < 32; k++)
      if ((ok[k] = g->active >> k & 1)) t[k] = get<T>(g, k);
    for (int s = 16; s; s >>= 1)
      for (int k = 0; k < s; k++) {
        if (ok[k] && ok[k + s])
          t[k] = f(t[k], t[k + s]);
        else if (ok[k + s]) {
          t[k] = t[k + s];
          ok[k] = true;
        }
      }
    for (unsigned i = 0; i < sizeof(T); i++) g->result[i] = ((unsigned char*)&t[0])[i];
    g->have = true;
  }
  for (unsigned i = 0; i < sizeof(T); i++) ((unsigned char*)&r)[i] = g->result[i];
  return r;
}
template <class T>
MSL_NOSAN T from(T v, uint32_t src, bool keep, uint32_t site, const char* what) {
  mslrt::Gen* g = mslrt::collective(&v, sizeof v, site);
  if (keep) return v;
  if (src >= 32 || !(g->active >> src & 1)) {
    mslrt::fail("%s (line %u) reads inactive lane %u", what, site & 0xffffff, src);
    T t;
    __builtin_memset(&t, 0xFF, sizeof t);
    return t;
  }
  return get<T>(g, src);
}
template <class T, class F>
MSL_NOSAN T scan(T v, F f, T init, bool incl, uint32_t site) {
  mslrt::Gen* g = mslrt::collective(&v, sizeof v, site);
  uint32_t me = mslrt::lane().thread_index_in_simdgroup;
  T a = init;
  for (uint32_t k = 0; k < me + incl; k++)
    if (g->active >> k & 1) a = f(a, get<T>(g, k));
  return a;
}
__attribute__((no_sanitize("thread"))) inline uint32_t me() { return mslrt::lane().thread_index_in_simdgroup; }
}  // namespace impl
#define MSL_SITE(op) (line_ & 0xffffff) | (op) << 24
#define MSL_RED(n, op, e)                                                \
  template <class T>                                                     \
  inline T n(T v, MSL_LINE) {                                            \
    return impl::reduce(v, [](T a, T b) { return T(e); }, MSL_SITE(op)); \
  }
MSL_RED(simd_sum, 1, a + b)
MSL_RED(simd_max, 2, max(a, b)) MSL_RED(simd_min, 3, min(a, b)) MSL_RED(simd_product, 4, a* b)
    MSL_RED(simd_and, 5, a& b) MSL_RED(simd_or, 6, a | b)
        MSL_RED(simd_xor, 7, a ^ b) inline bool simd_all(bool v, MSL_LINE) {
  return impl::reduce<int>(v, [](int a, int b) { return a & b; }, MSL_SITE(8));
}
inline bool simd_any(bool v, MSL_LINE) {
  return impl::reduce<int>(v, [](int a, int b) { return a | b; }, MSL_SITE(9));
}
template <class T>
inline T simd_prefix_exclusive_sum(T v, MSL_LINE) {
  return impl::scan(v, [](T a, T b) { return T(a + b); }, T(0), false, MSL_SITE(10));
}
template <class T>
inline T simd_prefix_inclusive_sum(T v, MSL_LINE) {
  return impl::scan(v, [](T a, T b) { return T(a + b); }, T(0), true, MSL_SITE(11));
}
template <class T>
inline T simd_broadcast(T v, ushort l, MSL_LINE) {
  return impl::from(v, l, false, MSL_SITE(12), "simd_broadcast");
}
template <class T>
inline T simd_shuffle(T v, ushort l, MSL_LINE) {
  return impl::from(v, l, false, MSL_SITE(13), "simd_shuffle");
}
template <class T>
inline T simd_shuffle_xor(T v, ushort m, MSL_LINE) {
  return impl::from(v, impl::me() ^ m, false, MSL_SITE(14), "simd_shuffle_xor");
}
template <class T>
inline T simd_shuffle_down(T v, ushort d, MSL_LINE) {
  return impl::from(v, impl::me() + d, impl::me() + d >= 32, MSL_SITE(15), "simd_shuffle_down");
}
template <class T>
inline T simd_shuffle_up(T v, ushort d, MSL_LINE) {
  return impl::from(v, impl::me() - d, impl::me() < d, MSL_SITE(16), "simd_shuffle_up");
}
template <class T>
inline T simd_shuffle_and_fill_down(T v, T fill, ushort d, MSL_LINE) {
  T r = impl::from(v, impl::me() + d, impl::me() + d >= 32, MSL_SITE(17), "simd_shuffle_and_fill_down");
  return impl::me() + d >= 32 ? fill : r;
}
template <class T>
inline T simd_shuffle_and_fill_up(T v, T fill, ushort d, MSL_LINE) {
  T r = impl::from(v, impl::me() - d, impl::me() < d, MSL_SITE(18), "simd_shuffle_and_fill_up");
  return impl::me() < d ? fill : r;
}
template <class T>
MSL_NOSAN inline T simd_broadcast_first(T v, MSL_LINE) {
  mslrt::Gen* g = mslrt::collective(&v, sizeof v, MSL_SITE(19));
  return impl::get<T>(g, __builtin_ctz(g->active));
}
template <class T>
inline T quad_shuffle_xor(T v, ushort m, MSL_LINE) {
  return impl::from(v, impl::me() ^ m, false, MSL_SITE(20), "quad_shuffle_xor");
}
template <class T>
inline T quad_sum(T v, MSL_LINE) {
  v = T(v + impl::from(v, impl::me() ^ 1, false, MSL_SITE(21), "quad_sum"));
  return T(v + impl::from(v, impl::me() ^ 2, false, MSL_SITE(22), "quad_sum"));
}

// ---- simdgroup_matrix 8x8: two elements a lane, in the layout MLX's steel kernels rely on (undocumented by Apple)
// ----
template <class T, int R, int C>
struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "8x8 only");
  vec<T, 2> e;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T d) { e = vec<T, 2>(row() == col() ? d : T(0), row() == col() + 1 ? d : T(0)); }
  static uint row() {
    uint l = impl::me(), q = l / 4;
    return (q & 4) + (l / 2) % 4;
  }
  static uint col() {
    uint l = impl::me(), q = l / 4;
    return (q & 2) * 2 + (l % 2) * 2;
  }
  vec<T, 2>& thread_elements() { return e; }
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;
template <class T, int R, int C>
inline simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v) {
  simdgroup_matrix<T, R, C> m;
  m.e = vec<T, 2>(v);
  return m;
}
template <class T, class P>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, P* p, ulong ld = 8, ulong2 o = ulong2(0), bool tr = false,
                           MSL_LINE) {
  mslrt::simd_barrier(0, MSL_SITE(30));
  for (int i = 0; i < 2; i++) {
    ulong r = m.row(), c = m.col() + i;
    if (tr) {
      ulong t = r;
      r = c;
      c = t;
    }
    m.e.v[i] = p[(o.y + r) * ld + o.x + c];
  }
}
template <class T, class P>
inline void simdgroup_store(simdgroup_matrix<T, 8, 8> m, P* p, ulong ld = 8, ulong2 o = ulong2(0), bool tr = false,
                            MSL_LINE) {
  mslrt::simd_barrier(0, MSL_SITE(31));
  for (int i = 0; i < 2; i++) {
    ulong r = m.row(), c = m.col() + i;
    if (tr) {
      ulong t = r;
      r = c;
      c = t;
    }
    p[(o.y + r) * ld + o.x + c] = m.e.v[i];
  }
}
namespace impl {
template <class D, class A, class B, class C>
MSL_NOSAN void mma(vec<D, 2>& d, vec<A, 2> a, vec<B, 2> b, vec<C, 2> c, uint32_t site) {
  struct {
    vec<A, 2> a;
    vec<B, 2> b;
  } in{a, b};
  mslrt::Gen* g = mslrt::collective(&in, sizeof in, site);
  if (g->active != ~0u) mslrt::fail("simdgroup_multiply_accumulate (line %u) with inactive lanes", site & 0xffffff);
  auto at = [](uint r, uint cc) {
    uint q = (r & 4) | (cc & 4) >> 1;
    uint l = q * 4 + (r & 3) * 2 + ((cc >> 1) & 1);
    return l & 31;
  };
  uint R = simdgroup_matrix<A, 8, 8>::row(), Cc = simdgroup_matrix<A, 8, 8>::col();
  for (int i = 0; i < 2; i++) {
    float s = (float)c.v[i];
    for (uint k = 0; k < 8; k++) {
      auto x = get<decltype(in)>(g, at(R, k));
      auto y = get<decltype(in)>(g, at(k, Cc + i));
      s += (float)x.a.v[k & 1] * (float)y.b.v[(Cc + i) & 1];
    }
    d.v[i] = D(s);
  }
}
}  // namespace impl
template <class D, class A, class B, class C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                          simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c, MSL_LINE) {
  impl::mma(d.e, a.e, b.e, c.e, MSL_SITE(32));
}
template <class D, class A, class B>
inline void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                               simdgroup_matrix<B, 8, 8> b, MSL_LINE) {
  impl::mma(d.e, a.e, b.e, vec<D, 2>(D(0)), MSL_SITE(33));
}

// ---- atomics ----
enum memory_order {
  memory_order_relaxed = 0,
  memory_order_acquire,
  memory_order_release,
  memory_order_acq_rel,
  memory_order_seq_cst
};
template <class T>
struct atomic {
  T v;
};
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_float = atomic<float>;
#ifdef MSL_CHECK
}
extern "C" void msl_note_atomic(void*, size_t, int);
namespace metal {
#define MSL_NOTE(p, w) msl_note_atomic((void*)(p), sizeof(*(p)), w);
#else
#define MSL_NOTE(p, w)
#endif
namespace impl {
template <class T, class F>
MSL_NOSAN T rmw(atomic<T>* p, F f) {
  MSL_NOTE(p, 1) T o, n;
  __atomic_load(&p->v, &o, __ATOMIC_RELAXED);
  do n = f(o);
  while (!__atomic_compare_exchange(&p->v, &o, &n, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return o;
}
}  // namespace impl
template <class T>
MSL_NOSAN inline T atomic_load_explicit(const atomic<T>* p, memory_order) {
  MSL_NOTE(p, 0) T o;
  __atomic_load(&p->v, &o, __ATOMIC_RELAXED);
  return o;
}
template <class T, class U>
MSL_NOSAN inline void atomic_store_explicit(atomic<T>* p, U u, memory_order) {
  MSL_NOTE(p, 1) T v = u;
  __atomic_store(&p->v, &v, __ATOMIC_RELAXED);
}
#define MSL_ATOM(n, e)                          \
  template <class T, class U>                   \
  inline T n(atomic<T>* p, U u, memory_order) { \
    T b = u;                                    \
    return impl::rmw(p, [b](T a) {              \
      (void)a;                                  \
      return T(e);                              \
    });                                         \
  }
MSL_ATOM(atomic_fetch_add_explicit, a + b)
MSL_ATOM(atomic_fetch_sub_explicit, a - b) MSL_ATOM(atomic_fetch_max_explicit, a < b ? b : a)
    MSL_ATOM(atomic_fetch_min_explicit, b < a ? b : a) MSL_ATOM(atomic_fetch_or_explicit, a | b)
        MSL_ATOM(atomic_fetch_and_explicit, a& b) MSL_ATOM(atomic_exchange_explicit, b)
}  // namespace metal
using namespace metal;
// ---- MSL keywords; after every standard header ----
#define device
#define constant
#define thread
#define threadgroup /* declarations are rewritten by the lowering step; what is left are pointer qualifiers */
#define kernel
