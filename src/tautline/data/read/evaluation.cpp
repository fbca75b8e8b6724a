// The evaluation reader: the drawn users in row order, so that row groups are decoded one after the
// other, `workers` at a time, the next ones in the background while the current ones are scored.
#include <algorithm>
#include <atomic>
#include <future>
#include <map>

#include "tautline/base/error.h"
#include "tautline/data/parallel.h"
#include "tautline/data/read/assemble.h"
#include "tautline/data/read/built_log.h"
#include "tautline/data/read/reader.h"
#include "tautline/data/read/step_planner.h"

namespace tautline::data {
namespace {

class LogEvaluationReader : public EvaluationReader {
 public:
  LogEvaluationReader(const ReaderOptions& options, Split split, int64_t users, int64_t batch)
      : options_(options),
        held_out_(split == Split::kTest ? 1 : 2),
        batch_(batch),
        choice_(choose_columns(options.categorical, options.dense, options.labels)),
        log_(options.log, choice_.columns, options.workers),
        users_(draw_evaluated_users(log_.shape(), options.seed, users)) {
    deal();
    loading_ = load(0);
  }
  ~LogEvaluationReader() override {
    stopping_ = true;
    if (loading_.valid()) loading_.wait();
  }

  bool next(EvaluationBatch& batch) override {
    batch = {};
    for (const auto& role : choice_.roles.categorical) batch.categorical[role.name];
    for (const auto& role : choice_.roles.dense) batch.dense[role.name];
    for (const auto& role : choice_.roles.labels) batch.dense[role.name], batch.label[role.name];
    const int64_t count = static_cast<int64_t>(users_.size());
    if (position_ >= count) return false;
    const int64_t end = std::min(count, position_ + batch_);
    for (; position_ < end; ++position_)
      if (rank_[position_] == options_.rank) append(users_[position_], batch);
    return true;
  }

 private:
  int64_t known(int64_t user) const { return log_.shape().lengths[user] - held_out_; }
  int32_t block_of(int64_t user) const {
    const auto& begin = log_.shape().block_begin;
    return static_cast<int32_t>(std::upper_bound(begin.begin(), begin.end(), user) -
                                begin.begin()) -
           1;
  }

  void deal() {  // every user of every call to a rank; what this rank reads of each row group
    const int64_t count = static_cast<int64_t>(users_.size());
    rank_.reserve(count);
    for (int64_t begin = 0; begin < count; begin += batch_) {
      std::vector<int64_t> lengths;
      for (int64_t i = begin; i < std::min(count, begin + batch_); ++i)
        lengths.push_back(std::min(known(users_[i]), options_.max_length));
      const auto dealt = balance::deal_by_length(lengths, options_.world, options_.cost);
      rank_.insert(rank_.end(), dealt.begin(), dealt.end());
    }
    const auto& begin = log_.shape().block_begin;
    for (int64_t i = 0; i < count; ++i) {
      if (rank_[i] != options_.rank) continue;
      const int32_t block = block_of(users_[i]);
      if (keep_.empty() || keep_.back().first != block)
        keep_.emplace_back(block, std::vector<uint8_t>(begin[block + 1] - begin[block], 0));
      keep_.back().second[users_[i] - begin[block]] = 1;
    }
  }

  using Blocks = std::map<int32_t, EventBlock>;
  std::future<Blocks> load(size_t first) {  // entries first .. first + workers - 1 of keep_
    const size_t end = std::min(keep_.size(), first + options_.workers);
    return std::async(std::launch::async, [this, first, end] {
      std::vector<EventBlock> decoded(end - first);
      parallel_for(static_cast<int64_t>(end - first), options_.workers, stopping_, [&](int64_t i) {
        decoded[i] = log_.decode(keep_[first + i].first, keep_[first + i].second);
      });
      Blocks blocks;
      for (size_t i = first; i < end; ++i) blocks[keep_[i].first] = std::move(decoded[i - first]);
      return blocks;
    });
  }

  void append(int64_t user, EvaluationBatch& batch) {
    const int32_t block = block_of(user);
    while (!blocks_.contains(block)) {
      TAUTLINE_INVARIANT(loaded_ < keep_.size(), "user " << user << " is in no loaded block");
      blocks_ = loading_.get();
      loaded_ += blocks_.size();
      loading_ = load(loaded_);
    }
    append_evaluated(user, {&blocks_.at(block), user - log_.shape().block_begin[block]},
                     known(user), options_.max_length, choice_.roles, batch);
  }

  const ReaderOptions options_;
  const int64_t held_out_;  // events from the target on
  const int64_t batch_;
  const ColumnChoice choice_;
  const BuiltLog log_;
  const std::vector<int64_t> users_;                            // sorted
  std::vector<int32_t> rank_;                                   // of each of users_
  std::vector<std::pair<int32_t, std::vector<uint8_t>>> keep_;  // row groups of this rank's users
  std::atomic<bool> stopping_{false};
  std::future<Blocks> loading_;
  size_t loaded_ = 0;  // entries of keep_ that blocks_ and its predecessors held
  Blocks blocks_;
  int64_t position_ = 0;
};

}  // namespace

std::unique_ptr<EvaluationReader> open_evaluation(const ReaderOptions& options, Split split,
                                                  int64_t users, int64_t batch) {
  sampling_options(options);  // checks them
  if (options.holdout == Holdout::kNone)
    throw user_error("'holdout' is none, so every event trains and none is left to evaluate on; ",
                     "set it to leave_last_out, or switch the evaluation off");
  if (batch < 1 || users < 0)
    throw user_error("evaluation needs a batch of at least 1 and no negative number of users, not ",
                     batch, " and ", users);
  return std::make_unique<LogEvaluationReader>(options, split, users, batch);
}

}  // namespace tautline::data
