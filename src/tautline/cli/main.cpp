// tautline: the program. The command line becomes a verb's options (verbs.h); errors become one
// sentence and an exit status: 2 the user's error, 3 a rank failed (--resume may go on), 134 an
// invariant of ours.
#include <csignal>
#include <cstdio>
#include <exception>
#include <fcntl.h>
#include <functional>
#include <malloc.h>
#include <unistd.h>

#include "tautline/base/error.h"
#include "tautline/base/system_error.h"
#include "tautline/cli/output.h"
#include "tautline/cli/usage.h"
#include "tautline/cli/verbs.h"

namespace tautline::cli {
namespace {

using Chosen = std::function<int()>;
constexpr int kMostRanks = 1'000'000;

void add_sets(CLI::App& app, std::vector<std::string>& sets) {
  app.add_option("--set", sets, "override a value: --set plan.precision=bf16 (may be repeated)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

void add_columns(CLI::App& app, const char* flag, std::vector<std::string>& columns,
                 const char* help) {
  app.add_option(flag, columns, help)->type_name("A,B")->delimiter(',')->allow_extra_args(false);
}

void add_data_build(CLI::App& data, DataBuildOptions& o, Chosen& chosen) {
  CLI::App* verb = data.add_subcommand("build", "turn an event log into per-user sequences");
  verb->add_option("LOG", o.log, "delimited text (gz, zst, plain) or Parquet; file, folder or URI")
      ->required();
  verb->add_option("OUT", o.out, "folder or URI of the built log")->required();
  verb->add_option("--user", o.user,
                   "column of the user; by default the header's usual name for it");
  verb->add_option("--item", o.item,
                   "column of the item; by default the header's usual name for it");
  verb->add_option("--time", o.time, "column of the time, a number; by default the usual name");
  add_choice(*verb, "--time-unit", o.time_unit, {"s", "ms", "us", "ns"},
             "what one unit of the time is (s by default)");
  verb->add_option("--delimiter", o.delimiter,
                   "between fields, or tab; by default by .csv or .tsv, else what line 1 has");
  add_flag_off(*verb, "--no-header", o.header, "line 1 is an event; columns are numbers from 1");
  verb->add_option("--action", o.action, "column of the kind of event");
  verb->add_option("--rating", o.rating, "column of a rating");
  add_columns(*verb, "--categorical", o.categorical, "further categorical columns");
  add_columns(*verb, "--dense", o.dense, "further numeric columns");
  add_columns(*verb, "--label", o.labels, "columns to learn as tasks, 0 or 1");
  verb->add_option("--name", o.name, "of the log; by default the file's");
  add_whole_number(*verb, "--threads", o.threads, "0: as many as the machine has", 0);
  add_flag_off(*verb, "--no-baselines", o.baselines, "skip popularity and sequential rules");
  add_flag(*verb, "--overwrite", o.overwrite, "replace what is in OUT");
  verb->add_option("--scratch", o.scratch, "folder for temporary files");
  verb->callback([&] { chosen = [&] { return data_build(o); }; });
}

void add_data_synth(CLI::App& data, DataSynthOptions& o, Chosen& chosen) {
  CLI::App* verb = data.add_subcommand("synth", "make a seeded synthetic log");
  verb->add_option("OUT", o.out,
                   "the log's file: .csv or .tsv, with .gz or .zst if wished, or .parquet")
      ->required();
  add_whole_number(*verb, "--users", o.users, "users", 1)->capture_default_str();
  add_whole_number(*verb, "--items", o.items, "items", 1)->capture_default_str();
  add_positive_number(*verb, "--events-mean", o.events_mean, "mean events of a user")
      ->capture_default_str();
  add_whole_number(*verb, "--seed", o.seed, "of everything random", 0)->capture_default_str();
  add_flag(*verb, "--overwrite", o.overwrite, "replace OUT");
  verb->callback([&] { chosen = [&] { return data_synth(o); }; });
}

void add_train(CLI::App& app, TrainOptions& o, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("train", "train a model on a built log");
  verb->add_option("RUN", o.run_file,
                   "the run's YAML; with --resume and --run-dir by default the folder's run.yaml");
  add_whole_number(*verb, "--ranks", o.ranks, "start this many local ranks", 1, kMostRanks);
  add_flag(*verb, "--resume", o.resume, "go on from the last checkpoint in the run's folder");
  verb->add_option("--run-dir", o.run_dir, "folder of the run");
  add_flag(*verb, "--json", o.json,
           "standard output is one JSON object, all else goes to standard error");
  add_choice(
      *verb, "--launcher", o.launcher,
      {"auto", "single", "local", "torchrun", "environment", "slurm", "openmpi", "pmi", "mpi"},
      "who started the ranks (auto by default)");
  add_sets(*verb, o.sets);
  verb->callback([&] {
    if (o.run_file.empty() && !(o.resume && !o.run_dir.empty())) throw CLI::RequiredError("RUN");
    chosen = [&] { return train(o); };
  });
}

void add_kind(CLI::App& verb, std::string& kind) {
  add_choice(verb, "--kind", kind, {"auto", "run", "model", "cluster", "plan", "log"},
             "what the file is (auto by default)");
}

void add_config(CLI::App& app, ConfigShowOptions& show, ConfigDiffOptions& diff, Chosen& chosen) {
  CLI::App* config = app.add_subcommand("config", "look at configs");
  config->require_subcommand(1);
  CLI::App* verb =
      config->add_subcommand("show", "print a resolved config and where each value came from");
  verb->add_option("FILE", show.file, "YAML of a run, model, cluster, plan or built log")
      ->required();
  add_kind(*verb, show.kind);
  add_sets(*verb, show.sets);
  add_flag(*verb, "--yaml", show.yaml, "only the YAML that results");
  verb->callback([&] { chosen = [&] { return config_show(show); }; });
  verb = config->add_subcommand("diff", "print the values that differ between two configs");
  verb->add_option("A", diff.a, "a YAML file")->required();
  verb->add_option("B", diff.b, "another of the same kind")->required();
  add_kind(*verb, diff.kind);
  verb->callback([&] { chosen = [&] { return config_diff(diff); }; });
}

void add_plan(CLI::App& app, PlanOptions& o, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("plan", "print the Plan that training would use, and why");
  verb->add_option("RUN", o.run_file, "the run's YAML")->required();
  add_whole_number(*verb, "--ranks", o.ranks, "for this many ranks", 1, kMostRanks);
  verb->add_option("--out", o.out, "save the Plan here");
  add_flag(*verb, "--yaml", o.yaml, "print YAML instead of the table");
  add_sets(*verb, o.sets);
  verb->callback([&] { chosen = [&] { return plan(o); }; });
}

int run(int argc, char** argv) {
  DataBuildOptions build;
  DataSynthOptions synth;
  TrainOptions training;
  ConfigShowOptions show;
  ConfigDiffOptions diff;
  PlanOptions planning;
  training.arguments.assign(argv, argv + argc);
  Chosen chosen;

  CLI::App app("trains recommendation foundation models: sharded tables under a transformer",
               "tautline");
  app.set_version_flag("--version", "tautline " TAUTLINE_VERSION);
  app.require_subcommand(1);
  CLI::App* data = app.add_subcommand("data", "make logs ready for training");
  data->require_subcommand(1);
  add_data_build(*data, build, chosen);
  add_data_synth(*data, synth, chosen);
  add_train(app, training, chosen);
  add_plan(app, planning, chosen);
  add_config(app, show, diff, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::fprintf(stderr, "%s\n", usage_sentence(app, error).c_str());
    return kExitUser;
  }
  return chosen();
}

/// A standard descriptor that is closed would be the next file's: a checkpoint's, with text in it.
/// Standard output is then one that cannot be written to, so that results do not vanish unnoticed.
/// And who reads our output may leave, or a file reach its limit (ulimit -f): those are errors to be
/// told, not signals to die of.
void make_output_safe() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor)
    if (fcntl(descriptor, F_GETFD) < 0)
      (void)open("/dev/null", descriptor < 2 ? O_RDONLY : O_WRONLY);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

/// Without exit handlers: after an error Arrow's may wait for ever for a thread of its own that reads
/// ahead for somebody who is gone.
[[noreturn]] void leave(const char* sentence, int status) {
  std::fprintf(stderr, "tautline: %s\n", sentence);
  std::fflush(nullptr);
  _exit(status);
}

}  // namespace
}  // namespace tautline::cli

int main(int argc, char** argv) {
  // Large temporaries (tokens x items logits) stay in the heap: by default glibc maps each one anew
  // and the kernel faults in every page of it, which made a softmax step eight times slower.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 2147483647);
  tautline::cli::make_output_safe();
  try {
    const int status = tautline::cli::run(argc, argv);
    const bool may_have_results = status == tautline::kExitDone || status == tautline::kExitUser;
    if (may_have_results) tautline::cli::finish_output();
    return status;
  } catch (const tautline::UserError& error) {
    tautline::cli::leave(error.what(), tautline::kExitUser);
  } catch (const tautline::RankFailure& error) {
    tautline::cli::leave(error.what(), tautline::kExitRankFailed);
  } catch (const std::exception& error) {
    if (const auto sentence = tautline::machine_sentence(error))
      tautline::cli::leave(sentence->c_str(), tautline::kExitUser);
    // Not foreseen, so ours: the invariant is that only the two kinds of error leave a verb.
    std::fflush(stdout);
    tautline::broken_invariant(__FILE__, __LINE__, "no other exception leaves a verb",
                               error.what());
  }
}
