// tautline: the program. The command line becomes a verb's options (verbs.h); errors become one
// sentence and an exit status: 2 the user's error, 3 a rank failed (--resume may go on), 134 an
// invariant of ours.
//
// CLI11 is included here and nowhere else: it costs more to compile than the verbs.
#include <cstdio>
#include <exception>
#include <functional>
#include <malloc.h>

#include <CLI/CLI.hpp>

#include "tautline/base/error.h"
#include "tautline/base/nearest.h"
#include "tautline/cli/verbs.h"

namespace tautline::cli {
namespace {

using Chosen = std::function<int()>;

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
  verb->add_option("--time-unit", o.time_unit, "what one unit of the time is")
      ->check(CLI::IsMember({"s", "ms", "us", "ns"}))
      ->capture_default_str();
  verb->add_option("--delimiter", o.delimiter,
                   "between fields, or tab; by default by .csv or .tsv, else what line 1 has");
  verb->add_flag("!--no-header", o.header, "line 1 is an event; columns are numbers from 1");
  verb->add_option("--action", o.action, "column of the kind of event");
  verb->add_option("--rating", o.rating, "column of a rating");
  add_columns(*verb, "--categorical", o.categorical, "further categorical columns");
  add_columns(*verb, "--dense", o.dense, "further numeric columns");
  add_columns(*verb, "--label", o.labels, "columns to learn as tasks, 0 or 1");
  verb->add_option("--name", o.name, "of the log; by default the file's");
  verb->add_option("--threads", o.threads, "0: as many as the machine has");
  verb->add_flag("!--no-baselines", o.baselines, "skip popularity and sequential rules");
  verb->add_flag("--overwrite", o.overwrite, "replace what is in OUT");
  verb->add_option("--scratch", o.scratch, "folder for temporary files");
  verb->callback([&] { chosen = [&] { return data_build(o); }; });
}

void add_data_synth(CLI::App& data, DataSynthOptions& o, Chosen& chosen) {
  CLI::App* verb = data.add_subcommand("synth", "make a seeded synthetic log");
  verb->add_option("OUT", o.out, "the log's file: .csv or .tsv")->required();
  verb->add_option("--users", o.users, "users")->capture_default_str();
  verb->add_option("--items", o.items, "items")->capture_default_str();
  verb->add_option("--events-mean", o.events_mean, "mean events of a user")->capture_default_str();
  verb->add_option("--seed", o.seed, "of everything random")->capture_default_str();
  verb->add_flag("--overwrite", o.overwrite, "replace OUT");
  verb->callback([&] { chosen = [&] { return data_synth(o); }; });
}

void add_train(CLI::App& app, TrainOptions& o, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("train", "train a model on a built log");
  verb->add_option("RUN", o.run_file, "the run's YAML")->required();
  verb->add_option("--ranks", o.ranks, "start this many local ranks")
      ->check(CLI::Range(1, 1'000'000));
  verb->add_flag("--resume", o.resume, "go on from the last checkpoint in the run's folder");
  verb->add_option("--run-dir", o.run_dir, "folder of the run");
  verb->add_flag("--json", o.json, "end standard output with one JSON object");
  verb->add_option("--launcher", o.launcher, "who started the ranks")
      ->check(CLI::IsMember(
          {"auto", "single", "local", "torchrun", "environment", "slurm", "openmpi", "pmi", "mpi"}))
      ->capture_default_str();
  add_sets(*verb, o.sets);
  verb->callback([&] { chosen = [&] { return train(o); }; });
}

void add_kind(CLI::App& verb, std::string& kind) {
  verb.add_option("--kind", kind, "what the file is")
      ->check(CLI::IsMember({"auto", "run", "model", "cluster", "plan", "log"}))
      ->capture_default_str();
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
  verb->add_flag("--yaml", show.yaml, "only the YAML that results");
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
  verb->add_option("--ranks", o.ranks, "for this many ranks")->check(CLI::Range(1, 1'000'000));
  verb->add_option("--out", o.out, "save the Plan here");
  verb->add_flag("--yaml", o.yaml, "print YAML instead of the table");
  add_sets(*verb, o.sets);
  verb->callback([&] { chosen = [&] { return plan(o); }; });
}

/// Names that could stand where `word` does: options of this verb, or verbs below it.
std::vector<std::string> names_like(const CLI::App& verb, const std::string& word) {
  std::vector<std::string> names;
  if (word.starts_with('-')) {
    for (const CLI::Option* option : verb.get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  } else {
    for (const CLI::App* below : verb.get_subcommands({})) names.push_back(below->get_name());
  }
  return names;
}

/// The parser's complaint as our one sentence.
int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  std::string verb = "tautline";
  const CLI::App* at = &app;
  for (; !at->get_subcommands().empty(); verb += " " + at->get_name())
    at = at->get_subcommands().front();
  std::string text = error.what();
  for (char& c : text)
    if (c == '\n') c = ' ';
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  for (const std::string& word : app.remaining(true)) {  // what it did not expect
    const std::string near = nearest_name(word, names_like(*at, word));
    text = "'" + word + "' is not " + (word.starts_with('-') ? "an option" : "expected") +
           (near.empty() ? "" : "; did you mean '" + near + "'?");
    break;
  }
  std::fprintf(stderr, "tautline: %s%s `%s --help` lists what is valid\n", text.c_str(),
               text.ends_with('?') ? "" : ";", verb.c_str());
  return kExitUser;
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
    return error.get_exit_code() == 0 ? app.exit(error) : usage_error(app, error);
  }
  return chosen();
}

}  // namespace
}  // namespace tautline::cli

int main(int argc, char** argv) {
  // Large temporaries (tokens x items logits) stay in the heap: by default glibc maps each one anew
  // and the kernel faults in every page of it, which made a softmax step eight times slower.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 2147483647);
  try {
    return tautline::cli::run(argc, argv);
  } catch (const tautline::UserError& error) {
    std::fprintf(stderr, "tautline: %s\n", error.what());
    return tautline::kExitUser;
  } catch (const tautline::RankFailure& error) {
    std::fprintf(stderr, "tautline: %s\n", error.what());
    return tautline::kExitRankFailed;
  } catch (const std::exception& error) {
    // Not foreseen, so ours: the invariant is that only the two kinds of error leave a verb.
    std::fflush(stdout);
    tautline::broken_invariant(__FILE__, __LINE__, "no other exception leaves a verb",
                               error.what());
  }
}
