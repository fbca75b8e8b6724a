// docs/model.md has a row for every key that the reader knows, with its default.
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "tautline/workload/model_fields.h"

namespace tautline {
namespace {

/// The visitor that collects keys and what they are by default; choices by their names.
class Keys {
 public:
  template <class T>
  void operator()(const char* key, T& x, const char*) {
    const YamlNode node = write_value(x);
    const bool shown = node.kind == YamlNode::Kind::kScalar || node.kind == YamlNode::Kind::kList;
    add(key, shown ? emit_flow(node) : "");
    if constexpr (std::is_enum_v<T>) add_choices<T>();
    if constexpr (config_detail::IsVector<T>::value) {
      if constexpr (std::is_enum_v<typename T::value_type>) add_choices<typename T::value_type>();
    }
  }
  template <class Visit>
  void section(const char* key, const char*, Visit visit) {
    prefix_ = std::string(key) + ".";
    visit(*this);
    prefix_.clear();
  }
  template <class T, class Kind>
  void keyed(const char* key, T&, Kind& kind, const char*) {
    add(key, choice_name(kind));
    add_choices<Kind>();
  }

  std::map<std::string, std::string> found;
  std::vector<std::string> choices;

 private:
  void add(const std::string& key, const std::string& text) { found[prefix_ + key] = text; }
  template <class E>
  void add_choices() {
    for (const std::string& name : config_detail::choice_names<E>()) choices.push_back(name);
  }
  std::string prefix_;
};

std::string page() {
  std::ifstream in(TAUTLINE_SOURCE_DIR "/docs/model.md");
  return {std::istreambuf_iterator<char>(in), {}};
}

/// From "## title" to the next heading.
std::string section_of(const std::string& text, const std::string& title) {
  const size_t from = text.find("\n## " + title + "\n");
  if (from == std::string::npos) return "";
  return text.substr(from, text.find("\n## ", from + 1) - from);
}

/// `variants`: the struct with each choice that has keys of its own.
template <class T>
void expect_documented(const std::string& title, std::vector<T> variants) {
  const std::string text = section_of(page(), title);
  ASSERT_FALSE(text.empty()) << title;
  Keys keys;
  for (auto variant = variants.rbegin(); variant != variants.rend(); ++variant)
    fields(keys, *variant);  // the first one last: its values are the defaults
  size_t rows = 0;
  for (const auto& [key, value] : keys.found) {
    const size_t row = text.find("\n| `" + key + "` | ");
    ASSERT_NE(row, std::string::npos) << title << " has no row for the key " << key;
    ++rows;
    if (value.empty() || value == "\"\"" || value == "[]") continue;  // said in words
    EXPECT_EQ(text.find("| `" + value + "` |", row), text.find("` | ", row) + 2)
        << key << " is " << value << " by default";
  }
  for (const std::string& choice : keys.choices)
    EXPECT_NE(text.find("`" + choice + "`"), std::string::npos) << title << ": " << choice;
  size_t written = 0;
  for (size_t at = text.find("\n| `"); at != std::string::npos; at = text.find("\n| `", at + 1))
    ++written;
  EXPECT_EQ(written, rows) << title << " has rows for keys that the reader does not know";
}

/// A default T, changed.
template <class T, class Change>
T with(Change change) {
  T x;
  change(x);
  return x;
}

TEST(ModelPage, HasEveryKeyWithItsDefault) {
  expect_documented<ModelConfig>("Model", {{}});
  using Feature = FeatureConfig;
  expect_documented<Feature>("Features",
                             {{}, with<Feature>([](auto& x) { x.kind = Feature::Kind::kPooled; })});
  expect_documented<TableConfig>("Tables", {{}});
  using Optimizer = TableOptimizer;
  expect_documented<Optimizer>(
      "Table optimizers", {{}, with<Optimizer>([](auto& x) { x.kind = Optimizer::Kind::kAdam; })});
  using Backbone = BackboneConfig;
  expect_documented<Backbone>("Backbone", {{}, with<Backbone>([](auto& x) {
                                             x.attention_bias = {Backbone::AttentionBias::kTime};
                                             x.position = {Backbone::Position::kTimeGap};
                                           })});
  using Head = HeadConfig;
  expect_documented<Head>("Heads", {{},
                                    with<Head>([](auto& x) { x.loss = Head::Loss::kFullSoftmax; }),
                                    with<Head>([](auto& x) { x.loss = Head::Loss::kBinary; })});
}

}  // namespace
}  // namespace tautline
