// What hash.inl asks of an instruction set, for AVX-512 with VNNI. Included inside the anonymous
// namespace of a kernel_*.cc file.

// u8 planes times s8 data, four products a lane, no saturation: vpdpbusd.
using Datum = std::int8_t;
using PlaneDatum = std::uint8_t;
inline constexpr int kStepDims = 4;

inline void StoreData(Datum* p, Ints a) { StoreInt8(p, a); }
inline void StoreData(Datum* p, const Ints (&a)[4]) { StoreInt8(p, a); }
// Not the intrinsic: GCC 12 then copies every accumulator before and after, which costs a quarter.
inline void Dot(Ints& sums, Ints planes, Ints data) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums.part[0]) : "v"(planes.part[0]), "v"(data.part[0]));
}
