// tautline config show, tautline config diff.
#include <cstdio>

#include "tautline/cli/config_kind.h"
#include "tautline/cli/verbs.h"

namespace tautline::cli {
namespace {

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

template <class T>
void show(const std::string& title, const T& x, const Provenance& from, bool yaml) {
  if (yaml) {
    print(to_yaml(x));
    return;
  }
  print(title + "\n" + explain(x, from) + "\n");
}

}  // namespace

int config_show(const ConfigShowOptions& options) {
  const std::string kind = options.kind == "auto" ? config_kind(options.file) : options.kind;
  if (kind == "run") {  // with its model, whose values --set model.a=b may change
    const RunWithModel all = read_run(options.file, options.sets, false);
    show("run " + options.file, all.run, all.run_provenance, options.yaml);
    if (!options.yaml) show("model " + all.model_path, all.model, all.model_provenance, false);
    return kExitDone;
  }
  return with_config_type(kind, [&](auto empty) {
    Provenance from;
    const auto x = read_config<decltype(empty)>(options.file, options.sets, &from);
    show(kind + " " + options.file, x, from, options.yaml);
    return kExitDone;
  });
}

int config_diff(const ConfigDiffOptions& options) {
  const std::string kind = options.kind == "auto" ? config_kind(options.a) : options.kind;
  return with_config_type(kind, [&](auto empty) {
    using T = decltype(empty);
    for (const std::string& line :
         differences(read_config<T>(options.a), read_config<T>(options.b)))
      print(line + "\n");
    return kExitDone;
  });
}

}  // namespace tautline::cli
