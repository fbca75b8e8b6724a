#include "tautline/base/yaml.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <yaml-cpp/yaml.h>

#include "tautline/base/error.h"
#include "tautline/base/excerpt.h"
#include "tautline/base/units.h"

namespace tautline {
namespace {

Where where_of(const YAML::Mark& mark, const std::string& source) {
  return {source, mark.line + 1, mark.column + 1};
}

// Each alias stands for a copy of what it names: they may multiply.
YamlNode converted(const YAML::Node& node, const std::string& source, int64_t& nodes,
                   int depth = 0) {
  constexpr int kDeepest = 64;  // an alias may name what it lies in
  constexpr int64_t kMostNodes = 1'000'000;
  if (depth > kDeepest)
    throw user_error(where_of(node.Mark(), source).text(), ": nested more than ", kDeepest,
                     " deep");
  if (++nodes > kMostNodes)
    throw user_error(where_of(node.Mark(), source).text(), ": more than ", kMostNodes,
                     " values, aliases counted as often as they are used");
  YamlNode out;
  out.where = where_of(node.Mark(), source);
  switch (node.Type()) {
    case YAML::NodeType::Undefined:
    case YAML::NodeType::Null:
      break;
    case YAML::NodeType::Scalar:
      out.kind = YamlNode::Kind::kScalar;
      out.scalar = node.Scalar();
      break;
    case YAML::NodeType::Sequence:
      out.kind = YamlNode::Kind::kList;
      for (const YAML::Node& item : node)
        out.items.push_back(converted(item, source, nodes, depth + 1));
      break;
    case YAML::NodeType::Map:
      out.kind = YamlNode::Kind::kMap;
      for (const auto& pair : node) {
        const Where key_where = where_of(pair.first.Mark(), source);
        if (!pair.first.IsScalar())
          throw user_error(key_where.text(), ": a key must be a plain word, found ",
                           converted(pair.first, source, nodes, depth + 1).described());
        const std::string& key = pair.first.Scalar();
        if (const YamlEntry* first = out.find(key))
          throw user_error(key_where.text(), ": the key '", excerpt(key, kConfigBytes),
                           "' is given twice, first on line ", first->where.line);
        YamlNode value = converted(pair.second, source, nodes, depth + 1);
        if (value.kind == YamlNode::Kind::kNull) value.where = key_where;  // it has no place
        out.entries.push_back({key, std::move(value), key_where, ""});
      }
      break;
  }
  return out;
}

std::string first_sentence(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '.')) text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

bool is_index(std::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isdigit(c) != 0;
  }) && word.size() < 9;
}

// All of a tree was written by one --set flag.
void stamp(YamlNode& node, const Where& where) {
  node.where = where;
  for (YamlNode& item : node.items) stamp(item, where);
  for (YamlEntry& entry : node.entries) {
    entry.where = where;
    stamp(entry.value, where);
  }
}

}  // namespace

std::string Where::text() const {
  if (line == 0) return source;
  return source + ":" + std::to_string(line) + ":" + std::to_string(column);
}

const YamlEntry* YamlNode::find(std::string_view key) const {
  for (const YamlEntry& entry : entries)
    if (entry.key == key) return &entry;
  return nullptr;
}

std::string YamlNode::described() const {
  switch (kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kScalar:
      return "the text '" + excerpt(scalar, kConfigBytes) + "'";
    case Kind::kList:
      return items.empty() ? "an empty list" : "a list";
    case Kind::kMap:
      break;
  }
  if (entries.empty()) return "an empty map";
  std::string out = entries.size() == 1 ? "a map with the key " : "a map with the keys ";
  for (size_t i = 0; i < entries.size() && i < 4; ++i) out += (i ? ", " : "") + entries[i].key;
  return entries.size() > 4 ? out + ", ..." : out;
}

YamlNode yaml_scalar(std::string text) {
  YamlNode node;
  node.kind = YamlNode::Kind::kScalar;
  node.scalar = std::move(text);
  return node;
}

void add_entry(YamlNode& map, std::string key, YamlNode value, std::string explanation) {
  map.kind = YamlNode::Kind::kMap;
  map.entries.push_back({std::move(key), std::move(value), {}, std::move(explanation)});
}

YamlNode parse_yaml(const std::string& text, const std::string& source) {
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() > 1)
      throw user_error(where_of(documents[1].Mark(), source).text(),
                       ": a second YAML document; one is expected");
    int64_t nodes = 0;
    return documents.empty() ? YamlNode{} : converted(documents[0], source, nodes);
  } catch (const YAML::Exception& e) {
    throw user_error(where_of(e.mark, source).text(), ": not valid YAML: ", first_sentence(e.msg));
  }
}

std::string read_text_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    throw user_error("cannot read ", path, ": it is a folder, a YAML file is expected");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw user_error("cannot read ", path, ": ", std::strerror(errno));
  std::ostringstream out;
  out << in.rdbuf();
  if (in.bad()) throw user_error("cannot read ", path, ": ", std::strerror(errno));
  return out.str();
}

void apply_set(YamlNode& root, const std::string& assignment, const std::string& prefix) {
  const Where where{"--set " + excerpt(prefix + assignment, kConfigBytes), 0, 0};
  const size_t equal = assignment.find('=');
  if (equal == std::string::npos || equal == 0)
    throw user_error(where.source, ": expected key=value, such as --set batch=256");
  const std::string path = assignment.substr(0, equal), text = assignment.substr(equal + 1);
  YamlNode value;
  try {
    const YAML::Node parsed = YAML::Load(text);
    int64_t nodes = 0;
    value = converted(parsed, where.source, nodes);
  } catch (const YAML::Exception& e) {
    throw user_error(where.source, ": the value is not valid YAML: ", first_sentence(e.msg));
  }
  stamp(value, where);

  YamlNode* node = &root;
  for (size_t start = 0; start <= path.size();) {
    const size_t dot = std::min(path.find('.', start), path.size());
    const std::string key = path.substr(start, dot - start);
    start = dot + 1;
    if (key.empty())
      throw user_error(where.source, ": '", excerpt(prefix + path, kConfigBytes),
                       "' has an empty part");
    if (node->kind == YamlNode::Kind::kList && is_index(key)) {
      const size_t index = std::stoul(key);
      if (index > node->items.size())
        throw user_error(where.source, ": item ", index, " of a list of ", node->items.size());
      if (index == node->items.size()) node->items.emplace_back().where = where;
      node = &node->items[index];
      continue;
    }
    if (node->kind == YamlNode::Kind::kList)
      throw user_error(where.source, ": '", excerpt(key, kConfigBytes),
                       "' is a list here; its items are 0, 1, ...");
    if (node->kind == YamlNode::Kind::kScalar) {
      // `optimizer: adam`, then --set optimizer.adam.lr=0.1: the word was short for {adam: {}}.
      YamlNode map;
      map.kind = YamlNode::Kind::kMap;
      map.where = node->where;
      map.entries.push_back({node->scalar, YamlNode{}, node->where, ""});
      *node = std::move(map);
    }
    node->kind = YamlNode::Kind::kMap;
    if (node->where.source.empty()) node->where = where;
    auto entry = std::find_if(node->entries.begin(), node->entries.end(),
                              [&](const YamlEntry& e) { return e.key == key; });
    if (entry == node->entries.end()) {
      node->entries.push_back({key, YamlNode{}, where, ""});
      node->entries.back().value.where = where;
      entry = node->entries.end() - 1;
    }
    node = &entry->value;
  }
  *node = std::move(value);
}

}  // namespace tautline
