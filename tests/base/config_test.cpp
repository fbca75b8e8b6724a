#include "tautline/base/config.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tautline/base/random.h"
#include "tautline/base/utf8.h"

namespace tautline {
namespace {

using testing::HasSubstr;
using testing::Not;

enum class Colour { kRed, kDeepBlue };
constexpr auto choices(Colour*) {
  return std::array{std::pair{Colour::kRed, "red"}, std::pair{Colour::kDeepBlue, "deep_blue"}};
}

struct Rule {
  enum class Kind { kPlain, kDecay };
  Kind kind = Kind::kPlain;
  double rate = 0.1, half_life = 7;
  bool operator==(const Rule&) const = default;
};
constexpr auto choices(Rule::Kind*) {
  return std::array{std::pair{Rule::Kind::kPlain, "plain"}, std::pair{Rule::Kind::kDecay, "decay"}};
}
template <class V>
void fields(V& v, Rule& x) {
  v("rate", x.rate, "how fast");
  if (x.kind == Rule::Kind::kDecay) v("half_life", x.half_life, "steps to a half");
}

struct Part {
  std::string name;
  Colour colour = Colour::kRed;
  Rule rule;
  bool operator==(const Part&) const = default;
};
template <class V>
void fields(V& v, Part& x) {
  v("name", x.name, "of the part");
  v("colour", x.colour, "red or deep_blue");
  v.keyed("rule", x.rule, x.rule.kind, "how it changes");
}

struct Whole {
  bool on = false;
  int small = 3;
  int64_t large = -7;
  uint64_t seed = 1;
  double share = 0.25;
  std::string title = "untitled", mode = "fast";
  double bytes = 1024, seconds = 1, rate = 1e9;
  std::optional<int> limit;
  std::vector<double> points = {1, 2};
  std::vector<Part> parts;
  std::map<std::string, int> counts;
  std::map<std::string, Part> named;
  Part main;
  int inner = 0;
  double epochs = 0;
  int64_t steps = 0;
  bool operator==(const Whole&) const = default;
};
template <class V>
void fields(V& v, Whole& x) {
  v.either("epochs", "steps");
  v("on", x.on, "a switch");
  v("small", x.small, "an int");
  v("large", x.large, "an int64");
  v("seed", x.seed, "a uint64");
  v("share", x.share, "a double");
  v("title", x.title, "text");
  v.one_of("mode", x.mode, {"fast", "slow"}, "fast or slow");
  v.bytes("bytes", x.bytes, "a size");
  v.seconds("seconds", x.seconds, "a time");
  v.rate("rate", x.rate, "a rate");
  v("limit", x.limit, "an optional");
  v("points", x.points, "numbers");
  v("parts", x.parts, "a list of structs");
  v("counts", x.counts, "a map");
  v("named", x.named, "a map of structs");
  v("main", x.main, "a struct");
  v.section("deep", "a level more", [&](auto& deep) { deep("inner", x.inner, "an int"); });
  v("epochs", x.epochs, "this or steps");
  v("steps", x.steps, "this or epochs");
}
void validate(const Whole& x, const Provenance& at) {
  if (x.share > 1) throw user_error(at("share"), "share must be at most 1");
  if (x.main.name == "bad") throw user_error(at("main.name"), "a bad name");
}

std::string error_of(const std::string& text, const std::vector<std::string>& sets = {}) {
  try {
    parse_config<Whole>(text, "w.yaml", sets);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Config, AbsentKeysKeepTheirDefaults) {
  EXPECT_EQ(parse_config<Whole>("", "w.yaml"), Whole{});
  EXPECT_EQ(parse_config<Whole>("main:\n", "w.yaml"), Whole{});
}

TEST(Config, ReadsEveryKindOfValue) {
  const Whole x = parse_config<Whole>(R"(
on: true
large: 20_000_000
seed: 18446744073709551615
share: 5e-1
title: "a: b"
mode: slow
bytes: 25 MiB
seconds: 3 us
rate: 2.6 TB/s
limit: 4
points: [0.5, 1e3]
parts:
  - {name: a, colour: deep_blue, rule: {decay: {half_life: 2}}}
  - {name: b, rule: decay}
counts: {x: 1, y: 2}
named: {one: {name: uno}}
main: {rule: {plain: {rate: 9}}}
deep: {inner: 6}
)",
                                      "w.yaml");
  EXPECT_TRUE(x.on);
  EXPECT_EQ(x.large, 20'000'000);
  EXPECT_EQ(x.seed, UINT64_MAX);
  EXPECT_EQ(x.share, 0.5);
  EXPECT_EQ(x.title, "a: b");
  EXPECT_EQ(x.mode, "slow");
  EXPECT_EQ(x.bytes, 25.0 * 1024 * 1024);
  EXPECT_EQ(x.seconds, 3e-6);
  EXPECT_EQ(x.rate, 2.6e12);
  EXPECT_EQ(x.limit, 4);
  EXPECT_EQ(x.points, (std::vector<double>{0.5, 1000}));
  ASSERT_EQ(x.parts.size(), 2u);
  EXPECT_EQ(x.parts[0].colour, Colour::kDeepBlue);
  EXPECT_EQ(x.parts[0].rule.half_life, 2);
  EXPECT_EQ(x.parts[1].rule.kind, Rule::Kind::kDecay);  // the kind alone: the rest by default
  EXPECT_EQ(x.counts.at("y"), 2);
  EXPECT_EQ(x.named.at("one").name, "uno");
  EXPECT_EQ(x.main.rule.rate, 9);
  EXPECT_EQ(x.inner, 6);
}

TEST(Config, ErrorsSayWhereWhatAndTheNearestName) {
  EXPECT_EQ(error_of("on: true\nsmal: 3\n"),
            "w.yaml:2:1: unknown key 'smal'; did you mean 'small'?");
  EXPECT_EQ(error_of("main:\n  colour: purple\n"),
            "w.yaml:2:11: 'main.colour' cannot be 'purple'; valid: red, deep_blue");
  EXPECT_EQ(
      error_of("main: {colour: deepblue}\n"),
      "w.yaml:1:16: 'main.colour' cannot be 'deepblue'; did you mean 'deep_blue'? (valid: red, "
      "deep_blue)");
  EXPECT_EQ(error_of("mode: fest\n"),
            "w.yaml:1:7: 'mode' cannot be 'fest'; did you mean 'fast'? (valid: fast, slow)");
  EXPECT_EQ(error_of("parts:\n  - {name: a}\n  - {nmae: b}\n"),
            "w.yaml:3:6: unknown key 'nmae' in 'parts.1'; did you mean 'name'?");
  EXPECT_EQ(error_of("deep: {outer: 1}\n"),
            "w.yaml:1:8: unknown key 'outer' in 'deep'; valid: inner");
  EXPECT_EQ(
      error_of("main: {rule: {dekay: {}}}\n"),
      "w.yaml:1:15: 'main.rule' cannot be 'dekay'; did you mean 'decay'? (valid: plain, decay)");
  // A key that another kind has is unknown here.
  EXPECT_THAT(error_of("main: {rule: {plain: {half_life: 2}}}\n"),
              HasSubstr("w.yaml:1:23: unknown key 'half_life' in 'main.rule.plain'"));
}

TEST(Config, WrongTypesSayWhatWasFound) {
  EXPECT_EQ(error_of("on: yes\n"), "w.yaml:1:5: 'on' expects true or false, found the text 'yes'");
  EXPECT_EQ(error_of("small: 3.5\n"),
            "w.yaml:1:8: 'small' expects an integer such as 20_000, found the text '3.5'");
  EXPECT_THAT(error_of("small: 3000000000\n"), HasSubstr("an integer from -2_147_483_648 to"));
  EXPECT_THAT(error_of("seed: -1\n"), HasSubstr("0 or more"));
  EXPECT_EQ(error_of("share: [1]\n"), "w.yaml:1:8: 'share' expects a number, found a list");
  EXPECT_EQ(error_of("share:\n"), "w.yaml:1:1: 'share' expects a number, found nothing");
  EXPECT_EQ(
      error_of("bytes: 25\n"),
      "w.yaml:1:8: 'bytes' expects a size with its unit, such as 25 MiB, found the text '25'");
  EXPECT_THAT(error_of("seconds: 3 MiB\n"), HasSubstr("a time with its unit"));
  EXPECT_THAT(error_of("points: 3\n"), HasSubstr("'points' expects a list"));
  EXPECT_THAT(error_of("points: [1, x]\n"), HasSubstr("w.yaml:1:13: 'points.1' expects a number"));
  EXPECT_THAT(error_of("main: 3\n"), HasSubstr("'main' expects a map of keys and values"));
  EXPECT_THAT(error_of("main: {rule: {plain: {}, decay: {}}}\n"), HasSubstr("expects one of"));
  EXPECT_THAT(error_of("- a\n"), HasSubstr("w.yaml:1:1: the document expects a map"));
}

TEST(Config, TheParsersOwnErrorsHaveTheSameForm) {
  EXPECT_THAT(error_of("main: [\n"), testing::StartsWith("w.yaml:2:1: not valid YAML: "));
  EXPECT_THAT(error_of("main: &a [*a, *a]\n"), HasSubstr("nested more than 64 deep"));
  std::string laughs =
      "a: &a0 [x, x, x, x, x, x, x, x, x]\n";  // 9^10 values, each an alias of nine
  for (int i = 1; i < 10; ++i) {
    const std::string of = "*a" + std::to_string(i - 1);
    laughs += "k" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + of;
    for (int j = 1; j < 9; ++j) laughs += ", " + of;
    laughs += "]\n";
  }
  EXPECT_THAT(error_of(laughs), HasSubstr("more than 1000000 values"));
  EXPECT_THAT(error_of(std::string(60'000, '[')), HasSubstr("w.yaml:1:"));
  EXPECT_THAT(error_of("\ton: 1\n"), testing::StartsWith("w.yaml:1:"));
  EXPECT_EQ(error_of("small: 1\non: true\nsmall: 2\n"),
            "w.yaml:3:1: the key 'small' is given twice, first on line 1");
  EXPECT_THAT(error_of("small: 1\n---\nsmall: 2\n"), HasSubstr("a second YAML document"));
  EXPECT_THAT(error_of("[a]: 1\n"), HasSubstr("a key must be a plain word"));
}

TEST(Config, SetOverridesAndCreatesSections) {
  const Whole x = parse_config<Whole>(
      "small: 1\nparts: [{name: a}]\nmain: {rule: {decay: {half_life: 2}}}\n", "w.yaml",
      {"small=5", "deep.inner=4", "parts.0.colour=deep_blue", "parts.1.name=b", "counts={p: 3}",
       "main.rule.plain.rate=8", "title=x=y", "points=[3]"});
  EXPECT_EQ(x.small, 5);
  EXPECT_EQ(x.inner, 4);
  EXPECT_EQ(x.parts.at(0).colour, Colour::kDeepBlue);
  EXPECT_EQ(x.parts.at(1).name, "b");
  EXPECT_EQ(x.counts.at("p"), 3);
  EXPECT_EQ(x.main.rule.kind, Rule::Kind::kPlain);  // the flag overrules the file's choice
  EXPECT_EQ(x.main.rule.rate, 8);
  EXPECT_EQ(x.title, "x=y");
  EXPECT_EQ(x.points, std::vector<double>{3});
}

TEST(Config, SetErrorsNameTheFlag) {
  EXPECT_EQ(error_of("", {"mian.name=x"}),
            "--set mian.name=x: unknown key 'mian'; did you mean 'main'?");
  EXPECT_EQ(error_of("small: 1\n", {"small=x"}),
            "--set small=x: 'small' expects an integer such as 20_000, found the text 'x'");
  EXPECT_THAT(error_of("", {"small"}), HasSubstr("--set small: expected key=value"));
  for (const std::string text : {"", "=", "=5"})
    EXPECT_EQ(error_of("", {text}),
              "--set " + text + ": expected key=value, such as --set batch=256");
  EXPECT_THAT(error_of("", {"small="}), HasSubstr("--set small=: 'small' expects an integer"));
  // Long text is told by its beginning, cut between two characters.
  std::string umlauts;
  for (int i = 0; i < 5000; ++i) umlauts += "\xC3\xA4";
  for (const std::string& set : {"x" + umlauts + "=1", "small=" + umlauts, "main.colour=" + umlauts,
                                 "." + umlauts + "=1", "small=[" + umlauts}) {
    const std::string error = error_of("", {set});
    EXPECT_LT(error.size(), 600u) << error;
    EXPECT_TRUE(is_utf8(error)) << error;
    EXPECT_THAT(error, HasSubstr("...")) << error;
  }
  EXPECT_THAT(error_of("", {"=1"}), HasSubstr("expected key=value"));
  EXPECT_THAT(error_of("", {"a..b=1"}), HasSubstr("has an empty part"));
  EXPECT_THAT(error_of("", {"small=[1"}), HasSubstr("--set small=[1: the value is not valid YAML"));
  EXPECT_THAT(error_of("points: [1]\n", {"points.3=1"}), HasSubstr("item 3 of a list of 1"));
  EXPECT_THAT(error_of("points: [1]\n", {"points.first=1"}), HasSubstr("is a list here"));
}

TEST(Config, EitherOrIsAnErrorInAFileAndAChoiceOnTheCommandLine) {
  EXPECT_THAT(error_of("epochs: 2\nsteps: 3\n"), HasSubstr("w.yaml:2:1: 'epochs' and 'steps'"));
  const Whole x = parse_config<Whole>("epochs: 2\n", "w.yaml", {"steps=3"});
  EXPECT_EQ(x.epochs, 0);
  EXPECT_EQ(x.steps, 3);
  EXPECT_THAT(error_of("", {"epochs=1", "steps=1"}), HasSubstr("are both given"));
}

TEST(Config, ChecksOfTheWholeSayWhere) {
  EXPECT_EQ(error_of("on: true\nshare: 2\n"), "w.yaml:2:1: share must be at most 1");
  EXPECT_EQ(error_of("", {"share=2"}), "--set share=2: share must be at most 1");
  EXPECT_EQ(error_of("main:\n  {name: bad}\n"), "w.yaml:2:4: a bad name");
}

TEST(Config, ProvenanceFallsBackToWhatEncloses) {
  Provenance from;
  parse_config<Whole>("main:\n  name: x\n", "w.yaml", {"small=2"}, &from);
  EXPECT_EQ(from("main.name"), "w.yaml:2:3: ");
  EXPECT_EQ(from("main.colour"), "w.yaml:1:1: ");  // a default inside a section that was written
  EXPECT_EQ(from("small"), "--set small=2: ");
  EXPECT_EQ(from("title"), "w.yaml: ");
  EXPECT_EQ(Provenance{}("title"), "");
}

TEST(Config, ExplainShowsValueSourceAndMeaning) {
  Provenance from;
  const Whole x = parse_config<Whole>("bytes: 25 MiB\n", "w.yaml", {"deep.inner=2"}, &from);
  const std::string text = explain(x, from);
  EXPECT_THAT(text, testing::ContainsRegex("bytes +25 MiB +w.yaml:1 +a size\n"));
  EXPECT_THAT(text, testing::ContainsRegex("deep.inner +2 +--set +an int\n"));
  EXPECT_THAT(text, testing::ContainsRegex("share +0.25 +default +a double\n"));
  EXPECT_THAT(text, testing::ContainsRegex("main.rule.plain.rate +0.1 +default +how fast\n"));
}

TEST(Config, DifferencesNameWhatChanged) {
  Whole a, b;
  b.small = 4;
  b.counts["n"] = 1;
  b.main.rule.kind = Rule::Kind::kDecay;
  EXPECT_TRUE(differences(a, a).empty());
  EXPECT_THAT(differences(a, b),
              testing::IsSupersetOf({"small: 3 -> 4", "main.rule.plain.rate: 0.1 -> -",
                                     "main.rule.decay.half_life: - -> 7", "counts.n: - -> 1"}));
}

// Texts that a careless writer would turn into something else.
std::string awkward_text(Random& random) {
  static const std::vector<std::string> texts = {
      "",     "a",     "null", "~",     "a: b",  "- x",    "#c",      "a #b",  "\"q\"",
      "it's", "{x}",   "[1]",  "a,b",   " lead", "trail ", "line\nb", "tab\t", "true",
      "1e5",  "*star", "&and", "!bang", "%p",    "@at",    "a\\b",    "é ü",   "x:",
      "-5",   "?",     "a: ",  "|",     ">",     "\x01",   "NULL",    "--",    "key: [v"};
  return texts[random.below(texts.size())];
}

Part random_part(Random& random) {
  Part part;
  part.name = awkward_text(random);
  part.colour = random.below(2) ? Colour::kRed : Colour::kDeepBlue;
  part.rule.kind = random.below(2) ? Rule::Kind::kPlain : Rule::Kind::kDecay;
  part.rule.rate = random.normal();
  if (part.rule.kind == Rule::Kind::kDecay) part.rule.half_life = random.normal() * 1e-9;
  return part;
}

TEST(Config, WhatIsWrittenReadsBackToTheSame) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Random random(seed, RandomUse::kSynthetic);
    Whole x;
    x.on = random.below(2);
    x.small = static_cast<int>(random.next32());
    x.large = static_cast<int64_t>(random.next64());
    x.seed = random.next64();
    x.share = random.uniform();
    x.title = awkward_text(random);
    x.mode = random.below(2) ? "fast" : "slow";
    x.bytes = static_cast<double>(random.below(1ull << 45));
    x.seconds = random.uniform() * 1e-4;
    x.rate = random.uniform() * 1e13;
    if (random.below(2)) x.limit = static_cast<int>(random.below(9));
    x.points.clear();
    for (uint64_t i = random.below(30); i > 0; --i) x.points.push_back(random.normal());
    for (uint64_t i = random.below(4); i > 0; --i) x.parts.push_back(random_part(random));
    for (uint64_t i = random.below(4); i > 0; --i) x.counts[awkward_text(random)] = 1;
    for (uint64_t i = random.below(3); i > 0; --i)
      x.named[awkward_text(random)] = random_part(random);
    x.main = random_part(random);
    x.inner = static_cast<int>(random.below(5));
    (random.below(2) ? x.epochs : x.share) = random.uniform();
    const std::string text = to_yaml(x);
    ASSERT_EQ(parse_config<Whole>(text, "again"), x) << text;
    ASSERT_EQ(to_yaml(parse_config<Whole>(text, "again")), text);  // canonical: digests rely on it
  }
}

TEST(Config, EmptyMayDifferFromTheDefault) {
  Whole x;
  x.points.clear();  // the default is not empty
  x.title = "";
  EXPECT_EQ(parse_config<Whole>(to_yaml(x), "again"), x);
}

TEST(Config, FilesThatCannotBeReadSayWhy) {
  try {
    read_config<Whole>("no/such.yaml");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "cannot read no/such.yaml: No such file or directory");
  }
  EXPECT_THROW(read_config<Whole>("/"), UserError);
}

TEST(Config, PathsAreFoundBesideTheFileThatNamesThem) {
  namespace fs = std::filesystem;
  const fs::path dir = fs::temp_directory_path() / ("tautline_beside_" + std::to_string(getpid()));
  fs::create_directories(dir / "runs");
  std::ofstream(dir / "m.yaml") << "x: 1\n";
  EXPECT_EQ(beside("../m.yaml", (dir / "runs/r.yaml").string()), (dir / "m.yaml").string());
  EXPECT_EQ(beside("absent.yaml", (dir / "runs/r.yaml").string()), "absent.yaml");
  EXPECT_EQ(beside("./absent.yaml", (dir / "r.yaml").string()), (dir / "absent.yaml").string());
  // A file's own neighbour, whatever lies where the program happens to be started.
  std::ofstream(dir / "runs/m.yaml") << "x: 2\n";
  const fs::path before = fs::current_path();
  fs::current_path(dir);
  EXPECT_EQ(beside("m.yaml", (dir / "runs/r.yaml").string()), (dir / "runs/m.yaml").string());
  fs::current_path(before);
  EXPECT_EQ(beside("/x/y.yaml", "r.yaml"), "/x/y.yaml");
  EXPECT_EQ(beside("", "r.yaml"), "");
  fs::remove_all(dir);
}

}  // namespace
}  // namespace tautline
