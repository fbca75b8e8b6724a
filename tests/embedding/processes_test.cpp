// Ranks as processes; on a machine with GPUs run `embedding_rank_program --ranks N --cuda`.
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "comm/command.h"

namespace tautline::embedding {
namespace {

class Processes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Processes, testing::Values(3));

TEST_P(Processes, AllShardingsAgree) {
  const comm::Finished job = comm::run_command(
      {TAUTLINE_BINARY_DIR "/embedding_rank_program", "--ranks", std::to_string(GetParam())});
  EXPECT_EQ(job.status, 0) << job.output;
  EXPECT_THAT(job.output, testing::HasSubstr("rank 0 agrees"));
}

}  // namespace
}  // namespace tautline::embedding
