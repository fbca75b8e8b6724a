#include "tautline/train/checkpoint/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <numeric>

#include "tautline/base/error.h"
#include "tautline/train/checkpoint/digest.h"

namespace tautline::train {
namespace {

constexpr std::string_view kManifest = "manifest.json";
constexpr std::string_view kUnfinished = ".tmp";
constexpr std::string_view kStep = "step-";

// The digest is taken on the way, so that no file is read back to be saved.
class DigestingFile : public OutputFile {
 public:
  explicit DigestingFile(std::unique_ptr<OutputFile> file) : file_(std::move(file)) {}
  void write(const void* data, int64_t bytes) override {
    const char* next = static_cast<const char*>(data);
    constexpr int64_t kPiece = 1 << 20;  // digested while still in the cache
    for (int64_t done = 0; done < bytes; done += kPiece) {
      const int64_t piece = std::min(kPiece, bytes - done);
      digest_.add(next + done, piece);
      file_->write(next + done, piece);
    }
    bytes_ += bytes;
  }
  void finish() override { file_->finish(); }
  int64_t bytes() const { return bytes_; }
  std::string digest() const { return digest_.text(); }

 private:
  std::unique_ptr<OutputFile> file_;
  Digest digest_;
  int64_t bytes_ = 0;
};

std::string folder_being_written(const Storage& storage, int64_t step) {
  return step_name(step) + (storage.can_publish() ? std::string(kUnfinished) : "");
}

std::string in_folder(const std::string& folder, std::string_view name) {
  return folder + "/" + std::string(name);
}

// step-00000500 -> 500; nothing for any other name.
std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  name.remove_prefix(kStep.size());
  int64_t step = 0;
  const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (code != std::errc() || end != name.data() + name.size() || name.size() < 8)
    return std::nullopt;
  return step;
}

// Takes a checkpoint out of sight first, so that one half removed is never found.
void remove_checkpoint(Storage& storage, int64_t step) {
  const std::string name = step_name(step);
  if (storage.can_publish()) {
    const std::string unfinished = name + std::string(kUnfinished);
    storage.remove(unfinished);
    storage.publish(name, unfinished);
    storage.remove(unfinished);
  } else {
    storage.remove(in_folder(name, kManifest));
    storage.remove(name);
  }
}

// Files of another attempt at the same step, by another number of ranks.
void remove_strangers(Storage& storage, const std::string& folder, const Manifest& manifest) {
  for (const std::string& name : storage.list(folder)) {
    const auto known = [&](const FileEntry& file) { return file.name == name; };
    if (std::none_of(manifest.files.begin(), manifest.files.end(), known))
      storage.remove(in_folder(folder, name));
  }
}

// Do two layouts of the same rows share one? o1 + i s1 = o2 + j s2 has solutions iff gcd(s1, s2)
// divides o2 - o1; with rows in range at all, the first common one is below max(o1, o2) + lcm.
bool share_rows(const RowLayout& a, const RowLayout& b) {
  if (a.local_rows() == 0 || b.local_rows() == 0) return false;
  const RowLayout& later = a.offset >= b.offset ? a : b;
  const RowLayout& other = a.offset >= b.offset ? b : a;
  const int64_t gcd = std::gcd(a.stride, b.stride);
  if ((later.offset - other.offset) % gcd != 0) return false;
  for (int64_t row = later.offset; row < later.rows; row += later.stride)
    if ((row - other.offset) % other.stride == 0) return true;
  return false;
}

struct Copies {
  std::vector<const TensorEntry*> entries;
};

void check_tensor(const std::string& name, const Copies& copies, const std::string& where) {
  const TensorEntry& first = *copies.entries.front();
  int64_t rows = 0;
  for (const TensorEntry* entry : copies.entries) {
    const RowLayout& layout = entry->layout;
    const bool alike = entry->type == first.type && entry->shape.size() == first.shape.size() &&
                       layout.replicated == first.layout.replicated &&
                       layout.rows == first.layout.rows &&
                       std::equal(entry->shape.begin() + !entry->shape.empty(), entry->shape.end(),
                                  first.shape.begin() + !first.shape.empty());
    const bool sound = layout.replicated
                           ? entry->shape == first.shape
                           : layout.stride > 0 && layout.offset >= 0 && layout.rows >= 0 &&
                                 !entry->shape.empty() && entry->shape[0] == layout.local_rows();
    if (!alike || !sound)
      throw user_error("the parts of tensor '", name, "' in ", where, " do not fit together");
    if (!layout.replicated) rows += layout.local_rows();
  }
  if (first.layout.replicated) return;
  bool doubled = false;
  for (size_t i = 0; i < copies.entries.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      doubled |= share_rows(copies.entries[i]->layout, copies.entries[j]->layout);
  if (doubled || rows != first.layout.rows)
    throw user_error("the files of ", where, " hold ", rows, " rows of tensor '", name, "', ",
                     doubled ? "some of them twice; " : "", "it has ", first.layout.rows);
}

}  // namespace

std::string step_name(int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step-%08lld", static_cast<long long>(step));
  return text;
}

std::string rank_file_name(int rank, int ranks) {
  char text[64];
  std::snprintf(text, sizeof text, "rank-%05d-of-%05d.safetensors", rank, ranks);
  return text;
}

FileEntry write_rank_file(Storage& storage, const RankPlace& place,
                          std::span<const CheckpointTensor> tensors) {
  const std::string folder = folder_being_written(storage, place.step);
  storage.create_folder(folder);
  // Without an atomic publish the folder may hold an older, whole checkpoint of this step: from
  // here on it is none.
  if (!storage.can_publish()) storage.remove(in_folder(folder, kManifest));

  FileEntry entry;
  entry.name = rank_file_name(place.rank, place.ranks);
  std::vector<TensorView> views;
  for (const CheckpointTensor& tensor : tensors) {
    const TensorView& view = tensor.view;
    TAUTLINE_INVARIANT(tensor.layout.replicated ||
                           (!view.shape.empty() && view.shape[0] == tensor.layout.local_rows()),
                       view.name << " has " << (view.shape.empty() ? -1 : view.shape[0])
                                 << " local rows, layout " << tensor.layout.local_rows());
    views.push_back(view);
    entry.tensors.push_back({view.name, view.type, view.shape, tensor.layout});
  }
  DigestingFile file(storage.create(in_folder(folder, entry.name)));
  write_safetensors(file, views, {{"format", "pt"}, {"step", std::to_string(place.step)}});
  entry.bytes = file.bytes();
  entry.digest = file.digest();
  return entry;
}

void commit(Storage& storage, const Manifest& manifest) {
  const std::string folder = folder_being_written(storage, manifest.step);
  check_complete(manifest, storage.path_of(folder));
  remove_strangers(storage, folder, manifest);
  const std::string text = to_text(manifest);
  const auto file = storage.create(in_folder(folder, kManifest));
  file->write(text.data(), static_cast<int64_t>(text.size()));
  file->finish();
  if (storage.can_publish()) storage.publish(folder, step_name(manifest.step));
}

void keep_latest(Storage& storage, int keep, const std::set<int64_t>& keep_also) {
  if (keep <= 0) return;
  std::vector<int64_t> steps = list_checkpoints(storage);
  const size_t latest = std::min(steps.size(), static_cast<size_t>(keep));
  steps.resize(steps.size() - latest);
  for (int64_t step : steps)
    if (!keep_also.contains(step)) remove_checkpoint(storage, step);
}

void abandon(Storage& storage, int64_t step) {
  const std::string folder = folder_being_written(storage, step);
  if (!storage.can_publish() && storage.exists(in_folder(folder, kManifest))) return;
  storage.remove(folder);
}

void remove_leftovers(Storage& storage) {
  for (const std::string& name : storage.list("")) {
    const bool unfinished =
        name.ends_with(kUnfinished) &&
        step_of(std::string_view(name).substr(0, name.size() - kUnfinished.size()));
    const bool headless =
        !storage.can_publish() && step_of(name) && !storage.exists(in_folder(name, kManifest));
    if (unfinished || headless) storage.remove(name);
  }
}

std::vector<int64_t> list_checkpoints(Storage& storage) {
  std::vector<int64_t> steps;
  for (const std::string& name : storage.list(""))
    if (const auto step = step_of(name); step && storage.exists(in_folder(name, kManifest)))
      steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

void check_complete(const Manifest& manifest, const std::string& where) {
  std::map<std::string, Copies> tensors;
  for (const FileEntry& file : manifest.files)
    for (const TensorEntry& tensor : file.tensors) tensors[tensor.name].entries.push_back(&tensor);
  for (const auto& [name, copies] : tensors) check_tensor(name, copies, where);
}

}  // namespace tautline::train
