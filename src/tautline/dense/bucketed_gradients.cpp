#include "tautline/dense/bucketed_gradients.h"

#include <string>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace tautline::dense {

std::vector<Bucket> cut_buckets(const std::vector<Parameter>& parameters, double bytes) {
  std::vector<Bucket> buckets;
  for (size_t i = parameters.size(); i-- > 0;) {
    const Parameter& parameter = parameters[i];
    const bool full =
        !buckets.empty() &&
        static_cast<double>(buckets.back().end - buckets.back().begin) * sizeof(float) >= bytes;
    if (buckets.empty() || full) buckets.push_back({parameter.end, parameter.end, 0});
    buckets.back().begin = parameter.begin;
    ++buckets.back().parameters;
  }
  return buckets;
}

struct BucketedGradients::State {
  Parameters& parameters;
  comm::Communicator communicator;
  std::vector<Bucket> buckets;
  std::vector<int64_t> missing;  // by bucket: leaves that the backward has not reached
  std::vector<comm::Work> works;
  size_t next = 0;     // first bucket that is not under way
  bool armed = false;  // hooks count only between begin and finish

  void start_next() {
    const Bucket& bucket = buckets[next];
    const at::NoGradGuard no_grad;
    works.push_back(communicator.all_reduce(
        parameters.gradients().narrow(0, bucket.begin, bucket.end - bucket.begin),
        comm::Communicator::Reduction::kSum, "bucket." + std::to_string(next)));
    ++next;
  }

  void leaf_done(size_t bucket) {
    if (!armed) return;
    --missing[bucket];
    while (next < buckets.size() && missing[next] == 0) start_next();
  }
};

namespace {

/// Behind autograd's adding to a leaf, which runs once all its gradients have come, also where they
/// went past it (Parameter::add_product).
struct LeafHook : torch::autograd::FunctionPostHook {
  LeafHook(std::shared_ptr<BucketedGradients::State> state, size_t bucket)
      : state(std::move(state)), bucket(bucket) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    state->leaf_done(bucket);
    return outputs;
  }
  std::shared_ptr<BucketedGradients::State> state;
  size_t bucket;
};

}  // namespace

BucketedGradients::BucketedGradients(Parameters& parameters, comm::Communicator communicator,
                                     const DenseGradientPlan& plan)
    : state_(new State{parameters,
                       std::move(communicator),
                       cut_buckets(parameters.all(), plan.bucket_bytes),
                       {},
                       {},
                       0,
                       false}) {
  if (!plan.overlap || state_->communicator.size() == 1) return;
  size_t leaf = parameters.all().size();
  for (size_t b = 0; b < state_->buckets.size(); ++b) {
    for (int64_t i = 0; i < state_->buckets[b].parameters; ++i) {
      auto adds = torch::autograd::impl::grad_accumulator(parameters.all()[--leaf].value);
      const uintptr_t key = adds->add_post_hook(std::make_unique<LeafHook>(state_, b));
      hooks_.emplace_back(std::move(adds), key);
    }
  }
}

BucketedGradients::~BucketedGradients() {
  for (const auto& [adds, key] : hooks_) adds->del_post_hook(key);
}

void BucketedGradients::begin() {
  state_->parameters.begin_backward();
  state_->missing.clear();
  for (const Bucket& bucket : state_->buckets) state_->missing.push_back(bucket.parameters);
  state_->works.clear();
  state_->next = 0;
  state_->armed = true;
}

void BucketedGradients::finish() {
  state_->armed = false;
  state_->parameters.end_backward();
  if (state_->communicator.size() == 1) return;
  while (state_->next < state_->buckets.size()) state_->start_next();
  for (comm::Work& work : state_->works) work.wait();
  state_->works.clear();
}

const std::vector<Bucket>& BucketedGradients::buckets() const { return state_->buckets; }

}  // namespace tautline::dense
