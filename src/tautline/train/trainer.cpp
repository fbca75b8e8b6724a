#include "tautline/train/trainer.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>

#include "tautline/base/error.h"
#include "tautline/base/progress.h"
#include "tautline/base/units.h"
#include "tautline/plan/plan_fields.h"
#include "tautline/train/exchange.h"
#include "tautline/train/resume.h"
#include "tautline/train/saved_state.h"
#include "tautline/train/summary.h"
#include "tautline/workload/describe.h"

namespace tautline::train {
namespace {

dense::AdamWOptions dense_options(const RunConfig& run, int64_t last_step) {
  const DenseOptimizer& o = run.dense_optimizer;
  dense::AdamWOptions options;
  options.lr = o.lr;
  options.beta1 = o.beta1;
  options.beta2 = o.beta2;
  options.eps = o.eps;
  options.weight_decay = o.weight_decay;
  options.clip = o.clip;
  options.warmup = o.warmup;
  options.decay = o.decay;
  options.last_step = last_step;
  return options;
}

/// Steps of the whole run, as the first epoch counts them.
int64_t expected_steps(const RunConfig& run, data::Reader& reader) {
  if (run.steps > 0) return run.steps;
  return static_cast<int64_t>(
      std::ceil(run.epochs * static_cast<double>(reader.steps_per_epoch(0))));
}

std::unique_ptr<data::Reader> open_checked(const Job& job, const comm::Mesh& mesh) {
  auto reader = data::open_reader(reader_options(job, mesh.rank(), mesh.size()));
  if (reader->steps_per_epoch(0) == 0) {
    throw user_error("the log ", job.run.data.log,
                     " has nothing to train on: no user has two events outside the held-out ones");
  }
  return reader;
}

constexpr char kLowerRates[] = ": lower the learning rates, or clip (dense_optimizer); ";
constexpr int64_t kFlushEvery = 100;  // steps; waits for the device
static_assert(kFlushEvery < Recorder::kSettledSteps);

/// Shares of the steps' time by kind of work on the compute stream.
std::vector<std::pair<std::string, double>> phase_shares(const Recorder& recorder) {
  const std::map<PhaseKey, double> totals = recorder.totals();
  std::vector<std::pair<std::string, double>> shares;
  double all = 0;
  for (const char* kind :
       {"input", "lookup", "all_to_all", "forward", "backward", "all_reduce", "optimizer"}) {
    const auto found = totals.find({"compute", kind});
    if (found == totals.end()) continue;
    shares.emplace_back(kind, found->second);
    all += found->second;
  }
  for (auto& [kind, seconds] : shares) seconds /= all;
  return shares;
}

double mean_over_ranks(double mine, const Exchange& exchange) {
  double sum = 0;
  const std::vector<std::string> of_ranks = exchange(print_number(mine));
  for (const std::string& text : of_ranks) sum += parse_number(text).value_or(0);
  return sum / static_cast<double>(of_ranks.size());
}

bool lower_is_better(const std::string& metric) {
  return metric == "loss" || metric == "normalized_entropy";
}

// What a manifest holds beside the state of the optimisers, by name.
constexpr const char *kLossKey = "loss", *kEvaluatedKey = "evaluated_step";

double number_in(const Manifest& manifest, const char* key, double otherwise) {
  const auto found = manifest.extra.find(key);
  return found == manifest.extra.end() ? otherwise
                                       : parse_number(found->second).value_or(otherwise);
}

double imbalance(const data::Batch& batch) {
  const auto most = *std::max_element(batch.rank_tokens.begin(), batch.rank_tokens.end());
  const double mean =
      static_cast<double>(batch.global_tokens) / static_cast<double>(batch.rank_tokens.size());
  return mean > 0 ? static_cast<double>(most) / mean : 1;
}

}  // namespace

Trainer::Trainer(const Job& job, bool resume, comm::Mesh& mesh, const comm::Communicator& side,
                 at::Device device, const Logger& log)
    : job_(job),
      mesh_(mesh),
      log_(log),
      recorder_({.rank = mesh.rank()}),
      world_(mesh.world()),
      tables_group_(mesh.group("tables")),
      dense_group_(mesh.group("dense")),
      reader_(open_checked(job, mesh)),
      network_(job.model, job.plan, job.classes, job.run.seed, tables_group_),
      step_(network_,
            {dense_options(job.run, expected_steps(job.run, *reader_)), job.plan.dense_gradient},
            world_, dense_group_, recorder_),
      storage_(open_storage(job.folder->checkpoints)),
      exchange_(exchange_over(side)),
      writer_(storage_, {mesh.rank(), mesh.size(), job.run.checkpoint.keep}, exchange_),
      stop_(mesh.control()) {
  best_.metric = job.run.evaluate.stop_metric;
  rank_tokens_.resize(static_cast<size_t>(mesh.size()));
  for (const auto& group : {world_, tables_group_, dense_group_}) record_collectives(group);
  if (mesh.rank() == 0) remove_leftovers(*storage_);
  if (resume) resume_latest();
  reader_->seek(cursor_);
  first_step_ = cursor_.step;
  if (mesh.rank() == 0) metrics_ = std::make_unique<MetricLog>(job.run_dir, cursor_.step);
}

Trainer::~Trainer() = default;

void Trainer::record_collectives(comm::Communicator communicator) {
  communicator.set_record_hook([this](const comm::CollectiveRecord& record) {
    TimelineEvent event;
    event.step = current_step_;
    event.stream = "comm";
    event.kind = record.kind;
    event.name = record.name;
    event.arrival = record.arrival - recorder_.origin();
    event.start = record.start - recorder_.origin();
    event.end = record.end - recorder_.origin();
    event.bytes = record.bytes;
    event.group = record.group;
    event.sequence = record.sequence;
    TimelineEvent wait;
    wait.step = event.step;
    wait.stream = "compute";
    wait.kind = "wait";
    wait.name = record.name;
    wait.start = record.wait_start - recorder_.origin();
    wait.end = record.wait_end - recorder_.origin();
    recorder_.add(std::move(event));
    recorder_.add(std::move(wait));
  });
}

void Trainer::resume_latest() {
  LatestCheckpoint latest =
      open_latest(storage_, job_.run.checkpoint.fallback, mesh_.rank(), mesh_.size(), exchange_);
  for (const std::string& skipped : latest.skipped) log_.warning("skipped: ", skipped);
  if (!latest.reader) {
    log_.info("no checkpoint in ", job_.folder->checkpoints, " yet: starting at step 0");
    return;
  }
  const Manifest& manifest = latest.reader->manifest();
  const std::vector<std::string> changed = compare_origin(job_, manifest);
  restore(*latest.reader, network_, step_.optimizer(), Restore::kAll);
  cursor_ = resumed_cursor(job_, manifest);
  if (manifest.metrics.metric == best_.metric) best_ = manifest.metrics;
  saved_step_ = manifest.step;
  // A run that was over stays so, and one that a signal stopped owes its step's evaluation.
  loss_ = number_in(manifest, kLossKey, loss_);
  evaluated_step_ = static_cast<int64_t>(number_in(manifest, kEvaluatedKey, -1));
  const int patience = job_.run.evaluate.stop_after;
  stopped_early_ = patience > 0 && best_.evaluations_since_best >= patience;
  for (auto& [name, table] : network_.tables) table->set_steps(manifest.step);
  log_.info("resumed at step ", manifest.step, ", saved by ", manifest.ranks,
            manifest.ranks == 1 ? " rank" : " ranks");
  for (const std::string& sentence : changed) log_.info(sentence);
  if (stopped_early_)
    log_.info(
        "the run had stopped early: nothing is left to train; --set "
        "evaluate.stop_after=never goes on");
}

bool Trainer::done() {
  if (stopped_early_) return true;
  const RunConfig& run = job_.run;
  if (run.steps > 0) return cursor_.step >= run.steps;
  const auto whole = static_cast<int64_t>(std::floor(run.epochs));
  if (cursor_.epoch != whole) return cursor_.epoch > whole;
  const double part = run.epochs - std::floor(run.epochs);
  const auto steps = std::ceil(part * static_cast<double>(reader_->steps_per_epoch(whole)));
  return static_cast<double>(cursor_.step_in_epoch) >= steps;
}

data::Batch Trainer::next_batch() {
  // A GPU goes on with the step before meanwhile.
  const bool cuda = world_.device().is_cuda();
  const auto span = recorder_.span(cursor_.step, cuda ? "input" : "compute", "input", "reader");
  data::Batch batch = reader_->next();
  cursor_ = reader_->cursor();
  return batch;
}

void Trainer::train_one(const data::Batch& batch, double start) {
  current_step_ = batch.step;
  epochs_.push_back(cursor_.epoch);
  step_.run(batch);
  take_reports(mesh_.size() > 1 || world_.device().is_cuda() ? 1 : 0);
  if (world_.device().is_cuda() && batch.step % kFlushEvery == 0) flush_device_records();
  TimelineEvent step;
  step.step = batch.step;
  step.stream = "host";
  step.kind = "step";
  step.start = start;
  step.end = recorder_.now();
  recorder_.add(step);
  const double seconds = step.end - step.start;
  step_seconds_ += seconds;
  for (size_t r = 0; r < batch.rank_tokens.size(); ++r) {
    rank_tokens_[r] += static_cast<double>(batch.rank_tokens[r]);
  }
  throughput_.add({seconds, static_cast<double>(batch.global_samples),
                   static_cast<double>(batch.global_tokens),
                   static_cast<double>(batch.global_targets), imbalance(batch)});
}

void Trainer::flush_device_records() {
  step_.flush_phases();
  for (comm::Communicator group : {world_, tables_group_, dense_group_}) group.flush_records();
}

void Trainer::take_reports(size_t ahead) {
  const BackboneConfig& b = job_.model.backbone;
  while (const auto report = step_.next_report(ahead)) {
    loss_ = report->loss;
    if (!std::isfinite(loss_)) {
      throw user_error("the loss of step ", report->step, " is ", loss_, kLowerRates, last_saved());
    }
    throughput_.add_flop(useful_flop(network_.dense_parameters(), report->tokens, report->pairs,
                                     b.heads, b.width / b.heads, b.layers));
    write("train", report->step + 1, epochs_.front(), {{"loss", loss_}});
    epochs_.pop_front();
  }
}

bool Trainer::evaluation_due() {
  const Evaluation& e = job_.run.evaluate;
  if (job_.run.data.holdout == "none" || cursor_.step == 0) return false;
  if (e.every_steps > 0) return cursor_.step % e.every_steps == 0;
  if (e.every_epochs <= 0) return false;
  if (e.every_epochs >= 1) {
    const auto every = static_cast<int64_t>(std::llround(e.every_epochs));
    return cursor_.step_in_epoch == 0 && cursor_.epoch % every == 0;
  }
  const auto steps = static_cast<double>(reader_->steps_per_epoch(cursor_.epoch));
  const auto every = std::max<int64_t>(1, std::llround(e.every_epochs * steps));
  return cursor_.step_in_epoch % every == 0;
}

EvaluationResult Trainer::evaluate_split(data::Split split) {
  const auto span = recorder_.span(cursor_.step, "evaluation", "evaluation");
  constexpr int64_t kUsersACall = 256;
  if (data::read_log_statistics(job_.run.data.log) != job_.log)
    throw user_error("data.log: ", job_.run.data.log,
                     " was built anew while this run trained on it; ", last_saved(),
                     ", and goes on with the log it was made on");
  const auto reader = data::open_evaluation(reader_options(job_, mesh_.rank(), mesh_.size()), split,
                                            job_.run.evaluate.users, kUsersACall);
  const bool cuda = world_.device().is_cuda();
  if (cuda) flush_device_records();  // the steps before it end before it begins
  EvaluationResult result = evaluate(network_, *reader, world_);
  if (cuda) flush_device_records();
  return result;
}

bool Trainer::evaluate_validation() {
  const EvaluationResult result = evaluate_split(data::Split::kValidation);
  evaluated_step_ = cursor_.step;
  write("validation", cursor_.step, cursor_.epoch, result.values);
  log_.info(validation_line(job_.run.evaluate, cursor_, loss_, result));
  if (job_.run.evaluate.stop_after == 0) return false;

  const double value = best_.metric == "loss" ? loss_ : result.get(best_.metric);
  const bool better =
      std::isfinite(value) &&
      (!best_.best || (lower_is_better(best_.metric) ? value < *best_.best : value > *best_.best));
  if (better) {
    best_.best = value;
    best_.best_step = cursor_.step;
    best_.evaluations_since_best = 0;
  } else if (++best_.evaluations_since_best >= job_.run.evaluate.stop_after) {
    stopped_early_ = true;
    log_.info("stopped: ", best_.evaluations_since_best, " evaluations without a better ",
              best_.metric, " than ", best_.best.value_or(0), " at step ", best_.best_step);
  }
  return better;
}

std::string Trainer::last_saved() const {
  return saved_step_ < 0 ? "no checkpoint has been made yet"
                         : "the last checkpoint, " + step_name(saved_step_) + ", is good";
}

/// The loss of a step says nothing of the update that follows it.
void Trainer::check_weights() {
  const at::NoGradGuard no_grad;
  at::Tensor bad = network_.model.parameters().values().isfinite().all().logical_not();
  for (const auto& [name, table] : network_.tables) {
    bad = bad.logical_or(table->weight().isfinite().all().logical_not());
  }
  bad = bad.to(at::kFloat).reshape({1});
  world_.all_reduce(bad, comm::Communicator::Reduction::kMax, "check_weights").wait();
  if (bad.item<float>() != 0) {
    throw user_error("the weights after step ", cursor_.step - 1, " are not finite", kLowerRates,
                     last_saved());
  }
}

void Trainer::save() {
  if (saved_step_ == cursor_.step) return;
  check_weights();
  const auto span = recorder_.span(cursor_.step, "checkpoint", "checkpoint", "snapshot");
  Manifest manifest;
  manifest.step = cursor_.step;
  manifest.epoch = cursor_.epoch;
  manifest.cursor = cursor_;
  manifest.seed = job_.run.seed;
  manifest.plan = to_yaml(job_.plan);
  manifest.model_digest = job_.model_digest;
  manifest.metrics = best_;
  keep_origin(job_, manifest);
  manifest.extra[kLossKey] = print_number(loss_);
  manifest.extra[kEvaluatedKey] = std::to_string(evaluated_step_);
  std::set<int64_t> keep_also;
  if (best_.best_step >= 0) keep_also.insert(best_.best_step);
  writer_.save(std::move(manifest), take_snapshot(network_, step_.optimizer(), mesh_.rank()),
               keep_also);
  saved_step_ = cursor_.step;
}

void Trainer::restore_best() {
  if (best_.best_step < 0 || best_.best_step == cursor_.step) return;
  CheckpointReader reader(storage_, step_name(best_.best_step));
  reader.verify(mesh_.rank(), mesh_.size());
  restore(reader, network_, step_.optimizer(), Restore::kWeights);
}

void Trainer::write(const std::string& kind, int64_t steps_done, int64_t epochs_done,
                    std::vector<std::pair<std::string, double>> values) {
  if (!metrics_) return;
  MetricRecord record;
  record.kind = kind;
  record.step = steps_done;
  record.epoch = epochs_done;
  record.values = std::move(values);
  metrics_->write(record);
}

RunResult Trainer::result() const {
  RunResult result;
  result.cursor = cursor_;
  result.loss = cursor_.step > 0 ? loss_ : std::nan("");
  result.stopped_early = stopped_early_;
  result.best_step = best_.best_step;
  result.rates = throughput_.rates();
  if (world_.device().is_cuda()) {
    result.mfu =
        model_flop_utilisation(result.rates, mesh_.size(), job_.cluster.device.peak_flops.bf16);
  }
  result.steps = cursor_.step - first_step_;
  result.rank_tokens = rank_tokens_;
  result.phases = phase_shares(recorder_);
  if (step_seconds_ > 0) {
    result.reader_waited = reader_->seconds_waited() / step_seconds_;
  }
  return result;
}

RunResult Trainer::run() {
  Progress progress(
      {.title = "train", .total = expected_steps(job_.run, *reader_), .quiet = mesh_.rank() != 0});
  // A signal while the ranks were starting: there is nothing to do and nothing to save.
  const comm::Stop at_start = stop_.now();
  if (at_start == comm::Stop::kPeerGone) throw RankFailure("a peer is gone before the first step");
  bool interrupted = at_start == comm::Stop::kYes;
  const bool started = !interrupted;
  if (started && evaluation_due() && evaluated_step_ != cursor_.step && !stopped_early_) {
    evaluate_validation();  // a signal came before it
    saved_step_ = -1;       // the same step again, now with what the evaluation decides
    save();
  }
  while (!done() && !interrupted) {
    const double start = recorder_.now();
    const data::Batch batch = next_batch();
    train_one(batch, start);
    progress.update(cursor_.step, "loss " + std::to_string(loss_));
    const comm::Stop stop = stop_.next();
    if (stop == comm::Stop::kPeerGone)
      throw RankFailure("a peer is gone: ended without a checkpoint");
    interrupted = stop == comm::Stop::kYes;
    const bool evaluate_now = !interrupted && evaluation_due();
    const int64_t every = job_.run.checkpoint.every;
    bool save_now = interrupted || (every > 0 && cursor_.step % every == 0);
    if (evaluate_now || save_now || done()) take_reports(0);
    if (evaluate_now) {
      progress.clear();
      save_now = evaluate_validation() || save_now;
    }
    if (save_now || done()) save();
  }
  progress.finish();
  if (world_.device().is_cuda()) flush_device_records();
  take_reports(0);
  if (started) save();
  writer_.wait();
  RunResult out = result();
  out.exposed_communication = mean_over_ranks(recorder_.step_seconds().exposed_share(), exchange_);
  out.interrupted = interrupted;
  if (!started) {
    log_.info("stopped by a signal before the first step; nothing to save");
  } else if (interrupted) {
    log_.info("stopped by a signal after step ", cursor_.step,
              "; its checkpoint is saved, --resume goes on");
  }
  if (!interrupted && job_.run.data.holdout != "none") {
    if (job_.run.evaluate.stop_after > 0) restore_best();
    out.test = evaluate_split(data::Split::kTest);
    keep_going(out.unwritten,
               [&] { write("test", cursor_.step, cursor_.epoch, out.test->values); });
  }
  return out;
}

}  // namespace tautline::train
