// Address-space-strict view of MSL for `clang -x cl -cl-std=clc++` (C++ for OpenCL: same four address spaces, same
// C++ dialect family as Apple's Metal front end). Type-check only; nothing here has a body that runs.
#pragma once
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define MSL_STRICT 1
#define __METAL_VERSION__ 320
#define __METAL__ 1
#define METAL_FUNC inline __attribute__((always_inline))
#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private
#define kernel
typedef unsigned char uint8_t;
typedef signed char int8_t;
typedef unsigned short uint16_t;
typedef short int16_t;
typedef unsigned int uint32_t;
typedef int int32_t;
typedef unsigned long uint64_t;
typedef long int64_t;
#ifdef MSL_NO_GENERIC  // pass A: no generic address space; class temporaries do not work there, so bfloat is played
                       // by half
typedef half bfloat;
#else  // pass B: generic address space on; bfloat is a class that converts to float implicitly and from float
       // explicitly only
struct bfloat {
  ushort bits;
  bfloat() = default;
  explicit bfloat(float);
  explicit bfloat(int);
  explicit bfloat(uint);
  explicit bfloat(half);
  operator float() const;
  operator float() const __constant;
};
#endif
typedef bfloat bfloat16_t;
typedef half float16_t;
#define MSL_VV(T)        \
  template <>            \
  struct vecimpl<T, 2> { \
    typedef T##2 type;   \
  };                     \
  template <>            \
  struct vecimpl<T, 3> { \
    typedef T##3 type;   \
  };                     \
  template <>            \
  struct vecimpl<T, 4> { \
    typedef T##4 type;   \
  };
// A threadgroup variable, to a function template that OpenCL does not let have one.
template <class T>
threadgroup T& msl_threadgroup();
namespace metal {
float fma(float, float, float);
template <class T, int N>
struct vecimpl;
MSL_VV(float)
MSL_VV(half) MSL_VV(int) MSL_VV(uint) MSL_VV(short) MSL_VV(ushort) MSL_VV(uchar) MSL_VV(char) MSL_VV(long)
    MSL_VV(ulong) template <class T, int N>
    using vec = typename vecimpl<T, N>::type;
template <class T, class U>
T as_type(U u);
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
mem_flags operator|(mem_flags, mem_flags);
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);
#define R1(f)        \
  template <class T> \
  T f(T);
R1(simd_sum)
R1(simd_max) R1(simd_min) R1(simd_product) R1(simd_prefix_exclusive_sum) R1(simd_prefix_inclusive_sum)
    R1(simd_broadcast_first) R1(quad_sum)
#define R2(f)        \
  template <class T> \
  T f(T, ushort);
        R2(simd_broadcast) R2(simd_shuffle) R2(simd_shuffle_xor) R2(simd_shuffle_up) R2(simd_shuffle_down)
            R2(quad_shuffle_xor) bool simd_any(bool);
bool simd_all(bool);
template <class T, int R, int C>
struct simdgroup_matrix {
  vec<T, 2> e;
  thread vec<T, 2>& thread_elements() thread;
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
template <class T, int R, int C>
simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T);
template <class T>
void simdgroup_load(thread simdgroup_matrix<T, 8, 8>&, const device T*, ulong ld = 8, ulong2 o = 0,
                    bool tr = false);
template <class T>
void simdgroup_load(thread simdgroup_matrix<T, 8, 8>&, const threadgroup T*, ulong ld = 8, ulong2 o = 0,
                    bool tr = false);
template <class T>
void simdgroup_store(const thread simdgroup_matrix<T, 8, 8>&, device T*, ulong ld = 8, ulong2 o = 0,
                     bool tr = false);
template <class T>
void simdgroup_store(const thread simdgroup_matrix<T, 8, 8>&, threadgroup T*, ulong ld = 8, ulong2 o = 0,
                     bool tr = false);
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>&, const thread simdgroup_matrix<A, 8, 8>&,
                                   const thread simdgroup_matrix<B, 8, 8>&,
                                   const thread simdgroup_matrix<C, 8, 8>&);
enum memory_order { memory_order_relaxed };
template <class T>
struct atomic {
  T v;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
#define RA(f)                                       \
  template <class T, class U>                       \
  T f(volatile device atomic<T>*, U, memory_order); \
  template <class T, class U>                       \
  T f(volatile threadgroup atomic<T>*, U, memory_order);
RA(atomic_fetch_add_explicit)
RA(atomic_fetch_max_explicit) RA(atomic_fetch_min_explicit) RA(atomic_exchange_explicit) namespace precise {
  R1(exp) R1(tanh) R1(sqrt) R1(rsqrt) R1(log)
}
namespace fast {
R1(exp) R1(tanh) R1(sqrt) R1(rsqrt) R1(log)
}
}  // namespace metal
using namespace metal;
#pragma clang poison double goto new delete virtual dynamic_cast typeid throw try catch register
