// Typed configuration: plain structs to and from YAML, with errors that say where.
//
// A struct takes part by one function beside it, which names every key once:
//
//   struct Link { std::string name; double latency_seconds = 0; };
//   template <class V> void fields(V& v, Link& x) {
//     v("name", x.name, "what the tables call it");
//     v.seconds("latency", x.latency_seconds, "of one message without payload");
//   }
//
// Reading, writing, printing, comparing and explaining are visitors over that function. What it may
// use, besides v(key, member, explanation) for bool, integers, double, std::string, enums, vectors,
// maps by name, optionals and structs with `fields`:
//   v.bytes / seconds / rate / flop_rate   a double in SI units, written with its unit
//   v.one_of(key, text, {"a", "b"}, ...)   a string of a closed set
//   v.section(key, explanation, visit)     keys of this struct that stand one level deeper
//   v.keyed(key, x, x.kind, ...)           {KIND: {fields of x}}: x.kind is set first, so that
//                                          `fields` can name the keys that this kind has
//   v.text(key, parse, print, ...)         a phrase: parse(text) sets members or throws UserError
//   v.either("epochs", "steps")            both in a file is an error; the one in a --set wins
// Keys may depend on members that were named before (`if (x.loss == ...) v(...)`).
//
// An enum takes part by `constexpr auto choices(E*)`, an array of pairs (value, name). A struct
// with `void validate(const T&, const Provenance& at)` beside it is checked after reading;
// at("a.b") gives "run.yaml:3:5: " to begin a message with.
//
// Errors are UserErrors: file:line:column, what was found, what is expected, the nearest valid
// name.
#pragma once

#include <concepts>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tautline/base/error.h"
#include "tautline/base/nearest.h"
#include "tautline/base/units.h"
#include "tautline/base/yaml.h"

namespace tautline {

/// Where each value of a config came from, by path ("plan.tables.item", "features.0.name").
class Provenance {
 public:
  void record(const std::string& path, const Where& where) { places_[path] = where; }
  /// Null: the default.
  const Where* find(const std::string& path) const;
  /// "run.yaml:3:5: " of the path, or of what encloses it; empty where nothing is known.
  std::string operator()(std::string path) const;

 private:
  std::map<std::string, Where> places_;
};

namespace config_detail {

[[noreturn]] void wrong_type(const YamlNode& node, const std::string& path,
                             const std::string& expected);
bool read_bool(const YamlNode& node, const std::string& path);
int64_t read_integer(const YamlNode& node, const std::string& path, int64_t low, int64_t high);
uint64_t read_unsigned(const YamlNode& node, const std::string& path, uint64_t high);
double read_number(const YamlNode& node, const std::string& path);
std::string read_string(const YamlNode& node, const std::string& path);
double read_quantity(const YamlNode& node, const std::string& path, Unit unit);
size_t read_choice(const YamlNode& node, const std::string& path,
                   const std::vector<std::string>& names);
std::string child_path(const std::string& path, const std::string& key);
/// The entry that a keyed variant reads: the only one, or the one of a --set.
const YamlEntry& only_entry(const YamlNode& node, const std::string& path,
                            const std::vector<std::string>& names);
/// Marks what is empty here and in the default: to_yaml leaves it out.
void mark_droppable(YamlNode& node, const YamlNode& standard);
void drop_marked(YamlNode& node);

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <class T>
struct IsMap : std::false_type {};
template <class T>
struct IsMap<std::map<std::string, T>> : std::true_type {};
template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <class E>
std::vector<std::string> choice_names() {
  std::vector<std::string> names;
  for (const auto& [value, name] : choices(static_cast<E*>(nullptr))) names.emplace_back(name);
  return names;
}

}  // namespace config_detail

/// The name that YAML has for an enum's value.
template <class E>
requires std::is_enum_v<E> std::string choice_name(E value) {
  for (const auto& [candidate, name] : choices(static_cast<E*>(nullptr)))
    if (candidate == value) return name;
  TAUTLINE_INVARIANT(false, "an enum value without a name: " << static_cast<int>(value));
  return {};
}

template <class T>
void read_value(const YamlNode& node, const std::string& path, Provenance& provenance, T& x);
template <class T>
YamlNode write_value(const T& x);

/// The visitor that reads.
class ConfigReader {
 public:
  ConfigReader(const YamlNode& node, std::string path, Provenance& provenance);

  template <class T>
  void operator()(const char* key, T& x, const char* /*explanation*/) {
    if (const YamlNode* value = take(key)) read_value(*value, child(key), provenance_, x);
  }
  void bytes(const char* key, double& x, const char*) { quantity(key, x, Unit::kBytes); }
  void seconds(const char* key, double& x, const char*) { quantity(key, x, Unit::kSeconds); }
  void rate(const char* key, double& x, const char*) { quantity(key, x, Unit::kBytesPerSecond); }
  void flop_rate(const char* key, double& x, const char*) {
    quantity(key, x, Unit::kFlopPerSecond);
  }
  void one_of(const char* key, std::string& x, const std::vector<std::string>& names,
              const char* /*explanation*/) {
    if (const YamlNode* value = take(key))
      x = names[config_detail::read_choice(*value, child(key), names)];
  }
  template <class Visit>
  void section(const char* key, const char* /*explanation*/, Visit visit) {
    const YamlNode* value = take(key);
    if (!value) return;
    ConfigReader inner(*value, child(key), provenance_);
    visit(inner);
    inner.finish();
  }
  template <class T, class Kind>
  void keyed(const char* key, T& x, Kind& kind, const char* /*explanation*/) {
    const YamlNode* value = take(key);
    if (!value) return;
    const auto names = config_detail::choice_names<Kind>();
    if (value->kind == YamlNode::Kind::kScalar) {  // the kind alone: everything else by default
      read_value(*value, child(key), provenance_, kind);
      return;
    }
    const YamlEntry& entry = config_detail::only_entry(*value, child(key), names);
    YamlNode name = yaml_scalar(entry.key);
    name.where = entry.where;
    read_value(name, child(key), provenance_, kind);
    read_value(entry.value, config_detail::child_path(child(key), entry.key), provenance_, x);
  }
  template <class Parse, class Print>
  void text(const char* key, Parse parse, Print /*print*/, const char* /*explanation*/) {
    const YamlNode* value = take(key);
    if (value) read_text(*value, child(key), parse);
  }
  void either(const char* a, const char* b);

  /// Errors: a key that no field took.
  void finish() const;

 private:
  const YamlNode* take(const char* key);
  std::string child(const char* key) const { return config_detail::child_path(path_, key); }
  void quantity(const char* key, double& x, Unit unit) {
    if (const YamlNode* value = take(key))
      x = config_detail::read_quantity(*value, child(key), unit);
  }
  template <class Parse>
  static void read_text(const YamlNode& value, const std::string& path, Parse parse) {
    const std::string written = config_detail::read_string(value, path);
    try {
      parse(written);
    } catch (const UserError& e) {
      throw user_error(value.where.text(), ": '", path, "' ", e.what());
    }
  }

  const YamlNode& node_;
  std::string path_;
  Provenance& provenance_;
  std::vector<std::string> known_, ignored_;
};

/// The visitor that writes (and so prints, compares and explains: those work on the written tree).
class ConfigWriter {
 public:
  ConfigWriter() { node_.kind = YamlNode::Kind::kMap; }

  template <class T>
  void operator()(const char* key, T& x, const char* explanation) {
    add(key, write_value(x), explanation);
  }
  void bytes(const char* key, double& x, const char* explanation) {
    add(key, yaml_scalar(print_quantity(x, Unit::kBytes)), explanation);
  }
  void seconds(const char* key, double& x, const char* explanation) {
    add(key, yaml_scalar(print_quantity(x, Unit::kSeconds)), explanation);
  }
  void rate(const char* key, double& x, const char* explanation) {
    add(key, yaml_scalar(print_quantity(x, Unit::kBytesPerSecond)), explanation);
  }
  void flop_rate(const char* key, double& x, const char* explanation) {
    add(key, yaml_scalar(print_quantity(x, Unit::kFlopPerSecond)), explanation);
  }
  void one_of(const char* key, std::string& x, const std::vector<std::string>&,
              const char* explanation) {
    add(key, yaml_scalar(x), explanation);
  }
  template <class Visit>
  void section(const char* key, const char* explanation, Visit visit) {
    ConfigWriter inner;
    visit(inner);
    add(key, std::move(inner.node_), explanation);
  }
  template <class T, class Kind>
  void keyed(const char* key, T& x, Kind& kind, const char* explanation) {
    YamlNode map;
    add_entry(map, choice_name(kind), write_value(x), explanation);
    add(key, std::move(map), explanation);
  }
  template <class Parse, class Print>
  void text(const char* key, Parse /*parse*/, Print print, const char* explanation) {
    add(key, yaml_scalar(print()), explanation);
  }
  void either(const char*, const char*) {}

  YamlNode take() { return std::move(node_); }

 private:
  void add(const char* key, YamlNode value, const char* explanation) {
    add_entry(node_, key, std::move(value), explanation);
  }
  YamlNode node_;
};

template <class T>
concept HasFields = requires(ConfigReader& v, T& x) {
  fields(v, x);
};
template <class T>
concept Validated = requires(const T& x, const Provenance& at) {
  validate(x, at);
};

template <class T>
void read_value(const YamlNode& node, const std::string& path, Provenance& provenance, T& x) {
  using namespace config_detail;
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_same_v<T, bool>) {
    x = read_bool(node, path);
  } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    x = static_cast<T>(read_integer(node, path, Limits::min(), Limits::max()));
  } else if constexpr (std::is_integral_v<T>) {
    x = static_cast<T>(read_unsigned(node, path, Limits::max()));
  } else if constexpr (std::is_floating_point_v<T>) {
    x = static_cast<T>(read_number(node, path));
  } else if constexpr (std::is_same_v<T, std::string>) {
    x = read_string(node, path);
  } else if constexpr (std::is_enum_v<T>) {
    x = choices(static_cast<T*>(nullptr))[read_choice(node, path, choice_names<T>())].first;
  } else if constexpr (IsOptional<T>::value) {
    x.reset();
    if (node.kind != YamlNode::Kind::kNull) read_value(node, path, provenance, x.emplace());
  } else if constexpr (IsVector<T>::value) {
    if (node.kind != YamlNode::Kind::kList && node.kind != YamlNode::Kind::kNull)
      wrong_type(node, path, "a list, such as [a, b]");
    x.clear();
    for (size_t i = 0; i < node.items.size(); ++i) {
      const std::string item = child_path(path, std::to_string(i));
      provenance.record(item, node.items[i].where);
      read_value(node.items[i], item, provenance, x.emplace_back());
    }
  } else if constexpr (IsMap<T>::value) {
    if (node.kind != YamlNode::Kind::kMap && node.kind != YamlNode::Kind::kNull)
      wrong_type(node, path, "a map from names to values");
    x.clear();
    for (const YamlEntry& entry : node.entries) {
      const std::string item = child_path(path, entry.key);
      provenance.record(item, entry.where);
      read_value(entry.value, item, provenance, x[entry.key]);
    }
  } else {
    static_assert(HasFields<T>, "no fields(v, T&) is declared for this struct: include its header");
    ConfigReader reader(node, path, provenance);
    fields(reader, x);
    reader.finish();
  }
}

template <class T>
YamlNode write_value(const T& x) {
  using namespace config_detail;
  YamlNode node;
  if constexpr (std::is_same_v<T, bool>) {
    node = yaml_scalar(x ? "true" : "false");
  } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    node = yaml_scalar(print_integer(x));
  } else if constexpr (std::is_integral_v<T>) {
    node = yaml_scalar(print_unsigned(x));
  } else if constexpr (std::is_floating_point_v<T>) {
    node = yaml_scalar(print_number(x));
  } else if constexpr (std::is_same_v<T, std::string>) {
    node = yaml_scalar(x);
  } else if constexpr (std::is_enum_v<T>) {
    node = yaml_scalar(choice_name(x));
  } else if constexpr (IsOptional<T>::value) {
    if (x) node = write_value(*x);
  } else if constexpr (IsVector<T>::value) {
    node.kind = YamlNode::Kind::kList;
    for (const auto& item : x) node.items.push_back(write_value(item));
    node.block = HasFields<typename T::value_type>;
  } else if constexpr (IsMap<T>::value) {
    node.kind = YamlNode::Kind::kMap;
    for (const auto& [key, value] : x) add_entry(node, key, write_value(value));
    node.block = HasFields<typename T::mapped_type>;
  } else {
    static_assert(HasFields<T>, "no fields(v, T&) is declared for this struct: include its header");
    ConfigWriter writer, standard;
    T defaults{};
    fields(writer, const_cast<T&>(x));  // one `fields` serves both ways; the writer changes nothing
    fields(standard, defaults);
    node = writer.take();
    mark_droppable(node, standard.take());
  }
  return node;
}

/// Reads a T from YAML text; `name` is what errors call it, `set_prefix` what the keys of `sets` had
/// in front of them.
template <class T>
T parse_config(const std::string& text, const std::string& name,
               const std::vector<std::string>& sets = {}, Provenance* provenance = nullptr,
               const std::string& set_prefix = "") {
  YamlNode root = parse_yaml(text, name);
  for (const std::string& set : sets) apply_set(root, set, set_prefix);
  Provenance local;
  Provenance& where = provenance ? *provenance : local;
  where.record("", {name, 1, 1});
  T x{};
  read_value(root, "", where, x);
  if constexpr (Validated<T>) validate(x, where);
  return x;
}

template <class T>
T read_config(const std::string& path, const std::vector<std::string>& sets = {},
              Provenance* provenance = nullptr, const std::string& set_prefix = "") {
  return parse_config<T>(read_text_file(path), path, sets, provenance, set_prefix);
}

/// `path` as seen from the current folder, or else from the folder of the file that names it; a
/// path that begins with '.' is the file's first. Where there is neither, `path` itself.
std::string beside(const std::string& path, const std::string& named_in);

/// Complete: every key with its value (keys whose empty value is the default are left out), so that
/// parse_config(to_yaml(x)) == x and no later change of a default changes what was saved.
template <class T>
std::string to_yaml(const T& x) {
  YamlNode node = write_value(x);
  config_detail::drop_marked(node);
  return emit_yaml(node);
}

/// One value of a config: `tautline config show` prints a row for each.
struct ConfigLeaf {
  std::string path, value, from, explanation;
};
std::vector<ConfigLeaf> leaves_of(const YamlNode& node, const Provenance& provenance);
std::string leaves_table(const std::vector<ConfigLeaf>& leaves, bool explained);
std::vector<std::string> leaf_differences(const std::vector<ConfigLeaf>& a,
                                          const std::vector<ConfigLeaf>& b);

/// Every value, where it came from (default, file:line, --set) and what it means.
template <class T>
std::string explain(const T& x, const Provenance& provenance) {
  return leaves_table(leaves_of(write_value(x), provenance), true);
}

/// Keys and values as an aligned table.
template <class T>
std::string to_table(const T& x) {
  return leaves_table(leaves_of(write_value(x), {}), false);
}

/// "batch: 512 -> 256", one line for each value that differs; "-" where only one side has the key.
template <class T>
std::vector<std::string> differences(const T& a, const T& b) {
  return leaf_differences(leaves_of(write_value(a), {}), leaves_of(write_value(b), {}));
}

}  // namespace tautline
