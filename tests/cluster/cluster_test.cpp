#include <filesystem>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tautline/cluster/cluster_fields.h"
#include "tautline/cluster/discover.h"

namespace tautline {
namespace {

using testing::HasSubstr;

TEST(Cluster, ReadsQuantitiesWithTheirUnits) {
  const auto cluster = parse_config<Cluster>(R"(
name: p5-8
nodes: 8
devices_per_node: 8
device:
  kind: cuda
  name: H100-80GB
  memory: 80 GiB
  copy: 2.6 TB/s
  gemm: {bf16: 660 TFLOP/s}
  multiprocessors: 132
tiers:
  - {name: nvlink, spans: node, bandwidth: 370 GB/s, latency: 3 us}
  - {name: spine, spans: cluster, oversubscription: 2}
)",
                                             "c.yaml");
  EXPECT_EQ(cluster.device.memory_bytes, 80.0 * (1 << 30));
  EXPECT_EQ(cluster.device.copy_bytes_per_second, 2.6e12);
  EXPECT_EQ(cluster.device.gemm_bf16_flop_per_second, 660e12);
  EXPECT_EQ(cluster.tiers.at(0).latency_seconds, 3e-6);
  EXPECT_EQ(cluster.tiers.at(1).oversubscription, 2);
  EXPECT_EQ(parse_config<Cluster>(to_yaml(cluster), "again"), cluster);
}

TEST(Cluster, EveryConfiguredClusterReadsAndWrites) {
  int count = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(TAUTLINE_SOURCE_DIR "/configs/clusters")) {
    const auto cluster = load_cluster(file.path());
    EXPECT_EQ(parse_config<Cluster>(to_yaml(cluster), "again"), cluster) << file.path();
    EXPECT_GT(cluster.device.memory_bytes, 0) << file.path();
    ++count;
  }
  EXPECT_GE(count, 1);
}

TEST(Cluster, RefusesWhatNoClusterHas) {
  EXPECT_THROW(parse_config<Cluster>("nodes: 0\n", "c"), UserError);
  EXPECT_THROW(parse_config<Cluster>("tiers: [{name: x, oversubscription: 0.5}]\n", "c"),
               UserError);
  EXPECT_THROW(parse_config<Cluster>("tiers: [{name: x, spans: rack}]\n", "c"), UserError);
  EXPECT_THROW(parse_config<Cluster>("device: {memory: 80}\n", "c"), UserError);
}

TEST(Discover, FindsThisMachinesCpu) {
  const Cluster cluster = discover({.device = "cpu"});
  EXPECT_EQ(cluster.device.kind, Device::Kind::kCpu);
  EXPECT_GE(cluster.device.multiprocessors, 1);
  EXPECT_GT(cluster.device.memory_bytes, 64e6);  // more than this test needs
  EXPECT_FALSE(cluster.name.empty());
  EXPECT_NO_THROW(validate(cluster));
  EXPECT_EQ(load_cluster("discover", {.device = "cpu"}), cluster);
}

TEST(Discover, AutoTakesGpusWhereThereAreAny) {
  const Cluster found = discover();
  if (found.device.kind == Device::Kind::kCpu) {
    try {
      discover({.device = "cuda"});
      FAIL();
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("has no NVIDIA GPU"));
    }
  } else {
    EXPECT_GE(found.devices_per_node, 1);
    EXPECT_EQ(discover({.cuda_visible_devices = "0"}).devices_per_node, 1);
    EXPECT_EQ(discover({.cuda_visible_devices = "-1"}).device.kind, Device::Kind::kCpu);
  }
}

}  // namespace
}  // namespace tautline
