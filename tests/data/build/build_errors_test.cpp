// Bad logs: one sentence with file, place, value and what would be right; and nothing left behind.
#include <cmath>
#include <csignal>
#include <filesystem>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include "tautline/base/folder_lock.h"
#include "tautline/data/read/reader.h"

#include "data/built.h"

namespace tautline::data {
namespace {

using namespace testing_build;
using testing::AllOf;
using testing::HasSubstr;

class BuildErrors : public testing::Test {
 protected:
  BuildErrors() {
    options_.log = folder_ / "log.csv";
    options_.out = folder_ / "out";
    options_.baselines = false;
  }
  /// The error for this text; the out folder must be as it was: not there.
  std::string error_of(const std::string& text) {
    write_file(options_.log, text);
    const std::string error = build_error(options_);
    EXPECT_FALSE(std::filesystem::exists(options_.out)) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    return error;
  }
  TemporaryFolder folder_;
  BuildOptions options_;
};

TEST_F(BuildErrors, MissingColumnNamesTheNearest) {
  options_.user = "usrId";
  EXPECT_THAT(error_of("userId,item,time\nu,i,1\n"),
              AllOf(HasSubstr("log.csv, line 1"), HasSubstr("'usrId'"), HasSubstr("'userId'")));
  options_.user = "";
  EXPECT_THAT(error_of("who,item,time\nu,i,1\n"),
              AllOf(HasSubstr("--user"), HasSubstr("who, item, time")));
}

TEST_F(BuildErrors, OneColumnIsOneThing) {
  options_.user = options_.item = "item";
  EXPECT_THAT(error_of("user,item,time\nu,i,1\n"),
              HasSubstr("the column 'item' cannot be two of user, item and time"));
}

TEST_F(BuildErrors, TimestampsAsText) {
  EXPECT_THAT(error_of("user,item,time\nu,i,1\n\nu,j,2020-01-01 10:00:00\n"),
              AllOf(HasSubstr("log.csv, line 4"), HasSubstr("'time'"),
                    HasSubstr("'2020-01-01 10:00:00'"), HasSubstr("timestamp as text")));
}

TEST_F(BuildErrors, MillisecondsTakenForSeconds) {
  EXPECT_THAT(error_of("user,item,time\nu,i,1577836800000\n"),
              AllOf(HasSubstr("line 2"), HasSubstr("1577836800000"), HasSubstr("--time-unit")));
}

TEST_F(BuildErrors, NanEmptyAndTextInNumericColumns) {
  options_.labels = {"clicked"};
  const std::string header = "user,item,time,clicked\nu,i,1,0\n";
  EXPECT_THAT(error_of(header + "u,i,2,nan\n"),
              AllOf(HasSubstr("line 3"), HasSubstr("'clicked'"), HasSubstr("NaN")));
  EXPECT_THAT(error_of(header + "u,i,2,\n"), AllOf(HasSubstr("line 3"), HasSubstr("empty")));
  EXPECT_THAT(error_of(header + "u,i,2,yes\n"), AllOf(HasSubstr("line 3"), HasSubstr("'yes'")));
}

TEST_F(BuildErrors, ALabelIsZeroOrOne) {
  options_.dense = {"stars"};
  options_.labels = {"clicked", "liked"};
  const std::string header = "user,item,time,stars,clicked,liked\nu,i,1,5,0,1\n";
  for (const char* value : {"2", "-1", "inf", "0.5", "1e-40"}) {
    const std::string error = error_of(header + "u,i,2,-3.5, 1 ," + value + "\nu,i,2,1,1,1\n");
    EXPECT_THAT(error, AllOf(HasSubstr("log.csv, line 3, column 'liked': the label "),
                             HasSubstr(" is neither 0 nor 1")));
  }
  EXPECT_THAT(error_of(header + "u,i,2,5,-1,0\n"),
              HasSubstr("line 3, column 'clicked': the label -1 is neither 0 nor 1"));
  write_file(options_.log, header + "u,i,2,-3.5,1.0,-0\n");
  EXPECT_EQ(build_error(options_), "");
}

TEST_F(BuildErrors, NumbersThatAFloatCannotHold) {
  options_.dense = {"price"};
  const std::string header = "user,item,time,price\nu,i,1,0\n";
  for (const char* value : {"1e50", "-4e38", "1e500"})
    EXPECT_THAT(error_of(header + "u,i,2," + value + "\n"),
                HasSubstr("log.csv, line 3, column 'price': " + std::string(value) +
                          " is beyond what 32 bits keep"));
  write_file(options_.log, header + "u,i,2,1e-50\nu,i,3,-1e-500\nu,i,4,1e-40\nu,i,5,+1.5\n" +
                               "u,i,6,3.4028235e38\nu,i,7,-Infinity\n");
  ASSERT_EQ(build_error(options_), "");
  EXPECT_THAT(read_built(options_.out).users.at("u").dense.at("price"),
              testing::ElementsAre(0, 0, 0, 1e-40f, 1.5f, 3.4028235e38f, -INFINITY));
}

TEST_F(BuildErrors, AQuotedValueIsShortAndOneLine) {
  const std::string header = "user,item,time\n";
  const std::string junk = std::string(5000, 'x') + "\x1b[31m";
  for (const std::string& rows :
       {"u,i," + junk + "\n", "u,\"" + junk + "\"\n", "u,i,\"" + junk + "\nmore\"\n",
        "u,\xc3(" + junk + ",1\n", junk + "\n"}) {
    const std::string error = error_of(header + rows);
    EXPECT_LT(error.size(), 400u) << error;
    EXPECT_THAT(error, AllOf(HasSubstr(" bytes)"), testing::Not(HasSubstr("\x1b"))));
  }
  EXPECT_THAT(error_of(header + "u,i,a\x1b\tb\n"),
              HasSubstr("'a\\x1b\\tb' is a timestamp as text"));
  EXPECT_LT(error_of(junk + ",b,c\nu,i,1\n").size(), 400u);
  options_.user = junk;
  EXPECT_LT(error_of(header + "u,i,1\n").size(), 400u);
}

TEST_F(BuildErrors, LinesThatEndWithCrOnly) {
  EXPECT_THAT(error_of("user,item,time\ru,i,1\ru,j,2\r"),
              AllOf(HasSubstr("log.csv: lines end with CR only"), HasSubstr("tr '\\r' '\\n'")));
  EXPECT_THAT(error_of("x\r" + std::string(20 << 20, 'x')), HasSubstr("lines end with CR only"));
  // Among other line ends they end lines too, and are counted.
  EXPECT_THAT(error_of("user,item,time\r\nu,i,1\ru,j,2\r\nu,k,late\n"),
              AllOf(HasSubstr("log.csv, line 4"), HasSubstr("'late'")));
}

TEST_F(BuildErrors, EmptyLog) {
  options_.user = "user", options_.item = "item", options_.time = "time";
  EXPECT_THAT(error_of("user,item,time\n"), HasSubstr("log.csv holds no events"));
  EXPECT_THAT(error_of(""), HasSubstr("log.csv holds no events"));
  for (const char* text : {"user,item,time", "user,item,time\r\n", "user,item,time\r",
                           "user,item,time\n\n\r\n", "\xef\xbb\xbfuser,item,time", "\n", "\r\n"})
    EXPECT_THAT(error_of(text), HasSubstr("log.csv holds no events")) << text;
}

TEST_F(BuildErrors, WrongNumberOfFieldsAfterAQuotedLineEnd) {
  EXPECT_THAT(
      error_of("user,item,time\nu,\"a\nb\",1\n\nu,i\nu,j,3\n"),
      AllOf(HasSubstr("log.csv, line 5"), HasSubstr("2 fields instead of 3"), HasSubstr("u,i")));
}

TEST_F(BuildErrors, AQuoteThatNeverEndsIsToldWhereItBegins) {
  std::string rows;
  for (int i = 0; i < 40'000; ++i) rows += "u,i" + std::to_string(i) + ",5\n";
  const std::string header = "user,item,time\nu,\"a\nb\",1\nu,\"i";
  for (const std::string& rest : {std::string(",2\nu,j,3\n"), ",2\n" + rows})
    EXPECT_THAT(error_of(header + rest),
                HasSubstr("log.csv, line 4: a quoted field begins here and never ends"));
}

TEST_F(BuildErrors, ALineThatIsTooLongIsToldInOurWords) {
  EXPECT_THAT(error_of("user,item,time\nu,i,1\nu,\"" + std::string(300'000, 'x') + "\",2\n"),
              testing::EndsWith("log.csv, line 3 or below: a line is longer than 128 KiB"));
}

TEST_F(BuildErrors, Utf16AndWhatIsNoText) {
  std::string wide;
  for (const char c : std::string("user,item,time\nu,i,1\n")) wide += {c, '\0'};
  EXPECT_THAT(error_of("\xff\xfe" + wide),
              AllOf(HasSubstr("log.csv, line 1: this is UTF-16"), HasSubstr("iconv")));
  EXPECT_THAT(error_of(wide), AllOf(HasSubstr("log.csv, line 1"), HasSubstr("NUL byte")));
  using namespace std::string_literals;
  EXPECT_THAT(error_of("PK\x03\x04\n\0\x14"s), HasSubstr("log.csv, line 1: this is a zip archive"));
  EXPECT_THAT(error_of("\xfd"
                       "7zXZ\0\0\x04\xe6\n"s),
              HasSubstr("this is compressed by xz"));
  EXPECT_THAT(error_of("ARROW1\0\0\n"s), HasSubstr("write it as Parquet"));
  EXPECT_THAT(error_of("log.csv" + std::string(250, '\0') + "ustar\0\0\n"s),
              HasSubstr("a tar archive"));
  options_.log = folder_ / "log.csv.gz";
  write_file(options_.log, "PAR1\x15\0\n"s, arrow::Compression::GZIP);
  EXPECT_THAT(build_error(options_),
              HasSubstr("log.csv.gz, line 1: this is a Parquet file that was"));
}

TEST_F(BuildErrors, EmptyUserAndBrokenUtf8) {
  EXPECT_THAT(error_of("user,item,time\n,i,1\n"), AllOf(HasSubstr("line 2"), HasSubstr("'user'")));
  EXPECT_THAT(error_of("user,item,time\nu,i,1\nu,\xc3(,2\n"),
              AllOf(HasSubstr("line 3"), HasSubstr("'item'"), HasSubstr("UTF-8")));
}

TEST_F(BuildErrors, ColumnsThatCollide) {
  options_.dense = {"price", "price"};
  EXPECT_THAT(error_of("user,item,time,price\nu,i,1,2\n"), HasSubstr("'price'"));
  options_.dense = {"length"};
  EXPECT_THAT(error_of("user,item,time,length\nu,i,1,2\n"), HasSubstr("'length'"));
}

TEST_F(BuildErrors, TruncatedGz) {
  std::string text = "user,item,time\n";
  for (int i = 0; i < 100'000; ++i) text += "u,i" + std::to_string(i * 7919 % 10007) + ",5\n";
  options_.log = folder_ / "log.csv.gz";
  write_file(options_.log, text, arrow::Compression::GZIP);
  for (const double share : {0.9, 0.001}) {
    std::filesystem::resize_file(
        options_.log, static_cast<uintmax_t>(
                          share * static_cast<double>(std::filesystem::file_size(options_.log))));
    EXPECT_THAT(build_error(options_),
                AllOf(HasSubstr("log.csv.gz"), testing::Not(HasSubstr("IOError"))));
    EXPECT_FALSE(std::filesystem::exists(options_.out));
  }
}

TEST_F(BuildErrors, WhatIsNoLog) {
  options_.log = folder_ / "nothing.csv";
  EXPECT_THAT(build_error(options_), HasSubstr("nothing.csv"));
  std::filesystem::create_directories(folder_ / "empty");
  options_.log = folder_ / "empty";
  EXPECT_THAT(build_error(options_), HasSubstr("empty holds no log files"));
}

// Each would remove the other's shards.
TEST_F(BuildErrors, OneBuildAtATimeWritesAFolder) {
  write_file(options_.log, "user,item,time\nu,i,1\n");
  EXPECT_EQ(build_error(options_), "");
  const LogStatistics before = read_log_statistics(options_.out);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/.lock"));
  options_.overwrite = true;
  {
    const FolderLock other = FolderLock::exclusive(options_.out, "the other's");
    EXPECT_THAT(build_error(options_),
                AllOf(HasSubstr("the folder " + options_.out), HasSubstr(" is in use by pid ")));
  }
  EXPECT_EQ(read_log_statistics(options_.out), before);
  EXPECT_EQ(build_error(options_), "");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/.lock"));
}

// Nothing is left in a folder that is not ours.
TEST_F(BuildErrors, AnotherFolderStaysAsItIs) {
  write_file(options_.log, "user,item,time\nu,i,1\n");
  std::filesystem::create_directories(options_.out);
  write_file(folder_ / "out/thesis.tex", "\\end");
  for (const bool overwrite : {false, true}) {
    options_.overwrite = overwrite;
    EXPECT_NE(build_error(options_), "");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(options_.out), {}), 1);
  }
}

TEST_F(BuildErrors, AFolderInUseIsKept) {
  write_file(options_.log, "user,item,time\nu,i,1\n");
  EXPECT_EQ(build_error(options_), "");
  const LogStatistics before = read_log_statistics(options_.out);
  EXPECT_THAT(build_error(options_), AllOf(HasSubstr("not empty"), HasSubstr("--overwrite")));

  // A new log that cannot be read does not cost the old one.
  options_.overwrite = true;
  write_file(options_.log, "user,item,time\nu,i,1\nu,i,late\n");
  EXPECT_THAT(build_error(options_), HasSubstr("'late'"));
  EXPECT_EQ(read_log_statistics(options_.out), before);

  // What no build wrote is never removed.
  write_file(folder_ / "out/thesis.tex", "\\end");
  write_file(options_.log, "user,item,time\nu,i,1\n");
  EXPECT_THAT(build_error(options_), HasSubstr("thesis.tex"));
  EXPECT_EQ(read_log_statistics(options_.out), before);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "out/thesis.tex"));
  std::filesystem::remove(folder_ / "out/thesis.tex");
  for (const char* name : {"part-00000-c000.snappy.parquet", "part-7.csv", "part-x.parquet"}) {
    const std::string path = options_.out + "/" + name;
    write_file(path, "others'");
    EXPECT_THAT(build_error(options_), HasSubstr(name));
    EXPECT_TRUE(std::filesystem::remove(path));
  }
}

TEST_F(BuildErrors, AColumnsNameIsNoPath) {
  write_file(options_.log, "user,item,time,../../x\nu,i,1,2\n");
  options_.categorical = {"../../x"};
  EXPECT_THAT(build_error(options_), HasSubstr("has a '/' in its name"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "x.parquet"));
}

TEST_F(BuildErrors, AColumnsNameThatTheBuiltLogCannotHave) {
  const std::pair<std::string, const char*> names[] = {
      {"caf\xe9", "'caf\\xe9' has a name that is not UTF-8"},
      {std::string(300, 'c'), "of more than 200 bytes"}};
  for (const auto& [name, says] : names) {
    const std::string text = "user,item,time," + name + "\nu,i,1,2\n";
    options_.categorical = {name};
    EXPECT_THAT(error_of(text), HasSubstr(says));
    options_.categorical = {};
    options_.dense = {name};
    EXPECT_THAT(error_of(text), HasSubstr(says));
    options_.dense = {};  // where it is not read it is no harm
    EXPECT_EQ(error_of("user,item," + name + ",time\nu,i,x,late\n").find("cannot"),
              std::string::npos);
    write_file(options_.log, text);
    EXPECT_EQ(build_error(options_), "");
    std::filesystem::remove_all(options_.out);
  }
}

TEST_F(BuildErrors, AnEmptyFirstLineIsNoHeader) {
  write_file(options_.log, "\nuser,item,time\nu,i,1\n");
  options_.user = "user", options_.item = "item", options_.time = "time";
  EXPECT_THAT(build_error(options_), HasSubstr("line 1 is empty"));
}

TEST_F(BuildErrors, TheFirstFileThatIsNotEmptySaysHowColumnsAreCalled) {
  std::filesystem::create_directories(folder_ / "logs");
  write_file(folder_ / "logs/0.csv", "");
  write_file(folder_ / "logs/1.csv.gz", "", arrow::Compression::GZIP);
  options_.log = folder_ / "logs";
  EXPECT_THAT(build_error(options_), testing::EndsWith("logs holds no events"));
  write_file(folder_ / "logs/2.csv", "movieId,userId,timestamp\ni,u,1\n");
  EXPECT_EQ(build_error(options_), "");
  EXPECT_EQ(read_built(options_.out).users.count("u"), 1u);
}

TEST_F(BuildErrors, AnErrorWhileWritingLeavesNothing) {
  write_file(options_.log, "user,item,time\nu,i,1\nu,i,2\n");
  const auto fail_in_write = [](const BuildProgress& at) {
    if (std::string(at.phase) == "write") throw UserError("the disk is gone");
  };
  EXPECT_THROW(build_log(options_, fail_in_write), UserError);
  EXPECT_FALSE(std::filesystem::exists(options_.out));
  std::filesystem::create_directories(options_.out);  // a folder of the user's stays, empty
  EXPECT_THROW(build_log(options_, fail_in_write), UserError);
  EXPECT_TRUE(std::filesystem::is_empty(options_.out));
}

TEST_F(BuildErrors, AFullScratchDisk) {
  std::string text = "user,item,time\n";
  for (int i = 0; i < 50'000; ++i)
    text += "user" + std::to_string(i) + ",i," + std::to_string(i) + "\n";
  write_file(options_.log, text);
  options_.scratch = folder_ / "scratch";
  // A limit on the size of files stands for a full disk: write() fails in the same way.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tight{300'000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &tight);
  const std::string error = build_error(options_);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(error, AllOf(HasSubstr("cannot write the spill"), HasSubstr("--scratch")));
  EXPECT_FALSE(std::filesystem::exists(options_.out));
  EXPECT_TRUE(list_folder(open_filesystem(options_.scratch)).empty());
}

TEST_F(BuildErrors, WithoutItsLastFileALogIsUnfinished) {
  write_file(options_.log, "user,item,time\nu,i,1\n");
  EXPECT_EQ(build_error(options_), "");
  std::filesystem::remove(folder_ / "out/workload.yaml");
  EXPECT_THROW(read_log_statistics(options_.out), UserError);
  options_.overwrite = true;
  EXPECT_EQ(build_error(options_), "");
  EXPECT_EQ(read_log_statistics(options_.out).events, 1);
}

}  // namespace
}  // namespace tautline::data
