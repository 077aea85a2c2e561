// A library of its own that shows what device.h's vocabulary does: on the test device, and, where
// `make cuda` compiles the same file for GPUs, on them. tests/ops/test_device.py asserts it.
//
// Every probe is one block: bytes in, bytes out. The fragments of the matrix products are filled by
// the layout that device.h documents, from row-major matrices, so that a wrong layout shows.
#include <cstring>
#include <stdexcept>
#include <string>

#include "ops/common/cuda/device.h"

namespace attenuator::cuda {
namespace {

template <class T>
__global__ void Widen(const T* in, float* out, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = ToFloat(in[i]);
}

template <class T>
__global__ void Narrow(const float* in, T* out, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = FromFloat<T>(in[i]);
}

// a [16, kPer * 8], b [kPer * 8, 8], both row-major with elements of 4 / kPer bytes; c [16, 8].
template <int kPer, class Element>
__device__ void Fragments(const Element* a, const Element* b, std::uint32_t (&fa)[4],
                          std::uint32_t (&fb)[2]) {
  constexpr int kDepth = kPer * 8;
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  for (int i = 0; i < 4; ++i) {
    Element part[kPer];
    for (int e = 0; e < kPer; ++e) {
      part[e] = a[(g + i % 2 * 8) * kDepth + i / 2 * (kDepth / 2) + t * kPer + e];
    }
    memcpy(&fa[i], part, 4);
  }
  for (int i = 0; i < 2; ++i) {
    Element part[kPer];
    for (int e = 0; e < kPer; ++e) part[e] = b[(i * (kDepth / 2) + t * kPer + e) * 8 + g];
    memcpy(&fb[i], part, 4);
  }
}

template <class Sum>
__device__ void Store(const Sum (&c)[4], Sum* out) {
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  for (int i = 0; i < 4; ++i) out[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = c[i];
}

__global__ void ProductInt8(const std::int8_t* in, std::int32_t* out) {
  std::uint32_t a[4], b[2];
  std::int32_t c[4] = {1, 1, 1, 1};  // the product is added
  Fragments<4>(in, in + 16 * 32, a, b);
  MmaInt8(c, a, b);
  Store(c, out);
}

template <class T>
__global__ void Product(const T* in, float* out) {
  std::uint32_t a[4], b[2];
  float c[4] = {1, 1, 1, 1};
  Fragments<2>(in, in + 16 * 16, a, b);
  Mma<T>(c, a, b);
  Store(c, out);
}

// in: four 8 x 8 matrices of 16 bits; out [32 lanes, 4, 2].
__global__ void Matrices(const std::uint16_t* in, std::uint32_t* out, bool transposed) {
  std::uint16_t* shared = SharedMemory<std::uint16_t>();
  for (int i = threadIdx.x; i < 256; i += kWarp) shared[i] = in[i];
  __syncthreads();
  std::uint32_t words[4];
  const std::uint16_t* row = shared + threadIdx.x * 8;
  transposed ? LoadMatricesTransposed(words, row) : LoadMatrices(words, row);
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = words[i];
}

// in [32] int32; out [10, 32] int32.
__global__ void Exchanges(const int* in, int* out) {
  const int lane = static_cast<int>(threadIdx.x), mine = in[lane];
  const int results[10] = {
      __shfl_sync(kFullMask, mine, (lane * 7 + 3) & 31),
      __shfl_xor_sync(kFullMask, mine, 5),
      __shfl_down_sync(kFullMask, mine, 3u),
      __shfl_up_sync(kFullMask, mine, 3u),
      static_cast<int>(__ballot_sync(kFullMask, mine & 1)),
      __any_sync(kFullMask, mine > 1000),
      __all_sync(kFullMask, mine > -1000),
      static_cast<int>(__match_any_sync(kFullMask, mine & 3)),
      static_cast<int>(WarpSum(static_cast<float>(mine))),
      static_cast<int>(WarpMax(static_cast<float>(mine))),
  };
  for (int i = 0; i < 10; ++i) out[i * kWarp + lane] = results[i];
}

// out [threads]: what the thread at the other end wrote; then a sum that all threads added to.
__global__ void Barriers(int* out) {
  int* shared = SharedMemory<int>();
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  shared[thread] = thread;
  if (thread == 0) shared[threads] = 0;
  __syncthreads();
  const int other = shared[threads - 1 - thread];
  if (thread % 32 != 5) atomicAdd(&shared[threads], other);
  __syncthreads();
  out[thread] = other;
  if (thread == 0) out[threads] = shared[threads];
}

// in [32, 16] bytes; out the same, odd lanes' replaced by zeros.
__global__ void Copies(const unsigned char* in, unsigned char* out) {
  unsigned char* shared = SharedMemory<unsigned char>();
  CopyAsync16(shared + threadIdx.x * 16, in + threadIdx.x * 16, threadIdx.x % 2 == 0);
  CopyCommit();
  CopyWait<0>();
  __syncthreads();
  const int from = static_cast<int>(31 - threadIdx.x) * 16;
  for (int i = 0; i < 16; ++i) out[from + i] = shared[from + i];
}

#ifdef ATTENUATOR_CUDA_ON_HOST
// A missing barrier: which thread's value survives depends on the order.
__global__ void Race(int* out) {
  int* shared = SharedMemory<int>();
  shared[0] = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (threadIdx.x == 0) out[0] = shared[0];
}

// One lane waits for its warp, all others for the block.
__global__ void Hang() {
  if (threadIdx.x == 3) __syncwarp();
  __syncthreads();
}

// The block's other threads end instead of coming to the barrier, as GPUs allow.
__global__ void Leave(int* out) {
  if (threadIdx.x >= 32) return;
  __syncthreads();
  out[threadIdx.x] = static_cast<int>(threadIdx.x);
}
#endif

// Memory that kernels reach, with the bytes of the host's.
class Memory {
 public:
  Memory(const void* bytes, std::size_t size) : size_(size) {
#ifdef ATTENUATOR_CUDA_ON_HOST
    data_ = ::operator new(size + 1);
    if (bytes != nullptr) std::memcpy(data_, bytes, size);
#else
    Check(cudaMalloc(&data_, size + 1), "cudaMalloc");
    if (bytes != nullptr) {
      Check(cudaMemcpy(data_, bytes, size, cudaMemcpyHostToDevice), "cudaMemcpy");
    }
#endif
  }
  ~Memory() {
#ifdef ATTENUATOR_CUDA_ON_HOST
    ::operator delete(data_);
#else
    cudaFree(data_);
#endif
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void Read(void* bytes) const {
#ifdef ATTENUATOR_CUDA_ON_HOST
    std::memcpy(bytes, data_, size_);
#else
    Check(cudaMemcpy(bytes, data_, size_, cudaMemcpyDeviceToHost), "cudaMemcpy");
#endif
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  std::size_t size_;
  void* data_ = nullptr;
};

template <class T>
void Half16(const std::string& what, const Memory& in, const Memory& out, std::int64_t out_bytes) {
  const T* narrow = in.as<T>();
  if (what == "widen") {
    Launch("widen", Widen<T>, dim3(1), 128, 0, nullptr, narrow, out.as<float>(),
           static_cast<int>(out_bytes / 4));
  } else if (what == "narrow") {
    Launch("narrow", Narrow<T>, dim3(1), 128, 0, nullptr, static_cast<const float*>(in.as<float>()),
           out.as<T>(), static_cast<int>(out_bytes / 2));
  } else {
    Launch("mma", Product<T>, dim3(1), 32, 0, nullptr, narrow, out.as<float>());
  }
}

void Run(const std::string& what, const Memory& in, const Memory& out, std::int64_t out_bytes) {
  const std::size_t dash = what.find('-');
  const std::string first = what.substr(0, dash);
  const std::string type = dash == std::string::npos ? "" : what.substr(dash + 1);
  const int threads = static_cast<int>(out_bytes / 4) - 1;
  if (type == "float16") {
    Half16<Half>(first, in, out, out_bytes);
  } else if (type == "bfloat16") {
    Half16<Bfloat16>(first, in, out, out_bytes);
  } else if (what == "mma-int8") {
    Launch("mma", ProductInt8, dim3(1), 32, 0, nullptr,
           static_cast<const std::int8_t*>(in.as<std::int8_t>()), out.as<std::int32_t>());
  } else if (first == "matrices") {
    Launch("matrices", Matrices, dim3(1), 32, 512, nullptr,
           static_cast<const std::uint16_t*>(in.as<std::uint16_t>()), out.as<std::uint32_t>(),
           type == "transposed");
  } else if (what == "exchanges") {
    Launch("exchanges", Exchanges, dim3(1), 32, 0, nullptr, static_cast<const int*>(in.as<int>()),
           out.as<int>());
  } else if (what == "barriers") {
    Launch("barriers", Barriers, dim3(1), static_cast<unsigned>(threads), out_bytes, nullptr,
           out.as<int>());
  } else if (what == "copies") {
    Launch("copies", Copies, dim3(1), 32, 512, nullptr,
           static_cast<const unsigned char*>(in.as<unsigned char>()), out.as<unsigned char>());
#ifdef ATTENUATOR_CUDA_ON_HOST
  } else if (what == "race") {
    Launch("race", Race, dim3(1), 64, 4, nullptr, out.as<int>());
  } else if (what == "hang") {
    Launch("hang", Hang, dim3(1), 64, 0, nullptr);
  } else if (what == "leave") {
    Launch("leave", Leave, dim3(1), 96, 0, nullptr, out.as<int>());
  } else if (what == "shared") {
    Launch("shared", Race, dim3(1), 64, Limits().shared_bytes + 1, nullptr, out.as<int>());
  } else if (what == "threads") {
    Launch("threads", Race, dim3(1), 48, 4, nullptr, out.as<int>());
#endif
  } else {
    throw std::invalid_argument("there is no probe " + what);
  }
}

}  // namespace
}  // namespace attenuator::cuda

// Runs a probe; returns null, or the error, which lasts until the thread's next call.
extern "C" __attribute__((visibility("default"))) const char* attenuator_probe(
    const char* what, const void* in, std::int64_t in_bytes, void* out, std::int64_t out_bytes) {
  using namespace attenuator::cuda;
  static thread_local std::string error;
  try {
    const Memory given(in, static_cast<std::size_t>(in_bytes));
    const Memory made(nullptr, static_cast<std::size_t>(out_bytes));
    Run(what, given, made, out_bytes);
    made.Read(out);
    return nullptr;
  } catch (const std::exception& raised) {
    error = raised.what();
    return error.c_str();
  }
}
