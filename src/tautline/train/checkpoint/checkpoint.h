// A checkpoint: what a run needs to go on with the very same bits, on any number of ranks. No torch
// here: the trainer hands in and receives plain memory.
//
//   CHECKPOINTS/step-00000500/rank-00000-of-00004.safetensors   one file a rank
//                             ...
//                             manifest.json                     last of all
//
// The manifest holds step, data cursor, plan and metrics, and of each file the size and a 128-bit
// digest. A checkpoint without a whole manifest does not exist. On local disks everything is
// written and synced in step-00000500.tmp, which then takes its name in one indivisible step; on
// object stores the manifest is the commit point. So a crash at any moment leaves the checkpoint
// before it good, and never half a one that passes.
//
// Layout of a tensor over ranks: `replicated`, or rows dealt to ranks, where local row l of a file
// is global row l * stride + offset of R. Row-wise tables: offset r, stride W; a whole table on one
// rank: offset 0, stride 1. Loading asks for rows of the same form and gathers them from whatever
// files hold them, so another number of ranks or another Plan is nothing special.
//
//   saving (checkpoint_writer.h does this in the background, in step on all ranks):
//     FileEntry entry = write_rank_file(*storage, place, tensors);            every rank
//     commit(*storage, manifest with all entries);                            rank 0
//     keep_latest(*storage, 3);                                               rank 0
//   loading:
//     CheckpointReader reader(storage, "step-00000500");   reader.verify();
//     reader.read_rows("table.item.weight", DataType::kF32, {rank, world}, out, bytes);
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tautline/data/read/reader.h"
#include "tautline/train/checkpoint/safetensors.h"
#include "tautline/train/checkpoint/storage.h"

namespace tautline::train {

inline constexpr int64_t kCheckpointFormat = 1;

/// Which global rows a local tensor's rows are.
struct RowLayout {
  bool replicated = true;  // the whole tensor, the same on every rank; the rest has no meaning
  int64_t rows = 0;        // R, over all ranks
  int64_t offset = 0, stride = 1;
  bool operator==(const RowLayout&) const = default;

  static RowLayout whole() { return {}; }
  static RowLayout dealt(int64_t rows, int64_t offset, int64_t stride) {
    return {false, rows, offset, stride};
  }
  /// Rows of [0, rows) that this layout holds.
  int64_t local_rows() const { return rows > offset ? (rows - offset + stride - 1) / stride : 0; }
};

/// A tensor to save. view.shape is the local one; its first dimension is layout.local_rows().
struct CheckpointTensor {
  TensorView view;
  RowLayout layout;
};

struct TensorEntry {
  std::string name;
  DataType type = DataType::kF32;
  std::vector<int64_t> shape;  // in this file
  RowLayout layout;
  bool operator==(const TensorEntry&) const = default;
};

struct FileEntry {
  std::string name;  // inside the checkpoint's folder
  int64_t bytes = 0;
  std::string digest;  // XXH3 128, 32 hexadecimal digits
  std::vector<TensorEntry> tensors;
  bool operator==(const FileEntry&) const = default;
};

/// Where early stopping stands.
struct MetricsState {
  std::string metric;          // ndcg@10
  std::optional<double> best;  // none yet
  int64_t best_step = -1;
  int evaluations_since_best = 0;  // patience used
  bool operator==(const MetricsState&) const = default;
};

struct Manifest {
  int64_t format = kCheckpointFormat;
  int64_t step = 0, epoch = 0;
  data::Cursor cursor;  // of the next batch
  int ranks = 1;
  uint64_t seed = 0;  // all the random state there is: numbers are keyed by (seed, step, use)
  std::string plan;   // YAML
  std::string model_digest;
  MetricsState metrics;
  std::map<std::string, std::string> extra;  // the trainer's own, by name
  std::vector<FileEntry> files;
  bool operator==(const Manifest&) const = default;
};

/// JSON whose last key is the digest of everything before it.
std::string to_text(const Manifest& manifest);
/// `where` names the file in messages. Errors: not a manifest, another format, a digest that fails.
Manifest manifest_from_text(const std::string& text, const std::string& where);
std::string to_text(const FileEntry& entry);
FileEntry file_entry_from_text(const std::string& text);

std::string step_name(int64_t step);  // step-00000500
std::string rank_file_name(int rank, int ranks);

struct RankPlace {
  int64_t step = 0;
  int rank = 0, ranks = 1;
};

/// This rank's file, on the medium when it returns. Any earlier checkpoint stays as it is.
FileEntry write_rank_file(Storage& storage, const RankPlace& place,
                          std::span<const CheckpointTensor> tensors);

/// Rank 0, when every rank's entry is in manifest.files: writes the manifest and publishes. Errors:
/// tensors of the files that do not make up whole ones (missing or doubled rows, differing types).
void commit(Storage& storage, const Manifest& manifest);

/// Removes all but the `keep` latest checkpoints (0: none goes) and those of `keep_also`.
void keep_latest(Storage& storage, int keep, const std::set<int64_t>& keep_also = {});

/// Removes what an unfinished save of this step left.
void abandon(Storage& storage, int64_t step);
/// The same for all steps: when a run starts, before its first save, on rank 0.
void remove_leftovers(Storage& storage);

/// Steps that have a manifest, in order. Looks at names only.
std::vector<int64_t> list_checkpoints(Storage& storage);

/// Throws if the tensors of all files do not make up whole ones.
void check_complete(const Manifest& manifest, const std::string& where);

}  // namespace tautline::train
