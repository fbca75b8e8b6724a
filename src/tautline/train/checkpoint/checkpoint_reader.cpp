#include "tautline/train/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>

#include "tautline/base/error.h"
#include "tautline/train/checkpoint/digest.h"

namespace tautline::train {
namespace {

constexpr int64_t kPiece = 4 << 20;  // bytes read at a time where rows are picked out of a file

int64_t product(const std::vector<int64_t>& shape, size_t from) {
  int64_t n = 1;
  for (size_t d = from; d < shape.size(); ++d) n *= shape[d];
  return n;
}

// Rows that a file holds and that are wanted: file row i + k di goes to wanted row j + k dj.
struct CommonRows {
  int64_t count = 0, i = 0, di = 1, j = 0, dj = 1;
};

CommonRows common_rows(const RowLayout& held, const CheckpointReader::Rows& wanted) {
  const int64_t step = std::lcm(held.stride, wanted.stride);
  const int64_t after = std::max<int64_t>(0, held.offset - wanted.offset);
  int64_t row = wanted.offset + (after + wanted.stride - 1) / wanted.stride * wanted.stride;
  for (const int64_t end = row + step; row < end; row += wanted.stride)
    if ((row - held.offset) % held.stride == 0) {
      if (row >= held.rows) break;
      return {(held.rows - 1 - row) / step + 1, (row - held.offset) / held.stride,
              step / held.stride, (row - wanted.offset) / wanted.stride, step / wanted.stride};
    }
  return {};
}

void copy_rows(const CommonRows& rows, int64_t row_bytes, char* out,
               const std::function<void(int64_t begin, int64_t bytes, void* to)>& read) {
  if (rows.di == 1 && rows.dj == 1) {
    read(rows.i * row_bytes, rows.count * row_bytes, out + rows.j * row_bytes);
    return;
  }
  // As many wanted rows as one piece covers, with what lies between them; far apart: one each.
  const int64_t per_piece = std::max<int64_t>(1, kPiece / (rows.di * row_bytes));
  std::vector<char> piece;
  for (int64_t k = 0; k < rows.count; k += per_piece) {
    const int64_t n = std::min(per_piece, rows.count - k);
    const int64_t bytes = ((n - 1) * rows.di + 1) * row_bytes;
    piece.resize(static_cast<size_t>(bytes));
    read((rows.i + k * rows.di) * row_bytes, bytes, piece.data());
    for (int64_t r = 0; r < n; ++r)
      std::memcpy(out + (rows.j + (k + r) * rows.dj) * row_bytes,
                  piece.data() + r * rows.di * row_bytes, static_cast<size_t>(row_bytes));
  }
}

std::string read_all(InputFile& file) {
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read_at(0, file.size(), text.data());
  return text;
}

void verify_file(InputFile& file, const FileEntry& entry) {
  if (file.size() != entry.bytes)
    throw user_error(file.name(), " is damaged: it has ", file.size(), " bytes and should have ",
                     entry.bytes);
  Digest digest;
  std::vector<char> piece(static_cast<size_t>(std::min(kPiece, entry.bytes)));
  for (int64_t done = 0; done < entry.bytes; done += kPiece) {
    const int64_t bytes = std::min(kPiece, entry.bytes - done);
    file.read_at(done, bytes, piece.data());
    digest.add(piece.data(), bytes);
  }
  if (digest.text() != entry.digest)
    throw user_error(file.name(), " is damaged: its digest is ", digest.text(), " and should be ",
                     entry.digest);
}

}  // namespace

std::vector<std::string> exchange_alone(const std::string& mine) { return {mine}; }

CheckpointReader::CheckpointReader(std::shared_ptr<Storage> storage, const std::string& name)
    : storage_(std::move(storage)), folder_(name) {
  const auto file = storage_->open(folder_ + "/manifest.json");
  manifest_ = manifest_from_text(read_all(*file), file->name());
  if (step_name(manifest_.step) != folder_)
    throw user_error(storage_->path_of(folder_), " holds the checkpoint of step ", manifest_.step,
                     ": it was renamed or copied; its name should be ", step_name(manifest_.step));
  check_complete(manifest_, storage_->path_of(folder_));
  for (size_t f = 0; f < manifest_.files.size(); ++f)
    for (const TensorEntry& entry : manifest_.files[f].tensors) {
      Tensor& tensor = tensors_[entry.name];
      const bool scalar = entry.shape.empty();
      tensor.type = entry.type;
      tensor.replicated = entry.layout.replicated;
      tensor.rows = scalar ? 1 : tensor.replicated ? entry.shape[0] : entry.layout.rows;
      tensor.row_bytes = bytes_of(entry.type) * product(entry.shape, 1);
      tensor.shape = entry.shape;
      if (!scalar) tensor.shape[0] = tensor.rows;
      const RowLayout layout =
          tensor.replicated ? RowLayout::dealt(tensor.rows, 0, 1) : entry.layout;
      if (!tensor.replicated || tensor.parts.empty()) tensor.parts.push_back({f, layout});
    }
}

std::vector<std::string> CheckpointReader::tensor_names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

const CheckpointReader::Tensor& CheckpointReader::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    throw user_error("checkpoint ", storage_->path_of(folder_), " has no tensor '", name,
                     "': it was saved by another model");
  return found->second;
}

DataType CheckpointReader::type_of(const std::string& tensor) const { return find(tensor).type; }
std::vector<int64_t> CheckpointReader::shape_of(const std::string& tensor) const {
  return find(tensor).shape;
}

void CheckpointReader::verify(int share, int shares) {
  for (size_t f = static_cast<size_t>(share); f < manifest_.files.size();
       f += static_cast<size_t>(shares)) {
    const FileEntry& entry = manifest_.files[f];
    const auto file = storage_->open(folder_ + "/" + entry.name);
    verify_file(*file, entry);
  }
}

CheckpointReader::OpenFile& CheckpointReader::open_file(size_t index) {
  if (const auto found = open_.find(index); found != open_.end()) return found->second;
  OpenFile file;
  file.input = storage_->open(folder_ + "/" + manifest_.files[index].name);
  file.header = read_safetensors_header(*file.input);
  return open_[index] = std::move(file);
}

int64_t CheckpointReader::gather(const Tensor& tensor, const std::string& name, const Part& part,
                                 Rows rows, char* out) {
  const CommonRows common = common_rows(part.layout, rows);
  if (common.count == 0 || tensor.row_bytes == 0) return common.count;
  OpenFile& file = open_file(part.file);
  const auto info = file.header.tensors.find(name);
  if (info == file.header.tensors.end() || info->second.type != tensor.type ||
      info->second.bytes != part.layout.local_rows() * tensor.row_bytes)
    throw user_error(file.input->name(), " does not hold tensor '", name,
                     "' as the manifest beside it says");
  copy_rows(common, tensor.row_bytes, out, [&](int64_t begin, int64_t bytes, void* to) {
    read_tensor(*file.input, info->second, begin, bytes, to);
  });
  return common.count;
}

void CheckpointReader::read_rows(const std::string& name, DataType type, Rows rows, void* out,
                                 int64_t bytes) {
  const Tensor& tensor = find(name);
  const std::string where = storage_->path_of(folder_);
  if (tensor.type != type)
    throw user_error("tensor '", name, "' of checkpoint ", where, " has type ",
                     name_of(tensor.type), ", this model needs ", name_of(type));
  const int64_t wanted = RowLayout::dealt(tensor.rows, rows.offset, rows.stride).local_rows();
  if (wanted * tensor.row_bytes != bytes)
    throw user_error("tensor '", name, "' of checkpoint ", where, " has ", tensor.rows, " rows of ",
                     tensor.row_bytes, " bytes, this model needs another size (", bytes,
                     " bytes for ", wanted, " of the rows)");
  int64_t got = 0;
  for (const Part& part : tensor.parts)
    got += gather(tensor, name, part, rows, static_cast<char*>(out));
  TAUTLINE_INVARIANT(got == wanted, name << ": " << got << " rows gathered of " << wanted);
}

LatestCheckpoint open_latest(std::shared_ptr<Storage> storage, bool fallback, int rank, int ranks,
                             const Exchange& exchange) {
  // Rank 0's list counts: on network file systems another rank may see an older one.
  std::string listed;
  if (rank == 0)
    for (int64_t step : list_checkpoints(*storage)) listed += step_name(step) + "\n";
  listed = exchange(listed).front();

  LatestCheckpoint latest;
  while (!listed.empty()) {
    const size_t begin = listed.rfind('\n', listed.size() - 2) + 1;  // npos + 1 is 0
    const std::string name = listed.substr(begin, listed.size() - 1 - begin);
    listed.resize(begin);
    std::string error;
    try {
      latest.reader = std::make_unique<CheckpointReader>(storage, name);
      latest.reader->verify(rank, ranks);
    } catch (const UserError& failure) {
      error = failure.what();
    }
    const std::vector<std::string> errors = exchange(error);
    const auto first =
        std::find_if(errors.begin(), errors.end(), [](const auto& text) { return !text.empty(); });
    if (first == errors.end()) return latest;
    latest.reader.reset();
    if (!fallback)
      throw user_error(*first, listed.empty()
                                   ? "; there is no checkpoint before it"
                                   : "; checkpoint.fallback=true takes the one before it");
    latest.skipped.push_back(*first);
  }
  if (!latest.skipped.empty())
    throw user_error("no checkpoint in ", storage->path_of(""),
                     " is whole; the last: ", latest.skipped.back());
  return latest;
}

}  // namespace tautline::train
