// What hash.inl asks of an instruction set, for AVX-512 with VNNI. Included inside the anonymous
// namespace of a kernel_*.cc file.

// u8 planes times s8 data, four products a lane, no saturation: vpdpbusd.
using Datum = std::int8_t;
using PlaneDatum = std::uint8_t;
inline constexpr int kStepDims = 4;

inline void StoreData(Datum* p, IntVec a) { StoreInt8(p, a); }
inline void StoreData(Datum* p, const IntVec (&a)[4]) { StoreInt8(p, a); }
// Not the intrinsic: GCC 12 then copies every accumulator before and after, which costs a quarter.
inline void Dot(IntVec& sums, IntVec planes, IntVec data) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums.v) : "v"(planes.v), "v"(data.v));
}
