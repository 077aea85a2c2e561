// The part of CUDA that .cu files use, on the host: the test device `cuda_on_host`.
//
// device.h says what it is for and which rules kernels keep to. Blocks run one after another. Every
// thread of a block is a fiber with a stack of its own, which runs until it ends or waits at a
// barrier or a warp collective; then the next fiber runs. ATTENUATOR_ON_HOST_ORDER sets the order
// of the fibers: `forward` (default), `backward`, or a number that seeds a shuffle. A result that
// changes with the order shows a missing barrier: that is what the tests look for. A barrier that
// only some threads of a block reach is reported as an error, where a GPU would hang.
//
// Names in the global namespace are CUDA's own, so that kernels need not be changed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>

#include "ops/common/cuda/context.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace attenuator::cuda::on_host {

// The running fiber's indices, and the sizes they lie within.
struct Place {
  dim3 thread, block, block_size, grid_size;
};
// Of the running fiber. In this model of thread-local storage an access calls no function.
#define ON_HOST_THREAD_LOCAL constinit thread_local __attribute__((tls_model("initial-exec")))
extern ON_HOST_THREAD_LOCAL const Place* here;
inline const Place& Here() { return *here; }

void BlockBarrier();
// A warp collective: every lane gives a value of `bytes` bytes, at most 64. Returns the values of
// all 32 lanes in their order, valid until the lane's next collective.
const unsigned char* Collect(const void* value, std::size_t bytes);
void WarpBarrier();
void* SharedBytes();

// A number in the environment.
std::size_t Requested(const char* variable, std::size_t otherwise);
// The most dynamic shared memory that a block may have, in bytes: ATTENUATOR_ON_HOST_SHARED, or by
// default that of sm_86, sm_89 and sm_120, the least among the devices that are compiled for.
inline std::size_t SharedLimit() { return Requested("ATTENUATOR_ON_HOST_SHARED", 99 * 1024); }
// Of the device: ATTENUATOR_ON_HOST_MULTIPROCESSORS, by default 4.
inline int Multiprocessors() {
  return static_cast<int>(Requested("ATTENUATOR_ON_HOST_MULTIPROCESSORS", 4));
}
// Carries out the running fiber's asynchronous copies, except those of its newest `pending` groups.
void FinishCopies(int pending);

// Runs the blocks of a launch one after another. Where the environment variable
// ATTENUATOR_ON_HOST_LAUNCHES names a file, appends a line to it for scripts/cuda_launches.py: the
// kernel's offset in the library, threads, shared bytes, SharedLimit().
void RunGrid(const char* what, const void* kernel, dim3 grid, unsigned threads,
             std::size_t shared_bytes, const std::function<void()>& body);

template <class T>
T FromLane(T value, int lane) {
  T other;
  std::memcpy(&other, Collect(&value, sizeof value) + (lane & 31) * sizeof value, sizeof other);
  return other;
}

inline int Lane() { return static_cast<int>(Here().thread.x & 31); }

template <class To, class From>
To Bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

}  // namespace attenuator::cuda::on_host

#define threadIdx (attenuator::cuda::on_host::Here().thread)
#define blockIdx (attenuator::cuda::on_host::Here().block)
#define blockDim (attenuator::cuda::on_host::Here().block_size)
#define gridDim (attenuator::cuda::on_host::Here().grid_size)

inline void __syncthreads() { attenuator::cuda::on_host::BlockBarrier(); }
inline void __syncwarp(unsigned = 0xFFFFFFFFu) { attenuator::cuda::on_host::WarpBarrier(); }
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return attenuator::cuda::on_host::FromLane(value, lane);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return attenuator::cuda::on_host::FromLane(value, attenuator::cuda::on_host::Lane() ^ mask);
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned delta) {
  const int lane = attenuator::cuda::on_host::Lane(), from = lane + static_cast<int>(delta);
  return attenuator::cuda::on_host::FromLane(value, from < 32 ? from : lane);
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned delta) {
  const int lane = attenuator::cuda::on_host::Lane(), from = lane - static_cast<int>(delta);
  return attenuator::cuda::on_host::FromLane(value, from >= 0 ? from : lane);
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  const unsigned char mine = predicate != 0;
  const unsigned char* all = attenuator::cuda::on_host::Collect(&mine, 1);
  unsigned mask = 0;
  for (int lane = 0; lane < 32; ++lane) mask |= static_cast<unsigned>(all[lane]) << lane;
  return mask;
}
// A mask of the lanes that gave the same value as this one.
template <class T>
unsigned __match_any_sync(unsigned, T value) {
  T all[32];
  std::memcpy(all, attenuator::cuda::on_host::Collect(&value, sizeof value), sizeof all);
  unsigned mask = 0;
  for (int lane = 0; lane < 32; ++lane) mask |= static_cast<unsigned>(all[lane] == value) << lane;
  return mask;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == 0xFFFFFFFFu;
}

// One fiber runs at a time, so nothing needs to be atomic.
template <class T>
T atomicAdd(T* address, T value) {
  const T old = *address;
  *address = old + value;
  return old;
}
template <class T>
T atomicMax(T* address, T value) {
  const T old = *address;
  *address = std::max(old, value);
  return old;
}
template <class T>
T atomicMin(T* address, T value) {
  const T old = *address;
  *address = std::min(old, value);
  return old;
}
inline unsigned atomicOr(unsigned* address, unsigned value) {
  const unsigned old = *address;
  *address = old | value;
  return old;
}

inline int __float_as_int(float x) { return attenuator::cuda::on_host::Bits<int>(x); }
inline unsigned __float_as_uint(float x) { return attenuator::cuda::on_host::Bits<unsigned>(x); }
inline float __int_as_float(int x) { return attenuator::cuda::on_host::Bits<float>(x); }
inline float __uint_as_float(unsigned x) { return attenuator::cuda::on_host::Bits<float>(x); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<std::uint64_t>(a) * b >> 32);
}
// Compares byte by byte: 0xFF where `a` and `b` are equal, 0 where not.
inline unsigned __vcmpeq4(unsigned a, unsigned b) {
  unsigned mask = 0;
  for (int byte = 0; byte < 4; ++byte) {
    if ((a >> (8 * byte) & 0xFF) == (b >> (8 * byte) & 0xFF)) mask |= 0xFFu << (8 * byte);
  }
  return mask;
}
template <class T>
T __ldg(const T* address) {
  return *address;
}
using std::max;
using std::min;

namespace attenuator::cuda {

struct Half {
  std::uint16_t bits;
};
struct Bfloat16 {
  std::uint16_t bits;
};

inline float ToFloat(float x) { return x; }
inline float ToFloat(Half x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000) << 16;
  const std::uint32_t magnitude = x.bits & 0x7FFF;
  if (magnitude >= 0x7C00) return on_host::Bits<float>(sign | 0x7F800000 | magnitude << 13);
  if (magnitude >= 0x400) return on_host::Bits<float>(sign | (magnitude + (112 << 10)) << 13);
  return (sign != 0 ? -0x1p-24f : 0x1p-24f) * static_cast<float>(magnitude);
}
inline float ToFloat(Bfloat16 x) {
  return on_host::Bits<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
template <class T>
T FromFloat(float x);
template <>
inline float FromFloat<float>(float x) {
  return x;
}
template <>
Half FromFloat<Half>(float x);
template <>
Bfloat16 FromFloat<Bfloat16>(float x);

template <class T>
T* SharedMemory() {
  return static_cast<T*>(on_host::SharedBytes());
}

// The copy happens in CopyWait and not before, so that a test sees a missing wait.
void CopyAsync16(void* shared, const void* global, bool valid = true);
void CopyCommit();
inline float Sqrt(float x) { return x < 1.17549435e-38f ? 0.0f : std::sqrt(x); }
inline float Exp2(float x) { return x < -126.0f ? 0.0f : std::exp2(x); }
template <int kPending>
void CopyWait() {
  on_host::FinishCopies(kPending);
}

void LoadMatrices(std::uint32_t (&out)[4], const void* shared_row);
void LoadMatricesTransposed(std::uint32_t (&out)[4], const void* shared_row);
void MmaInt8(std::int32_t (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
template <class T>
void Mma(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
template <>
void Mma<Half>(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
template <>
void Mma<Bfloat16>(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);

template <class... Parameters, class... Arguments>
void Launch(const char* what, void (*kernel)(Parameters...), dim3 grid, unsigned threads,
            std::size_t shared_bytes, Stream, const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  on_host::RunGrid(what, reinterpret_cast<const void*>(kernel), grid, threads, shared_bytes,
                   [&] { kernel(arguments...); });
}

inline void ZeroAsync(void* memory, std::size_t bytes, Stream) { std::memset(memory, 0, bytes); }

inline void* Allocate(std::size_t bytes, const char*) {
  return std::memset(::operator new(bytes), 0xCD, bytes);
}
inline void Free(void* memory) { ::operator delete(memory); }

// A launch has ended when Launch returns, so nothing waits for an event.
inline Event MakeEvent(const char*) { return nullptr; }
inline void Record(Event, Stream, const char*) {}
inline void Wait(Stream, Event, const char*) {}
inline void Destroy(Event) {}

struct DeviceLimits {
  int multiprocessors;
  int shared_bytes;
};
inline DeviceLimits Limits() {
  return {on_host::Multiprocessors(), static_cast<int>(on_host::SharedLimit())};
}

}  // namespace attenuator::cuda
