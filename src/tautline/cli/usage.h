// The command line as people read it: options whose help and complaints are in our words, and the
// parser's own complaints as one sentence.
//
// CLI11 is included here and in main.cpp alone: it costs more to compile than the verbs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <CLI/CLI.hpp>

#include "tautline/base/nearest.h"
#include "tautline/base/units.h"

namespace tautline::cli {

/// T: an integer. 20_000 is a number here as it is in YAML.
template <class T>
CLI::Option* add_whole_number(CLI::App& app, const std::string& name, T& value, const char* help,
                              std::type_identity_t<T> low,
                              std::type_identity_t<T> high = std::numeric_limits<T>::max()) {
  const auto check = [low, high](std::string& text) {
    const auto number = parse_unsigned(text);
    const auto from = static_cast<uint64_t>(low), to = static_cast<uint64_t>(high);
    if (number && *number >= from && *number <= to) {
      text = std::to_string(*number);
      return std::string();
    }
    const bool large = number && *number > to;
    return "must be a whole number " +
           (large ? "from " + print_unsigned(from) + " to " + print_unsigned(to)
                  : "of " + print_unsigned(from) + " or more") +
           ", found '" + text + "'";
  };
  return app.add_option(name, value, help)->type_name("N")->transform(CLI::Validator(check, ""));
}

inline CLI::Option* add_positive_number(CLI::App& app, const std::string& name, double& value,
                                        const char* help) {
  const auto check = [](std::string& text) {
    const auto number = parse_number(text);
    if (number && *number > 0) return std::string();
    return "must be a number above 0, found '" + text + "'";
  };
  return app.add_option(name, value, help)->type_name("NUMBER")->check(CLI::Validator(check, ""));
}

/// The value is one of a few words, which the help lists.
inline CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& value,
                               const std::vector<std::string>& names, const std::string& help) {
  const auto check = [names](std::string& text) {
    if (std::find(names.begin(), names.end(), text) != names.end()) return std::string();
    return "cannot be '" + text + "'" + choice_suggestion(text, names);
  };
  return app.add_option(name, value, help + ": " + joined(names))
      ->type_name("WORD")
      ->check(CLI::Validator(check, ""));
}

inline CLI::Option* add_flag(CLI::App& app, const std::string& name, bool& value,
                             const char* help) {
  return app.add_flag(name, value, help)->disable_flag_override();
}

/// A flag that switches off what is on without it.
inline CLI::Option* add_flag_off(CLI::App& app, const std::string& name, bool& value,
                                 const char* help) {
  return app
      .add_flag_callback(
          name, [&value] { value = false; }, help)
      ->disable_flag_override();
}

/// Names that could stand where `word` does: options of this verb, or verbs below it.
inline std::vector<std::string> names_like(const CLI::App& verb, const std::string& word) {
  std::vector<std::string> names;
  if (word.starts_with('-')) {
    for (const CLI::Option* option : verb.get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  } else {
    for (const CLI::App* below : verb.get_subcommands({})) names.push_back(below->get_name());
  }
  return names;
}

/// What the parser objects to: "--ranks must be a whole number of 1 or more, found 'two'".
inline std::string complaint(const CLI::App& app, const CLI::App& verb,
                             const CLI::ParseError& error) {
  const std::vector<std::string> unexpected = app.remaining(true);
  if (!unexpected.empty()) {
    const std::string& word = unexpected.front();
    const std::string near = nearest_name(word, names_like(verb, word));
    return "'" + word + "' is not " + (word.starts_with('-') ? "an option" : "expected") +
           (near.empty() ? "" : "; did you mean '" + near + "'?");
  }
  std::string text = error.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  const size_t name_end = text.find_first_of(": ");
  const std::string option = text.substr(0, name_end);
  if (error.get_name() == "ValidationError" && text.substr(name_end).starts_with(": "))
    return option + text.substr(name_end + 1);  // our checks' words follow the name
  if (error.get_name() != "ArgumentMismatch") return text;
  if (text.ends_with("flag override")) return "--" + option + " takes no value";
  if (!option.starts_with('-')) return text;
  if (text.ends_with("missing")) return option + " needs a value";
  return text.find("At Most") != std::string::npos ? option + " is given more than once" : text;
}

/// The whole line, for standard error.
inline std::string usage_sentence(const CLI::App& app, const CLI::ParseError& error) {
  std::string verb = "tautline";
  const CLI::App* at = &app;
  for (; !at->get_subcommands().empty(); verb += " " + at->get_name())
    at = at->get_subcommands().front();
  const std::string text = complaint(app, *at, error);
  return "tautline: " + text + (text.ends_with('?') ? "" : ";") + " `" + verb +
         " --help` lists what is valid";
}

}  // namespace tautline::cli
