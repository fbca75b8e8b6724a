#include "tautline/data/read/built_log.h"

#include <algorithm>
#include <numeric>

#include <arrow/array.h>
#include <arrow/io/interfaces.h>
#include <arrow/table.h>
#include <parquet/arrow/reader.h>

#include "tautline/base/config.h"
#include "tautline/base/nearest.h"
#include "tautline/data/arrow_status.h"
#include "tautline/data/format.h"
#include "tautline/data/parallel.h"
#include "tautline/data/read/reader.h"
#include "tautline/workload/workload_fields.h"

namespace tautline::data {
namespace {

constexpr const char* kStatisticsFile = "workload.yaml";

// Text that Arrow's damaged files share.
template <class T, class... Parts>
T undamaged(arrow::Result<T> result, const Parts&... what) {
  if (!result.ok())
    throw user_error(what..., " cannot be read: it is damaged or cut short, build the log again (",
                     first_line(result.status()), ")");
  return std::move(result).ValueUnsafe();
}

std::string read_text(const Location& file) {
  auto input = unwrap(file.filesystem->OpenInputFile(file.path), "cannot open ", file.text);
  const int64_t size = unwrap(input->GetSize(), "cannot read ", file.text);
  auto buffer = unwrap(input->ReadAt(0, size), "cannot read ", file.text);
  return buffer->ToString();
}

LogStatistics read_statistics(const Location& folder) {
  const arrow::fs::FileType type = file_type(folder);
  if (type == arrow::fs::FileType::File)
    throw user_error(folder.text,
                     " is a file, not a built log: build one with `tautline data build ",
                     folder.text, " OUT ...`");
  if (type == arrow::fs::FileType::NotFound)
    throw user_error("there is no log at ", folder.text,
                     ": build one with `tautline data build LOG OUT`");
  const Location file = folder.child(kStatisticsFile);
  if (file_type(file) != arrow::fs::FileType::File)
    throw user_error(folder.text, " has no ", kStatisticsFile,
                     ": it is not a built log, or its build did not end; build it again");
  const auto statistics = parse_config<LogStatistics>(read_text(file), file.text);
  if (statistics.format != kFormatVersion)
    throw user_error(file.text, " is of format ", statistics.format, ", this program reads format ",
                     kFormatVersion, ": build the log again");
  return statistics;
}

std::vector<std::string> part_names(const Location& folder) {
  std::vector<std::string> parts;
  for (const std::string& name : list_folder(folder))
    if (name.rfind("part-", 0) == 0 && name.ends_with(".parquet")) parts.push_back(name);
  return parts;
}

std::unique_ptr<parquet::arrow::FileReader> open_parquet(
    const Location& folder, const arrow::fs::FileInfo& info, const std::string& text,
    std::shared_ptr<parquet::FileMetaData> metadata = nullptr) {
  auto file = unwrap(folder.filesystem->OpenInputFile(info), "cannot open ", text);
  auto properties = parquet::default_reader_properties();
  properties.set_page_checksum_verification(true);  // where the writer left checksums
  parquet::arrow::FileReaderBuilder builder;
  undamaged<bool>(
      [&]() -> arrow::Result<bool> {
        ARROW_RETURN_NOT_OK(builder.Open(file, properties, std::move(metadata)));
        return true;
      }(),
      text);
  return undamaged(builder.Build(), text);
}

/// The leaf of a column or of a list column; -1: there is none.
int leaf_of(const parquet::FileMetaData& metadata, const std::string& name) {
  const parquet::SchemaDescriptor* schema = metadata.schema();
  for (int leaf = 0; leaf < schema->num_columns(); ++leaf)
    if (schema->Column(leaf)->path()->ToDotVector()[0] == name) return leaf;
  return -1;
}

template <class T>
constexpr arrow::Type::type kArrowType = arrow::Type::INT64;
template <>
constexpr arrow::Type::type kArrowType<float> = arrow::Type::FLOAT;

/// Appends the lists of the kept rows. `where` begins the messages.
template <class T>
std::vector<T> kept_lists(const arrow::ChunkedArray& column, const EventBlock& block,
                          const std::vector<uint8_t>& keep, const int32_t* lengths,
                          const std::string& where) {
  std::vector<T> values;
  values.reserve(block.offsets.back());
  int64_t row = 0;
  for (const auto& chunk : column.chunks()) {
    const auto* lists = dynamic_cast<const arrow::ListArray*>(chunk.get());
    if (!lists || lists->value_type()->id() != kArrowType<T>)
      throw user_error(where, " is ", chunk->type()->ToString(), ", a list<",
                       std::is_same_v<T, float> ? "float" : "int64", "> is needed");
    if (lists->null_count() > 0 || lists->values()->null_count() > 0)
      throw user_error(where, " has an absent value: build the log again");
    const T* all = lists->values()->data()->template GetValues<T>(1);
    for (int64_t i = 0; i < lists->length(); ++i, ++row) {
      if (!keep.empty() && !keep[row]) continue;
      if (lists->value_length(i) != lengths[row])
        throw user_error(where, " has ", lists->value_length(i), " values in row ", row,
                         ", the column 'length' says ", lengths[row]);
      const T* first = all + lists->value_offset(i);
      values.insert(values.end(), first, first + lengths[row]);
    }
  }
  return values;
}

void check_ids(const std::vector<int64_t>& ids, int64_t lowest, int64_t size,
               const std::string& where) {
  const auto [low, high] = std::minmax_element(ids.begin(), ids.end());
  if (ids.empty() || (*low >= lowest && *high <= size)) return;
  throw user_error(where, " holds the id ", *low < lowest ? *low : *high,
                   ", its vocabulary has the ids ", lowest, " to ", size);
}

void check_times(const EventBlock& block, const std::string& where) {
  for (size_t row = 0; row + 1 < block.offsets.size(); ++row)
    if (!std::is_sorted(block.time.begin() + block.offsets[row],
                        block.time.begin() + block.offsets[row + 1]))
      throw user_error(where, " runs backwards in row ", row,
                       ": events must be in order of time, build the log again");
}

}  // namespace

LogStatistics read_log_statistics(const std::string& log) {
  return read_statistics(open_filesystem(log));
}

BuiltLog::BuiltLog(const std::string& log, EventColumns columns, int threads)
    : folder_(open_filesystem(log)),
      statistics_(read_statistics(folder_)),
      columns_(std::move(columns)) {
  const auto names = part_names(folder_);
  if (static_cast<int64_t>(names.size()) != statistics_.shards)
    throw user_error(folder_.text, " holds ", names.size(), " part files, its ", kStatisticsFile,
                     " says ", statistics_.shards, ": build the log again");
  parts_.resize(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    const Location file = folder_.child(names[i]);
    parts_[i].text = file.text;
    parts_[i].file = unwrap(file.filesystem->GetFileInfo(file.path), "cannot open ", file.text);
  }
  const std::atomic<bool> never{false};
  parallel_for(static_cast<int64_t>(parts_.size()), threads, never,
               [this](int64_t part) { read_part(part); });

  for (size_t p = 0; p < parts_.size(); ++p) {
    Part& part = parts_[p];
    for (int group = 0; group < part.metadata->num_row_groups(); ++group) {
      row_groups_.push_back({static_cast<int32_t>(p), group});
      shape_.block_begin.push_back(shape_.block_begin.back() +
                                   part.metadata->RowGroup(group)->num_rows());
    }
    shape_.lengths.insert(shape_.lengths.end(), part.lengths.begin(), part.lengths.end());
    std::vector<int32_t>().swap(part.lengths);
  }
  const int64_t users = static_cast<int64_t>(shape_.lengths.size());
  const int64_t events = std::accumulate(shape_.lengths.begin(), shape_.lengths.end(), int64_t{0});
  if (users != statistics_.users || events != statistics_.events)
    throw user_error(folder_.text, " holds ", users, " users and ", events, " events, its ",
                     kStatisticsFile, " says ", statistics_.users, " and ", statistics_.events,
                     ": build the log again");
}

void BuiltLog::read_part(int64_t index) {
  Part& part = parts_[index];
  const auto reader = open_parquet(folder_, part.file, part.text);
  reader->set_use_threads(false);
  part.metadata = reader->parquet_reader()->metadata();
  check_columns(part);
  const auto table = undamaged(reader->ReadTable({leaf_of(*part.metadata, "length")}), part.text);
  for (const auto& chunk : table->column(0)->chunks()) {
    const auto* lengths = dynamic_cast<const arrow::Int32Array*>(chunk.get());
    if (!lengths || lengths->null_count() > 0)
      throw user_error(part.text, ": column 'length' is ", chunk->type()->ToString(),
                       ", an int32 without absent values is needed");
    part.lengths.insert(part.lengths.end(), lengths->raw_values(),
                        lengths->raw_values() + lengths->length());
  }
  const auto negative = std::find_if(part.lengths.begin(), part.lengths.end(),
                                     [](int32_t length) { return length < 0; });
  if (negative != part.lengths.end())
    throw user_error(part.text, ": column 'length' is ", *negative, " in row ",
                     negative - part.lengths.begin());
}

void BuiltLog::check_columns(const Part& part) const {
  const parquet::SchemaDescriptor* schema = part.metadata->schema();
  std::vector<std::string> there;
  for (int leaf = 0; leaf < schema->num_columns(); ++leaf)
    there.push_back(schema->Column(leaf)->path()->ToDotVector()[0]);
  std::vector<std::string> needed = {"length", "item", "time"};
  needed.insert(needed.end(), columns_.categorical.begin(), columns_.categorical.end());
  needed.insert(needed.end(), columns_.real.begin(), columns_.real.end());
  for (const std::string& name : needed)
    if (std::find(there.begin(), there.end(), name) == there.end())
      throw user_error("column '", name, "' is missing from ", part.text, suggestion(name, there));
}

std::string BuiltLog::name_of(int64_t block) const {
  const RowGroup& group = row_groups_[block];
  return parts_[group.part].text + ", row group " + std::to_string(group.index);
}

EventBlock BuiltLog::decode(int64_t block, const std::vector<uint8_t>& keep) const {
  const RowGroup& group = row_groups_[block];
  const Part& part = parts_[group.part];
  const std::string name = name_of(block);
  const int64_t rows = shape_.block_begin[block + 1] - shape_.block_begin[block];
  const int32_t* lengths = shape_.lengths.data() + shape_.block_begin[block];
  TAUTLINE_INVARIANT(keep.empty() || static_cast<int64_t>(keep.size()) == rows,
                     "keep " << keep.size() << ", rows " << rows);

  EventBlock decoded;
  decoded.offsets.reserve(rows + 1);
  for (int64_t row = 0; row < rows; ++row)
    decoded.offsets.push_back(decoded.offsets.back() +
                              (keep.empty() || keep[row] ? lengths[row] : 0));

  const auto reader = open_parquet(folder_, part.file, part.text, part.metadata);
  reader->set_use_threads(false);
  // One column at a time: the memory of one Arrow column beside what is kept.
  const auto read = [&](const std::string& column) {
    const int leaf = leaf_of(*part.metadata, column);
    const auto table = undamaged(reader->ReadRowGroup(group.index, {leaf}), name);
    if (table->num_rows() != rows)
      throw user_error(name, " holds ", table->num_rows(), " rows of ", rows);
    return table->column(0);
  };
  const auto ids = [&](const std::string& column, int64_t lowest) {
    const std::string where = name + ", column '" + column + "'";
    auto values = kept_lists<int64_t>(*read(column), decoded, keep, lengths, where);
    const auto vocabulary = statistics_.vocabularies.find(column);
    if (vocabulary == statistics_.vocabularies.end())
      throw user_error(folder_.text, "/", kStatisticsFile, " has no vocabulary '", column, "'");
    check_ids(values, lowest, vocabulary->second.size, where);
    return values;
  };
  decoded.item = ids("item", 1);
  decoded.time =
      kept_lists<int64_t>(*read("time"), decoded, keep, lengths, name + ", column 'time'");
  check_times(decoded, name + ", column 'time'");
  for (const auto& column : columns_.categorical) decoded.categorical.push_back(ids(column, 0));
  for (const auto& column : columns_.real)
    decoded.real.push_back(kept_lists<float>(*read(column), decoded, keep, lengths,
                                             name + ", column '" + column + "'"));
  return decoded;
}

}  // namespace tautline::data
