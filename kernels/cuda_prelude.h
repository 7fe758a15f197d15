// MSL -> CUDA prelude: goes into the `header` of MLX's cuda_kernel (or in front of a plain __global__ kernel).
// The body is the same text; `threadgroup T a[N];` declarations are rewritten to `__shared__` by the lowering step.
#pragma once
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#ifdef __CUDACC_RTC__
#include <cuda/std/cstdint>
using cuda::std::int16_t;
using cuda::std::int32_t;
using cuda::std::int64_t;
using cuda::std::int8_t;
using cuda::std::uint16_t;
using cuda::std::uint32_t;
using cuda::std::uint64_t;
using cuda::std::uint8_t;
#else
#include <stdint.h>
#endif
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;
typedef __half half;
typedef __half float16_t;
typedef __nv_bfloat16 bfloat;
typedef __nv_bfloat16 bfloat16_t;
// (word & mask) | bits. Left to itself, ptxas spends two operations on it when mask and bits are both constants.
__device__ __forceinline__ uint msl_mask_or(uint word, uint mask, uint bits) {
  uint merged;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(merged) : "r"(word), "r"(mask), "r"(bits));
  return merged;
}
#define MASK_OR(word, mask, bits) msl_mask_or(word, mask, bits)
#define METAL_FUNC __device__ __forceinline__
namespace metal {
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
__device__ __forceinline__ constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return mem_flags(uint(a) | uint(b));
}
__device__ __forceinline__ void threadgroup_barrier(mem_flags) { __syncthreads(); }
__device__ __forceinline__ void simdgroup_barrier(mem_flags) { __syncwarp(); }
template <class T, class U>
__device__ __forceinline__ T as_type(U u) {
  static_assert(sizeof(T) == sizeof(U), "");
  T t;
  memcpy(&t, &u, sizeof t);
  return t;
}
#define MSL_RED(n, e)                           \
  template <class T>                            \
  __device__ __forceinline__ T n(T a) {         \
    for (int s = 16; s; s >>= 1) {              \
      T b = __shfl_xor_sync(0xffffffffu, a, s); \
      a = e;                                    \
    }                                           \
    return a;                                   \
  }
MSL_RED(simd_sum, a + b)
MSL_RED(simd_product, a* b) MSL_RED(simd_max, a < b ? b : a) MSL_RED(simd_min, b < a ? b : a) template <class T>
__device__ __forceinline__ T simd_shuffle(T v, ushort l) {
  return __shfl_sync(0xffffffffu, v, l);
}
template <class T>
__device__ __forceinline__ T simd_broadcast(T v, ushort l) {
  return __shfl_sync(0xffffffffu, v, l);
}
template <class T>
__device__ __forceinline__ T simd_shuffle_down(T v, ushort d) {
  return __shfl_down_sync(0xffffffffu, v, d);
}
template <class T>
__device__ __forceinline__ T simd_shuffle_up(T v, ushort d) {
  return __shfl_up_sync(0xffffffffu, v, d);
}
template <class T>
__device__ __forceinline__ T simd_shuffle_xor(T v, ushort m) {
  return __shfl_xor_sync(0xffffffffu, v, m);
}
__device__ __forceinline__ float exp(float x) { return ::expf(x); }
__device__ __forceinline__ float rsqrt(float x) { return ::rsqrtf(x); }
__device__ __forceinline__ float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
namespace precise {
using metal::exp;
using metal::rsqrt;
}  // namespace precise
namespace fast {
__device__ __forceinline__ float exp(float x) { return ::__expf(x); }
}  // namespace fast
template <class T>
struct atomic {
  T v;
};
enum memory_order { memory_order_relaxed };
template <class T, class U>
__device__ __forceinline__ T atomic_fetch_add_explicit(atomic<T>* p, U u, memory_order) {
  return atomicAdd(&p->v, T(u));
}
// 8x8 matrix fragments, two elements a lane, the layout MLX's steel kernels use on Apple GPUs
template <class T, int R, int C>
struct simdgroup_matrix {
  T e[2];
  __device__ static int row() {
    int l = threadIdx.x & 31, q = l / 4;
    return (q & 4) + (l / 2) % 4;
  }
  __device__ static int col() {
    int l = threadIdx.x & 31, q = l / 4;
    return (q & 2) * 2 + (l % 2) * 2;
  }
};
template <class T, int R, int C>
__device__ __forceinline__ simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v) {
  return {{v, v}};
}
template <class T, class P>
__device__ __forceinline__ void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const P* p, size_t ld = 8) {
  __syncwarp();
  for (int i = 0; i < 2; i++) m.e[i] = p[m.row() * ld + m.col() + i];
}
template <class T, class P>
__device__ __forceinline__ void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, P* p, size_t ld = 8) {
  for (int i = 0; i < 2; i++) p[m.row() * ld + m.col() + i] = m.e[i];
  __syncwarp();
}
template <class D, class A, class B, class C>
__device__ __forceinline__ void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d,
                                                              const simdgroup_matrix<A, 8, 8>& a,
                                                              const simdgroup_matrix<B, 8, 8>& b,
                                                              const simdgroup_matrix<C, 8, 8>& c) {
  int R = a.row(), K = a.col();
  float s[2] = {float(c.e[0]), float(c.e[1])};
  for (int k = 0; k < 8; k++) {
    int la = (((R & 4) | (k & 4) >> 1) * 4 + (R & 3) * 2 + (k >> 1 & 1)) & 31,
        lb = (((k & 4) | (K & 4) >> 1) * 4 + (k & 3) * 2 + (K >> 1 & 1)) & 31;
    float x0 = __shfl_sync(0xffffffffu, float(a.e[0]), la), x1 = __shfl_sync(0xffffffffu, float(a.e[1]), la),
          y0 = __shfl_sync(0xffffffffu, float(b.e[0]), lb), y1 = __shfl_sync(0xffffffffu, float(b.e[1]), lb);
    float x = k & 1 ? x1 : x0;
    s[0] += x * y0;
    s[1] += x * y1;
  }
  d.e[0] = D(s[0]);
  d.e[1] = D(s[1]);
}
}  // namespace metal
using namespace metal;
__device__ __forceinline__ uint msl_linear() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
#define thread_position_in_threadgroup threadIdx
#define threadgroup_position_in_grid blockIdx
#define threads_per_threadgroup blockDim
#define threadgroups_per_grid gridDim
#define thread_position_in_grid                                                        \
  (uint3{blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y, \
         blockIdx.z * blockDim.z + threadIdx.z})
#define thread_index_in_threadgroup (msl_linear())
#define thread_index_in_simdgroup (msl_linear() & 31u)
#define simdgroup_index_in_threadgroup (msl_linear() >> 5)
#define threads_per_simdgroup 32u
#define simdgroups_per_threadgroup ((blockDim.x * blockDim.y * blockDim.z + 31u) / 32u)
// (`device` is taken out of the text instead: as an empty macro it would empty CUDA's own __device__ as well.)
#define constant
#define thread
#define threadgroup
