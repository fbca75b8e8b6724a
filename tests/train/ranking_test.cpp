#include "tautline/train/ranking.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tautline/comm/threads.h"

namespace tautline::train {
namespace {

constexpr int64_t kClasses = 29, kWidth = 4;

/// Item vectors with small integers: products are exact, so ties are ties.
at::Tensor items() {
  at::Tensor rows = at::empty({kClasses + 1, kWidth});
  for (int64_t i = 0; i <= kClasses; ++i) {
    for (int64_t c = 0; c < kWidth; ++c) rows[i][c] = static_cast<double>((i * 5 + c * 3) % 4 - 1);
  }
  return rows;
}

/// Users u with u % world == rank; users 0 to 6.
struct Users {
  data::EvaluationBatch batch;
  at::Tensor vectors;
};
Users users_of(int rank, int world) {
  Users out;
  std::vector<at::Tensor> vectors;
  for (int64_t u = rank; u < 7; u += world) {
    out.batch.target.push_back(1 + (u * 11) % kClasses);
    out.batch.later.push_back(0);
    if (u == 5) out.batch.seen.push_back(out.batch.target.back());  // known already
    for (int64_t k = 0; k < u; ++k) out.batch.seen.push_back(1 + (u + k * 4) % kClasses);
    if (u > 2) out.batch.seen.push_back(out.batch.seen.back());  // an item twice
    out.batch.seen_offsets.push_back(static_cast<int64_t>(out.batch.seen.size()));
    vectors.push_back(at::tensor({double(u % 3 - 1), 1.0, double(u % 2), -1.0}).to(at::kFloat));
  }
  out.vectors = vectors.empty() ? at::empty({0, kWidth}) : at::stack(vectors);
  return out;
}

/// By the definition, one item at a time.
std::pair<double, double> plain_rank(const Users& users, int64_t u, double repeat_bias) {
  const at::Tensor rows = items();
  const auto score = [&](int64_t item) {
    const auto begin = users.batch.seen.begin(), end = begin + users.batch.seen_offsets[u + 1];
    const bool known = std::find(begin + users.batch.seen_offsets[u], end, item) != end;
    return users.vectors[u].dot(rows[item]).item<float>() + (known ? repeat_bias : 0.0);
  };
  const int64_t target = users.batch.target[u];
  const auto begin = users.batch.seen.begin();
  double all = 1, unseen = 1;
  for (int64_t item = 1; item <= kClasses; ++item) {
    if (item == target) continue;
    const double counts = score(item) > score(target) ? 1 : score(item) == score(target) ? 0.5 : 0;
    all += counts;
    const auto end = begin + users.batch.seen_offsets[u + 1];
    if (std::find(begin + users.batch.seen_offsets[u], end, item) == end) unseen += counts;
  }
  return {all, unseen};
}

models::ClassShard shard_of(int rank, int world) {
  models::ClassShard shard;
  shard.first = rank == 0 ? world : rank;  // row-wise, without the unknown item
  shard.stride = world;
  shard.rows = items().slice(0, shard.first, std::nullopt, world).contiguous();
  return shard;
}

TEST(Ranking, CountsByTheDefinitionOnAnyNumberOfRanks) {
  for (const int world : {1, 2, 3}) {
    for (const auto& [chunk, bias] : {std::pair{int64_t{1}, 0.0},
                                      {int64_t{4}, 0.0},
                                      {int64_t{1} << 15, 0.0},
                                      {int64_t{4}, -1.0},
                                      {int64_t{1} << 15, -1.0},
                                      {int64_t{1} << 15, 1.0}}) {
      comm::run_rank_threads(world, [&](comm::Communicator communicator) {
        const Users users = users_of(communicator.rank(), world);
        RankingOptions options;
        options.padded_users = 7;
        options.chunk_classes = chunk;
        options.repeat_bias = bias;
        const TargetRanks ranks =
            rank_targets(users.vectors, users.batch, shard_of(communicator.rank(), world), options,
                         communicator);
        ASSERT_EQ(ranks.all.size(), users.batch.target.size());
        for (size_t u = 0; u < ranks.all.size(); ++u) {
          const auto [all, unseen] = plain_rank(users, static_cast<int64_t>(u), bias);
          EXPECT_EQ(ranks.all[u], all);
          EXPECT_EQ(ranks.unseen[u], unseen);
        }
      });
    }
  }
}

TEST(Ranking, ABrokenModelIsLast) {
  Users users = users_of(0, 1);
  users.vectors.fill_(std::nan(""));
  RankingOptions options;
  options.padded_users = 7;
  const TargetRanks ranks = rank_targets(users.vectors, users.batch, shard_of(0, 1), options,
                                         comm::Communicator(at::kCPU));
  for (const double rank : ranks.all) EXPECT_GT(rank, kClasses);
}

}  // namespace
}  // namespace tautline::train
