#include <gtest/gtest.h>

#include "tautline/base/error.h"
#include "tautline/comm/launch.h"

namespace tautline::comm {
namespace {

using Hosts = std::vector<std::string>;

TEST(Nodelist, ExpandsRangesListsAndZeros) {
  EXPECT_EQ(expand_nodelist("node1"), Hosts{"node1"});
  EXPECT_EQ(expand_nodelist("node[01-04,7]"),
            (Hosts{"node01", "node02", "node03", "node04", "node7"}));
  EXPECT_EQ(expand_nodelist("a,b[9-11],c"), (Hosts{"a", "b9", "b10", "b11", "c"}));
  EXPECT_EQ(expand_nodelist("rack[1-2]n[08-09]-ib"),
            (Hosts{"rack1n08-ib", "rack1n09-ib", "rack2n08-ib", "rack2n09-ib"}));
}

TEST(Nodelist, RefusesWhatItCannotRead) {
  for (const char* list :
       {"", "a,,b", "n[1", "n]1[", "n[[1]]", "n[b-c]", "n[4-2]", "n[1-]", "n[0-99999999]"})
    EXPECT_THROW(expand_nodelist(list), UserError) << list;
}

TEST(Nodelist, TaskCounts) {
  EXPECT_EQ(expand_task_counts("2(x3),1"), (std::vector<int>{2, 2, 2, 1}));
  EXPECT_EQ(expand_task_counts("8"), std::vector<int>{8});
  EXPECT_TRUE(expand_task_counts("").empty());
  EXPECT_THROW(expand_task_counts("x"), UserError);
  EXPECT_THROW(expand_task_counts("0"), UserError);
}

TEST(Port, IsTheSameForAJobAndBelowTheEphemeralRange) {
  EXPECT_EQ(port_of_job("slurm17.0"), port_of_job("slurm17.0"));
  EXPECT_NE(port_of_job("slurm17.0"), port_of_job("slurm17.1"));
  for (int job = 0; job < 1000; ++job) {
    const int port = port_of_job("slurm" + std::to_string(job));
    EXPECT_GE(port, 10000);
    EXPECT_LT(port, 30000);
  }
}

}  // namespace
}  // namespace tautline::comm
