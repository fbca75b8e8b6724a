#include "tautline/train/checkpoint/safetensors.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tautline/base/error.h"

#include "train/scratch.h"

namespace tautline::train {
namespace {

using testing::HasSubstr;

// A file of the format with any header, right or wrong, and `data` bytes behind it.
void write_raw(const std::string& path, const std::string& header, int64_t data,
               std::optional<uint64_t> claimed = {}) {
  std::ofstream out(path, std::ios::binary);
  const uint64_t length = claimed.value_or(header.size());
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out << header << std::string(static_cast<size_t>(data), 'x');
}

std::string error_of_header(const std::string& header, int64_t data,
                            std::optional<uint64_t> claimed = {}) {
  const Scratch scratch;
  write_raw(scratch.path("bad.safetensors"), header, data, claimed);
  try {
    read_safetensors_header(*open_local_storage(scratch.path())->open("bad.safetensors"));
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Safetensors, RoundTripOfEveryTypeShapeAndSlice) {
  const Scratch scratch;
  const auto storage = open_local_storage(scratch.path());
  const float f32[6] = {0, 1.5f, -2, 3, 4e30f, 5};
  const uint16_t half[3] = {0x3f80, 0, 0xffff};
  const int64_t i64[2] = {-1, int64_t{1} << 40};
  const int32_t i32[1] = {7};
  const uint8_t u8[5] = {1, 2, 3, 4, 255};
  const std::vector<TensorView> views = {{"u8", DataType::kU8, {5}, u8},
                                         {"weight", DataType::kF32, {2, 3}, f32},
                                         {"half.bf16", DataType::kBf16, {3}, half},
                                         {"half.f16", DataType::kF16, {3, 1}, half},
                                         {"ids", DataType::kI64, {2}, i64},
                                         {"scalar \"é\"", DataType::kI32, {}, i32},
                                         {"empty", DataType::kF32, {0, 64}, nullptr}};
  write_safetensors(*storage->create("a.safetensors"), views, {{"step", "12"}});

  const auto file = storage->open("a.safetensors");
  const SafetensorsHeader header = read_safetensors_header(*file);
  EXPECT_EQ(header.metadata.at("step"), "12");
  ASSERT_EQ(header.tensors.size(), views.size());
  for (const TensorView& view : views) {
    const TensorInfo& info = header.tensors.at(view.name);
    EXPECT_EQ(info.type, view.type) << view.name;
    EXPECT_EQ(info.shape, view.shape) << view.name;
    ASSERT_EQ(info.bytes, view.bytes()) << view.name;
    EXPECT_EQ(info.offset % bytes_of(view.type), 0) << view.name << " is not aligned";
    std::vector<char> bytes(static_cast<size_t>(info.bytes));
    read_tensor(*file, info, 0, info.bytes, bytes.data());
    EXPECT_TRUE(bytes.empty() || std::memcmp(bytes.data(), view.data, bytes.size()) == 0)
        << view.name;
  }
  float row[3];
  read_tensor(*file, header.tensors.at("weight"), 12, 12, row);  // row 1 alone
  EXPECT_EQ(row[1], 4e30f);
}

TEST(Safetensors, NoTensorsAtAll) {
  const Scratch scratch;
  const auto storage = open_local_storage(scratch.path());
  write_safetensors(*storage->create("none"), {});
  EXPECT_TRUE(read_safetensors_header(*storage->open("none")).tensors.empty());
}

TEST(Safetensors, TwoTensorsOfOneNameAreNotWritten) {
  const Scratch scratch;
  const auto out = open_local_storage(scratch.path())->create("a");
  const uint8_t byte[1] = {1};
  const std::vector<TensorView> views = {{"w", DataType::kU8, {1}, byte},
                                         {"w", DataType::kU8, {1}, byte}};
  EXPECT_THROW(write_safetensors(*out, views), UserError);
}

TEST(Safetensors, EveryKindOfDamageIsRefusedByName) {
  const std::string w = R"("w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_EQ(error_of_header("{" + w + "}", 8), "");
  struct Case {
    std::string header;
    int64_t data;
    const char* says;
  };
  const std::vector<Case> cases = {
      {"{" + w + "}", 7, "cut short: tensor 'w'"},
      {"{" + w + "}", 9, "1 bytes behind its last tensor"},
      {"{" + w + "," + w + "}", 8, "names 'w' twice"},
      {R"({"w":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8, "twice"},
      {"{" + w + R"(,"v":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", 8, "tensor 'v'"},
      {"{" + w + R"(,"v":{"dtype":"U8","shape":[4],"data_offsets":[9,13]}})", 13, "tensor 'v'"},
      {R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8, "do not agree"},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "do not agree"},
      {R"({"w":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0,
       "do not agree"},
      {R"({"w":{"dtype":"U8","shape":[9223372036854775807],)"
       R"("data_offsets":[0,9223372036854775807]}})",
       0, "do not agree"},
      {R"({"w":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "-2 in 'shape'"},
      {R"({"w":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}})", 8, "2.5 in 'shape'"},
      {R"({"w":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}})", 8, "dtype C64"},
      {R"({"w":{"shape":[2],"data_offsets":[0,8]}})", 8, "no dtype"},
      {R"({"w":{"dtype":"F32","data_offsets":[0,8]}})", 8, "no list 'shape'"},
      {R"({"w":[1]})", 8, "not described by an object"},
      {R"({"__metadata__":{"a":1}})", 0, "__metadata__"},
      {"[1]", 0, "not a JSON object"},
      {"{nonsense", 0, "not JSON"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(error_of_header(c.header, c.data), HasSubstr(c.says)) << c.header;
    EXPECT_THAT(error_of_header(c.header, c.data), HasSubstr("bad.safetensors")) << c.header;
  }
  EXPECT_THAT(error_of_header("{}", 0, 100'000'001), HasSubstr("at most 100 MB"));
  EXPECT_THAT(error_of_header("{}", 0, 3), HasSubstr("cut short inside its header"));
}

// The format's own Python package reads what we write, and we read what it writes.
TEST(Safetensors, AgreesWithThePythonPackage) {
  const Scratch scratch;
  const auto storage = open_local_storage(scratch.path());
  std::vector<float> weight(37 * 5);
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = 0.5f * static_cast<float>(i);
  const uint16_t bf16[3] = {0x3f80, 0x4000, 0xc040};  // 1, 2, -3
  const int64_t ids[2] = {-1, int64_t{1} << 40};
  const std::vector<TensorView> views = {
      {"blocks.0.weight", DataType::kF32, {37, 5}, weight.data()},
      {"table", DataType::kBf16, {3, 1}, bf16},
      {"ids", DataType::kI64, {2}, ids},
      {"empty", DataType::kF16, {0, 8}, nullptr}};
  write_safetensors(*storage->create("ours.safetensors"), views, {{"step", "12"}});
  ASSERT_EQ(python_in(scratch, R"(
import struct, safetensors, numpy
from safetensors.numpy import save_file
got = dict(safetensors.deserialize(open("ours.safetensors", "rb").read()))
assert sorted(got) == ["blocks.0.weight", "empty", "ids", "table"], sorted(got)
w = got["blocks.0.weight"]
assert (w["dtype"], w["shape"]) == ("F32", [37, 5]), w
assert struct.unpack("<185f", bytes(w["data"])) == tuple(0.5 * i for i in range(185))
assert (got["table"]["dtype"], bytes(got["table"]["data"]).hex()) == ("BF16", "803f004040c0")
assert struct.unpack("<2q", bytes(got["ids"]["data"])) == (-1, 2**40)
assert got["empty"]["shape"] == [0, 8]
with safetensors.safe_open("ours.safetensors", "np") as f:
    assert f.metadata() == {"step": "12"}
    assert f.get_slice("blocks.0.weight")[3:5].tolist() == [[7.5, 8, 8.5, 9, 9.5], [10, 10.5, 11, 11.5, 12]]
save_file({"a": numpy.arange(6, dtype=numpy.int32).reshape(2, 3), "b": numpy.float16([1, -2]),
           "c": numpy.zeros((0, 4), numpy.float32), "d": numpy.uint8([9])},
          "theirs.safetensors", {"who": "python"})
)"),
            0);
  const auto file = storage->open("theirs.safetensors");
  const SafetensorsHeader header = read_safetensors_header(*file);
  EXPECT_EQ(header.metadata.at("who"), "python");
  ASSERT_EQ(header.tensors.size(), 4u);
  int32_t a[6];
  read_tensor(*file, header.tensors.at("a"), 0, sizeof a, a);
  EXPECT_THAT(a, testing::ElementsAre(0, 1, 2, 3, 4, 5));
  uint16_t b[2];
  read_tensor(*file, header.tensors.at("b"), 0, sizeof b, b);
  EXPECT_THAT(b, testing::ElementsAre(0x3c00, 0xc000));
  EXPECT_EQ(header.tensors.at("c").shape, (std::vector<int64_t>{0, 4}));
}

}  // namespace
}  // namespace tautline::train
