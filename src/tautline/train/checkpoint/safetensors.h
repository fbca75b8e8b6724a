// The safetensors file format (github.com/huggingface/safetensors, README "Format"): the
// interchange format of model weights that holds no code. A file is
//
//   8 bytes   N, little-endian u64: length of the header
//   N bytes   JSON: {"__metadata__": {text: text}, NAME: {"dtype", "shape", "data_offsets"}, ...}
//   the rest  the tensors' bytes, row-major, little-endian; data_offsets count from here
//
// Strict both ways: tensors cover the rest of the file without overlap or hole, sizes agree with
// dtype and shape, no name appears twice, the header has at most 100 MB. We write tensors by
// falling element size and pad the header with blanks to 8 bytes, so that every tensor is aligned.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tautline/train/checkpoint/storage.h"

namespace tautline::train {

enum class DataType { kF32, kBf16, kF16, kI64, kI32, kU8 };

int64_t bytes_of(DataType type);          // of one element
std::string_view name_of(DataType type);  // F32, BF16, ...

inline constexpr int64_t kMaxSafetensorsHeader = 100'000'000;

/// A tensor in the caller's memory, contiguous. An empty shape is a scalar; a 0 in it: no elements.
struct TensorView {
  std::string name;
  DataType type = DataType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  int64_t bytes() const;
};

/// A tensor in a file.
struct TensorInfo {
  DataType type = DataType::kF32;
  std::vector<int64_t> shape;
  int64_t offset = 0, bytes = 0;  // offset from the start of the file
};

/// What a file says about itself.
struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::map<std::string, TensorInfo> tensors;
};

using TextMap = std::map<std::string, std::string>;

/// Writes the whole file and calls finish(). Errors: two tensors of one name, a name that is not
/// UTF-8, a header beyond the limit (the writer's own: the caller's names), and those of `out`.
void write_safetensors(OutputFile& out, std::span<const TensorView> tensors,
                       const TextMap& metadata = {});

/// Reads and checks the header against the file's size. Errors name the file and the tensor.
SafetensorsHeader read_safetensors_header(InputFile& file);

/// Copies `bytes` of a tensor from byte `begin` inside it.
void read_tensor(InputFile& file, const TensorInfo& tensor, int64_t begin, int64_t bytes,
                 void* out);

}  // namespace tautline::train
