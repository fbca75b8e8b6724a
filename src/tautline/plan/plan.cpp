#include "tautline/plan/plan.h"

#include <algorithm>
#include <cstdio>
#include <xxhash.h>

#include "tautline/base/limits.h"
#include "tautline/base/text_table.h"
#include "tautline/plan/plan_fields.h"

namespace tautline {
namespace {

constexpr double kMostBucketBytes = 0x1p40;
constexpr int64_t kMostBaseBatch = 1 << 30;

/// What a Plan and a wish for one have in common.
void check_limits(const DenseGradientPlan& gradient, const BalancePlan& balance,
                  const Provenance& at, const std::string& prefix) {
  const std::string bucket = prefix + "collectives.dense_gradient.bucket";
  if (!(gradient.bucket_bytes >= 1))
    throw user_error(at(bucket), "a bucket must hold at least 1 B");
  if (gradient.bucket_bytes > kMostBucketBytes)
    throw user_error(at(bucket), "a bucket holds ", print_quantity(kMostBucketBytes, Unit::kBytes),
                     " at most");
  if (balance.base_batch < 0)
    throw user_error(at(prefix + "balance.base_batch"), "base_batch must be 0 (off) or more");
  check_at_most(at, prefix + "balance.base_batch", balance.base_batch, kMostBaseBatch);
}

}  // namespace

void validate(const Plan& plan, const Provenance& at) {
  if (plan.devices < 1)
    throw user_error(at("for.devices"), "for.devices must be 1 or more, found ", plan.devices);
  for (const auto& [name, table] : plan.tables)
    if (table.sharding == Sharding::kTableWise && (table.owner < 0 || table.owner >= plan.devices))
      throw user_error(at("tables." + name + ".owner"), "owner ", table.owner, " of the table '",
                       name, "' is not a rank of ", plan.devices, " (0 to ", plan.devices - 1, ")");
  check_at_most(at, "for.devices", plan.devices, 1'000'000);
  check_limits(plan.dense_gradient, plan.balance, at, "");
}

void validate(const PlanRequest& request, const Provenance& at, const std::string& path) {
  const auto full = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  std::vector<std::string> names = config_detail::choice_names<Sharding>();
  names.insert(names.begin(), "auto");
  for (const auto& [table, sharding] : request.tables)
    if (std::find(names.begin(), names.end(), sharding) == names.end())
      throw user_error(at(full("tables." + table)), "the sharding of '", table, "' cannot be '",
                       sharding, "'", suggestion(sharding, names));
  check_limits(request.dense_gradient, request.balance, at, full(""));
}

std::string digest(const Plan& plan) {
  const std::string text = to_yaml(plan);
  char out[17];
  std::snprintf(out, sizeof out, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
  return out;
}

std::string printed(const Plan& plan) {
  std::string out = "plan " + digest(plan) + " for " + plan.model + " on " +
                    std::to_string(plan.devices) + (plan.devices == 1 ? " rank" : " ranks") +
                    " of " + plan.cluster + "\n";
  TextTable tables({"table", "sharding", "owner", "because"});
  for (const auto& [name, table] : plan.tables)
    tables.add({name, choice_name(table.sharding),
                table.sharding == Sharding::kTableWise ? "rank " + std::to_string(table.owner) : "",
                table.because});
  tables.wrap(100);
  if (!tables.empty()) out += tables.str();
  out +=
      "dense gradients in buckets of " +
      print_quantity(plan.dense_gradient.bucket_bytes, Unit::kBytes) +
      (plan.dense_gradient.overlap ? ", overlapped with the backward" : ", after the backward") +
      "; samples dealt " + choice_name(plan.balance.deal) +
      (plan.balance.base_batch > 0 ? ", base batches of " + std::to_string(plan.balance.base_batch)
                                   : "") +
      "; products in " + choice_name(plan.precision.compute) + "\n";
  return out;
}

Plan read_plan_for(const std::string& path, int ranks, const std::vector<std::string>& tables) {
  Provenance at;
  const Plan plan = read_config<Plan>(path, {}, &at);
  if (plan.devices != ranks)
    throw user_error(at("for.devices"), "this Plan was made for ", plan.devices, " ranks, not for ",
                     ranks,
                     "; leave plan.file out to derive one anew, or save one with `tautline "
                     "plan RUN.yaml --ranks ",
                     ranks, " --out PLAN.yaml`");
  for (const std::string& table : tables)
    if (!plan.tables.contains(table))
      throw user_error(at("tables"), "this Plan does not say where the model's table '", table,
                       "' lives; leave plan.file out to derive one anew");
  for (const auto& [name, table] : plan.tables)
    if (std::find(tables.begin(), tables.end(), name) == tables.end())
      throw user_error(at("tables." + name), "the model has no table '", name, "'",
                       suggestion(name, tables));
  return plan;
}

}  // namespace tautline
