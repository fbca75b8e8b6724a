// A jagged batch on the host: what the reader hands to the training step. No torch; models/ makes
// tensors over these vectors.
//
// A sample is one sequence: a user's history or a chunk of it. Its tokens are the positions that go
// through the network; a token whose next event trains is a target.
//
// S samples, T tokens of this rank in this step.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tautline::data {

struct Batch {
  int64_t step = 0;  // global step, from 0
  int64_t epoch = 0;
  bool last_of_epoch = false;

  // The same on every rank, whatever the deal:
  int64_t global_samples = 0, global_tokens = 0, global_targets = 0;
  std::vector<int64_t> rank_tokens;  // [W] tokens of each rank: the balance of the deal

  // This rank's samples.
  std::vector<int64_t> sample;      // [S] index inside the step's fixed set (keys dropout)
  std::vector<int64_t> user;        // [S] row number of the user in the log
  std::vector<int64_t> offsets{0};  // [S + 1] tokens before each sample
  std::vector<int64_t> item;        // [T] ids >= 1
  std::vector<int64_t> time;        // [T] seconds
  std::vector<int64_t> target;      // [T] item id of the next event; 0: not a target
  std::map<std::string, std::vector<int64_t>> categorical;  // [T] by column
  std::map<std::string, std::vector<float>> dense;  // [T] by column; labels too (of the same event)
  // [T] label of the next event, NaN where no target
  std::map<std::string, std::vector<float>> next_label;

  int64_t samples() const { return static_cast<int64_t>(sample.size()); }
  int64_t tokens() const { return static_cast<int64_t>(item.size()); }
};

/// One user to evaluate: the history that is known, and the event to predict.
struct EvaluationBatch {
  std::vector<int64_t> user;  // [S]
  std::vector<int64_t> offsets{0};
  std::vector<int64_t> item, time;  // [T] history, the last max_length events
  std::map<std::string, std::vector<int64_t>> categorical;
  std::map<std::string, std::vector<float>> dense;
  std::vector<int64_t> target;  // [S] item id of the held-out event
  std::vector<uint8_t> later;   // [S] 1: the target is strictly later than the last known event
  std::vector<int64_t> seen_offsets{0},
      seen;  // all items of the known history (not only the last max_length)
  std::map<std::string, std::vector<float>> label;  // [S] labels of the held-out event
  int64_t samples() const { return static_cast<int64_t>(target.size()); }
};

}  // namespace tautline::data
