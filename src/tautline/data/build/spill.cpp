#include "tautline/data/build/spill.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>
#include <xxhash.h>

#include "tautline/base/error.h"

namespace tautline::data {
namespace {

constexpr int64_t kSplitWays = 16;
constexpr int kMostSplits = 6;  // after 16^6 pieces, what is still large is a single user
constexpr size_t kWindow = 1 << 20, kVarint = 10;

void put_varint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

uint64_t get_varint(const char*& next) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<uint8_t>(*next++);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
}

void write_all(int descriptor, const char* bytes, size_t count, const std::string& path) {
  while (count > 0) {
    const ssize_t written = write(descriptor, bytes, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0)
      throw user_error("cannot write the spill ", path, ": ", std::strerror(errno),
                       "; --scratch names another folder");
    bytes += written;
    count -= static_cast<size_t>(written);
  }
}

uint64_t partition_of(std::string_view user, int level, size_t count) {
  const uint64_t hash =
      XXH3_64bits_withSeed(user.data(), user.size(), static_cast<uint64_t>(level) + 1);
  return static_cast<uint64_t>((static_cast<unsigned __int128>(hash) * count) >> 64);
}

}  // namespace

ScratchFolder::ScratchFolder(const std::string& parent) {
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  path_ = parent + "/.spill-XXXXXX";
  if (error || mkdtemp(path_.data()) == nullptr)
    throw user_error("cannot make a scratch folder in ", parent, ": ",
                     error ? error.message() : std::string(std::strerror(errno)),
                     "; --scratch names another folder");
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;  // a destructor has nobody to tell
  std::filesystem::remove_all(path_, ignored);
}

SpillWriter::SpillWriter(const std::string& prefix, int64_t count, RecordShape shape, int level)
    : files_(static_cast<size_t>(count)),
      shape_(shape),
      level_(level),
      // 4 MiB of buffers in all, but never so little that a write is not worth its call.
      buffer_bytes_(
          static_cast<size_t>(std::clamp<int64_t>((4 << 20) / count, 16 << 10, 256 << 10))) {
  for (size_t i = 0; i < files_.size(); ++i) {
    files_[i].partition.path = prefix + "-" + std::to_string(i);
    files_[i].partition.level = level;
  }
}

SpillWriter::~SpillWriter() {
  for (File& file : files_)
    if (file.descriptor >= 0) ::close(file.descriptor);
}

void SpillWriter::add(const SpillRecord& record) {
  File& file = files_[partition_of(record.user, level_, files_.size())];
  std::string& out = file.buffer;
  if (out.capacity() < buffer_bytes_) out.reserve(buffer_bytes_ + (buffer_bytes_ >> 3));
  put_varint(out, record.user.size());
  out.append(record.user);
  put_varint(
      out, (static_cast<uint64_t>(record.ticks) << 1) ^ static_cast<uint64_t>(record.ticks >> 63));
  for (size_t i = 0; i < shape_.ids; ++i) put_varint(out, static_cast<uint64_t>(record.ids[i]));
  out.append(reinterpret_cast<const char*>(record.dense), shape_.dense * sizeof(float));
  ++file.partition.records;
  if (out.size() >= buffer_bytes_) flush(file);
}

void SpillWriter::flush(File& file) {
  const std::string& path = file.partition.path;
  if (file.descriptor < 0) {
    file.descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file.descriptor < 0)
      throw user_error("cannot create the spill ", path, ": ", std::strerror(errno));
  }
  write_all(file.descriptor, file.buffer.data(), file.buffer.size(), path);
  file.partition.bytes += static_cast<int64_t>(file.buffer.size());
  file.buffer.clear();
}

std::vector<Partition> SpillWriter::close() {
  std::vector<Partition> partitions;
  for (File& file : files_) {
    if (file.partition.records == 0) continue;
    flush(file);
    ::close(file.descriptor);
    file.descriptor = -1;
    std::string().swap(file.buffer);
    partitions.push_back(file.partition);
  }
  return partitions;
}

SpillReader::SpillReader(const Partition& partition, RecordShape shape)
    : path_(partition.path), window_(kWindow), shape_(shape), ids_(shape.ids), dense_(shape.dense) {
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0)
    throw user_error("cannot open the spill ", path_, ": ", std::strerror(errno));
}

SpillReader::~SpillReader() { ::close(descriptor_); }

void SpillReader::need(size_t bytes) {
  if (end_ - begin_ >= bytes) return;
  std::memmove(window_.data(), window_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  if (window_.size() < bytes) window_.resize(bytes);
  while (end_ < window_.size()) {
    const ssize_t got = read(descriptor_, window_.data() + end_, window_.size() - end_);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw user_error("cannot read the spill ", path_, ": ", std::strerror(errno));
    if (got == 0) break;
    end_ += static_cast<size_t>(got);
  }
}

bool SpillReader::next(SpillRecord& record) {
  need(kVarint);
  if (begin_ == end_) return false;
  const char* next = window_.data() + begin_;
  const uint64_t length = get_varint(next);
  begin_ = static_cast<size_t>(next - window_.data());
  need(length + kVarint * (1 + shape_.ids) + shape_.dense * sizeof(float));
  next = window_.data() + begin_;
  record.user = std::string_view(next, length);
  next += length;
  const uint64_t zigzag = get_varint(next);
  record.ticks = static_cast<int64_t>(zigzag >> 1) ^ -static_cast<int64_t>(zigzag & 1);
  for (int64_t& id : ids_) id = static_cast<int64_t>(get_varint(next));
  if (shape_.dense > 0) std::memcpy(dense_.data(), next, shape_.dense * sizeof(float));
  begin_ = static_cast<size_t>(next - window_.data()) + shape_.dense * sizeof(float);
  TAUTLINE_INVARIANT(begin_ <= end_, "a record ends at " << begin_ << " of " << end_ << " bytes");
  record.ids = ids_.data();
  record.dense = dense_.data();
  return true;
}

std::vector<Partition> split_large(std::vector<Partition> partitions, int64_t limit,
                                   RecordShape shape) {
  std::vector<Partition> small;
  for (const Partition& partition : partitions) {
    if (partition.bytes <= limit || partition.level >= kMostSplits) {
      small.push_back(partition);
      continue;
    }
    SpillWriter writer(partition.path, kSplitWays, shape, partition.level + 1);
    SpillReader reader(partition, shape);
    for (SpillRecord record; reader.next(record);) writer.add(record);
    std::vector<Partition> pieces = writer.close();
    unlink(partition.path.c_str());
    for (Partition& piece : split_large(std::move(pieces), limit, shape))
      small.push_back(std::move(piece));
  }
  return small;
}

}  // namespace tautline::data
