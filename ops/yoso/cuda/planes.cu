// YosoAttention on CUDA: rows that are not finite, and planes.
//
// A sequence that holds an infinity or a NaN is flagged, and its output is NaN, all heads. Those
// that take tables are flagged by who reads their rows anyway, hashing and adding, head after head:
// Break writes over their output when all heads are done. For others Scan reads query, key and
// value once beforehand, so that who writes output knows.
//
// Planes are made once for each distinct (seed, head) of a wave. One thread turns one Philox block
// into 8 coordinates, each p by binary search among the 127 thresholds of the inverse CDF. Planes
// are stored in the order in which tensor cores read them (OperandByte): 8 planes by 32 coordinates
// are the 256 bytes of one operand of m16n8k32, and a lane reads two operands at once. Coordinates
// beyond head_dim and planes beyond the last hash, which fill the last operands, are zeros: they
// change no code, but hashing reads them. Signs of Hadamard hashes are the stream's words as they
// are.
#include "ops/yoso/cuda/common.h"

namespace attenuator::yoso {
namespace {

__constant__ std::uint16_t kThresholds[] = {
#include "ops/yoso/gaussian_table.inc"
};
constexpr int kNumThresholds = 127;
static_assert(sizeof kThresholds == kNumThresholds * sizeof(std::uint16_t));

constexpr int kSpanElements = 8192;  // that one block scans

template <class T>
__global__ void Scan(Node node, Spans spans) {
  const Span span = spans.items[FindItem(spans, blockIdx.x)];
  const void* tensor = span.tensor == 0 ? node.query : span.tensor == 1 ? node.key : node.value;
  const T* data = static_cast<const T*>(tensor) + span.begin;
  const std::int64_t begin =
      static_cast<std::int64_t>(blockIdx.x - span.first_block) * kSpanElements;
  const std::int64_t end = min(begin + kSpanElements, span.count);
  unsigned largest = 0;
#pragma unroll 8
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kBlockThreads) {
    largest = max(largest, Magnitude(cuda::ToFloat(data[i])));
  }
  if (largest >= kInfinite) atomicMax(node.broken + span.sequence, 1);
}

constexpr int kBreakBlocks = 16;  // of a sequence; mostly they have nothing to do

template <class T>
__global__ void __launch_bounds__(kBlockThreads) Break(Node node, Jobs jobs) {
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  if (node.broken[job.sequence] == 0) return;
  const std::int64_t columns = std::int64_t{node.num_heads} * node.value_dim;
  T* output = static_cast<T*>(node.output) + job.query_row * columns;
  const T nan = cuda::FromFloat<T>(__int_as_float(0x7FC00000));
  for (std::int64_t i = (static_cast<int>(blockIdx.x) - job.first_block) * kBlockThreads +
                        static_cast<int>(threadIdx.x);
       i < job.num_queries * columns; i += kBreakBlocks * kBlockThreads) {
    output[i] = nan;
  }
}

// p of a half-word: the number of thresholds that its magnitude reaches; the lower half of the
// half-words mirrors the upper one.
__device__ inline int PlaneValue(const std::uint16_t* thresholds, unsigned half) {
  const unsigned flip = (half >> 15) - 1;  // all ones in the lower half
  const unsigned magnitude = (half ^ flip) & 0x7FFFu;
  int p = 0;
#pragma unroll
  for (int step = 64; step > 0; step /= 2) {
    if (thresholds[p + step - 1] <= magnitude) p += step;
  }
  return p ^ static_cast<int>(flip);
}

// Of a head's Gaussian planes: whole chunks, since the last word of a chunk reads 32 planes.
__host__ __device__ inline int OperandBytes(const Node& node, int num_hashes) {
  return Quotient(num_hashes, kCudaHashChunk) * kCudaHashChunk * node.hash_bits *
         PaddedDim(node.head_dim);
}

// Where coordinate d of a plane lies: [32 planes][32 coordinates][pair of operands][lane][operand
// of the pair][8 coordinates]. Bit 8 t + 2 j + i of a word is column 2 t + i of its operand j, so
// that the signs that the product leaves a lane, of columns 2 t and 2 t + 1, are a byte of the
// word.
__device__ inline int OperandByte(int steps, int plane, int d) {
  const int bit = plane % 32, operand = bit % 8 / 2, column = bit / 8 * 2 + bit % 2;
  const int lane = column * 4 + d % 16 / 4;
  const int pair = (plane / 32 * steps + d / 32) * 2 + operand / 2;
  return ((pair * cuda::kWarp + lane) * 2 + operand % 2) * 8 + d % 32 / 16 * 4 + d % 4;
}

// Thread `own` of `threads` writes its share of the zeros that fill a head's last operands.
__device__ inline void FillOperands(const Node& node, const PlaneJob& job, unsigned char* target,
                                    int own, int threads) {
  const int planes = job.num_hashes * node.hash_bits, padded = PaddedDim(node.head_dim);
  if (node.head_dim % 32 == 0 && job.num_hashes % kCudaHashChunk == 0) return;
  const int all = OperandBytes(node, job.num_hashes);
  for (int i = own; i < all; i += threads) {
    const int plane = i / padded, d = i % padded;
    if (plane >= planes || d >= node.head_dim) target[OperandByte(padded / 32, plane, d)] = 0;
  }
}

__global__ void GaussianPlanes(Node node, PlaneJobs jobs) {
  std::uint16_t* thresholds = cuda::SharedMemory<std::uint16_t>();
  if (threadIdx.x < kNumThresholds) thresholds[threadIdx.x] = kThresholds[threadIdx.x];
  __syncthreads();
  const PlaneJob job = jobs.items[FindItem(jobs, blockIdx.x)];
  const std::int64_t first =
      static_cast<std::int64_t>(job.first_hash) * node.hash_bits * node.head_dim;
  const std::int64_t count =
      static_cast<std::int64_t>(job.num_hashes) * node.hash_bits * node.head_dim;
  const int steps = PaddedDim(node.head_dim) / 32;
  const std::int64_t base = first / 8;
  const int blocks_a_head =
      static_cast<int>(((first + count + 7) / 8 - base + kBlockThreads - 1) / kBlockThreads);
  const int local = blockIdx.x - job.first_block;
  const int head = local / blocks_a_head;
  const std::int64_t block =
      base + static_cast<std::int64_t>(local % blocks_a_head) * kBlockThreads + threadIdx.x;
  const PhiloxWords words =
      StreamBlock(job.seed, node.layer, job.head + head, Stream::kYosoPlanes, block);
  unsigned char* target = node.scratch + job.offset + head * job.stride;
  FillOperands(node, job, target, local % blocks_a_head * kBlockThreads + threadIdx.x,
               blocks_a_head * kBlockThreads);
  for (int i = 0; i < 8; ++i) {
    const std::int64_t at = block * 8 + i - first;
    if (at < 0 || at >= count) continue;
    const int plane = static_cast<int>(at / node.head_dim),
              d = static_cast<int>(at % node.head_dim);
    target[OperandByte(steps, plane, d)] = static_cast<unsigned char>(
        PlaneValue(thresholds, words.word[i / 2] >> (i % 2 * 16) & 0xFFFFu));
  }
}

// The first plane of a norm lift, and how many: Hadamard signs begin with the first hash of all.
__host__ __device__ inline int FirstLift(const Node& node, int first_hash) {
  return node.hadamard ? 0 : first_hash * node.hash_bits;
}
__host__ __device__ inline int CountLift(const Node& node, int first_hash, int num_hashes) {
  const int size = HadamardSize(node.head_dim);
  const int hashes = node.hadamard ? Quotient(first_hash + num_hashes, size) * size : num_hashes;
  return hashes * node.hash_bits;
}

// Half-word 2 * plane + side of the stream is a plane's coordinate for queries (0) or keys (1).
__global__ void NormLift(Node node, PlaneJobs jobs) {
  std::uint16_t* thresholds = cuda::SharedMemory<std::uint16_t>();
  if (threadIdx.x < kNumThresholds) thresholds[threadIdx.x] = kThresholds[threadIdx.x];
  __syncthreads();
  const PlaneJob job = jobs.items[FindItem(jobs, blockIdx.x)];
  const int first = FirstLift(node, job.first_hash);
  const int count = CountLift(node, job.first_hash, job.num_hashes);
  const int base = first / 4, groups = (first + count + 3) / 4 - base;
  const int blocks_a_head = Quotient(groups, kBlockThreads);
  const int local = blockIdx.x - job.first_block;
  const int head = local / blocks_a_head;
  const int group = local % blocks_a_head * kBlockThreads + threadIdx.x;
  if (group >= groups) return;
  const PhiloxWords words =
      StreamBlock(job.seed, node.layer, job.head + head, Stream::kYosoLift, base + group);
  int* target = reinterpret_cast<int*>(node.scratch + job.lift_offset + head * job.lift_stride);
  for (int i = 0; i < 4; ++i) {
    const int plane = (base + group) * 4 + i - first;
    if (plane < 0 || plane >= count) continue;
    target[plane] = 2 * PlaneValue(thresholds, words.word[i] & 0xFFFFu) + 1;
    target[job.lift_stride / 8 + plane] = 2 * PlaneValue(thresholds, words.word[i] >> 16) + 1;
  }
}

// Writes the stream's words as they are, up to the part that the last hash needs.
__global__ void HadamardSigns(Node node, PlaneJobs jobs, int size) {
  const PlaneJob job = jobs.items[FindItem(jobs, blockIdx.x)];
  const int groups =
      Quotient(job.first_hash + job.num_hashes, size) * node.hash_bits * 3 * size / 32 / 4 + 1;
  const int blocks_a_head = Quotient(groups, kBlockThreads);
  const int local = blockIdx.x - job.first_block;
  const int head = local / blocks_a_head;
  const int group = local % blocks_a_head * kBlockThreads + threadIdx.x;
  if (group >= groups) return;
  const PhiloxWords words =
      StreamBlock(job.seed, node.layer, job.head + head, Stream::kYosoSigns, group);
  uint4* target = reinterpret_cast<uint4*>(node.scratch + job.offset + head * job.stride);
  target[group] = make_uint4(words.word[0], words.word[1], words.word[2], words.word[3]);
}

}  // namespace

int Multiprocessors() { return cuda::Limits().multiprocessors; }

void Clear(void* memory, std::int64_t bytes, cuda::Stream stream) {
  cuda::ZeroAsync(memory, static_cast<std::size_t>(bytes), stream);
}

int SpanBlocks(const Span& span) {
  return static_cast<int>((span.count + kSpanElements - 1) / kSpanElements);
}

void LaunchScan(ElementType data, const Node& node, const Spans& spans, int blocks,
                cuda::Stream stream) {
  cuda::ForType(data, [&](auto type) {
    cuda::Launch("YosoAttention scan", Scan<decltype(type)>, dim3(static_cast<unsigned>(blocks)),
                 kBlockThreads, 0, stream, node, spans);
  });
}

int BreakBlocks(const Node&, const Job&) { return kBreakBlocks; }

void LaunchBreak(ElementType data, const Node& node, const Jobs& jobs, int blocks,
                 cuda::Stream stream) {
  cuda::ForType(data, [&](auto type) {
    cuda::Launch("YosoAttention break", Break<decltype(type)>, dim3(static_cast<unsigned>(blocks)),
                 kBlockThreads, 0, stream, node, jobs);
  });
}

std::int64_t PlaneBytes(const Node& node, int first_hash, int num_hashes) {
  if (!node.hadamard) return OperandBytes(node, num_hashes);
  const int size = HadamardSize(node.head_dim);
  return static_cast<std::int64_t>(Quotient(first_hash + num_hashes, size)) * node.hash_bits * 3 *
             size / 8 +
         16;
}

std::int64_t LiftBytes(const Node& node, int first_hash, int num_hashes) {
  if (!node.lifted()) return 0;
  return std::int64_t{2} * sizeof(int) * CountLift(node, first_hash, num_hashes);
}

int LiftBlocks(const Node& node, const PlaneJob& job) {
  const int first = FirstLift(node, job.first_hash);
  const int end = first + CountLift(node, job.first_hash, job.num_hashes);
  return job.num_heads * Quotient((end + 3) / 4 - first / 4, kBlockThreads);
}

void LaunchLift(const Node& node, const PlaneJobs& jobs, int blocks, cuda::Stream stream) {
  cuda::Launch("YosoAttention lift", NormLift, dim3(static_cast<unsigned>(blocks)), kBlockThreads,
               256, stream, node, jobs);
}

int PlaneBlocks(const Node& node, const PlaneJob& job) {
  if (node.hadamard) {
    const int size = HadamardSize(node.head_dim);
    const int groups =
        Quotient(job.first_hash + job.num_hashes, size) * node.hash_bits * 3 * size / 32 / 4 + 1;
    return job.num_heads * Quotient(groups, kBlockThreads);
  }
  const std::int64_t plane = static_cast<std::int64_t>(node.hash_bits) * node.head_dim;
  const std::int64_t first = job.first_hash * plane, end = first + job.num_hashes * plane;
  return job.num_heads *
         static_cast<int>(((end + 7) / 8 - first / 8 + kBlockThreads - 1) / kBlockThreads);
}

void LaunchPlanes(const Node& node, const PlaneJobs& jobs, int blocks, cuda::Stream stream) {
  const dim3 grid(static_cast<unsigned>(blocks));
  if (node.hadamard) {
    cuda::Launch("YosoAttention signs", HadamardSigns, grid, kBlockThreads, 0, stream, node, jobs,
                 HadamardSize(node.head_dim));
  } else {
    cuda::Launch("YosoAttention planes", GaussianPlanes, grid, kBlockThreads, 256, stream, node,
                 jobs);
  }
}

}  // namespace attenuator::yoso
