// Executes AMX instructions in software where the processor has none, for tests: the very machine
// code that the operators run, trapped instruction by instruction.
//
// A processor without AMX raises SIGILL; the handler decodes LDTILECFG, STTILECFG, TILERELEASE,
// TILEZERO, TILELOADD, TILESTORED and the four int8 products, carries them out on the calling
// thread's tiles as the architecture defines them (Intel SDM, volume 2) and returns behind them.
// What the architecture refuses (a tile that is not configured, shapes that do not fit, reserved
// bytes) ends the process with a line that says why. Any other instruction goes to whoever handled
// SIGILL before.
#pragma once

#include <cstdint>

namespace attenuator {

// Always true. With ATTENUATOR_AMX_BROKEN set to anything, products come out wrong, as of a broken
// processor.
bool InstallAmxEmulator();

// Instructions carried out so far by all threads.
std::int64_t AmxInstructionsEmulated();

}  // namespace attenuator
