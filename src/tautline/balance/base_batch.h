// Base batch shuffling: evening out load without a message and without taking batches apart.
//
// A reader emits base batches (128 samples). A buffer of them is sorted by total cost, and heavy
// ones are merged with light ones into the full batches of the buffer's steps, so that each full
// batch comes out near the buffer's mean. Published for Meta's GEM (2026): about 90 % of the
// optimal balance, +4 % throughput, -4 % peak memory; the window and the exact pairing are not
// published, the ones here are ours.
//
// It changes which samples meet in a step, so it is an option (plan.balance.base_batch). Where it
// only has to even out ranks inside a step, deal_by_length (deal.h) does better and changes
// nothing.
//
// N base batches in the buffer, K steps that they are merged into, n = N / K base batches a step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tautline::balance {

/// The base batches of each step: order[k * n + j] is the index of base batch j of step k. A
/// permutation of 0..N-1. Heaviest and lightest are paired (the middle ones stay single when n is
/// odd), and the pairs go, heaviest first, to the lightest step that still has room. Inside a step
/// heavy ones stand beside light ones, pairs beside pairs and so on, so that ranks which take
/// consecutive runs are even too.
/// Needs N to be a multiple of K >= 1.
std::vector<int64_t> merge_base_batches(std::span<const double> costs, int64_t steps);

}  // namespace tautline::balance
