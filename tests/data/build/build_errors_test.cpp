// Bad logs: one sentence with file, place, value and what would be right; and nothing left behind.
#include <csignal>
#include <filesystem>
#include <gmock/gmock.h>
#include <sys/resource.h>

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

TEST_F(BuildErrors, EmptyLog) {
  options_.user = "user", options_.item = "item", options_.time = "time";
  EXPECT_THAT(error_of("user,item,time\n"), HasSubstr("log.csv holds no events"));
  EXPECT_THAT(error_of(""), HasSubstr("log.csv holds no events"));
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

TEST_F(BuildErrors, AnEmptyFirstLineIsNoHeader) {
  write_file(options_.log, "\nuser,item,time\nu,i,1\n");
  options_.user = "user", options_.item = "item", options_.time = "time";
  EXPECT_THAT(build_error(options_), HasSubstr("line 1 is empty"));
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
