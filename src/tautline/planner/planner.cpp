#include "tautline/planner/planner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "tautline/base/error.h"
#include "tautline/base/nearest.h"
#include "tautline/base/units.h"
#include "tautline/plan/plan_fields.h"

namespace tautline::planner {
namespace {

/// What the tables placed so far cost each rank.
struct Load {
  std::vector<double> seconds, bytes;  // [W]
  explicit Load(int devices) : seconds(devices), bytes(devices) {}
};

struct Candidate {
  Sharding sharding;
  int owner;
};

std::vector<Candidate> candidates_of(int devices) {
  std::vector<Candidate> all = {{Sharding::kDataParallel, 0}, {Sharding::kRowWise, 0}};
  for (int rank = 0; rank < devices; ++rank) all.push_back({Sharding::kTableWise, rank});
  return all;
}

/// The greatest of some numbers, also without one of them.
class Greatest {
 public:
  explicit Greatest(const std::vector<double>& numbers) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] > first_)
        second_ = std::exchange(first_, numbers[i]), at_ = i;
      else if (numbers[i] > second_)
        second_ = numbers[i];
    }
  }
  double of_all() const { return first_; }
  double without(size_t i) const { return i == at_ ? second_ : first_; }

 private:
  double first_ = -INFINITY, second_ = -INFINITY;
  size_t at_ = 0;
};

void add(Load& load, const Candidate& candidate, const TableCost& cost) {
  for (size_t rank = 0; rank < load.seconds.size(); ++rank) {
    const bool busiest =
        candidate.sharding != Sharding::kTableWise || rank == static_cast<size_t>(candidate.owner);
    load.seconds[rank] += busiest ? cost.seconds_busiest : cost.seconds_other;
    load.bytes[rank] += busiest ? cost.bytes_busiest : cost.bytes_other;
  }
}

/// The step waits for the busiest rank; among equals less work in all is better.
struct Score {
  double busiest = 0, sum = 0;
  bool operator<(const Score& other) const {
    return busiest != other.busiest ? busiest < other.busiest : sum < other.sum;
  }
};

/// What add() would come to, without a walk over the ranks: there are as many candidates as ranks.
class Outlook {
 public:
  explicit Outlook(const Load& load)
      : load_(load),
        seconds_(load.seconds),
        bytes_(load.bytes),
        sum_(std::accumulate(load.seconds.begin(), load.seconds.end(), 0.0)) {}

  double busiest_now() const { return seconds_.of_all(); }
  Score score(const Candidate& candidate, const TableCost& cost) const {
    const auto ranks = static_cast<double>(load_.seconds.size());
    const double busiest =
        most(candidate, seconds_, load_.seconds, cost.seconds_busiest, cost.seconds_other);
    if (candidate.sharding != Sharding::kTableWise)
      return {busiest, sum_ + ranks * cost.seconds_busiest};
    return {busiest, sum_ + (cost.seconds_busiest + (ranks - 1) * cost.seconds_other)};
  }
  double most_bytes(const Candidate& candidate, const TableCost& cost) const {
    return most(candidate, bytes_, load_.bytes, cost.bytes_busiest, cost.bytes_other);
  }

 private:
  static double most(const Candidate& candidate, const Greatest& greatest,
                     const std::vector<double>& of_rank, double busiest, double other) {
    if (candidate.sharding != Sharding::kTableWise) return greatest.of_all() + busiest;
    const auto owner = static_cast<size_t>(candidate.owner);
    return std::max(of_rank[owner] + busiest, greatest.without(owner) + other);
  }

  const Load& load_;
  Greatest seconds_, bytes_;
  double sum_;
};

std::string bytes_text(double bytes) { return rounded_quantity(bytes, Unit::kBytes); }
std::string seconds_text(double seconds) { return rounded_quantity(seconds, Unit::kSeconds); }

/// One table's search: the best candidate, and what is said about every kind of candidate.
class Search {
 public:
  Search(const std::string& name, const TableWork& table, const Rates& rates, int devices,
         const std::string& wish, bool classes)
      : name_(name),
        table_(table),
        rates_(rates),
        devices_(devices),
        wish_(wish),
        classes_(classes && devices > 1) {}

  TablePlan place(Load& load) {
    std::optional<Candidate> best;
    Score best_score;
    const Outlook outlook(load);
    for (const Candidate& candidate : candidates_of(devices_)) {
      const TableCost cost = table_cost(candidate.sharding, table_, rates_, devices_);
      const std::string kind = choice_name(candidate.sharding);
      // The run asked for another sharding.
      if (wish_ != "auto" && wish_ != kind) continue;
      // The loss of a full softmax is sharded over the vocabulary where the rows are, so that every
      // rank needs its part of them.
      if (classes_ && candidate.sharding != Sharding::kRowWise) {
        reject(kind, "a full softmax over its rows needs row_wise");
        continue;
      }
      // With one rank nothing is shared: row_wise holds the whole table, the others say the same.
      if (devices_ == 1 && candidate.sharding != Sharding::kRowWise && wish_ == "auto") continue;
      // A copy on each rank costs memory, start-up and checkpoints W times.
      if (candidate.sharding == Sharding::kDataParallel && wish_ == "auto" &&
          cost.bytes_busiest > replica_limit()) {
        reject(kind, "a copy on every rank would be over " + bytes_text(replica_limit()));
        continue;
      }
      // The rank with the most tables could not hold this one as well.
      if (const double most = outlook.most_bytes(candidate, cost);
          table_limit() > 0 && most > table_limit()) {
        reject(kind, "would put " + bytes_text(most) + " of tables on a rank that has room for " +
                         bytes_text(table_limit()));
        continue;
      }
      const Score score = outlook.score(candidate, cost);
      consider(kind, score.busiest - outlook.busiest_now());
      // No better than what was found.
      if (best && !(score < best_score)) continue;
      best = candidate, best_score = score;
    }
    if (!best) fail();
    add(load, *best, table_cost(best->sharding, table_, rates_, devices_));
    return {best->sharding, best->sharding == Sharding::kTableWise ? best->owner : 0,
            because(choice_name(best->sharding))};
  }

 private:
  double replica_limit() const {
    return rates_.memory_bytes_per_rank > 0 ? rates_.memory_bytes_per_rank * kReplicaShare
                                            : kReplicaBytesUnknownMemory;
  }
  double table_limit() const { return rates_.memory_bytes_per_rank * kTableShare; }

  void reject(const std::string& kind, const std::string& reason) { rejected_[kind] = reason; }
  void consider(const std::string& kind, double seconds) {
    const auto [entry, added] = seconds_.emplace(kind, seconds);
    if (!added) entry->second = std::min(entry->second, seconds);
  }

  std::string size_text() const {
    const double bytes = static_cast<double>(table_.rows) *
                         (4.0 * static_cast<double>(table_.dim) + table_.state_bytes_per_row);
    return bytes_text(bytes) + " with its optimiser";
  }

  std::string because(const std::string& chosen) const {
    std::string text = size_text();
    if (devices_ == 1) return text + "; one rank holds everything";
    text += ", " + rounded_count(table_.ids_per_step) + " lookups a step";
    if (wish_ != "auto") text += "; asked for by the run";
    text += "; " + chosen + " adds " + seconds_text(seconds_.at(chosen)) + " to the busiest rank";
    for (const auto& [kind, seconds] : seconds_)
      if (kind != chosen) text += ", " + kind + " " + seconds_text(seconds);
    std::map<std::string, std::vector<std::string>> kinds_by_reason;
    for (const auto& [kind, reason] : rejected_)
      if (!seconds_.contains(kind)) kinds_by_reason[reason].push_back(kind);
    for (const auto& [reason, kinds] : kinds_by_reason)
      text += "; not " + joined(kinds, " or ") + ": " + reason;
    return text;
  }

  [[noreturn]] void fail() const {
    std::string reasons;
    for (const auto& [kind, reason] : rejected_)
      reasons += (reasons.empty() ? "" : "; ") + kind + ": " + reason;
    throw user_error(
        "the table '", name_, "' (", size_text(), ") ",
        wish_ == "auto" ? std::string("fits nowhere on ") : "cannot be " + wish_ + " on ", devices_,
        devices_ == 1 ? " rank: " : " ranks: ", reasons,
        wish_ == "auto" ? "" : "; leave plan.tables." + name_ + " at auto");
  }

  const std::string& name_;
  const TableWork& table_;
  const Rates& rates_;
  int devices_;
  std::string wish_;
  bool classes_;
  std::map<std::string, std::string> rejected_;  // by sharding
  std::map<std::string, double> seconds_;        // added to the busiest rank, best candidate
};

std::string softmax_table(const ModelConfig& model) {
  for (const auto& [name, head] : model.heads)
    if (head.loss == HeadConfig::Loss::kFullSoftmax) return head.table;
  return "";
}

std::vector<std::string> names_of(const Workload& workload) {
  std::vector<std::string> names;
  for (const auto& [name, table] : workload.tables) names.push_back(name);
  return names;
}

// A saved Plan is executed as it is, so wishes beside it would be dropped in silence.
Plan saved_plan(const PlanRequest& request, const Workload& workload, int devices) {
  PlanRequest only_file;
  only_file.file = request.file;
  if (!(request == only_file))
    throw user_error("plan.file ", request.file, " is executed as it is, so ",
                     differences(only_file, request).front(),
                     " has no effect: change the file, or leave plan.file out");
  return read_plan_for(request.file, devices, names_of(workload));
}

}  // namespace

Plan make_plan(const PlanRequest& request, const ModelConfig& model, const Workload& workload,
               const Cluster& cluster, int devices) {
  TAUTLINE_INVARIANT(devices >= 1, "devices " << devices);
  if (!request.file.empty()) return saved_plan(request, workload, devices);
  for (const auto& [table, wish] : request.tables)
    if (!workload.tables.contains(table))
      throw user_error("plan.tables names the table '", table, "', which the model '", model.name,
                       "' does not have", suggestion(table, names_of(workload)));

  const Rates rates = rates_for(cluster, devices);
  std::vector<std::pair<double, std::string>> order;  // the most demanding first, ties by name
  for (const auto& [name, table] : workload.tables)
    order.emplace_back(-table_cost(Sharding::kTableWise, table, rates, devices).seconds_busiest,
                       name);
  std::sort(order.begin(), order.end());

  Plan plan;
  plan.cluster = cluster.name;
  plan.devices = devices;
  plan.model = model.name;
  plan.dense_gradient = request.dense_gradient;
  plan.balance = request.balance;
  const bool bf16 = request.compute == "bf16" ||
                    (request.compute == "auto" && cluster.device.kind == Device::Kind::kCuda);
  plan.precision.compute = bf16 ? PrecisionPlan::Compute::kBf16 : PrecisionPlan::Compute::kFp32;

  Load load(devices);
  for (const auto& [demand, name] : order) {
    const auto wish = request.tables.find(name);
    Search search(name, workload.tables.at(name), rates, devices,
                  wish == request.tables.end() ? "auto" : wish->second,
                  name == softmax_table(model));
    plan.tables[name] = search.place(load);
  }
  return plan;
}

}  // namespace tautline::planner
