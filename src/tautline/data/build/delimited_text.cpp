#include "tautline/data/build/delimited_text.h"

#include <algorithm>
#include <cstring>

#include <arrow/buffer.h>
#include <arrow/io/compressed.h>
#include <arrow/util/compression.h>

#include "tautline/base/error.h"
#include "tautline/data/arrow_status.h"

namespace tautline::data {
namespace {

constexpr int64_t kBlock = 1 << 18;
constexpr size_t kLongestHeader = 16 << 20;

arrow::Compression::type compression_of(const arrow::Buffer& head) {
  const auto begins = [&](std::string_view magic) {
    return static_cast<size_t>(head.size()) >= magic.size() &&
           std::memcmp(head.data(), magic.data(), magic.size()) == 0;
  };
  if (begins("\x1f\x8b")) return arrow::Compression::GZIP;
  if (begins("\x28\xb5\x2f\xfd")) return arrow::Compression::ZSTD;
  if (begins("BZh")) return arrow::Compression::BZ2;
  return arrow::Compression::UNCOMPRESSED;
}

/// Counts what is read through it.
class CountedStream : public arrow::io::InputStream {
 public:
  CountedStream(std::shared_ptr<arrow::io::InputStream> stream,
                std::shared_ptr<std::atomic<int64_t>> count)
      : stream_(std::move(stream)), count_(std::move(count)) {}
  arrow::Status Close() override { return stream_->Close(); }
  bool closed() const override { return stream_->closed(); }
  arrow::Result<int64_t> Tell() const override { return stream_->Tell(); }
  arrow::Result<int64_t> Read(int64_t bytes, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const int64_t got, stream_->Read(bytes, out));
    *count_ += got;
    return got;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t bytes) override {
    ARROW_ASSIGN_OR_RAISE(auto got, stream_->Read(bytes));
    *count_ += got->size();
    return got;
  }

 private:
  std::shared_ptr<arrow::io::InputStream> stream_;
  std::shared_ptr<std::atomic<int64_t>> count_;
};

/// A stream after some bytes of it were read.
class RestOfStream : public arrow::io::InputStream {
 public:
  RestOfStream(std::shared_ptr<arrow::Buffer> unread,
               std::shared_ptr<arrow::io::InputStream> stream)
      : unread_(std::move(unread)), stream_(std::move(stream)) {}
  arrow::Status Close() override { return stream_->Close(); }
  bool closed() const override { return stream_->closed(); }
  arrow::Result<int64_t> Tell() const override { return stream_->Tell(); }
  arrow::Result<int64_t> Read(int64_t bytes, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const auto got, Read(bytes));
    std::memcpy(out, got->data(), static_cast<size_t>(got->size()));
    return got->size();
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t bytes) override {
    if (unread_->size() == 0) return stream_->Read(bytes);
    const auto got = arrow::SliceBuffer(unread_, 0, std::min(bytes, unread_->size()));
    unread_ = arrow::SliceBuffer(unread_, got->size());
    return got;
  }

 private:
  std::shared_ptr<arrow::Buffer> unread_;
  std::shared_ptr<arrow::io::InputStream> stream_;
};

/// What is no text, by its first bytes; null: it may be one.
const char* other_kind(std::string_view head) {
  using namespace std::string_view_literals;
  constexpr std::pair<std::string_view, const char*> kKinds[] = {
      {"\xff\xfe"sv, "UTF-16 text; UTF-8 is right: iconv -f UTF-16 -t UTF-8 FILE > NEW"},
      {"\xfe\xff"sv, "UTF-16 text; UTF-8 is right: iconv -f UTF-16 -t UTF-8 FILE > NEW"},
      {"PAR1"sv, "a Parquet file that was compressed as a whole; unpack it"},
      {"\x1f\x8b"sv, "compressed twice; unpack it once"},
      {"PK\x03\x04"sv, "a zip archive or a spreadsheet; unpack it, or save it as CSV"},
      {"\xfd"
       "7zXZ\0"sv,
       "compressed by xz; gz, zst and bz2 are read: xz -dc FILE | gzip > NEW"},
      {"\x04\x22\x4d\x18"sv,
       "compressed by lz4; gz, zst and bz2 are read: lz4 -dc FILE | gzip > NEW"},
      {"7z\xbc\xaf\x27\x1c"sv, "a 7z archive; unpack it"},
      {"ARROW1\0"sv, "an Arrow (Feather) file; write it as Parquet"},
      {"Obj\x01"sv, "an Avro file; write it as Parquet"},
      {"\x89HDF"sv, "an HDF5 file; write it as Parquet"},
      {"SQLite format 3\0"sv, "an SQLite database; write the table as CSV"}};
  for (const auto& [magic, kind] : kKinds)
    if (head.starts_with(magic)) return kind;
  if (head.size() > 262 && head.substr(257, 5) == "ustar") return "a tar archive; unpack it";
  return nullptr;
}

/// UTF-16 without a mark and files that are no text have NUL bytes in line 1; lines of old Macs end
/// with what is inside a line elsewhere.
void refuse_other_text(const Location& file, std::string_view line) {
  if (const char* kind = other_kind(line)) throw user_error(file.text, ", line 1: this is ", kind);
  if (line.find('\0') != line.npos)
    throw user_error(file.text,
                     ", line 1: there is a NUL byte, so this is no text in UTF-8; from "
                     "UTF-16 it is made by iconv -f UTF-16LE -t UTF-8 FILE > NEW");
  if (line.substr(0, line.find_last_not_of('\r') + 1).find('\r') != line.npos)
    throw user_error(file.text,
                     ": lines end with CR only; LF or CR LF is right: tr '\\r' '\\n' < FILE > NEW");
}

/// The text in blocks, to a function that returns false when it has seen enough.
template <class F>
void for_each_block(const Location& file, F&& visit) {
  const TextStream stream = open_text(file);
  while (true) {
    const auto block = unwrap(stream.text->Read(kBlock), "cannot read ", file.text);
    if (block->size() == 0) return;
    const auto* text = reinterpret_cast<const char*>(block->data());
    if (!visit(std::string_view(text, static_cast<size_t>(block->size())))) return;
  }
}

/// Anything but blanks, line ends and a byte order mark?
bool holds_text(const Location& file) {
  bool found = false;
  for_each_block(file, [&](std::string_view block) {
    found = block.find_first_not_of(" \t\r\n\xef\xbb\xbf") != block.npos;
    return !found;
  });
  return found;
}

}  // namespace

TextStream open_text(const Location& file) {
  TextStream stream;
  auto stored = unwrap(file.filesystem->OpenInputFile(file.path), "cannot open ", file.text);
  stream.stored_bytes = unwrap(stored->GetSize(), "cannot look at ", file.text);
  const auto head = unwrap(stored->ReadAt(0, 4), "cannot read ", file.text);
  check(stored->Seek(0), "cannot read ", file.text);
  stream.text = std::make_shared<CountedStream>(stored, stream.read);
  const arrow::Compression::type compression = compression_of(*head);
  if (compression != arrow::Compression::UNCOMPRESSED) {
    const auto codec =
        unwrap(arrow::util::Codec::Create(compression), "cannot decompress ", file.text);
    stream.text = unwrap(arrow::io::CompressedInputStream::Make(codec.get(), stream.text),
                         "cannot decompress ", file.text);
  }
  return stream;
}

std::string first_text_line(const Location& file) {
  std::string line;
  for_each_block(file, [&](std::string_view block) {
    const size_t end = block.find('\n');
    line.append(block.substr(0, end));
    if (line.size() <= kLongestHeader) return end == block.npos;
    refuse_other_text(file, line);
    throw user_error(file.text, " has no line end in ", kLongestHeader >> 20, " MiB");
  });
  refuse_other_text(file, line);
  if (line.rfind("\xef\xbb\xbf", 0) == 0) line.erase(0, 3);
  line.resize(line.find_last_not_of('\r') + 1);
  if (line.empty() && holds_text(file)) throw user_error(file.text, ": line 1 is empty; remove it");
  return line;
}

void skip_first_line(TextStream& stream, const Location& file) {
  while (true) {
    auto block = unwrap(stream.text->Read(kBlock), "cannot read ", file.text);
    if (block->size() == 0) return;
    const auto* text = reinterpret_cast<const char*>(block->data());
    const size_t end = std::string_view(text, static_cast<size_t>(block->size())).find('\n');
    if (end == std::string_view::npos) continue;
    stream.text = std::make_shared<RestOfStream>(
        arrow::SliceBuffer(block, static_cast<int64_t>(end) + 1), stream.text);
    return;
  }
}

std::vector<std::string> split_line(std::string_view line, char delimiter) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted) {
      if (c != '"')
        fields.back() += c;
      else if (i + 1 < line.size() && line[i + 1] == '"')
        fields.back() += line[++i];
      else
        quoted = false;
    } else if (c == '"' && fields.back().empty()) {
      quoted = true;
    } else if (c == delimiter) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

char choose_delimiter(char wish, const std::string& path, std::string_view first_line) {
  if (wish != 0) return wish;
  std::string name = path.substr(path.rfind('/') + 1);
  for (const char* packed : {".gz", ".zst", ".bz2"})
    if (const size_t at = name.rfind(packed);
        at != name.npos && at + std::strlen(packed) == name.size())
      name.resize(at);
  const std::string extension = name.substr(std::min(name.size(), name.rfind('.')));
  if (extension == ".csv") return ',';
  if (extension == ".tsv" || extension == ".tab") return '\t';
  return first_line.find('\t') != first_line.npos ? '\t' : ',';
}

namespace {

/// Follows a text as Arrow's CSV parser does, character by character: where lines and quoted fields
/// begin and end. A line ends with LF, CR LF or, in a file that mixes them, CR.
class TextWalk {
 public:
  explicit TextWalk(char delimiter) : delimiter_(delimiter) {}
  int64_t line = 1;
  bool quoted = false, line_ended = false;  // by the last character

  void pass(char c) {
    const bool second = c == '\n' && after_return_;  // of CR LF
    after_return_ = c == '\r';
    line_ended = c == '\n' || c == '\r';
    line += line_ended && !second;
    if (c == '"' && (quoted || at_field_)) quoted = !quoted;
    at_field_ = c == delimiter_ || line_ended || (c == '"' && !quoted);
  }

 private:
  char delimiter_;
  bool at_field_ = true, after_return_ = false;
};

}  // namespace

int64_t line_of_open_quote(const Location& file, char delimiter) {
  TextWalk walk(delimiter);
  int64_t opened = 0;
  for_each_block(file, [&](std::string_view block) {
    for (const char c : block) {
      const bool before = walk.quoted;
      walk.pass(c);
      if (walk.quoted && !before) opened = walk.line;
    }
    return true;
  });
  return walk.quoted ? opened : 0;
}

int64_t line_of_record(const Location& file, char delimiter, int64_t record) {
  TextWalk walk(delimiter);
  int64_t records = 0, found = 0;
  bool empty = true;  // so far, the line
  for_each_block(file, [&](std::string_view block) {
    for (const char c : block) {
      const int64_t line = walk.line;
      walk.pass(c);
      if (empty && !walk.line_ended && records++ == record) {
        found = line;
        return false;
      }
      empty = walk.line_ended && !walk.quoted;
    }
    return true;
  });
  return found > 0 ? found : walk.line;
}

}  // namespace tautline::data
