#include "tests/ops/amx_emulator.h"

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "ops/common/amx.h"

namespace attenuator {
namespace {

constexpr int kNumTiles = 8;

struct State {
  TileConfig config;
  bool configured = false;
  std::uint8_t data[kNumTiles][kTileRows][kTileBytes] = {};
};

thread_local State state;
std::atomic<std::int64_t> instructions{0};
struct sigaction previous;
bool broken = false;

[[noreturn]] void Refuse(const char* fault) {
  const char* parts[] = {"AMX emulator: ", fault, "\n"};
  for (const char* part : parts) {
    if (write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  }
  std::abort();
}

void Require(bool holds, const char* fault) {
  if (!holds) Refuse(fault);
}

// One VEX-encoded instruction of map 0F38.
struct Instruction {
  const std::uint8_t* end;
  int prefix;  // 0: none, 1: 66, 2: F3, 3: F2
  int opcode;
  int reg, rm, vvvv;
  bool in_memory;
  bool has_sib;
  std::uint64_t base;  // effective address without the index
  std::int64_t index;  // scaled: the stride of a tile's rows
};

std::uint64_t Register(const ucontext_t& context, int number) {
  constexpr int kOrder[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                            REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return static_cast<std::uint64_t>(context.uc_mcontext.gregs[kOrder[number]]);
}

// False where the bytes are nothing of the kind.
bool Decode(const ucontext_t& context, const std::uint8_t* p, Instruction* out) {
  if (p[0] != 0xC4 || (p[1] & 0x1F) != 2 || (p[2] & 0x84) != 0) return false;  // 0F38, W0, 128 bits
  const int high_index = p[1] & 0x40 ? 0 : 8, high_base = p[1] & 0x20 ? 0 : 8;
  out->prefix = p[2] & 3;
  out->vvvv = ~(p[2] >> 3) & 15;
  out->opcode = p[3];
  const int mod = p[4] >> 6;
  out->reg = p[4] >> 3 & 7;
  out->rm = p[4] & 7;
  p += 5;
  out->in_memory = mod != 3;
  out->has_sib = out->in_memory && out->rm == 4;
  out->base = 0;
  out->index = 0;
  if (out->in_memory) {
    int base = out->rm;
    if (out->has_sib) {
      const int index = (*p >> 3 & 7) + high_index;
      if (index != 4) out->index = static_cast<std::int64_t>(Register(context, index)) << (*p >> 6);
      base = *p++ & 7;
    }
    const bool no_base = mod == 0 && base == 5;
    if (!no_base) out->base = Register(context, base + high_base);
    std::int32_t displacement = 0;
    if (mod == 1) {
      displacement = static_cast<std::int8_t>(*p++);
    } else if (mod == 2 || no_base) {
      std::memcpy(&displacement, p, 4);
      p += 4;
    }
    out->base += static_cast<std::uint64_t>(std::int64_t{displacement});
    if (no_base && !out->has_sib) out->base += reinterpret_cast<std::uint64_t>(p);  // after the end
  }
  out->end = p;
  return true;
}

void LoadConfig(const void* source) {
  State next;
  std::memcpy(&next.config, source, sizeof next.config);
  const TileConfig& config = next.config;
  const auto zero = [](const auto& values, int from, int to) {
    return std::all_of(values + from, values + to, [](int value) { return value == 0; });
  };
  Require(config.palette <= 1, "#GP: unknown palette");
  if (config.palette == 1) {
    Require(zero(config.reserved, 0, 14), "#GP: reserved bytes 2 to 15 are not zero");
    Require(zero(config.row_bytes, kNumTiles, 16), "#GP: bytes 32 to 47 are not zero");
    Require(zero(config.rows, kNumTiles, 16), "#GP: bytes 56 to 63 are not zero");
    for (int tile = 0; tile < kNumTiles; ++tile) {
      Require(config.row_bytes[tile] <= kTileBytes, "#GP: a row of more than 64 bytes");
      Require(config.rows[tile] <= kTileRows, "#GP: more than 16 rows");
      Require((config.rows[tile] == 0) == (config.row_bytes[tile] == 0),
              "#GP: rows without bytes, or bytes without rows");
    }
    // Allowed, but it would leave the first rows out of the next load or store.
    Require(config.start_row == 0, "start_row is not zero");
    next.configured = true;
  }
  state = next;
}

void StoreConfig(void* target) {
  if (state.configured) {
    std::memcpy(target, &state.config, sizeof state.config);
  } else {
    std::memset(target, 0, sizeof state.config);
  }
}

void CheckTile(int tile) {
  Require(state.configured, "#UD: tiles are not configured");
  Require(tile < kNumTiles, "#UD: no such tile");
  Require(state.config.rows[tile] != 0, "#UD: the tile is not configured");
}

void Zero(int tile) {
  CheckTile(tile);
  std::memset(state.data[tile], 0, sizeof state.data[tile]);
}

void Load(int tile, const std::uint8_t* base, std::int64_t stride) {
  Zero(tile);
  for (int row = 0; row < state.config.rows[tile]; ++row) {
    std::memcpy(state.data[tile][row], base + row * stride, state.config.row_bytes[tile]);
  }
}

void Store(int tile, std::uint8_t* base, std::int64_t stride) {
  CheckTile(tile);
  for (int row = 0; row < state.config.rows[tile]; ++row) {
    std::memcpy(base + row * stride, state.data[tile][row], state.config.row_bytes[tile]);
  }
}

int Byte(std::uint8_t byte, bool is_signed) {
  return is_signed ? static_cast<std::int8_t>(byte) : byte;
}

void Dot(int sums, int a, int b, bool a_signed, bool b_signed) {
  for (const int tile : {sums, a, b}) CheckTile(tile);
  const auto& rows = state.config.rows;
  const auto& bytes = state.config.row_bytes;
  Require(sums != a && sums != b && a != b, "#UD: one tile twice");
  Require(bytes[sums] % 4 == 0 && bytes[a] % 4 == 0 && bytes[b] % 4 == 0,
          "#UD: a row is no whole number of int32");
  Require(bytes[sums] == bytes[b], "#UD: columns of the sums and of the second factor differ");
  Require(rows[sums] == rows[a], "#UD: rows of the sums and of the first factor differ");
  Require(bytes[a] == 4 * rows[b], "#UD: the depths of the factors differ");
  std::uint8_t result[kTileRows][kTileBytes] = {};
  for (int m = 0; m < rows[sums]; ++m) {
    std::uint32_t total[kTileBytes / 4];  // wraps around
    std::memcpy(total, state.data[sums][m], sizeof total);
    for (int k = 0; k < rows[b]; ++k) {
      for (int n = 0; n < bytes[b] / 4; ++n) {
        for (int i = 0; i < 4; ++i) {
          total[n] += static_cast<std::uint32_t>(Byte(state.data[a][m][4 * k + i], a_signed) *
                                                 Byte(state.data[b][k][4 * n + i], b_signed));
        }
      }
    }
    if (broken && m == 3) total[0] = ~total[0];
    std::memcpy(result[m], total, bytes[sums]);
  }
  std::memcpy(state.data[sums], result, sizeof result);
}

// False where the instruction is not one of AMX.
bool Execute(const Instruction& in) {
  auto* memory = reinterpret_cast<std::uint8_t*>(in.base);
  const bool to_memory = in.in_memory && in.vvvv == 0;
  if (in.opcode == 0x49 && in.prefix <= 1 && to_memory && in.reg == 0) {
    const auto address = memory + in.index;
    in.prefix == 0 ? LoadConfig(address) : StoreConfig(address);
  } else if (in.opcode == 0x49 && in.prefix == 0 && !in.in_memory && in.reg == 0 && in.rm == 0) {
    state = {};
  } else if (in.opcode == 0x49 && in.prefix == 3 && !in.in_memory && in.rm == 0) {
    Zero(in.reg);
  } else if (in.opcode == 0x4B && in.prefix >= 2 && to_memory) {
    Require(in.has_sib, "#UD: rows without a stride");
    in.prefix == 3 ? Load(in.reg, memory, in.index) : Store(in.reg, memory, in.index);
  } else if (in.opcode == 0x5E && !in.in_memory) {
    Dot(in.reg, in.rm, in.vvvv, in.prefix >= 2, in.prefix % 2 == 1);
  } else {
    return false;
  }
  return true;
}

void Handle(int, siginfo_t*, void* user_context) {
  ucontext_t& context = *static_cast<ucontext_t*>(user_context);
  greg_t& next = context.uc_mcontext.gregs[REG_RIP];
  Instruction instruction;
  if (Decode(context, reinterpret_cast<const std::uint8_t*>(next), &instruction) &&
      Execute(instruction)) {
    ++instructions;
    next = reinterpret_cast<greg_t>(instruction.end);
  } else {
    sigaction(SIGILL, &previous, nullptr);  // to be raised again, and handled there
  }
}

}  // namespace

bool InstallAmxEmulator() {
  broken = std::getenv("ATTENUATOR_AMX_BROKEN") != nullptr;
  struct sigaction action = {};
  action.sa_sigaction = Handle;
  action.sa_flags = SA_SIGINFO;
  return sigaction(SIGILL, &action, &previous) == 0;
}

std::int64_t AmxInstructionsEmulated() { return instructions; }

}  // namespace attenuator
