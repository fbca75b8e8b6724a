// What a job asks of its reader.
#include "tautline/train/job.h"

#include <gtest/gtest.h>

#include "tautline/workload/describe.h"
#include "tautline/workload/model_fields.h"

namespace tautline::train {
namespace {

Job job_of(const std::string& model) {
  Job job;
  job.model = read_config<ModelConfig>(TAUTLINE_SOURCE_DIR "/configs/models/" + model + ".yaml");
  return job;
}

TEST(ReaderOptions, ASampleCostsItsUsefulFlop) {
  for (const char* name : {"quickstart", "sasrec", "peer_s", "peer_m", "peer_l"}) {
    const Job job = job_of(name);
    const BackboneConfig& b = job.model.backbone;
    const balance::Cost cost = reader_options(job, 0, 2).cost;
    for (const int64_t tokens : {1, 7, 100, 2048}) {
      const double flop = useful_flop(dense_parameters(job.model), static_cast<double>(tokens),
                                      attention_pairs(static_cast<double>(tokens), b), b.heads,
                                      b.width / b.heads, b.layers);
      EXPECT_NEAR(cost.of(tokens), flop, 1e-12 * flop) << name;  // a few roundings of 2^-53
    }
  }
}

TEST(ReaderOptions, TheDealCountsAttention) {
  // Of one history of 2,048 tokens and 48 of 64, two ranks take 2,560 tokens each; where attention
  // counts, the rank of the long history takes fewer.
  std::vector<int64_t> lengths(49, 64);
  lengths[0] = 2048;
  const auto with_the_long_one = [&](const balance::Cost& cost) {
    const auto deal = balance::deal_by_length(lengths, 2, cost);
    return balance::rank_loads(lengths, deal, 2)[deal[0]];
  };
  EXPECT_EQ(with_the_long_one({}), 2560);
  EXPECT_LT(with_the_long_one(reader_options(job_of("peer_s"), 0, 2).cost), 2560);
}

}  // namespace
}  // namespace tautline::train
