// Random hyperplanes: drawn, packed for the instruction set, and kept.
//
// A coordinate is a standard normal number in fixed point, an odd number of 256 levels: 16 bits of
// the Philox stream looked up in a table of the inverse normal distribution (gaussian_table.inc),
// the same on every processor and on CUDA. Coordinates are drawn by their place in the stream, so
// that the first m hashes are those of any larger m. Structured hashes (Hadamard) draw signs alone.
//
// Packing, [plane][head_dim] bytes into the kernels' tiles, is the instruction set's own. The most
// recent 64 MiB of planes stay in a cache shared by all threads, by seed, layer, head and chunk of
// hashes. Planes are made outside the cache's lock; two threads may make the same ones, and either
// copy is right.
#include "ops/yoso/cpu/planes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>
#include <vector>

#include "ops/common/lru_cache.h"
#include "ops/common/philox.h"

namespace attenuator::yoso {
namespace {

constexpr std::int64_t kCacheBytes = 64 << 20;

constexpr std::uint16_t kThresholds[] = {
#include "ops/yoso/gaussian_table.inc"
};

// p by 15-bit magnitude, for half-words of the upper half.
const std::array<std::uint8_t, 1 << 15>& Table() {
  static const auto table = [] {
    std::array<std::uint8_t, 1 << 15> values{};
    std::uint8_t p = 0;
    for (std::size_t w = 0; w < values.size(); ++w) {
      while (p < std::size(kThresholds) && kThresholds[p] <= w) ++p;
      values[w] = p;
    }
    return values;
  }();
  return table;
}

// The planes' added coordinates: of hashes [first_hash, + num_hashes), in whole registers of 16.
void MakeLift(const PlaneFamily& family, std::int32_t head, int first_hash, int num_hashes,
              Planes& planes) {
  if (!family.lifted) return;
  const int count = num_hashes * family.hash_bits;
  std::vector<std::uint8_t> raw(static_cast<std::size_t>(count) * 2);
  GaussianPlanes(family, head, Stream::kYosoLift, 2,
                 static_cast<std::int64_t>(first_hash) * family.hash_bits, count, raw.data());
  const int padded = (count + kBlock - 1) / kBlock * kBlock;
  for (int side = 0; side < 2; ++side) {
    planes.lift[side] = MakeAligned<std::int32_t>(padded);
    std::fill_n(planes.lift[side].get(), padded, 0);
    // p + 128 to 2 p + 1.
    for (int i = 0; i < count; ++i) planes.lift[side][i] = 2 * raw[2 * i + side] - 255;
    planes.bytes += padded * static_cast<std::int64_t>(sizeof(std::int32_t));
  }
}

// The signs, one bit each, in the order of the stream's words.
Planes MakeSigns(const PlaneFamily& family, std::int32_t head, int num_hashes) {
  int size = kMinHadamardSize;
  while (size < family.head_dim) size *= 2;
  const std::int64_t blocks =
      static_cast<std::int64_t>((num_hashes + size - 1) / size) * family.hash_bits;
  const std::int64_t groups = (blocks * 3 * size + 127) / 128;  // of four words
  Planes planes;
  planes.num_hashes = (num_hashes + size - 1) / size * size;
  planes.bytes = groups * 16;
  planes.data = MakeAligned<std::uint8_t>(planes.bytes);
  for (std::int64_t g = 0; g < groups; ++g) {
    const PhiloxWords words = StreamBlock(family.seed, family.layer, head, Stream::kYosoSigns, g);
    std::memcpy(planes.data.get() + g * 16, words.word, 16);
  }
  MakeLift(family, head, 0, planes.num_hashes, planes);
  return planes;
}

Planes MakeGaussian(const PlaneFamily& family, std::int32_t head, int chunk, int num_hashes) {
  const int num_planes = num_hashes * family.hash_bits;
  std::vector<std::uint8_t> raw(static_cast<std::size_t>(num_planes) * family.head_dim);
  GaussianPlanes(family, head, Stream::kYosoPlanes, family.head_dim,
                 static_cast<std::int64_t>(chunk) * kHashChunk * family.hash_bits, num_planes,
                 raw.data());
  const Kernels& kernels = CpuKernels();
  Planes planes;
  planes.num_hashes = num_hashes;
  planes.bytes = kernels.plane_bytes(num_planes, family.head_dim);
  planes.data = MakeAligned<std::uint8_t>(planes.bytes);
  kernels.pack_planes(raw.data(), num_planes, family.head_dim, planes.data.get());
  MakeLift(family, head, chunk * kHashChunk, num_hashes, planes);
  return planes;
}

// Ordered by seed first, so that the entries of one request are neighbours, and by head and chunk
// last.
using CacheKey = std::tuple<std::int64_t, std::int32_t, std::int32_t, std::int32_t, bool, bool,
                            std::int32_t, std::int32_t>;

}  // namespace

void GaussianPlanes(const PlaneFamily& family, std::int32_t head, Stream stream, int dims,
                    std::int64_t first_plane, int num_planes, std::uint8_t* planes) {
  constexpr std::int64_t kHalfWords = 8 * kStreamBlocks;  // drawn at once
  const auto& table = Table();
  const Kernels& kernels = CpuKernels();
  const std::int64_t begin = first_plane * dims;
  const std::int64_t end = begin + static_cast<std::int64_t>(num_planes) * dims;
  std::uint16_t drawn[kHalfWords];
  for (std::int64_t first = begin / 8 * 8; first < end; first += kHalfWords) {
    std::uint32_t words[kHalfWords / 2];
    kernels.stream(family.seed, static_cast<std::uint32_t>(family.layer),
                   static_cast<std::uint32_t>(head), stream, static_cast<std::uint64_t>(first / 8),
                   words);
    std::memcpy(drawn, words, sizeof drawn);  // the lower half of a word comes first
    const std::int64_t low = std::max(begin, first), high = std::min(end, first + kHalfWords);
    for (std::int64_t i = low; i < high; ++i) {
      const std::uint32_t word = drawn[i - first];
      // The lower half mirrors the upper one: p of w is -1 - p of 65,535 - w. Computed without a
      // branch, since a random one is mispredicted half the time.
      const std::uint32_t flip = (word >> 15) - 1;  // all ones in the lower half
      planes[i - begin] = static_cast<std::uint8_t>((128u + table[(word ^ flip) & 0x7FFFu]) ^ flip);
    }
  }
}

std::shared_ptr<const Planes> GetPlanes(const PlaneFamily& family, std::int32_t head, int chunk,
                                        int num_hashes) {
  static LruCache<CacheKey, Planes, &Planes::num_hashes> cache(kCacheBytes);
  const CacheKey key{
      family.seed, family.layer, family.head_dim, family.hash_bits, family.hadamard, family.lifted,
      head,        chunk};
  if (auto cached = cache.Find(key, num_hashes)) return cached;
  // Made outside the lock. A few hashes more than needed, so that requests whose number of hashes
  // rises slowly do not make the planes anew each time.
  const auto planes = std::make_shared<const Planes>(
      family.hadamard
          ? MakeSigns(family, head, num_hashes)
          : MakeGaussian(family, head, chunk, std::min(kHashChunk, (num_hashes + 7) / 8 * 8)));
  cache.Insert(key, planes);
  return planes;
}

}  // namespace attenuator::yoso
