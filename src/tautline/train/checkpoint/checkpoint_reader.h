// Reading a checkpoint back, on any number of ranks.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tautline/train/checkpoint/checkpoint.h"

namespace tautline::train {

/// Text from every rank, by rank, for the text of this one. All ranks call it the same number of
/// times. With one rank: itself.
using Exchange = std::function<std::vector<std::string>(const std::string& mine)>;
std::vector<std::string> exchange_alone(const std::string& mine);

class CheckpointReader {
 public:
  /// Reads the manifest of one checkpoint ("step-00000500") and checks that its files' tensors make
  /// up whole ones.
  CheckpointReader(std::shared_ptr<Storage> storage, const std::string& name);

  const Manifest& manifest() const { return manifest_; }
  bool has(const std::string& tensor) const { return tensors_.contains(tensor); }
  std::vector<std::string> tensor_names() const;
  DataType type_of(const std::string& tensor) const;
  /// The whole tensor's shape, over all ranks.
  std::vector<int64_t> shape_of(const std::string& tensor) const;

  /// Reads every `shares`-th file from `share` on in full and compares size and digest. W ranks
  /// verify their shares and exchange what they found (open_latest does). Errors: the first file
  /// that fails, by name.
  void verify(int share = 0, int shares = 1);

  /// Rows offset, offset + stride, ... of the whole tensor, into `out` of exactly `bytes` bytes. A
  /// scalar counts as one row. Errors name the tensor: missing, another type, another size.
  struct Rows {
    int64_t offset = 0, stride = 1;
  };
  void read_rows(const std::string& tensor, DataType type, Rows rows, void* out, int64_t bytes);
  void read_whole(const std::string& tensor, DataType type, void* out, int64_t bytes) {
    read_rows(tensor, type, {0, 1}, out, bytes);
  }

 private:
  struct Part {
    size_t file = 0;
    RowLayout layout;  // replicated: {rows, 0, 1} too
  };
  struct Tensor {
    DataType type = DataType::kF32;
    std::vector<int64_t> shape;
    int64_t rows = 1, row_bytes = 0;
    bool replicated = false;
    std::vector<Part> parts;
  };
  struct OpenFile {
    std::unique_ptr<InputFile> input;
    SafetensorsHeader header;
  };
  const Tensor& find(const std::string& tensor) const;
  OpenFile& open_file(size_t index);
  int64_t gather(const Tensor& tensor, const std::string& name, const Part& part, Rows rows,
                 char* out);

  std::shared_ptr<Storage> storage_;
  std::string folder_;
  Manifest manifest_;
  std::map<std::string, Tensor> tensors_;
  std::map<size_t, OpenFile> open_;
};

struct LatestCheckpoint {
  std::unique_ptr<CheckpointReader> reader;  // verified; none: there is no checkpoint
  std::vector<std::string> skipped;          // with `fallback`: what was wrong with later ones
};

/// The latest checkpoint, verified by all ranks together, each a share of the files; all of them
/// decide alike. A damaged one is an error that names the file and says how to take the one before
/// it; with `fallback` it is skipped, and said so in `skipped`.
LatestCheckpoint open_latest(std::shared_ptr<Storage> storage, bool fallback, int rank = 0,
                             int ranks = 1, const Exchange& exchange = exchange_alone);

}  // namespace tautline::train
