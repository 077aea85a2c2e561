// The part of CUDA that .cu files use, under names that have two implementations.
//
// nvcc compiles a kernel for GPUs. A C++ compiler compiles the same file for the host
// (ATTENUATOR_CUDA_ON_HOST, on_host.h), where every CUDA thread is a fiber, and barriers and warp
// collectives switch between fibers. That is a test device: it checks a kernel's arithmetic on
// machines without a GPU. It says nothing of speed and shows no race that needs real concurrency,
// but it can run a block's threads in several orders, which shows missing barriers.
//
// A kernel that both compilers accept keeps to these rules:
// * Shared memory is dynamic and taken once, SharedMemory<T>(); no __shared__ variables.
// * Blocks are whole warps and warp collectives have all 32 lanes: kFullMask is the only mask.
// * Tensor cores, asynchronous copies and matrix loads go through the functions below, never
//   through inline PTX.
// * A kernel's body calls its stages, which the file's prose names: __device__ __forceinline__
//   functions that take registers by reference, so that a stage costs no call.
// * Kernels are launched by Launch(), which checks every launch. Parameters are passed by value.
// * Arithmetic that must round the same on CPU and GPU is written with __fmul_rn, __fdiv_rn,
//   __float2int_rn, which the compiler may not fuse.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#ifdef ATTENUATOR_CUDA_ON_HOST
#include "ops/common/cuda/on_host.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

#include "ops/common/cuda/context.h"

namespace attenuator::cuda {

inline constexpr unsigned kFullMask = 0xFFFFFFFFu;
inline constexpr int kWarp = 32;

#ifndef ATTENUATOR_CUDA_ON_HOST

using Half = __half;
using Bfloat16 = __nv_bfloat16;

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(Half x) { return __half2float(x); }
__device__ inline float ToFloat(Bfloat16 x) { return __bfloat162float(x); }

// Rounds to nearest, ties to even.
template <class T>
__device__ inline T FromFloat(float x);
template <>
__device__ inline float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ inline Half FromFloat<Half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline Bfloat16 FromFloat<Bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// The block's dynamic shared memory, aligned to 128 bytes.
template <class T>
__device__ inline T* SharedMemory() {
  extern __shared__ __align__(128) unsigned char attenuator_shared[];
  return reinterpret_cast<T*>(attenuator_shared);
}

// 16 bytes from global to shared memory without passing through registers; zeros where not `valid`.
__device__ inline void CopyAsync16(void* shared, const void* global, bool valid = true) {
  const unsigned target = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(target), "l"(global),
               "r"(valid ? 16 : 0));
}
__device__ inline void CopyCommit() { asm volatile("cp.async.commit_group;\n"); }
// Waits until at most kPending of the calling thread's newest groups are still under way.
template <int kPending>
__device__ inline void CopyWait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending));
}

// Loads four 8x8 matrices of 16-bit elements. Lane l passes the address of row l % 8 of matrix
// l / 8. It receives in out[i] two elements of matrix i: 2 (l % 4) and 2 (l % 4) + 1 of row l / 4,
// or, transposed, of column l / 4.
__device__ inline void LoadMatrices(std::uint32_t (&out)[4], const void* shared_row) {
  const unsigned row = static_cast<unsigned>(__cvta_generic_to_shared(shared_row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(row));
}
__device__ inline void LoadMatricesTransposed(std::uint32_t (&out)[4], const void* shared_row) {
  const unsigned row = static_cast<unsigned>(__cvta_generic_to_shared(shared_row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(row));
}

// 2^x in the one instruction that exponentiates: 0 below -126, since it yields no denormal number;
// NaN for NaN. exp2f is that instruction with four more around it, which keep denormal results.
__device__ inline float Exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// The square root in one or two instructions, to the last bit or the one before it: the correctly
// rounded one is eight. 0 for denormal numbers.
__device__ inline float Sqrt(float x) {
  float root;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
}

// Matrix products of a warp, c += a b, in the register layouts of PTX. With g = lane / 4 and t =
// lane % 4: c[0], c[1] are row g, columns 2t, 2t + 1; c[2], c[3] the same of row g + 8 (16 x 8).
// int8, 16 x 8 x 32: a[0], a[1] rows g, g + 8, k = 4t .. 4t + 3; a[2], a[3] the same at k + 16;
//                    b[0] column g, k = 4t .. 4t + 3; b[1] at k + 16.
__device__ inline void MmaInt8(std::int32_t (&c)[4], const std::uint32_t (&a)[4],
                               const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Half or Bfloat16, 16 x 8 x 16, float sums: a[0], a[1] rows g, g + 8, k = 2t, 2t + 1; a[2], a[3]
// the same at k + 8;
//                    b[0] column g, k = 2t, 2t + 1; b[1] at k + 8.
template <class T>
__device__ inline void Mma(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
template <>
__device__ inline void Mma<Half>(float (&c)[4], const std::uint32_t (&a)[4],
                                 const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
__device__ inline void Mma<Bfloat16>(float (&c)[4], const std::uint32_t (&a)[4],
                                     const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

inline void Check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

struct DeviceLimits {
  int multiprocessors;
  int shared_bytes;  // most dynamic shared memory of a block
};

// Of the calling thread's current device.
inline DeviceLimits Limits() {
  int device = 0;
  DeviceLimits limits{};
  Check(cudaGetDevice(&device), "cudaGetDevice");
  Check(cudaDeviceGetAttribute(&limits.multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  Check(
      cudaDeviceGetAttribute(&limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
      "cudaDeviceGetAttribute");
  return limits;
}

// `what` names operator and work in errors.
inline void RefuseCapture(Stream stream, const char* what) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  Check(cudaStreamIsCapturing(stream, &capture), what);
  if (capture == cudaStreamCaptureStatusNone) return;
  throw std::runtime_error(std::string(what) +
                           ": the stream is being captured into a CUDA graph, must not be: a graph "
                           "would repeat the cu_seqlens and knobs of its capture");
}

// Queues a kernel; a grid without blocks queues nothing.
template <class... Parameters, class... Arguments>
void Launch(const char* what, void (*kernel)(Parameters...), dim3 grid, unsigned threads,
            std::size_t shared_bytes, Stream stream, const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  RefuseCapture(stream, what);
  if (shared_bytes > 48 * 1024) {
    // CUDA wants more than 48 KiB to be allowed first. The limit belongs to the kernel, not to the
    // launch: it is always set to the device's largest, so that a concurrent run cannot lower it.
    Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               Limits().shared_bytes),
          what);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  // Returns this launch's own error; cudaGetLastError() might be another thread's.
  Check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), what);
}

inline void ZeroAsync(void* memory, std::size_t bytes, Stream stream) {
  if (bytes > 0) Check(cudaMemsetAsync(memory, 0, bytes, stream), "cudaMemsetAsync");
}

// Memory of the current device that outlives a run, uninitialised, and its end, which waits for the
// device. Where the process ends, CUDA may be gone before, and the memory with it: no error.
inline void* Allocate(std::size_t bytes, const char* what) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, bytes), what);
  return memory;
}
inline void Free(void* memory) { static_cast<void>(cudaFree(memory)); }

// A point in the work of a stream, which another stream can wait for on the device.
inline Event MakeEvent(const char* what) {
  Event event = nullptr;
  Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), what);
  return event;
}
inline void Record(Event event, Stream stream, const char* what) {
  Check(cudaEventRecord(event, stream), what);
}
inline void Wait(Stream stream, Event event, const char* what) {
  RefuseCapture(stream, what);
  Check(cudaStreamWaitEvent(stream, event, 0), what);
}
inline void Destroy(Event event) { static_cast<void>(cudaEventDestroy(event)); }

#endif  // ATTENUATOR_CUDA_ON_HOST

// Two 16-bit elements of a fragment, the first in the lower half.
template <class T>
__device__ inline std::uint32_t Pack(float first, float second) {
  const T pair[2] = {FromFloat<T>(first), FromFloat<T>(second)};
  static_assert(sizeof pair == sizeof(std::uint32_t));
  std::uint32_t word;
  memcpy(&word, pair, sizeof word);
  return word;
}

// The sum and the largest of the lanes' values, the same bits in every lane.
__device__ inline float WarpSum(float x) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(kFullMask, x, lanes);
  return x;
}
__device__ inline float WarpMax(float x) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2)
    x = fmaxf(x, __shfl_xor_sync(kFullMask, x, lanes));
  return x;
}

// x of all threads of a block of kWarps warps joined by `join`, the same in every thread and in a
// fixed order. `shared` has room for kWarps values.
template <int kWarps, class T, class Join>
__device__ inline T BlockReduce(T x, T* shared, const Join& join) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    x = join(x, __shfl_xor_sync(kFullMask, x, lanes));
  }
  __syncthreads();  // what was read from `shared` before
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  T all = shared[0];
  for (int w = 1; w < kWarps; ++w) all = join(all, shared[w]);
  return all;
}

// Calls body(T{}) with the C++ type of the data tensors.
template <class Body>
void ForType(ElementType data, const Body& body) {
  switch (data) {
    case ElementType::kFloat16:
      return body(Half{});
    case ElementType::kBfloat16:
      return body(Bfloat16{});
    default:
      return body(0.0f);
  }
}

}  // namespace attenuator::cuda
