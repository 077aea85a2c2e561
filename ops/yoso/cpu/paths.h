// The three ways to compute one head of one sequence. Portable: they call the kernels in blocks.
#pragma once

#include <cstdint>
#include <span>

#include "ops/yoso/cpu/crew.h"
#include "ops/yoso/cpu/head_job.h"
#include "ops/yoso/cpu/kernel.h"
#include "ops/yoso/cpu/scratch.h"

namespace attenuator::yoso {

enum class Path { kTables, kCounts, kExpectation };

// From the sequence's length, its knobs, the node's attributes and, unless tables would be rounded,
// the instruction set alone, so that a sequence's result does not depend on its neighbours.
Path ChoosePath(const Kernels& kernels, std::int64_t num_queries, std::int64_t num_keys,
                int num_hashes, int hash_bits, int value_dim, bool rounded);

// A head's codes for all of its hashes, [group][row][kGroup], where somebody has hashed its rows.
struct HeadCodes {
  std::uint8_t* key;  // null: nobody has
  std::uint8_t* query;
};

// Queries [first, first + count) of the job; the table and count paths take all of them at once,
// and the former lets idle workers help. False where a row of the sequence is not finite: the
// output is then not defined.
bool RunTablePath(const Kernels& kernels, const HeadJob& job, const HeadCodes& codes, Crew& crew,
                  Scratch& scratch);
// The table path of neighbouring heads of one sequence, whose rows are hashed together. The bits
// are those of each head's own table path.
bool RunTablePaths(const Kernels& kernels, std::span<const HeadJob> heads, Crew& crew,
                   Scratch& scratch);
bool RunCountPath(const Kernels& kernels, const HeadJob& job, Scratch& scratch);
bool RunExpectationPath(const Kernels& kernels, const HeadJob& job, std::int64_t first,
                        std::int64_t count, Scratch& scratch);

}  // namespace attenuator::yoso
