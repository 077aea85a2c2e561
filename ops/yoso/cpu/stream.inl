// The random words of the planes. Included inside the anonymous namespace of a kernel_*.cc
// file.

void DrawStream(std::int64_t seed, std::uint32_t layer, std::uint32_t head, Stream stream,
                std::uint64_t block, std::uint32_t* words) {
  static_assert(kStreamBlocks % Lanes::kCount == 0);
  for (std::int64_t b = 0; b < kStreamBlocks; b += Lanes::kCount) {
    Lanes::Type lanes[4];
    PhiloxLanes<Lanes>(seed, layer, head, stream, block + static_cast<std::uint64_t>(b), lanes);
    Lanes::Store(lanes, words + 4 * b);
  }
}
