#include "tautline/base/config.h"

#include <algorithm>
#include <filesystem>

#include "tautline/base/excerpt.h"
#include "tautline/base/text_table.h"

namespace tautline {

const Where* Provenance::find(const std::string& path) const {
  const auto place = places_.find(path);
  return place == places_.end() ? nullptr : &place->second;
}

std::string Provenance::operator()(std::string path) const {
  for (;;) {
    if (const Where* where = find(path)) {
      // The whole file has no line worth naming.
      return (path.empty() ? where->source : where->text()) + ": ";
    }
    if (path.empty()) return "";
    const size_t dot = path.rfind('.');
    path.erase(dot == std::string::npos ? 0 : dot);
  }
}

namespace config_detail {
namespace {

std::string named(const std::string& path) {
  return path.empty() ? std::string("the document") : "'" + excerpt(path, kConfigBytes) + "'";
}

const std::string& scalar(const YamlNode& node, const std::string& path,
                          const std::string& expected) {
  if (node.kind != YamlNode::Kind::kScalar) wrong_type(node, path, expected);
  return node.scalar;
}

bool is_empty(const YamlNode& node) {
  return node.kind == YamlNode::Kind::kScalar ? node.scalar.empty()
                                              : node.items.empty() && node.entries.empty();
}

}  // namespace

void wrong_type(const YamlNode& node, const std::string& path, const std::string& expected) {
  throw user_error(node.where.text(), ": ", named(path), " expects ", expected, ", found ",
                   node.described());
}

bool read_bool(const YamlNode& node, const std::string& path) {
  const std::string& text = scalar(node, path, "true or false");
  if (text == "true") return true;
  if (text != "false") wrong_type(node, path, "true or false");
  return false;
}

int64_t read_integer(const YamlNode& node, const std::string& path, int64_t low, int64_t high) {
  const char* expected = "an integer such as 20_000";
  const auto value = parse_integer(scalar(node, path, expected));
  if (!value) wrong_type(node, path, expected);
  if (*value < low || *value > high)
    wrong_type(node, path, "an integer from " + print_integer(low) + " to " + print_integer(high));
  return *value;
}

uint64_t read_unsigned(const YamlNode& node, const std::string& path, uint64_t high) {
  const char* expected = "an integer, 0 or more";
  const auto value = parse_unsigned(scalar(node, path, expected));
  if (!value) wrong_type(node, path, expected);
  if (*value > high) wrong_type(node, path, "an integer from 0 to " + print_unsigned(high));
  return *value;
}

double read_number(const YamlNode& node, const std::string& path) {
  const auto value = parse_number(scalar(node, path, "a number"));
  if (!value) wrong_type(node, path, "a number");
  return *value;
}

std::string read_string(const YamlNode& node, const std::string& path) {
  return scalar(node, path, "text");
}

double read_quantity(const YamlNode& node, const std::string& path, Unit unit) {
  const std::string expected = expected_quantity(unit);
  const auto value = parse_quantity(scalar(node, path, expected), unit);
  if (!value) wrong_type(node, path, expected);
  return *value;
}

size_t read_choice(const YamlNode& node, const std::string& path,
                   const std::vector<std::string>& names) {
  const std::string& text = scalar(node, path, "one of " + joined(names));
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end())
    throw user_error(node.where.text(), ": ", named(path), " cannot be '",
                     excerpt(text, kConfigBytes), "'", choice_suggestion(text, names));
  return static_cast<size_t>(found - names.begin());
}

std::string child_path(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

const YamlEntry& only_entry(const YamlNode& node, const std::string& path,
                            const std::vector<std::string>& names) {
  const std::string expected = "one of {" + joined(names, ": ...}, {") + ": ...}";
  if (node.kind != YamlNode::Kind::kMap || node.entries.empty()) wrong_type(node, path, expected);
  const YamlEntry* chosen = &node.entries.front();
  for (const YamlEntry& entry : node.entries) {
    // The command line overrules the file's choice.
    if (entry.where.from_set() && !chosen->where.from_set()) chosen = &entry;
  }
  const bool one_in_file = std::count_if(node.entries.begin(), node.entries.end(), [&](auto& e) {
                             return e.where.from_set() == chosen->where.from_set();
                           }) == 1;
  if (!one_in_file) wrong_type(node, path, expected);
  return *chosen;
}

void mark_droppable(YamlNode& node, const YamlNode& standard) {
  for (YamlEntry& entry : node.entries) {
    const YamlEntry* by_default = standard.find(entry.key);
    if (by_default && is_empty(entry.value) && is_empty(by_default->value) &&
        entry.value.kind == by_default->value.kind)
      entry.value.droppable = true;
  }
}

void drop_marked(YamlNode& node) {
  std::erase_if(node.entries, [](const YamlEntry& entry) { return entry.value.droppable; });
  for (YamlEntry& entry : node.entries) drop_marked(entry.value);
  for (YamlNode& item : node.items) drop_marked(item);
}

}  // namespace config_detail

ConfigReader::ConfigReader(const YamlNode& node, std::string path, Provenance& provenance)
    : node_(node), path_(std::move(path)), provenance_(provenance) {
  if (node.kind != YamlNode::Kind::kMap && node.kind != YamlNode::Kind::kNull)
    config_detail::wrong_type(node, path_, "a map of keys and values");
}

const YamlNode* ConfigReader::take(const char* key) {
  known_.emplace_back(key);
  if (std::find(ignored_.begin(), ignored_.end(), key) != ignored_.end()) return nullptr;
  const YamlEntry* entry = node_.find(key);
  if (!entry) return nullptr;
  const Where& value = entry->value.where;  // of a nested --set: the flag, not the file's line
  provenance_.record(child(key), value.from_set() ? value : entry->where);
  return &entry->value;
}

void ConfigReader::either(const char* a, const char* b) {
  const YamlEntry *first = node_.find(a), *second = node_.find(b);
  const auto off = [](const YamlEntry* entry) {  // 0 says "not this one", as to_yaml writes it
    return !entry || entry->value.scalar == "0";
  };
  if (off(first) || off(second)) return;
  const bool first_set = first->value.where.from_set(), second_set = second->value.where.from_set();
  if (first_set == second_set)
    throw user_error(second->where.text(), ": '", child(a), "' and '", child(b),
                     "' are both given; one of them says how long, remove the other");
  ignored_.emplace_back(first_set ? b : a);
}

void ConfigReader::finish() const {
  for (const YamlEntry& entry : node_.entries) {
    if (std::find(known_.begin(), known_.end(), entry.key) != known_.end()) continue;
    throw user_error(entry.where.text(), ": unknown key '", excerpt(entry.key, kConfigBytes), "'",
                     path_.empty() ? "" : " in '" + path_ + "'", suggestion(entry.key, known_));
  }
}

namespace {

void collect(const YamlNode& node, const std::string& path, const std::string& explanation,
             const Provenance& provenance, std::vector<ConfigLeaf>& leaves) {
  const bool nested = std::any_of(node.items.begin(), node.items.end(), [](const YamlNode& item) {
    return item.kind == YamlNode::Kind::kMap || item.kind == YamlNode::Kind::kList;
  });
  if (node.entries.empty() && !nested) {
    const Where* where = provenance.find(path);
    std::string from = !where             ? "default"
                       : where->line == 0 ? where->source
                                          : where->source + ":" + std::to_string(where->line);
    if (where && where->from_set()) from = "--set";
    leaves.push_back({path, emit_flow(node), from, explanation});
    return;
  }
  for (const YamlEntry& entry : node.entries)
    collect(entry.value, config_detail::child_path(path, entry.key),
            entry.explanation.empty() ? explanation : entry.explanation, provenance, leaves);
  for (size_t i = 0; i < node.items.size(); ++i)
    collect(node.items[i], config_detail::child_path(path, std::to_string(i)), explanation,
            provenance, leaves);
}

}  // namespace

std::string beside(const std::string& path, const std::string& named_in) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (path.empty() || fs::path(path).is_absolute()) return path;
  const std::string there = (fs::path(named_in).parent_path() / path).lexically_normal().string();
  return fs::exists(there, error) || path.starts_with('.') ? there : path;
}

std::vector<ConfigLeaf> leaves_of(const YamlNode& node, const Provenance& provenance) {
  std::vector<ConfigLeaf> leaves;
  collect(node, "", "", provenance, leaves);
  return leaves;
}

std::string leaves_table(const std::vector<ConfigLeaf>& leaves, bool explained) {
  TextTable table(explained ? std::vector<std::string>{"key", "value", "from", "what it is"}
                            : std::vector<std::string>{"key", "value"});
  for (const ConfigLeaf& leaf : leaves) {
    if (explained)
      table.add({leaf.path, leaf.value, leaf.from, leaf.explanation});
    else
      table.add({leaf.path, leaf.value});
  }
  return table.str();
}

std::vector<std::string> leaf_differences(const std::vector<ConfigLeaf>& a,
                                          const std::vector<ConfigLeaf>& b) {
  std::map<std::string, std::string> values_of_b;
  for (const ConfigLeaf& leaf : b) values_of_b[leaf.path] = leaf.value;
  std::vector<std::string> out;
  for (const ConfigLeaf& leaf : a) {
    const auto other = values_of_b.find(leaf.path);
    if (other == values_of_b.end()) {
      out.push_back(leaf.path + ": " + leaf.value + " -> -");
      continue;
    }
    if (other->second != leaf.value)
      out.push_back(leaf.path + ": " + leaf.value + " -> " + other->second);
    values_of_b.erase(other);
  }
  for (const ConfigLeaf& leaf : b)
    if (values_of_b.contains(leaf.path)) out.push_back(leaf.path + ": - -> " + leaf.value);
  return out;
}

}  // namespace tautline
