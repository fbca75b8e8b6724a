// What a YAML file is: which of our structs its keys belong to.
#pragma once

#include <string>
#include <vector>

#include "tautline/base/error.h"
#include "tautline/base/yaml.h"
#include "tautline/cluster/cluster_fields.h"
#include "tautline/plan/plan_fields.h"
#include "tautline/train/run_fields.h"
#include "tautline/workload/workload_fields.h"

namespace tautline::cli {

/// "run", "model", "cluster", "plan" or "log", by a key that only that kind has.
inline std::string config_kind(const std::string& path) {
  const YamlNode root = parse_yaml(read_text_file(path), path);
  const std::pair<const char*, const char*> marks[] = {
      {"backbone", "model"}, {"features", "model"}, {"vocabularies", "log"},
      {"for", "plan"},       {"device", "cluster"}, {"devices_per_node", "cluster"},
      {"data", "run"},       {"epochs", "run"},     {"dense_optimizer", "run"}};
  // `device: cuda` is a run's, `device: {...}` a cluster's: a run's own marks go first.
  if (root.find("model") && root.find("data")) return "run";
  for (const auto& [key, kind] : marks)
    if (root.find(key)) return kind;
  throw user_error(path,
                   ": this is not the YAML of a run, a model, a cluster, a plan or a built "
                   "log; say which with --kind");
}

/// Calls `visit` with a default T of the file's kind. (A named object: `visit(T{})` in a template
/// crashes gcc 12 where a member's default is a braced list.)
template <class T, class Visit>
auto with_default(Visit visit) {
  const T value;
  return visit(value);
}

template <class Visit>
auto with_config_type(const std::string& kind, Visit visit) {
  if (kind == "run") return with_default<RunConfig>(visit);
  if (kind == "model") return with_default<ModelConfig>(visit);
  if (kind == "cluster") return with_default<Cluster>(visit);
  if (kind == "plan") return with_default<Plan>(visit);
  TAUTLINE_INVARIANT(kind == "log", "kind " << kind);
  return with_default<LogStatistics>(visit);
}

}  // namespace tautline::cli
