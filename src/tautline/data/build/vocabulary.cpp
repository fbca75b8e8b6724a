#include "tautline/data/build/vocabulary.h"

#include <algorithm>
#include <numeric>
#include <xxhash.h>

#include <arrow/array.h>
#include <arrow/builder.h>
#include <arrow/table.h>
#include <parquet/arrow/writer.h>

#include "tautline/data/arrow_status.h"

namespace tautline::data {
namespace {

constexpr int64_t kTokensPerRowGroup = 1 << 18;

}  // namespace

std::vector<int64_t> Vocabulary::order() const {
  std::vector<int64_t> order(counts_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return counts_[static_cast<size_t>(a)] > counts_[static_cast<size_t>(b)];
  });
  return order;
}

std::vector<int64_t> Vocabulary::final_ids() const {
  std::vector<int64_t> ids(counts_.size() + 1, 0);
  const std::vector<int64_t> order = this->order();
  for (size_t rank = 0; rank < order.size(); ++rank)
    ids[static_cast<size_t>(order[rank]) + 1] = static_cast<int64_t>(rank) + 1;
  return ids;
}

std::vector<int64_t> Vocabulary::sorted_counts() const {
  std::vector<int64_t> counts = counts_;
  std::sort(counts.rbegin(), counts.rend());
  return counts;
}

uint64_t Vocabulary::digest() const {
  uint64_t digest = 0;
  for (int64_t place : order()) {
    const std::string_view token = tokens_.token(place);
    digest = XXH3_64bits_withSeed(token.data(), token.size(), digest);
  }
  return digest;
}

void Vocabulary::write(const Location& file) const {
  const auto schema = arrow::schema({arrow::field("id", arrow::int64(), false),
                                     arrow::field("token", arrow::utf8(), false),
                                     arrow::field("count", arrow::int64(), false)});
  auto sink = unwrap(file.filesystem->OpenOutputStream(file.path), "cannot create ", file.text);
  parquet::WriterProperties::Builder properties;
  properties.compression(arrow::Compression::ZSTD)->compression_level(1)->disable_dictionary();
  auto writer = unwrap(parquet::arrow::FileWriter::Open(*schema, arrow::default_memory_pool(), sink,
                                                        properties.build(),
                                                        parquet::default_arrow_writer_properties()),
                       "cannot write ", file.text);
  const std::vector<int64_t> order = this->order();
  for (int64_t from = 0; from < size(); from += kTokensPerRowGroup) {
    const int64_t to = std::min(size(), from + kTokensPerRowGroup);
    arrow::Int64Builder ids, counts;
    arrow::StringBuilder tokens;
    for (int64_t rank = from; rank < to; ++rank) {
      const int64_t place = order[static_cast<size_t>(rank)];
      check(ids.Append(rank + 1), "out of memory for ", file.text);
      check(tokens.Append(tokens_.token(place)), "out of memory for ", file.text);
      check(counts.Append(counts_[static_cast<size_t>(place)]), "out of memory for ", file.text);
    }
    const auto table =
        arrow::Table::Make(schema, {*ids.Finish(), *tokens.Finish(), *counts.Finish()}, to - from);
    check(writer->WriteTable(*table, to - from), "cannot write ", file.text);
  }
  check(writer->Close(), "cannot write ", file.text);
  check(sink->Close(), "cannot write ", file.text);
}

}  // namespace tautline::data
