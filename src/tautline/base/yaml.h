// A YAML document as a plain tree in which every key and value knows where it was written. Only
// yaml.cpp sees the YAML library; config.h reads typed values out of the tree and puts them in.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tautline {

/// Where something was written: a file's line and column (from 1), or a --set flag (line 0).
struct Where {
  std::string source;
  int line = 0, column = 0;
  /// "run.yaml:3:5", or "--set seed=x"; empty: nowhere.
  std::string text() const;
  bool from_set() const { return line == 0 && !source.empty(); }
};

struct YamlEntry;

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string scalar;              // as written, without quotes
  std::vector<YamlNode> items;     // of a list
  std::vector<YamlEntry> entries;  // of a map, in order
  bool block = false;  // written over several lines even where it would fit one (a table of things)
  bool droppable = false;  // empty, as by default: may be left out
  Where where;

  const YamlEntry* find(std::string_view key) const;
  /// What an error says was found: "the text 'many'", "a list", "a map with the keys a, b".
  std::string described() const;
};

struct YamlEntry {
  std::string key;
  YamlNode value;
  Where where;              // of the key
  std::string explanation;  // one line; only in trees that were made from typed values
};

YamlNode yaml_scalar(std::string text);
void add_entry(YamlNode& map, std::string key, YamlNode value, std::string explanation = "");

/// Errors: what the parser objects to, a key that is no plain word, a key given twice; each with
/// source:line:column.
YamlNode parse_yaml(const std::string& text, const std::string& source);

/// The text of a whole file. Errors: it cannot be read, or is a folder.
std::string read_text_file(const std::string& path);

/// Applies `a.b.c=value` (the value is YAML; list items are addressed by number: features.0.name).
/// Absent sections are created. Errors name the flag as it was written: with `prefix`, the part of
/// its key ("model.") that led to this tree and stands in front of the assignment no more.
void apply_set(YamlNode& root, const std::string& assignment, const std::string& prefix = "");

/// Block style with short values in flow style, within 100 columns. parse_yaml reads it back.
std::string emit_yaml(const YamlNode& root);

/// One line, flow style.
std::string emit_flow(const YamlNode& node);

}  // namespace tautline
