// Memory of a build grows with the vocabulary only. Each build runs in a process of its own, which
// notes its peak resident set at the end (the kernel's VmHWM; getrusage would count the parent's
// pages of before the exec).
#include <cstdlib>
#include <spawn.h>
#include <sys/wait.h>

#include <gtest/gtest.h>

#include "data/built.h"

namespace tautline::data {
namespace {

using namespace testing_build;

constexpr const char* kChildLog = "TAUTLINE_TEST_MEMORY_LOG";

// The child: the parent starts this test program anew with the log in its environment.
TEST(BuildMemory, DISABLED_Child) {
  const char* log = std::getenv(kChildLog);
  if (log == nullptr) GTEST_SKIP() << "only as a child";
  BuildOptions options;
  options.log = log;
  options.out = std::string(log) + ".built";
  options.partition_bytes = 256 << 10;
  options.rule_events = 20'000;
  options.threads = 2;
  build_log(options);
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) std::ofstream(std::string(log) + ".peak") << line.substr(6);
}

int64_t peak_bytes(const std::string& log) {
  std::string variable = std::string(kChildLog) + "=" + log;
  std::string program = "/proc/self/exe";
  std::string filter = "--gtest_filter=BuildMemory.DISABLED_Child";
  std::string disabled = "--gtest_also_run_disabled_tests", brief = "--gtest_brief=1";
  char* arguments[] = {program.data(), filter.data(), disabled.data(), brief.data(), nullptr};
  // Allocators that give back at once: what they hoard varies from run to run by more than the
  // bound.
  std::string arenas = "MALLOC_ARENA_MAX=1", pool = "ARROW_DEFAULT_MEMORY_POOL=system";
  std::string trim = "MALLOC_TRIM_THRESHOLD_=65536";
  char* environment[] = {variable.data(), arenas.data(), pool.data(), trim.data(), nullptr};
  pid_t child = 0;
  EXPECT_EQ(posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environment), 0);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  int64_t kilobytes = 0;
  std::ifstream(log + ".peak") >> kilobytes;
  EXPECT_GT(kilobytes, 0);
  return kilobytes * 1024;
}

void write_log(const std::string& path, int64_t events, int64_t users) {
  std::ofstream out(path);
  out << "user,item,time\n";
  Random random(9, RandomUse::kSynthetic);
  std::string line;
  for (int64_t i = 0; i < events; ++i) {
    line = "customer-" + std::to_string(random.below(static_cast<uint64_t>(users)));
    line += ",item-" + std::to_string(random.below(1000)) + "," + std::to_string(i) + "\n";
    out << line;
  }
}

TEST(BuildMemory, GrowsNeitherWithEventsNorWithUsers) {
  TemporaryFolder folder;
  constexpr int64_t kEvents = 400'000, kUsers = 20'000, kTimes = 6;
  write_log(folder / "small.csv", kEvents, kUsers);
  write_log(folder / "events.csv", kTimes * kEvents, kUsers);
  write_log(folder / "users.csv", kTimes * kEvents, kTimes * kUsers);
  const int64_t small = peak_bytes(folder / "small.csv");
  // Eight bytes (a time) for each further event would add as much as twice this bound.
  const int64_t bound = (kTimes - 1) * kEvents * 8 / 2;
  for (const char* log : {"events.csv", "users.csv"}) {
    const int64_t large = peak_bytes(folder / log);
    std::printf("%s: %.1f MB, small.csv: %.1f MB, share of the bound used: %.2f\n", log,
                static_cast<double>(large) / 1e6, static_cast<double>(small) / 1e6,
                static_cast<double>(large - small) / static_cast<double>(bound));
    EXPECT_LT(large - small, bound) << log;
  }
}

}  // namespace
}  // namespace tautline::data
