// Any damage to a part is a UserError that names the part, or harmless; never another exception, a
// crash or a hang.
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tautline/base/error.h"
#include "tautline/data/read/reader.h"

#include "data/log_writer.h"

namespace tautline::data {
namespace {

using namespace testing_log;
using testing::HasSubstr;

std::string read_everything(const Log& log, const std::string& folder, int64_t steps) {
  ReaderOptions options;
  options.log = folder;
  options.categorical = log.categorical;
  options.dense = log.dense;
  options.labels = log.labels;
  options.batch = 1000;
  options.cache_bytes = 0;
  options.shuffle_window = 100;
  try {
    const auto reader = open_reader(options);
    for (int64_t k = 0; k < steps; ++k) reader->next();
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

TEST(Damage, FlippedBytesAnywhere) {
  const TemporaryFolder folder;
  const Log log = random_log(41, 300, 20, 1, 50);
  write_log(log, folder / "log");
  const std::string part = folder / "log/part-00000.parquet";
  std::string whole;
  {
    std::ifstream file(part, std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(file), {});
  }
  Random random(42, RandomUse::kSynthetic);
  int found = 0;
  constexpr int kTurns = 150;
  for (int turn = 0; turn < kTurns; ++turn) {
    std::string damaged = whole;
    // Half of them in the footer, where a length or an offset may lie.
    const size_t footer = std::min<size_t>(whole.size(), 4000);
    const size_t at =
        turn % 2 ? random.below(whole.size()) : whole.size() - 1 - random.below(footer);
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random.below(8)));
    std::ofstream(part, std::ios::binary) << damaged;
    const std::string error = read_everything(log, folder / "log", 2);
    if (error.empty()) continue;
    ++found;
    EXPECT_THAT(error, HasSubstr(folder / "log"));
  }
  // Pages carry checksums; the column 'user', which is not read, and statistics in the footer do
  // not matter.
  EXPECT_GT(found, kTurns * 2 / 5);
}

TEST(Damage, CutAnywhere) {
  const TemporaryFolder folder;
  const Log log = random_log(43, 100, 20, 1, 50);
  write_log(log, folder / "log");
  const std::string part = folder / "log/part-00000.parquet";
  const int64_t size = static_cast<int64_t>(std::filesystem::file_size(part));
  for (int64_t cut = 1; cut <= 12; ++cut) {
    std::filesystem::resize_file(part, size * (12 - cut) / 12);
    EXPECT_THAT(read_everything(log, folder / "log", 2), HasSubstr("damaged or cut short"));
  }
}

}  // namespace
}  // namespace tautline::data
