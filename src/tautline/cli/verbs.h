// The program's verbs: main.cpp parses the command line into these plain options, and one file a
// verb does the work. Each returns the exit status; UserError and RankFailure may pass through.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tautline::cli {

/// tautline data build LOG OUT: an event log becomes per-user sequences.
struct DataBuildOptions {
  std::string log, out;  // paths or URIs
  // Columns; empty: the header's usual name for it (user, userId, user_id, ...; movieId for items).
  std::string user, item, time;
  std::string action, rating;  // optional columns
  std::vector<std::string> categorical, dense, labels;
  std::string delimiter;        // empty: by the file's name, else what line 1 has; "\t", "tab"
  bool header = true;           // false: columns are given by number, from 1
  std::string time_unit = "s";  // s, ms, us, ns
  std::string name;             // of the log; empty: the file's name
  int threads = 0;              // 0: as many as the machine has
  bool baselines = true;        // popularity and sequential rules
  bool overwrite = false;
  std::string scratch;  // folder for temporary files; empty: inside OUT or the system's
};
int data_build(const DataBuildOptions& options);

/// tautline data synth OUT: a seeded synthetic log, as delimited text that `data build` reads.
struct DataSynthOptions {
  std::string out;  // .csv or .tsv, with .gz or .zst if wished, or .parquet
  int64_t users = 5'000, items = 2'000;
  double events_mean = 25;  // of a user; lengths are log-normal
  uint64_t seed = 1;
  bool overwrite = false;
};
int data_synth(const DataSynthOptions& options);

/// tautline train RUN.yaml
struct TrainOptions {
  std::string run_file;  // empty, with `resume`: the run.yaml that is saved in run_dir
  int ranks = 0;         // 0: what the run says, or the launcher
  bool resume = false;
  std::vector<std::string> sets;       // "a.b=c"; model.* goes to the model's YAML
  std::string run_dir;                 // empty: what the run says
  bool json = false;                   // standard output is one JSON object and nothing else
  std::string launcher = "auto";       // auto, single, local, torchrun, slurm, mpi
  std::vector<std::string> arguments;  // the whole command line: local ranks are started with it
};
int train(TrainOptions options);

/// tautline config show FILE: the resolved config and where each value came from.
struct ConfigShowOptions {
  std::string file;
  std::string kind = "auto";  // auto, run, model, cluster, plan, log
  std::vector<std::string> sets;
  bool yaml = false;  // only the YAML that results
};
int config_show(const ConfigShowOptions& options);

/// tautline config diff A B: values that differ.
struct ConfigDiffOptions {
  std::string a, b;
  std::string kind = "auto";
};
int config_diff(const ConfigDiffOptions& options);

/// tautline plan RUN.yaml: the Plan that training would use, with reasons.
struct PlanOptions {
  std::string run_file;
  int ranks = 0;  // 0: what the run says, or 1
  std::vector<std::string> sets;
  std::string out;    // save it here as YAML
  bool yaml = false;  // print the YAML instead of the table
};
int plan(const PlanOptions& options);

}  // namespace tautline::cli
