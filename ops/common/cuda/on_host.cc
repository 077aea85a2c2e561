// Fibers, barriers and the warp's matrix functions of the test device (on_host.h).
#include "ops/common/cuda/on_host.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

// Switches fibers: saves the running fiber's registers on its stack and its stack pointer in *from,
// then restores those of the fiber whose stack pointer is `to`. Only the registers that a callee
// must preserve are saved, and no signal mask: swapcontext saves that too, by a system call, which
// would take most of a kernel's time.
extern "C" void OnHostSwitch(void** from, void* to);
asm(R"(
.text
.local OnHostSwitch
.type OnHostSwitch, @function
OnHostSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size OnHostSwitch, .-OnHostSwitch
)");

namespace attenuator::cuda {
namespace on_host {
ON_HOST_THREAD_LOCAL const Place* here = nullptr;
namespace {

constexpr std::size_t kStackBytes = 128 << 10;
constexpr std::size_t kMostBytes = 64;  // size of a value in a warp collective
constexpr int kMaxThreads = 1024;

// A barrier of `expected` threads: the last to arrive releases all of them.
struct Barrier {
  int expected = 0, arrived = 0;
  std::uint64_t generation = 0;

  void Release() {
    arrived = 0;
    ++generation;
  }
  // The calling thread has ended: the others no longer wait for it.
  void Leave() {
    --expected;
    if (expected > 0 && arrived == expected) Release();
  }
};

struct Warp {
  Barrier barrier;
  // Two buffers, used in turns: a lane may have started the next collective while another still
  // reads the values of this one, but not the one after.
  alignas(16) unsigned char values[2][32 * kMostBytes];
};

struct Copy {
  void* shared;
  const void* global;  // null: write zeros
};

struct Fiber {
  void* context = nullptr;  // its stack pointer while it waits
  std::unique_ptr<unsigned char[]> stack;
  Place place;
  bool ended = false;
  const Barrier* barrier = nullptr;  // where it waits, or waited last, for the next generation
  std::uint64_t generation = 0;
  std::deque<std::vector<Copy>> copies;  // groups, oldest first; the last is still open
};

struct Runner {
  void* scheduler = nullptr;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Barrier block;
  Fiber* current = nullptr;
  std::unique_ptr<unsigned char[]> shared;
  void* shared_bytes = nullptr;
  const std::function<void()>* body = nullptr;
  std::exception_ptr error;
};

// A pointer, so that an access need not ask whether a Runner is constructed.
ON_HOST_THREAD_LOCAL Runner* runner = nullptr;

void Yield() { OnHostSwitch(&runner->current->context, runner->scheduler); }

// Yields until the barrier's generation changes, that is until all threads have arrived.
void Wait(Barrier& barrier) {
  if (++barrier.arrived == barrier.expected) return barrier.Release();
  runner->current->barrier = &barrier;
  runner->current->generation = barrier.generation;
  Yield();
}

bool Waits(const Fiber& it) { return it.barrier && it.barrier->generation == it.generation; }

Warp& MyWarp() { return runner->warps[runner->current->place.thread.x / 32]; }

// What a fiber runs.
void Main() {
  try {
    (*runner->body)();
  } catch (...) {
    runner->error = std::current_exception();
  }
  runner->current->ended = true;
  runner->block.Leave();
  MyWarp().barrier.Leave();
  Yield();
}

std::vector<int> Order(int threads) {
  std::vector<int> order(threads);
  std::iota(order.begin(), order.end(), 0);
  const char* requested = std::getenv("ATTENUATOR_ON_HOST_ORDER");
  if (requested == nullptr || std::strcmp(requested, "forward") == 0) return order;
  if (std::strcmp(requested, "backward") == 0) {
    std::reverse(order.begin(), order.end());
  } else {
    std::mt19937 generator(static_cast<unsigned>(std::strtoul(requested, nullptr, 10)));
    std::shuffle(order.begin(), order.end(), generator);
  }
  return order;
}

// A number that rises with every barrier that is passed and every thread that ends.
std::uint64_t Progress(int ended) {
  std::uint64_t sum = runner->block.generation + static_cast<std::uint64_t>(ended);
  for (const Warp& warp : runner->warps) sum += warp.barrier.generation;
  return sum;
}

void Prepare(Fiber& fiber, const Place& place, int thread) {
  fiber.place = place;
  fiber.place.thread = dim3(static_cast<unsigned>(thread), 0, 0);
  fiber.ended = false;
  fiber.barrier = nullptr;
  fiber.copies.assign(1, {});
  // The stack as OnHostSwitch leaves it: six saved registers, then the address to go on at, here
  // Main's, then Main's own return address, which is never used since Main does not return.
  // Stacks end at different offsets in a page: those at one offset compete for few cache lines.
  const auto top = reinterpret_cast<std::uintptr_t>(fiber.stack.get() + kStackBytes) / 16 * 16;
  void** frame = reinterpret_cast<void**>(top - thread % 64 * 576) - 8;
  std::fill(frame, frame + 8, nullptr);
  frame[6] = reinterpret_cast<void*>(Main);
  fiber.context = frame;
}

void RunBlock(const char* what, const Place& place, const std::vector<int>& order) {
  const int threads = static_cast<int>(order.size());
  runner->block = {threads, 0, 0};
  for (Warp& warp : runner->warps) warp.barrier = {32, 0, 0};
  for (int t = 0; t < threads; ++t) Prepare(runner->fibers[t], place, t);
  int ended = 0;
  while (ended < threads) {
    const std::uint64_t before = Progress(ended);
    for (const int t : order) {
      Fiber& fiber = runner->fibers[t];
      if (fiber.ended || Waits(fiber)) continue;
      runner->current = &fiber;
      here = &fiber.place;
      OnHostSwitch(&runner->scheduler, fiber.context);
      if (runner->error) std::rethrow_exception(std::exchange(runner->error, nullptr));
      ended += fiber.ended;
    }
    if (Progress(ended) == before) {
      throw std::runtime_error(
          std::string(what) +
          ": some threads of a block wait at a barrier that the others never reach");
    }
  }
}

}  // namespace

void BlockBarrier() { Wait(runner->block); }
void WarpBarrier() { Wait(MyWarp().barrier); }
void* SharedBytes() { return runner->shared_bytes; }

const unsigned char* Collect(const void* value, std::size_t bytes) {
  Warp& warp = MyWarp();
  if (bytes > kMostBytes || warp.barrier.expected != 32) {
    throw std::runtime_error(
        "a warp collective was called by part of a warp or with more than 64 bytes a lane, must be "
        "called by all 32 lanes with at most 64 bytes each");
  }
  unsigned char* values = warp.values[warp.barrier.generation & 1];
  std::memcpy(values + static_cast<std::size_t>(Lane()) * bytes, value, bytes);
  Wait(warp.barrier);
  return values;
}

std::size_t Requested(const char* variable, std::size_t otherwise) {
  const char* requested = std::getenv(variable);
  return requested == nullptr ? otherwise : std::strtoul(requested, nullptr, 10);
}

namespace {

void Record(const void* kernel, unsigned threads, std::size_t shared_bytes) {
  const char* path = std::getenv("ATTENUATOR_ON_HOST_LAUNCHES");
  Dl_info library;
  if (path == nullptr || dladdr(kernel, &library) == 0) return;
  const auto place = static_cast<const char*>(kernel) - static_cast<const char*>(library.dli_fbase);
  if (std::FILE* file = std::fopen(path, "a")) {
    std::fprintf(file, "%tx %u %zu %zu\n", place, threads, shared_bytes, SharedLimit());
    std::fclose(file);
  }
}

}  // namespace

void FinishCopies(int pending) {
  auto& groups = runner->current->copies;
  while (static_cast<int>(groups.size()) > pending + 1) {
    for (const Copy& copy : groups.front()) {
      copy.global != nullptr ? std::memcpy(copy.shared, copy.global, 16)
                             : std::memset(copy.shared, 0, 16);
    }
    groups.pop_front();
  }
}

void RunGrid(const char* what, const void* kernel, dim3 grid, unsigned threads,
             std::size_t shared_bytes, const std::function<void()>& body) {
  const auto refuse = [&](const std::string& why) {
    throw std::runtime_error(std::string(what) + ": " + why);
  };
  if (threads == 0 || threads > kMaxThreads || threads % 32 != 0)
    refuse("a block has " + std::to_string(threads) +
           " threads, must have 1 to 32 whole warps of 32");
  if (shared_bytes > SharedLimit())
    refuse("a block asks for " + std::to_string(shared_bytes) +
           " bytes of shared memory, may have " + std::to_string(SharedLimit()));
  if (grid.y > 65535 || grid.z > 65535)
    refuse("a grid has " + std::to_string(grid.y) + " x " + std::to_string(grid.z) +
           " blocks along y and z, may have 65,535 along each");
  Record(kernel, threads, shared_bytes);
  static thread_local Runner mine;
  runner = &mine;
  while (runner->fibers.size() < threads) {
    runner->fibers.emplace_back().stack =
        std::make_unique_for_overwrite<unsigned char[]>(kStackBytes);
  }
  runner->warps.resize(threads / 32);
  runner->shared = std::make_unique_for_overwrite<unsigned char[]>(shared_bytes + 128);
  runner->shared_bytes =
      runner->shared.get() + (128 - reinterpret_cast<std::uintptr_t>(runner->shared.get()) % 128);
  runner->body = &body;
  const std::vector<int> order = Order(static_cast<int>(threads));
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        // Shared memory starts uninitialised: a value from the block before must not look valid.
        std::memset(runner->shared_bytes, 0xCD, shared_bytes);
        RunBlock(what, {dim3(), dim3(x, y, z), dim3(threads, 1, 1), grid}, order);
      }
    }
  }
}

namespace {

// A GPU faults on an address that is not aligned.
void RefuseMisaligned(const void* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) {
    throw std::runtime_error(
        "an address of an asynchronous copy or a matrix load is not a multiple of 16 bytes, must "
        "be one");
  }
}

// Four 8x8 loads. `pick` gives the row and column of the element that a lane gets, which differ
// between the plain load and the transposed one.
template <class Pick>
void Load(std::uint32_t (&out)[4], const void* shared_row, const Pick& pick) {
  RefuseMisaligned(shared_row);
  const void* rows[32];
  std::memcpy(rows, Collect(&shared_row, sizeof shared_row), sizeof rows);
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::uint16_t pair[2];
    for (int e = 0; e < 2; ++e) {
      const auto [row, column] = pick(Lane() / 4, Lane() % 4 * 2 + e);
      std::memcpy(&pair[e], static_cast<const unsigned char*>(rows[matrix * 8 + row]) + column * 2,
                  2);
    }
    std::memcpy(&out[matrix], pair, sizeof pair);
  }
}

struct Operands {
  std::uint32_t a[4], b[2];
};

// c += a b. A register holds `kPer` elements, `element(register, e)` reads the e-th.
template <int kPer, class Sum, class Element>
void Multiply(Sum (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
              const Element& element) {
  Operands mine;
  std::memcpy(mine.a, a, sizeof mine.a);
  std::memcpy(mine.b, b, sizeof mine.b);
  const auto* all = reinterpret_cast<const Operands*>(Collect(&mine, sizeof mine));
  Sum rows[2][kPer * 8], columns[2][kPer * 8];
  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < kPer * 8; ++k) {
      const int half = k / (kPer * 4), t = k % (kPer * 4) / kPer, e = k % kPer;
      rows[i][k] = element(all[Lane() / 4 * 4 + t].a[half * 2 + i], e);
      columns[i][k] = element(all[(Lane() % 4 * 2 + i) * 4 + t].b[half], e);
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < kPer * 8; ++k) c[i] += rows[i / 2][k] * columns[i % 2][k];
  }
}

template <class T>
constexpr auto kElement16 = [](std::uint32_t word, int e) {
  return ToFloat(T{static_cast<std::uint16_t>(word >> (16 * e))});
};

}  // namespace
}  // namespace on_host

template <>
Half FromFloat<Half>(float x) {
  const std::uint32_t bits = on_host::Bits<std::uint32_t>(x);
  const std::uint16_t sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return {static_cast<std::uint16_t>(sign | 0x7E00)};
  if (magnitude == 0) return {sign};
  if (magnitude >= 65520.0f) return {static_cast<std::uint16_t>(sign | 0x7C00)};
  // Below 2^-14, a sum with 1/2 rounds to units of 2^-24, as halves do. Above, 13 bits fall away
  // and the bias changes: a fraction that rounds up to 2^10 carries into the exponent.
  const std::uint32_t rounded =
      magnitude < 0x1p-14f
          ? on_host::Bits<std::uint32_t>(magnitude + 0.5f) - on_host::Bits<std::uint32_t>(0.5f)
          : (((bits & 0x7FFFFFFF) + 0xFFF + (bits >> 13 & 1)) >> 13) - (112 << 10);
  return {static_cast<std::uint16_t>(sign | rounded)};
}

template <>
Bfloat16 FromFloat<Bfloat16>(float x) {
  std::uint32_t bits = on_host::Bits<std::uint32_t>(x);
  if (std::isnan(x)) return {0x7FFF};
  bits += 0x7FFF + (bits >> 16 & 1);
  return {static_cast<std::uint16_t>(bits >> 16)};
}

void CopyAsync16(void* shared, const void* global, bool valid) {
  on_host::RefuseMisaligned(shared);
  if (valid) on_host::RefuseMisaligned(global);
  std::memset(shared, 0xCD, 16);
  on_host::runner->current->copies.back().push_back({shared, valid ? global : nullptr});
}

void CopyCommit() { on_host::runner->current->copies.emplace_back(); }

void LoadMatrices(std::uint32_t (&out)[4], const void* shared_row) {
  on_host::Load(out, shared_row, [](int line, int place) { return std::pair(line, place); });
}
void LoadMatricesTransposed(std::uint32_t (&out)[4], const void* shared_row) {
  on_host::Load(out, shared_row, [](int line, int place) { return std::pair(place, line); });
}

void MmaInt8(std::int32_t (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  on_host::Multiply<4>(c, a, b, [](std::uint32_t word, int e) {
    return static_cast<std::int32_t>(static_cast<std::int8_t>(word >> 8 * e));
  });
}
template <>
void Mma<Half>(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  on_host::Multiply<2>(c, a, b, on_host::kElement16<Half>);
}
template <>
void Mma<Bfloat16>(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  on_host::Multiply<2>(c, a, b, on_host::kElement16<Bfloat16>);
}

}  // namespace attenuator::cuda
