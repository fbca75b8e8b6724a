#include <cstdio>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tautline/base/excerpt.h"
#include "tautline/base/log.h"
#include "tautline/base/nearest.h"
#include "tautline/base/progress.h"
#include "tautline/base/text_table.h"

namespace tautline {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Nearest, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("nmae", "name"), 1);  // neighbours swapped
}

TEST(Nearest, SuggestsOnlyWhatIsNear) {
  const std::vector<std::string> valid = {"epochs", "steps", "evaluate", "checkpoint"};
  EXPECT_EQ(nearest_name("epoch", valid), "epochs");
  EXPECT_EQ(nearest_name("eval", valid), "evaluate");
  EXPECT_EQ(nearest_name("chekpiont", valid), "checkpoint");
  EXPECT_EQ(nearest_name("optimizer", valid), "");
  EXPECT_EQ(nearest_name("h", {"s", "ms"}), "");  // no letter is right
  EXPECT_EQ(suggestion("zzz", valid), "; valid: epochs, steps, evaluate, checkpoint");
}

TEST(Nearest, KnowsOtherWordsForTheSame) {
  const std::vector<std::string> devices = {"auto", "cpu", "cuda"};
  EXPECT_EQ(nearest_name("gpu", devices), "cuda");  // cpu is spelt more alike
  EXPECT_EQ(nearest_name("GPU", devices), "cuda");
  EXPECT_EQ(nearest_name("gpu", {"cpu", "tpu"}), "cpu");  // there is no cuda here
  EXPECT_EQ(choice_suggestion("gpu", devices), "; did you mean 'cuda'? (valid: auto, cpu, cuda)");
  EXPECT_EQ(choice_suggestion("zzz", devices), "; valid: auto, cpu, cuda");
}

TEST(Nearest, ListsOnlySoManyNames) {
  std::vector<std::string> names;
  for (int i = 0; i < 100'000; ++i) names.push_back("c" + std::to_string(i));
  EXPECT_TRUE(suggestion("who", names).ends_with("c38, c39 and 99960 more"));
}

TEST(Excerpt, IsOneShortLineOfText) {
  EXPECT_EQ(excerpt(""), "");
  EXPECT_EQ(excerpt("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x9a\x80"),
            "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x9a\x80");
  EXPECT_EQ(excerpt(std::string_view("a\n\r\t\0\x1b[31m\x7f", 11)),
            "a\\n\\r\\t\\x00\\x1b[31m\\x7f");
  // Not UTF-8: Latin-1, cut short, overlong, a surrogate, beyond the last, a control of two bytes.
  EXPECT_EQ(excerpt("\xe9t\xc3"), "\\xe9t\\xc3");
  EXPECT_EQ(excerpt("\xc0\xaf\xe0\x80\xaf"), "\\xc0\\xaf\\xe0\\x80\\xaf");
  EXPECT_EQ(excerpt("\xed\xa0\x80\xf4\x90\x80\x80"), "\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(excerpt("\xc2\x9b"), "\\xc2\\x9b");
  EXPECT_EQ(excerpt(std::string(60, 'x')), std::string(60, 'x'));
  EXPECT_EQ(excerpt(std::string(61, 'x')), std::string(60, 'x') + "... (61 bytes)");
  // A character is never cut.
  EXPECT_EQ(excerpt(std::string(59, 'x') + "\xc3\xa9"), std::string(59, 'x') + "... (61 bytes)");
  EXPECT_EQ(excerpt("abcdef", 4), "abcd... (6 bytes)");
}

TEST(TextTable, WrapsItsLastColumnAtSpaces) {
  TextTable table({">n", "because"});
  table.add({"1", "the first forty characters are a line, and the others follow below it"});
  table.add({"2", std::string(50, 'x')});
  table.add({"3"});
  table.wrap(10);  // 40 at least
  EXPECT_EQ(table.str(),
            "n  because\n"
            "-  " +
                std::string(50, '-') +
                "\n"
                "1  the first forty characters are a line,\n"
                "   and the others follow below it\n"
                "2  " +
                std::string(50, 'x') +
                "\n"
                "3\n");
  table.wrap(100);
  EXPECT_THAT(table.str(), testing::HasSubstr("line, and the others follow below it\n"));
  EXPECT_EQ(wrapped("a bc  d", 4), (std::vector<std::string>{"a bc", " d"}));
  EXPECT_EQ(wrapped("", 4), std::vector<std::string>{""});
}

TEST(TextTable, AlignsByCodePoints) {
  TextTable table({"name", ">value"});
  table.add({"a", "1"});
  table.add({"größe", "20.5"});
  table.add({"bare"});
  EXPECT_EQ(table.str(),
            "name   value\n"
            "-----  -----\n"
            "a          1\n"
            "größe   20.5\n"
            "bare\n");
}

// What a FILE* received, read back.
class Captured {
 public:
  Captured() : file_(std::tmpfile()) {}
  ~Captured() { std::fclose(file_); }
  std::FILE* file() { return file_; }
  std::string text() {
    std::rewind(file_);
    std::string out;
    for (int c; (c = std::fgetc(file_)) != EOF;) out += static_cast<char>(c);
    return out;
  }

 private:
  std::FILE* file_;
};

TEST(Logger, InfoIsFromRankZeroWarningsFromAll) {
  Captured out;
  for (int rank = 0; rank < 2; ++rank) {
    const Logger log({.rank = rank, .world = 2, .out = out.file()});
    log.debug("hidden");
    log.info("epoch ", 3);
    log.warning("slow");
  }
  EXPECT_EQ(out.text(), "epoch 3\n[rank 0] warning: slow\n[rank 1] warning: slow\n");
}

TEST(Logger, OneProcessNeedsNoRank) {
  Captured out;
  const Logger log({.least = LogLevel::kWarning, .out = out.file()});
  log.info("hidden");
  log.error("gone");
  EXPECT_EQ(out.text(), "error: gone\n");
}

TEST(Progress, TextShowsShareAndTimeLeft) {
  EXPECT_EQ(progress_text("train", 50, 100, 60, "loss 5.2", 100),
            "train  [==========>         ]  50/100  50 %  1:00 left  loss 5.2");
  EXPECT_EQ(progress_text("train", 100, 100, 3661, "", 100),
            "train  [====================]  100/100  100 %  1:01:01");
  EXPECT_EQ(progress_text("read", 7, 0, 2, "", 100), "read  7  0:02");
  EXPECT_EQ(progress_text("train", 50, 100, 60, std::string(200, 'x'), 40).size(), 40u);
}

TEST(Progress, AFileGetsPlainLines) {
  Captured out;
  EXPECT_FALSE(shows_bar(out.file(), false));  // no terminal
  {
    Progress progress(
        {.title = "train", .total = 2, .seconds_between_lines = 0, .out = out.file()});
    progress.update(1, "loss 1");
    progress.update(2, "loss 0");
    progress.finish("done");
    progress.update(2, "after the end");
  }
  const std::string text = out.text();
  EXPECT_THAT(text, HasSubstr("1/2  50 %"));
  EXPECT_THAT(text, HasSubstr("done\n"));
  EXPECT_THAT(text, Not(HasSubstr("after")));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, Not(HasSubstr("\r")));
}

TEST(Progress, ABarRedrawsItsLine) {
  Captured out;
  {
    Progress progress(
        {.title = "t", .total = 2, .bar = true, .seconds_between_bars = 0, .out = out.file()});
    progress.update(1);
    progress.clear();
    progress.update(2);
  }
  const std::string text = out.text();
  EXPECT_EQ(text.front(), '\r');
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  EXPECT_TRUE(text.ends_with("\r\x1b[K"));  // nothing is left on the line
}

TEST(Progress, AQuietRankSaysNothing) {
  Captured out;
  Progress progress({.title = "t", .seconds_between_lines = 0, .quiet = true, .out = out.file()});
  progress.update(1);
  progress.finish();
  EXPECT_EQ(out.text(), "");
}

}  // namespace
}  // namespace tautline
