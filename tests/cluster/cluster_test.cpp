#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tautline/cluster/cluster_fields.h"
#include "tautline/cluster/discover.h"
#include "tautline/cluster/peak.h"

#include "base/unbounded.h"

namespace tautline {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Cluster, ReadsQuantitiesWithTheirUnits) {
  const auto cluster = parse_config<Cluster>(R"(
name: p5-8
nodes: 8
devices_per_node: 8
device:
  kind: cuda
  name: H100-80GB
  memory: 80 GiB
  peak_flops: {bf16: 989 TFLOP/s, fp8: 1979 TFLOP/s}
  copy: 2.6 TB/s
  gemm: {bf16: 660 TFLOP/s, fp8: 1150 TFLOP/s}
  multiprocessors: 132
tiers:
  - {name: nvlink, spans: node, bandwidth: 370 GB/s, latency: 3 us}
  - {name: spine, spans: cluster, oversubscription: 2}
calibration:
  date: 2026-11-29
  source: tautline calibrate
  versions: {torch: 2.11.0, nccl: 2.28.9, driver: 580.159}
  collectives:
    - op: all_to_all
      tier: nvlink
      ranks: 8
      points: [{size: 1 MiB, time: 210 us}, {size: 64 MiB, time: 3.1 ms}]
      residual: 0.023
)",
                                             "c.yaml");
  EXPECT_EQ(cluster.device.memory_bytes, 80.0 * (1 << 30));
  EXPECT_EQ(cluster.device.copy_bytes_per_second, 2.6e12);
  EXPECT_EQ(cluster.device.peak_flops, (FlopRates{.bf16 = 989e12, .fp8 = 1979e12}));
  EXPECT_EQ(cluster.device.gemm, (FlopRates{.bf16 = 660e12, .fp8 = 1150e12}));
  EXPECT_EQ(cluster.tiers.at(0).latency_seconds, 3e-6);
  EXPECT_EQ(cluster.tiers.at(1).oversubscription, 2);
  const Calibration& calibration = cluster.calibration.value();
  EXPECT_EQ(calibration.date, "2026-11-29");
  EXPECT_EQ(calibration.versions.at("driver"), "580.159");
  const MeasuredCollective& measured = calibration.collectives.at(0);
  EXPECT_EQ(measured.points.at(1), (MeasuredCollective::Point{64.0 * (1 << 20), 3.1e-3}));
  EXPECT_EQ(measured.residual, 0.023);
  EXPECT_EQ(parse_config<Cluster>(to_yaml(cluster), "again"), cluster);
  for (const char* text : {"peak_flops: {bf16: 989 TFLOP/s, fp8: 1979 TFLOP/s}",
                           "gemm: {bf16: 660 TFLOP/s, ", "source: tautline calibrate"})
    EXPECT_THAT(to_yaml(cluster), HasSubstr(text));
}

TEST(Cluster, PrintsAndComparesRatesAndTheirSource) {
  Cluster measured;
  measured.device.gemm = {.bf16 = 698e12, .fp8 = 1082e12};
  measured.calibration.emplace().source = "by hand";
  const Cluster never;
  EXPECT_THAT(to_yaml(never), Not(HasSubstr("calibration")));
  EXPECT_EQ(parse_config<Cluster>(to_yaml(never), "again"), never);
  EXPECT_THAT(to_table(measured), HasSubstr("1082 TFLOP/s"));
  const std::string different = testing::PrintToString(differences(never, measured));
  EXPECT_THAT(different, HasSubstr("device.gemm.bf16: 0 FLOP/s -> 698 TFLOP/s"));
  EXPECT_THAT(different, HasSubstr("calibration.source"));
}

TEST(Cluster, EveryConfiguredClusterReadsAndWrites) {
  int count = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(TAUTLINE_SOURCE_DIR "/configs/clusters")) {
    const auto cluster = load_cluster(file.path());
    EXPECT_EQ(parse_config<Cluster>(to_yaml(cluster), "again"), cluster) << file.path();
    EXPECT_GT(cluster.device.memory_bytes, 0) << file.path();
    EXPECT_GT(cluster.device.peak_flops.bf16, cluster.device.gemm.bf16) << file.path();
    ++count;
  }
  EXPECT_GE(count, 1);
}

TEST(Cluster, NodesAndDevicesHaveAnUpperBound) {
  EXPECT_THAT(unbounded_integers(Cluster{}), testing::ElementsAre("device.multiprocessors"));
}

TEST(Cluster, RefusesWhatNoClusterHas) {
  EXPECT_THROW(parse_config<Cluster>("nodes: 0\n", "c"), UserError);
  EXPECT_THROW(parse_config<Cluster>("tiers: [{name: x, oversubscription: 0.5}]\n", "c"),
               UserError);
  EXPECT_THROW(parse_config<Cluster>("tiers: [{name: x, spans: rack}]\n", "c"), UserError);
  EXPECT_THROW(parse_config<Cluster>("device: {memory: 80}\n", "c"), UserError);
  EXPECT_THROW(parse_config<Cluster>("device: {peak_flops: {bf16: 989}}\n", "c"), UserError);
  EXPECT_THROW(parse_config<Cluster>("device: {peak_flops: {bf16: -1 TFLOP/s}}\n", "c"), UserError);
  EXPECT_THROW(parse_config<Cluster>("device: {gemm: {fp16: 1 TFLOP/s}}\n", "c"), UserError);
  const auto refusal = [](const std::string& collective) {
    try {
      parse_config<Cluster>(
          "tiers: [{name: nvlink}]\ncalibration:\n  collectives:\n    - " + collective + "\n", "c");
      return std::string("none");
    } catch (const UserError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refusal("{op: all_reduce, tier: nvlnk}"),
            "c:4:24: the cluster has no tier 'nvlnk'; did you mean 'nvlink'?");
  EXPECT_THAT(refusal("{op: all_reduce, tier: nvlink, ranks: 1}"), HasSubstr("2 or more, found 1"));
  EXPECT_THAT(refusal("{op: all_reduce, tier: nvlink, points: [{size: 1 MiB}]}"),
              HasSubstr("must be more than 0"));
  EXPECT_THAT(refusal("{op: allreduce, tier: nvlink}"), HasSubstr("all_reduce"));
  EXPECT_EQ(refusal("{op: all_reduce, tier: nvlink}"), "none");
}

// A card by its whole name: what only looks like it has other clocks.
TEST(Peak, OfKnownCardsOnly) {
  EXPECT_EQ(peak_of("NVIDIA H200"), (FlopRates{.bf16 = 989e12, .fp8 = 1979e12}));
  for (const char* name : {"", "NVIDIA H200 NVL", "H200", "NVIDIA H300", "NVIDIA GeForce RTX 4090"})
    EXPECT_EQ(peak_of(name), FlopRates{}) << name;
}

// A cluster's YAML has the last word; where it says nothing, a known card's name does.
TEST(Peak, OfAClustersFile) {
  const std::string path =
      testing::TempDir() + "tautline-peak-" + std::to_string(getpid()) + ".yaml";
  const auto peak = [&](const std::string& device) {
    std::ofstream(path) << "device: {" << device << "}\n";
    const FlopRates found = load_cluster(path).device.peak_flops;
    std::filesystem::remove(path);
    return found;
  };
  EXPECT_EQ(peak("kind: cuda, name: NVIDIA H200"), peak_of("NVIDIA H200"));
  EXPECT_EQ(peak("kind: cuda, name: NVIDIA H200, peak_flops: {bf16: 800 TFLOP/s}"),
            (FlopRates{.bf16 = 800e12}));
  EXPECT_EQ(peak("kind: cuda, name: NVIDIA H300"), FlopRates{});
  EXPECT_EQ(discover({.device = "cpu"}).device.peak_flops, FlopRates{});
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
    EXPECT_EQ(found.device.peak_flops, peak_of(found.device.name));
    EXPECT_EQ(discover({.cuda_visible_devices = "0"}).devices_per_node, 1);
    EXPECT_EQ(discover({.cuda_visible_devices = "-1"}).device.kind, Device::Kind::kCpu);
  }
}

}  // namespace
}  // namespace tautline
