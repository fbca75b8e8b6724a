// Dealing the samples of a step to ranks.
//
// A synchronous step lasts as long as its heaviest rank, and sample lengths are skewed, so equal
// numbers of samples are unequal work. The samples of a step are a fixed set, all ranks know all
// lengths, and the loss is a sum over the set: so any deal gives the same mathematics, and every
// rank computes the whole deal by itself, without a message.
//
// deal_by_length is "longest processing time first" (Graham, "Bounds on multiprocessing timing
// anomalies", SIAM J. Appl. Math. 17(2), 1969, theorem 2): samples by falling cost, each to the
// rank with the least load so far; at most 4/3 - 1/(3W) times the best possible maximum, and far
// nearer where a rank holds many samples (bench/balance.cpp).
//
// S samples, W ranks. Pure: the answer depends on the arguments alone, ties included.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tautline::balance {

/// What a sample of `length` tokens costs, in any unit: linear layers grow with the length,
/// attention with its square.
struct Cost {
  double per_token = 1.0;
  double per_token_squared = 0.0;
  double of(int64_t length) const {
    const double n = static_cast<double>(length);
    return n * (per_token + per_token_squared * n);
  }
  bool operator==(const Cost&) const = default;
};

/// Rank of each sample [S]. Equal costs go in order of index; equal loads to the rank with fewer
/// samples, then to the lower rank. Needs ranks >= 1.
std::vector<int32_t> deal_by_length(std::span<const int64_t> lengths, int ranks,
                                    const Cost& cost = {});

/// Rank of each sample [S]: consecutive runs whose sizes differ by at most one. The off value.
std::vector<int32_t> deal_in_order(int64_t samples, int ranks);

/// Load of each rank [W] under a deal.
std::vector<double> rank_loads(std::span<const int64_t> lengths, std::span<const int32_t> deal,
                               int ranks, const Cost& cost = {});

/// max / mean of the loads, 1 when nothing weighs anything: the step's time over a balanced step's.
double max_over_mean(std::span<const double> loads);

/// No deal of these costs to W ranks has a smaller maximum: the largest of the mean, the heaviest
/// cost and, for every k, the k + 1 lightest of the kW + 1 heaviest (by the pigeonhole principle
/// some rank holds k + 1 of those kW + 1).
double least_maximum(std::span<const double> costs, int ranks);

}  // namespace tautline::balance
