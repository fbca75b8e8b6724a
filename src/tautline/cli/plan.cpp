// tautline plan RUN.yaml: the Plan that training would use, without starting it.
#include <algorithm>
#include <cstdio>

#include "tautline/base/new_file.h"
#include "tautline/base/text_table.h"
#include "tautline/cli/flag.h"
#include "tautline/cli/verbs.h"
#include "tautline/cluster/discover.h"
#include "tautline/comm/launch.h"
#include "tautline/data/read/reader.h"
#include "tautline/planner/planner.h"
#include "tautline/train/run_fields.h"
#include "tautline/workload/describe.h"

namespace tautline::cli {
namespace {

std::string printed(const Workload& work) {
  TextTable table({"a step of", ">" + work.model});
  table.add({"samples", print_integer(work.batch)});
  table.add({"tokens", rounded_count(work.tokens_per_step)});
  table.add({"dense parameters", rounded_count(work.dense_parameters)});
  table.add({"useful FLOP", rounded_count(work.flop_per_step)});
  return table.str();
}

}  // namespace

int plan(const PlanOptions& options) {
  const RunWithModel all = read_run(options.run_file, options.sets);
  const int ranks = std::max(
      1, flag_or_run("--ranks", options.ranks, all.run.ranks, all.run_provenance.find("ranks")));
  DiscoverOptions discovery;
  discovery.device = all.run.device;
  discovery.cuda_visible_devices = comm::read_environment().cuda_visible_devices;
  const Cluster cluster = load_cluster(all.run.cluster, discovery);
  const LogStatistics log = data::read_log_statistics(all.run.data.log);
  const Workload work = describe(all.model, log, all.run.batch);
  const Plan made = planner::make_plan(all.run.plan, all.model, work, cluster, ranks);
  if (!options.out.empty()) write_text_file(options.out, to_yaml(made));
  const std::string text =
      options.yaml ? to_yaml(made) : printed(work) + "\n" + tautline::printed(made);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return kExitDone;
}

}  // namespace tautline::cli
