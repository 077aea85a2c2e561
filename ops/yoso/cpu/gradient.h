// The gradient of the mean over hash tables by eq. 4 of the paper, with the hashes of the forward
// pass. Over all pairs of a query i and a key j of which m hashes collide in the share B_ij,
//
//   by value j  sum_i B_ij grad_i
//   by query i  tau / 2 sum_j B_ij <grad_i, value_j> key_j      and likewise by key j,
//
// where queries and keys are unit rows; then on through x / |x|, or x / sqrt(L) for rows within a
// norm lift's bound L. Hash by hash both sides are sorted by their codes, so that the pairs that
// collide are those of one bucket: a product of small matrices. Nothing has the square of the
// length.
//
// Or *YOSO of the appendix: each pair that collides in any hash has the true derivative of its
// weight in place of tau / 2 B_ij.
#pragma once

#include "ops/yoso/cpu/crew.h"
#include "ops/yoso/cpu/gradient_kernel.h"
#include "ops/yoso/cpu/head_job.h"
#include "ops/yoso/cpu/scratch.h"

namespace attenuator::yoso {

// Writes the gradients of one head of one sequence to by_query, by_key and by_value; `job` says
// which hashes. False where a query or a key is not finite: they are then not defined.
bool RunHeadGradient(const HeadJob& job, const GradientHead& head, Crew& crew, Scratch& scratch);

}  // namespace attenuator::yoso
