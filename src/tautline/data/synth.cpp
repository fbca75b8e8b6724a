#include "tautline/data/synth.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <thread>

#include <arrow/builder.h>
#include <arrow/io/compressed.h>
#include <arrow/table.h>
#include <arrow/util/compression.h>
#include <parquet/arrow/writer.h>

#include "tautline/base/error.h"
#include "tautline/data/arrow_status.h"
#include "tautline/data/parallel.h"
#include "tautline/data/uri.h"

namespace tautline::data {
namespace {

constexpr int64_t kUsersPerChunk = 1024;

/// A token that does not tell the popularity: an affine permutation of [0, items).
int64_t public_number(int64_t rank, int64_t items, uint64_t seed) {
  int64_t step = 0x9E3779B1 % items;  // made coprime to `items`
  const auto coprime = [&](int64_t a) {
    int64_t b = items;
    while (a != 0) {
      const int64_t rest = b % a;
      b = a;
      a = rest;
    }
    return b == 1;
  };
  while (!coprime(step)) ++step;
  return static_cast<int64_t>(
      (static_cast<unsigned __int128>(rank) * static_cast<uint64_t>(step) + seed) %
      static_cast<uint64_t>(items));
}

class Writer {
 public:
  virtual ~Writer() = default;
  /// Users [first, last) as bytes or a table; called by several threads.
  virtual std::shared_ptr<void> encode(int64_t first, int64_t last, int64_t& events) const = 0;
  virtual void write(const std::shared_ptr<void>& chunk) = 0;  // in order, by one thread
  virtual void close() = 0;
};

class TextWriter : public Writer {
 public:
  TextWriter(const SynthOptions& options, const Location& file, char delimiter)
      : options_(options), file_(file), delimiter_(delimiter) {
    sink_ = unwrap(file.filesystem->OpenOutputStream(file.path), "cannot create ", file.text);
    const auto compression = file.path.ends_with(".gz")    ? arrow::Compression::GZIP
                             : file.path.ends_with(".zst") ? arrow::Compression::ZSTD
                                                           : arrow::Compression::UNCOMPRESSED;
    if (compression != arrow::Compression::UNCOMPRESSED) {
      const auto codec = unwrap(arrow::util::Codec::Create(compression), "cannot compress");
      sink_ =
          unwrap(arrow::io::CompressedOutputStream::Make(codec.get(), sink_), "cannot compress");
    }
    auto header = std::make_shared<std::string>("user,item,time,action,price,clicked\n");
    std::replace(header->begin(), header->end(), ',', delimiter);
    write(header);
  }

  std::shared_ptr<void> encode(int64_t first, int64_t last, int64_t& events) const override {
    auto text = std::make_shared<std::string>();
    char line[128];
    for (int64_t user = first; user < last; ++user)
      for (const SynthEvent& event : synthetic_user(options_, user)) {
        char* end = line;
        const auto number = [&](int64_t value) {
          end = std::to_chars(end, line + sizeof line, value).ptr;
          *end++ = delimiter_;
        };
        *end++ = 'u';
        number(user);
        *end++ = 'i';
        number(public_number(event.item, options_.items, options_.seed));
        number(event.time);
        end += std::snprintf(end, 48, "%s%c%.2f%c%d\n", kSynthActions[event.action], delimiter_,
                             static_cast<double>(event.price), delimiter_, event.clicked);
        text->append(line, end);
        ++events;
      }
    return text;
  }

  void write(const std::shared_ptr<void>& chunk) override {
    const auto& text = *static_cast<const std::string*>(chunk.get());
    check(sink_->Write(text.data(), static_cast<int64_t>(text.size())), "cannot write ",
          file_.text);
  }
  void close() override { check(sink_->Close(), "cannot write ", file_.text); }

 private:
  const SynthOptions& options_;
  Location file_;
  char delimiter_;
  std::shared_ptr<arrow::io::OutputStream> sink_;
};

class ParquetWriter : public Writer {
 public:
  ParquetWriter(const SynthOptions& options, const Location& file)
      : options_(options), file_(file) {
    schema_ = arrow::schema(
        {arrow::field("user", arrow::int64()), arrow::field("item", arrow::int64()),
         arrow::field("time", arrow::int64()), arrow::field("action", arrow::utf8()),
         arrow::field("price", arrow::float32()), arrow::field("clicked", arrow::int32())});
    sink_ = unwrap(file.filesystem->OpenOutputStream(file.path), "cannot create ", file.text);
    parquet::WriterProperties::Builder properties;
    properties.compression(arrow::Compression::ZSTD);
    writer_ = unwrap(parquet::arrow::FileWriter::Open(*schema_, arrow::default_memory_pool(), sink_,
                                                      properties.build()),
                     "cannot write ", file.text);
  }

  std::shared_ptr<void> encode(int64_t first, int64_t last, int64_t& events) const override {
    arrow::Int64Builder users, items, times;
    arrow::StringBuilder actions;
    arrow::FloatBuilder prices;
    arrow::Int32Builder clicks;
    const auto must = [&](const arrow::Status& status) {
      check(status, "cannot write ", file_.text);
    };
    for (int64_t user = first; user < last; ++user)
      for (const SynthEvent& event : synthetic_user(options_, user)) {
        must(users.Append(user));
        must(items.Append(public_number(event.item, options_.items, options_.seed)));
        must(times.Append(event.time));
        must(actions.Append(kSynthActions[event.action]));
        must(prices.Append(event.price));
        must(clicks.Append(event.clicked));
        ++events;
      }
    const int64_t rows = users.length();
    return arrow::Table::Make(schema_,
                              {*users.Finish(), *items.Finish(), *times.Finish(), *actions.Finish(),
                               *prices.Finish(), *clicks.Finish()},
                              rows);
  }

  void write(const std::shared_ptr<void>& chunk) override {
    const auto& table = *static_cast<const arrow::Table*>(chunk.get());
    check(writer_->WriteTable(table, table.num_rows()), "cannot write ", file_.text);
  }
  void close() override {
    check(writer_->Close(), "cannot write ", file_.text);
    check(sink_->Close(), "cannot write ", file_.text);
  }

 private:
  const SynthOptions& options_;
  Location file_;
  std::shared_ptr<arrow::Schema> schema_;
  std::shared_ptr<arrow::io::OutputStream> sink_;
  std::unique_ptr<parquet::arrow::FileWriter> writer_;
};

std::unique_ptr<Writer> open_writer(const SynthOptions& options) {
  const Location file = open_filesystem(options.out);
  std::string name = file.path;
  for (const char* packed : {".gz", ".zst"})
    if (name.ends_with(packed)) name.resize(name.rfind('.'));
  const bool parquet = file.path.ends_with(".parquet");
  if (!parquet && !name.ends_with(".csv") && !name.ends_with(".tsv"))
    throw user_error("the synthetic log ", file.text,
                     " must end in .csv, .tsv (with .gz or .zst if wished) or .parquet");
  const arrow::fs::FileType type = file_type(file);
  if (type == arrow::fs::FileType::Directory) throw user_error(file.text, " is a folder");
  if (type == arrow::fs::FileType::File && !options.overwrite)
    throw user_error(file.text, " exists; name another file, or replace it with --overwrite");
  const size_t slash = file.path.rfind('/');
  if (file.local && slash != std::string::npos && slash > 0)
    check(file.filesystem->CreateDir(file.path.substr(0, slash), true),
          "cannot create the folder of ", file.text);
  if (parquet) return std::make_unique<ParquetWriter>(options, file);
  return std::make_unique<TextWriter>(options, file, name.ends_with(".csv") ? ',' : '\t');
}

}  // namespace

int64_t write_synthetic_log(const SynthOptions& options,
                            const std::function<void(double)>& progress) {
  if (options.users < 1 || options.items < 1 || !(options.events_mean >= 1))
    throw user_error("a synthetic log needs at least one user, one item and one event a user");
  const auto writer = open_writer(options);
  const int threads = options.threads > 0
                          ? options.threads
                          : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const std::atomic<bool> never{false};
  const int64_t wave = threads * 4 * kUsersPerChunk;
  int64_t events = 0;
  for (int64_t from = 0; from < options.users; from += wave) {
    const int64_t to = std::min(options.users, from + wave);
    const int64_t chunks = (to - from + kUsersPerChunk - 1) / kUsersPerChunk;
    std::vector<std::shared_ptr<void>> encoded(static_cast<size_t>(chunks));
    std::vector<int64_t> counts(static_cast<size_t>(chunks), 0);
    parallel_for(chunks, threads, never, [&](int64_t c) {
      const int64_t first = from + c * kUsersPerChunk;
      encoded[static_cast<size_t>(c)] = writer->encode(first, std::min(to, first + kUsersPerChunk),
                                                       counts[static_cast<size_t>(c)]);
    });
    for (size_t c = 0; c < encoded.size(); ++c) {
      writer->write(encoded[c]);
      encoded[c].reset();
      events += counts[c];
    }
    if (progress) progress(static_cast<double>(to) / static_cast<double>(options.users));
  }
  writer->close();
  return events;
}

}  // namespace tautline::data
