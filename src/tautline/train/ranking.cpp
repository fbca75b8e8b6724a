#include "tautline/train/ranking.h"

#include <algorithm>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include "tautline/base/error.h"
#include "tautline/data/ranking.h"
#include "tautline/ops/ops.h"

namespace tautline::train {
namespace {

using Reduction = comm::Communicator::Reduction;

at::Tensor gather(comm::Communicator communicator, const at::Tensor& x, const std::string& name) {
  if (communicator.size() == 1) return x;
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] *= communicator.size();
  at::Tensor all = at::empty(sizes, x.options());
  communicator.all_gather(all, x, name).wait();
  return all;
}

/// (user of all ranks, item, is it the target) of the known histories, each item once.
at::Tensor seen_pairs(const data::EvaluationBatch& batch, int64_t first_user,
                      comm::Communicator communicator) {
  std::vector<int64_t> flat;
  for (int64_t u = 0; u < batch.samples(); ++u) {
    std::vector<int64_t> items(batch.seen.begin() + batch.seen_offsets[u],
                               batch.seen.begin() + batch.seen_offsets[u + 1]);
    std::sort(items.begin(), items.end());
    items.erase(std::unique(items.begin(), items.end()), items.end());
    for (const int64_t item : items) {
      flat.insert(flat.end(), {first_user + u, item, item == batch.target[u] ? 1 : 0});
    }
  }
  const at::Device device = communicator.device();
  auto most = static_cast<int64_t>(flat.size() / 3);
  if (communicator.size() > 1) {
    at::Tensor count = at::zeros({1}, at::TensorOptions(at::kLong).device(device)).fill_(most);
    communicator.all_reduce(count, Reduction::kMax, "ranking.seen_count").wait();
    most = count.item<int64_t>();
  }
  flat.resize(static_cast<size_t>(3 * most), -1);
  at::Tensor pairs = at::empty({most, 3}, at::kLong);
  std::copy(flat.begin(), flat.end(), pairs.mutable_data_ptr<int64_t>());
  return gather(communicator, pairs.to(device), "ranking.seen");
}

/// What the pass over the classes needs.
struct Pass {
  at::Tensor users, rows;        // [W P, E], [c, E]
  at::Tensor target;             // [W P] local class, -1 where it is not here
  at::Tensor seen_user, seen;    // [s], [s] local classes of this share only, targets left out
  at::Tensor known_user, known;  // the same with the targets
  int64_t chunk;
  double repeat_bias;

  at::Tensor scores(int64_t begin, int64_t length) const;
  /// Calls f(begin, scores [W P, length]) for each chunk; a single chunk is computed once for all.
  template <class F>
  void for_each(at::Tensor& kept, F f) const {
    const int64_t classes = rows.size(0);
    for (int64_t begin = 0; begin < classes; begin += chunk) {
      const int64_t length = std::min(chunk, classes - begin);
      at::Tensor s = kept.defined() ? kept : scores(begin, length);
      if (length == classes) kept = s;
      f(begin, s);
    }
  }
};

/// Where column - begin lies in [0, length): the rows of `column` inside a chunk.
at::Tensor inside(const at::Tensor& column, int64_t begin, int64_t length) {
  return column.ge(begin).logical_and(column.lt(begin + length)).nonzero().squeeze(1);
}

at::Tensor Pass::scores(int64_t begin, int64_t length) const {
  at::Tensor s = at::matmul(users, rows.narrow(0, begin, length).t());
  if (repeat_bias != 0) {
    const at::Tensor here = inside(known, begin, length);
    s.index_put_({known_user.index_select(0, here), known.index_select(0, here).sub(begin)},
                 at::full({}, repeat_bias, s.options()), /*accumulate=*/true);
  }
  return s;
}

/// [W P] score of each target that this share holds, 0 elsewhere.
at::Tensor target_scores(const Pass& pass, at::Tensor& kept) {
  at::Tensor out = at::zeros({pass.users.size(0)}, pass.users.options());
  pass.for_each(kept, [&](int64_t begin, const at::Tensor& s) {
    const at::Tensor here = inside(pass.target, begin, s.size(1));
    const at::Tensor column = pass.target.index_select(0, here).sub(begin);
    out.index_put_({here}, s.index({here, column}));
  });
  return out;
}

/// [4, W P]: higher and equal among all classes here (the target itself too), then among the seen
/// ones.
at::Tensor count(const Pass& pass, const at::Tensor& target, at::Tensor& kept) {
  at::Tensor counts = at::zeros({4, target.size(0)}, target.options().dtype(at::kLong));
  const at::Tensor column = target.unsqueeze(1);
  pass.for_each(kept, [&](int64_t begin, const at::Tensor& s) {
    counts[0].add_(s.gt(column).sum(1));
    counts[1].add_(s.eq(column).sum(1));
    const at::Tensor here = inside(pass.seen, begin, s.size(1));
    const at::Tensor user = pass.seen_user.index_select(0, here);
    const at::Tensor score = s.index({user, pass.seen.index_select(0, here).sub(begin)});
    const at::Tensor against = target.index_select(0, user);
    counts[2].index_add_(0, user, score.gt(against).to(at::kLong));
    counts[3].index_add_(0, user, score.eq(against).to(at::kLong));
  });
  return counts;
}

}  // namespace

TargetRanks rank_targets(const at::Tensor& users_in, const data::EvaluationBatch& batch,
                         const models::ClassShard& classes, const RankingOptions& options,
                         comm::Communicator communicator) {
  const at::NoGradGuard no_grad;
  const int64_t n = users_in.size(0), padded = options.padded_users;
  TAUTLINE_INVARIANT(n <= padded, "users " << n << ", padded " << padded);
  at::Tensor users = users_in.to(at::kFloat);
  if (options.normalize) users = ops::l2_normalize(users);
  users = at::constant_pad_nd(users, {0, 0, 0, padded - n});
  at::Tensor target_id = at::empty({padded}, at::kLong).fill_(-1);
  std::copy(batch.target.begin(), batch.target.end(), target_id.mutable_data_ptr<int64_t>());

  const int64_t first_user = padded * communicator.rank();
  Pass pass;
  pass.users = gather(communicator, users, "ranking.users");
  pass.rows = options.normalize ? ops::l2_normalize(classes.rows) : classes.rows;
  pass.target =
      classes.local(gather(communicator, target_id.to(users.device()), "ranking.targets"));
  const at::Tensor pairs = seen_pairs(batch, first_user, communicator);
  const at::Tensor local = classes.local(pairs.select(1, 1));
  const auto chosen = [&](const at::Tensor& which, at::Tensor& user, at::Tensor& item) {
    const at::Tensor here = which.nonzero().squeeze(1);
    item = local.index_select(0, here);
    user = pairs.select(1, 0).index_select(0, here);
  };
  chosen(local.ge(0), pass.known_user, pass.known);
  chosen(local.ge(0).logical_and(pairs.select(1, 2).eq(0)), pass.seen_user, pass.seen);
  pass.chunk = options.chunk_classes;
  pass.repeat_bias = options.repeat_bias;

  at::Tensor kept;
  at::Tensor target = target_scores(pass, kept);
  communicator.all_reduce(target, Reduction::kSum, "ranking.target_scores").wait();
  at::Tensor counts = count(pass, target, kept);
  communicator.all_reduce(counts, Reduction::kSum, "ranking.counts").wait();

  const at::Tensor mine = counts.narrow(1, first_user, n).contiguous().cpu();
  const int64_t* c = mine.const_data_ptr<int64_t>();
  TargetRanks ranks;
  for (int64_t u = 0; u < n; ++u) {
    // A target that does not equal itself is NaN: a broken model must not look like a perfect one.
    const int64_t higher = c[u], equal = c[n + u] - 1;
    const double nowhere = std::numeric_limits<double>::infinity();
    ranks.all.push_back(equal < 0 ? nowhere : data::rank_of(higher, equal));
    ranks.unseen.push_back(equal < 0 ? nowhere
                                     : data::rank_of(higher - c[2 * n + u], equal - c[3 * n + u]));
  }
  return ranks;
}

}  // namespace tautline::train
