#include "tautline/train/resume.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "tautline/base/error.h"
#include "tautline/base/units.h"
#include "tautline/plan/plan_fields.h"
#include "tautline/train/run_fields.h"
#include "tautline/workload/model_fields.h"
#include "tautline/workload/workload_fields.h"

namespace tautline::train {
namespace {

// Of Manifest::extra.
constexpr const char *kRun = "run", *kModel = "model", *kLog = "log";

/// What of a log decides which samples there are and what the model sees of them. The log's name and
/// columns that this model does not read do not.
LogStatistics identity(const LogStatistics& log, const ModelConfig& model) {
  LogStatistics out;
  const data::EventColumns used = used_columns(model);
  for (const auto* columns : {&used.categorical, &used.real})
    for (const std::string& column : *columns)
      if (const auto found = log.column_digests.find(column); found != log.column_digests.end())
        out.column_digests.insert(*found);
  out.users = log.users;
  out.events = log.events;
  out.shards = log.shards;
  out.first_time = log.first_time;
  out.last_time = log.last_time;
  out.items_digest = log.items_digest;
  out.histories_digest = log.histories_digest;
  out.length = log.length;
  const auto items = log.vocabularies.find("item");
  if (items != log.vocabularies.end()) out.vocabularies["item"].size = items->second.size;
  return out;
}

struct Change {
  std::string key, before, now;
  bool on_both = true;  // false: one side does not have the key at all
};

/// Values that two YAML texts give differently.
std::vector<Change> changes(const std::string& before, const std::string& now) {
  std::map<std::string, std::string> values;
  for (const ConfigLeaf& leaf : leaves_of(parse_yaml(now, "this run"), {}))
    values[leaf.path] = leaf.value;
  std::vector<Change> out;
  for (const ConfigLeaf& leaf : leaves_of(parse_yaml(before, "the checkpoint"), {})) {
    const auto found = values.find(leaf.path);
    if (found == values.end()) {
      out.push_back({leaf.path, leaf.value, "nothing", false});
      continue;
    }
    if (found->second != leaf.value) out.push_back({leaf.path, leaf.value, found->second});
    values.erase(found);
  }
  for (const auto& [key, value] : values) out.push_back({key, "nothing", value, false});
  return out;
}

/// Of what the checkpoint kept as a T. A key that a later release added has its default there.
template <class T>
std::vector<Change> changes_of(const Manifest& manifest, const char* key, const T& now) {
  const auto kept = manifest.extra.find(key);
  if (kept == manifest.extra.end()) return {};  // written before they were kept
  const T before = parse_config<T>(kept->second, "the checkpoint's " + std::string(key));
  return changes(to_yaml(before), to_yaml(now));
}

/// Keys of a model that change how it learns and not what it is.
bool is_how_it_learns(const std::string& key) {
  constexpr std::array kKeys = {"lr",      "eps",       "beta1", "beta2",       "weight_decay",
                                "dropout", "negatives", "log_q", "temperature", "weight"};
  const std::string last = key.substr(key.rfind('.') + 1);
  return std::find(kKeys.begin(), kKeys.end(), last) != kKeys.end();
}

bool changes_the_run(const std::string& key, const RunConfig& run) {
  constexpr std::array kKeys = {"batch", "batch_tokens", "data.holdout", "data.shuffle_window",
                                "evaluate.stop_after"};
  const bool decays = run.dense_optimizer.decay != "none";
  return std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end() ||
         key.starts_with("dense_optimizer.") || (decays && (key == "steps" || key == "epochs"));
}

std::string what_made(const Job& job, const Manifest& manifest) {
  return "the checkpoint of step " + std::to_string(manifest.step) + " in " + job.run_dir +
         " was made";
}

void refuse_other_log(const Job& job, const Manifest& manifest) {
  const std::string of_column = "column_digests.";
  for (const Change& change : changes_of(manifest, kLog, identity(job.log, job.model))) {
    // Logs and checkpoints of before there were digests have none to compare, and a column that only
    // one of them reads is another model.
    const bool digest = change.key.ends_with("_digest") || change.key.starts_with(of_column);
    if (digest && !change.on_both) continue;
    if (change.key.starts_with(of_column))
      throw user_error(
          "data.log: ", what_made(job, manifest), " on a log with other values in the ", "column '",
          change.key.substr(of_column.size()), "' (digest ", change.before, ", ", job.run.data.log,
          " has ", change.now, "); resume with the log it was made on");
    throw user_error("data.log: ", what_made(job, manifest), " on a log with ", change.key, " ",
                     change.before, ", ", job.run.data.log, " has ", change.now,
                     "; resume with the log it was made on");
  }
}

/// Returns what may change.
std::vector<Change> refuse_other_model(const Job& job, const Manifest& manifest) {
  std::vector<Change> allowed;
  for (const Change& change : changes_of(manifest, kModel, job.model)) {
    if (change.key == "name" || change.key.ends_with(".init_std")) continue;
    if (!is_how_it_learns(change.key) || !change.on_both) {
      throw user_error("model.", change.key, ": ", what_made(job, manifest), " with ",
                       change.before, ", this run says ", change.now,
                       "; resume with the model it was made with");
    }
    allowed.push_back({"model." + change.key, change.before, change.now});
  }
  if (!manifest.extra.contains(kModel) && manifest.model_digest != job.model_digest) {
    throw user_error("model: ", what_made(job, manifest),
                     " with another model or another log; resume with the config it was made with");
  }
  return allowed;
}

}  // namespace

void keep_origin(const Job& job, Manifest& manifest) {
  manifest.extra[kRun] = to_yaml(job.run);
  manifest.extra[kModel] = to_yaml(job.model);
  manifest.extra[kLog] = to_yaml(identity(job.log, job.model));
}

std::vector<std::string> compare_origin(const Job& job, const Manifest& manifest) {
  if (manifest.seed != job.run.seed) {
    throw user_error("seed: ", what_made(job, manifest), " with seed ", manifest.seed,
                     ", this run says ", job.run.seed);
  }
  refuse_other_log(job, manifest);
  std::vector<Change> told = refuse_other_model(job, manifest);
  for (const Change& change : changes_of(manifest, kRun, job.run))
    if (changes_the_run(change.key, job.run)) told.push_back(change);
  for (const Change& change : changes(manifest.plan, to_yaml(job.plan)))
    if (change.key == "precision" || change.key == "balance.base_batch")
      told.push_back({"plan." + change.key, change.before, change.now});
  std::vector<std::string> sentences;
  for (const Change& change : told) {
    sentences.push_back("resumed with " + change.key + " " + change.now +
                        ", the checkpoint was written with " + change.before);
  }
  return sentences;
}

data::Cursor resumed_cursor(const Job& job, const Manifest& manifest) {
  data::Cursor cursor = manifest.cursor;
  const auto changed = changes_of(manifest, kRun, job.run);
  const auto batch = std::find_if(changed.begin(), changed.end(),
                                  [](const Change& change) { return change.key == "batch"; });
  const auto before = batch == changed.end() ? std::nullopt : parse_integer(batch->before);
  // Steps of so many tokens, or of shuffled base batches, have no samples in a known order.
  if (!before || job.run.batch_tokens > 0 || job.plan.balance.base_batch > 0) return cursor;
  cursor.step_in_epoch = cursor.step_in_epoch * *before / job.run.batch;
  return cursor;
}

}  // namespace tautline::train
