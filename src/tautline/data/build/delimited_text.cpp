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

/// UTF-16 (what Windows programs call Unicode) and files that are no text have NUL bytes in line 1.
void refuse_other_encoding(const Location& file, const std::string& line) {
  const bool marked = line.rfind("\xff\xfe", 0) == 0 || line.rfind("\xfe\xff", 0) == 0;
  if (marked)
    throw user_error(file.text,
                     ", line 1: this is UTF-16 text; UTF-8 is right: iconv -f UTF-16 -t "
                     "UTF-8 FILE > NEW");
  if (line.find('\0') != line.npos)
    throw user_error(file.text,
                     ", line 1: there is a NUL byte, so this is no text in UTF-8; from "
                     "UTF-16 it is made by iconv -f UTF-16LE -t UTF-8 FILE > NEW");
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
    if (line.size() > (1 << 24)) throw user_error(file.text, " has no line end in 16 MiB");
    return end == block.npos;
  });
  refuse_other_encoding(file, line);
  if (line.rfind("\xef\xbb\xbf", 0) == 0) line.erase(0, 3);
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

bool holds_text(const Location& file) {
  bool found = false;
  for_each_block(file, [&](std::string_view block) {
    found = block.find_first_not_of(" \t\r\n\xef\xbb\xbf") != block.npos;
    return !found;
  });
  return found;
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

int64_t line_of_open_quote(const Location& file, char delimiter) {
  int64_t line = 1, opened = 0;
  bool quoted = false, at_field = true;
  for_each_block(file, [&](std::string_view block) {
    for (char c : block) {
      if (c == '"' && (quoted || at_field)) {
        quoted = !quoted;
        if (quoted) opened = line;
      }
      at_field = c == delimiter || c == '\n' || (c == '"' && !quoted);
      line += c == '\n';
    }
    return true;
  });
  return quoted ? opened : 0;
}

int64_t line_of_record(const Location& file, char delimiter, int64_t record) {
  int64_t line = 1, records = 0, found = 1;
  bool quoted = false, at_field = true, empty = true;
  for_each_block(file, [&](std::string_view block) {
    for (char c : block) {
      if (empty && c != '\n' && c != '\r') {  // a record begins
        if (records++ == record) {
          found = line;
          return false;
        }
        empty = false;
      }
      if (c == '"' && (quoted || at_field)) quoted = !quoted;
      at_field = c == delimiter || c == '\n' || (c == '"' && !quoted);
      if (c == '\n') {
        ++line;
        if (!quoted) empty = true;
      }
    }
    found = line;
    return true;
  });
  return found;
}

}  // namespace tautline::data
