// The random words of the planes. Included inside the anonymous namespace of a kernel_*.cc
// file.

void DrawStream(std::int64_t seed, std::uint32_t layer, std::uint32_t head, Stream stream,
                std::uint64_t block, std::uint32_t* words) {
  static_assert(kStreamBlocks % WideLanes::kCount == 0);
  for (std::int64_t b = 0; b < kStreamBlocks; b += WideLanes::kCount) {
    WideLanes::Type lanes[4];
    PhiloxLanes<WideLanes>(seed, layer, head, stream, block + static_cast<std::uint64_t>(b), lanes);
    WideLanes::Store(lanes, words + 4 * b);
  }
}
