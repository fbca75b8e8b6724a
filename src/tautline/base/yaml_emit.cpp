// Writing a tree: block style, with what is short and shallow on one line. The YAML library's own
// emitter knows no line width, so a whole table would come out on one line or on twenty.
#include <algorithm>
#include <cctype>
#include <cstdio>

#include "tautline/base/units.h"
#include "tautline/base/yaml.h"

namespace tautline {
namespace {

constexpr size_t kColumns = 100;
constexpr int kFlowDepth = 3;  // collections inside each other on one line

// Plain where every YAML reader takes the text for the same word; quoted where in doubt.
bool is_plain(const std::string& text) {
  if (text.empty() || text.front() == ' ' || text.back() == ' ') return false;
  static const std::string reserved = "-?:,[]{}#&*!|>'\"%@`~";
  const bool negative_number = text.front() == '-' && parse_number(text).has_value();
  if (reserved.find(text.front()) != std::string::npos && !negative_number) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c == 0x7f || c == '"' || c == '\\') return false;
    if (std::string("[]{},").find(text[i]) != std::string::npos) return false;
    if (c == ':' && (i + 1 == text.size() || text[i + 1] == ' ')) return false;
    if (c == '#' && text[i - 1] == ' ') return false;
  }
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return lower != "null";
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02X", byte);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string word(const std::string& text) { return is_plain(text) ? text : quoted(text); }

int depth(const YamlNode& node) {
  int inner = 0;
  for (const YamlNode& item : node.items) inner = std::max(inner, depth(item));
  for (const YamlEntry& entry : node.entries) inner = std::max(inner, depth(entry.value));
  return node.kind == YamlNode::Kind::kList || node.kind == YamlNode::Kind::kMap ? inner + 1 : 0;
}

bool holds_block(const YamlNode& node) {
  if (node.block && !(node.items.empty() && node.entries.empty())) return true;
  return std::any_of(node.items.begin(), node.items.end(), holds_block) ||
         std::any_of(node.entries.begin(), node.entries.end(),
                     [](const YamlEntry& entry) { return holds_block(entry.value); });
}

bool on_one_line(const YamlNode& node, size_t column) {
  if (node.items.empty() && node.entries.empty()) return true;
  if (holds_block(node) || depth(node) > kFlowDepth) return false;
  return column + emit_flow(node).size() <= kColumns;
}

// `column`: where the first character lands. The text ends with a newline.
void emit_block(const YamlNode& node, size_t indent, std::string& out) {
  const std::string margin(indent, ' ');
  for (const YamlEntry& entry : node.entries) {
    const std::string head = margin + word(entry.key) + ":";
    if (on_one_line(entry.value, head.size() + 1)) {
      out += head + " " + emit_flow(entry.value) + "\n";
    } else {
      out += head + "\n";
      emit_block(entry.value, indent + 2, out);
    }
  }
  for (const YamlNode& item : node.items) {
    if (on_one_line(item, indent + 2)) {
      out += margin + "- " + emit_flow(item) + "\n";
      continue;
    }
    std::string inner;
    emit_block(item, indent + 2, inner);
    out += margin + "- " + inner.substr(indent + 2);
  }
}

}  // namespace

std::string emit_flow(const YamlNode& node) {
  std::string out;
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "null";
    case YamlNode::Kind::kScalar:
      return word(node.scalar);
    case YamlNode::Kind::kList:
      for (const YamlNode& item : node.items) out += (out.empty() ? "" : ", ") + emit_flow(item);
      return "[" + out + "]";
    case YamlNode::Kind::kMap:
      for (const YamlEntry& entry : node.entries)
        out += (out.empty() ? "" : ", ") + word(entry.key) + ": " + emit_flow(entry.value);
      return "{" + out + "}";
  }
  return out;
}

std::string emit_yaml(const YamlNode& root) {
  if (root.kind == YamlNode::Kind::kScalar || root.kind == YamlNode::Kind::kNull ||
      (root.items.empty() && root.entries.empty()))
    return emit_flow(root) + "\n";
  std::string out;
  emit_block(root, 0, out);
  return out;
}

}  // namespace tautline
