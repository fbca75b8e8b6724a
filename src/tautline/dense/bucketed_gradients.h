// Data-parallel gradients: the sum over ranks of every dense gradient, bucket by bucket, while the
// backward still runs.
//
// The flat gradient buffer is cut into buckets from its end, which is where the backward starts. A
// hook behind each parameter counts its bucket down; full buckets are all-reduced in a fixed order,
// the same on every rank, whatever order the hooks fire in.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tautline/comm/communicator.h"
#include "tautline/dense/parameters.h"
#include "tautline/plan/plan.h"

namespace torch::autograd {
struct Node;
}

namespace tautline::dense {

/// Elements [begin, end) of the flat buffers, with `parameters` leaves in them.
struct Bucket {
  int64_t begin = 0, end = 0;
  int64_t parameters = 0;
};

/// Whole parameters from the last to the first; a bucket closes when it holds at least `bytes`.
std::vector<Bucket> cut_buckets(const std::vector<Parameter>& parameters, double bytes);

class BucketedGradients {
 public:
  BucketedGradients(Parameters& parameters, comm::Communicator communicator,
                    const DenseGradientPlan& plan);
  ~BucketedGradients();
  BucketedGradients(const BucketedGradients&) = delete;
  BucketedGradients& operator=(const BucketedGradients&) = delete;

  /// Before a backward: clears the gradients (Parameters::begin_backward) and arms the hooks.
  void begin();
  /// After it: starts what is left (parameters without a gradient on this rank, all of them where
  /// overlap is off) and waits. Parameters::gradients() then holds the sums over ranks.
  void finish();

  const std::vector<Bucket>& buckets() const;

  struct State;

 private:
  std::shared_ptr<State> state_;  // the hooks share it
  std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, uintptr_t>> hooks_;
};

}  // namespace tautline::dense
