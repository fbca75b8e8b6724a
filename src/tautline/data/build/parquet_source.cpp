// Parquet logs: only the wanted columns, one batch at a time, pages read through a small buffer so
// that memory does not grow with the size of a row group.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <limits>
#include <numeric>

#include <arrow/array.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <arrow/util/float16.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>

#include "tautline/base/error.h"
#include "tautline/base/excerpt.h"
#include "tautline/base/nearest.h"
#include "tautline/data/arrow_status.h"
#include "tautline/data/build/decode.h"
#include "tautline/data/build/events.h"

namespace tautline::data {
namespace {

constexpr int64_t kBatchRows = 1 << 15;

/// Calls visit(row, value) for the rows of an integer or number array of any width, or null for
/// rows without a value. False: another type.
template <class ArrayType, class F>
void visit_rows(const arrow::Array& array, F&& visit) {
  const auto& typed = static_cast<const ArrayType&>(array);
  for (int64_t row = 0; row < array.length(); ++row)
    visit(row, typed.IsNull(row), typed.Value(row));
}

template <class F>
bool visit_integers(const arrow::Array& array, F&& visit) {
  switch (array.type_id()) {
    case arrow::Type::INT8:
      visit_rows<arrow::Int8Array>(array, visit);
      return true;
    case arrow::Type::INT16:
      visit_rows<arrow::Int16Array>(array, visit);
      return true;
    case arrow::Type::INT32:
      visit_rows<arrow::Int32Array>(array, visit);
      return true;
    case arrow::Type::INT64:
      visit_rows<arrow::Int64Array>(array, visit);
      return true;
    case arrow::Type::UINT8:
      visit_rows<arrow::UInt8Array>(array, visit);
      return true;
    case arrow::Type::UINT16:
      visit_rows<arrow::UInt16Array>(array, visit);
      return true;
    case arrow::Type::UINT32:
      visit_rows<arrow::UInt32Array>(array, visit);
      return true;
    case arrow::Type::UINT64:
      visit_rows<arrow::UInt64Array>(array, visit);
      return true;
    default:
      return false;
  }
}

template <class F>
bool visit_numbers(const arrow::Array& array, F&& visit) {
  switch (array.type_id()) {
    case arrow::Type::FLOAT:
      visit_rows<arrow::FloatArray>(array, visit);
      return true;
    case arrow::Type::DOUBLE:
      visit_rows<arrow::DoubleArray>(array, visit);
      return true;
    case arrow::Type::HALF_FLOAT:
      visit_rows<arrow::HalfFloatArray>(array, [&](int64_t row, bool null, uint16_t bits) {
        visit(row, null, arrow::util::Float16::FromBits(bits).ToFloat());
      });
      return true;
    case arrow::Type::BOOL:
      visit_rows<arrow::BooleanArray>(array, visit);
      return true;
    default:
      return visit_integers(array, visit);
  }
}

/// Views of a text array; false: another type.
template <class ArrayType>
void view_texts(const arrow::Array& array, std::vector<std::string_view>& out) {
  const auto& typed = static_cast<const ArrayType&>(array);
  for (int64_t row = 0; row < array.length(); ++row)
    out[static_cast<size_t>(row)] = typed.IsNull(row) ? std::string_view() : typed.GetView(row);
}

/// Tokens of a column: texts as they are, integers in decimal, dictionaries by their values; a null
/// is the empty text. `owner` keeps what was formatted here. False: a type that has no tokens.
bool tokens_of(const std::shared_ptr<arrow::Array>& array, std::vector<std::string_view>& out,
               std::vector<std::shared_ptr<const void>>& owners) {
  out.assign(static_cast<size_t>(array->length()), {});
  owners.push_back(array);
  switch (array->type_id()) {
    case arrow::Type::NA:  // nothing but nulls
      return true;
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
      view_texts<arrow::BinaryArray>(*array, out);
      return true;
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      view_texts<arrow::LargeBinaryArray>(*array, out);
      return true;
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
      view_texts<arrow::BinaryViewArray>(*array, out);
      return true;
    case arrow::Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(*array);
      std::vector<std::string_view> values;
      if (!tokens_of(coded.dictionary(), values, owners)) return false;
      for (int64_t row = 0; row < coded.length(); ++row)
        if (!coded.IsNull(row))
          out[static_cast<size_t>(row)] = values[static_cast<size_t>(coded.GetValueIndex(row))];
      return true;
    }
    default:
      break;
  }
  auto texts = std::make_shared<std::string>();
  std::vector<size_t> ends(out.size());
  const bool integers = visit_integers(*array, [&](int64_t row, bool null, auto value) {
    char digits[24];
    const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    if (!null) texts->append(digits, end);
    ends[static_cast<size_t>(row)] = texts->size();
  });
  if (array->type_id() == arrow::Type::BOOL) {
    visit_rows<arrow::BooleanArray>(*array, [&](int64_t row, bool null, bool value) {
      if (!null) texts->append(value ? "true" : "false");
      ends[static_cast<size_t>(row)] = texts->size();
    });
  } else if (!integers) {
    return false;
  }
  for (size_t row = 0, begin = 0; row < ends.size(); begin = ends[row++])
    out[row] = std::string_view(*texts).substr(begin, ends[row] - begin);
  owners.push_back(texts);
  return true;
}

TimeUnit unit_of(const arrow::DataType& type) {
  switch (static_cast<const arrow::TimestampType&>(type).unit()) {
    case arrow::TimeUnit::SECOND:
      return TimeUnit::kSeconds;
    case arrow::TimeUnit::MILLI:
      return TimeUnit::kMilliseconds;
    case arrow::TimeUnit::MICRO:
      return TimeUnit::kMicroseconds;
    case arrow::TimeUnit::NANO:
      return TimeUnit::kNanoseconds;
  }
  return TimeUnit::kSeconds;
}

class ParquetSource : public EventSource {
 public:
  ParquetSource(const Location& file, const LogColumns& columns) : file_(file), columns_(columns) {
    auto input = unwrap(file.filesystem->OpenInputFile(file.path), "cannot open ", file.text);
    parquet::ReaderProperties properties = parquet::default_reader_properties();
    properties.enable_buffered_stream();
    properties.set_buffer_size(1 << 18);
    parquet::arrow::FileReaderBuilder builder;
    check(builder.Open(input, properties), file.text, " is cut short or not Parquet");
    parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
    arrow_properties.set_batch_size(kBatchRows);
    arrow_properties.set_pre_buffer(false);
    builder.properties(arrow_properties);
    reader_ = unwrap(builder.Build(), "cannot read ", file.text);
    groups_ = reader_->num_row_groups();
    rows_ = reader_->parquet_reader()->metadata()->num_rows();
    choose_columns();
  }

  bool next(EventBatch& batch) override {
    batch = {};
    while (true) {
      if (!batches_ && !open_group()) return false;
      const auto rows =
          unwrap(batches_->Next(), "cannot read ", file_.text, ", row group ", group_);
      if (!rows) {
        batches_.reset();
        continue;
      }
      decode(*rows, batch);
      row_in_group_ += rows->num_rows();
      read_ += rows->num_rows();
      return true;
    }
  }

  double share_read() const override {
    return rows_ ? static_cast<double>(read_) / static_cast<double>(rows_) : 1;
  }

 private:
  void choose_columns() {
    const auto* schema = reader_->parquet_reader()->metadata()->schema();
    std::vector<std::string> names;
    for (int i = 0; i < schema->group_node()->field_count(); ++i)
      names.push_back(schema->group_node()->field(i)->name());
    std::vector<int> wanted;
    for (const std::string& name : columns_.all()) wanted.push_back(leaf_of(*schema, names, name));
    leaves_ = wanted;
    std::sort(leaves_.begin(), leaves_.end());
    leaves_.erase(std::unique(leaves_.begin(), leaves_.end()), leaves_.end());
    for (const int leaf : wanted)  // a batch has the leaves in their order
      index_.push_back(static_cast<int>(std::lower_bound(leaves_.begin(), leaves_.end(), leaf) -
                                        leaves_.begin()));
  }

  int leaf_of(const parquet::SchemaDescriptor& schema, const std::vector<std::string>& names,
              const std::string& name) const {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end())
      throw user_error(file_.text, ": there is no column '", excerpt(name), "'",
                       suggestion(name, names));
    if (std::find(found + 1, names.end(), name) != names.end())
      throw user_error(file_.text, ": two columns are called '", excerpt(name), "'");
    const auto& field = schema.group_node()->field(static_cast<int>(found - names.begin()));
    if (field->is_group() || field->is_repeated())
      throw user_error(file_.text, ": column '", excerpt(name), "' is nested; events are flat");
    for (int leaf = 0; leaf < schema.num_columns(); ++leaf)
      if (schema.GetColumnRoot(leaf) == field.get()) return leaf;
    TAUTLINE_INVARIANT(false, "the column " << name << " has no leaf");
    return -1;
  }

  bool open_group() {
    if (++group_ >= groups_) return false;
    batches_ = unwrap(reader_->GetRecordBatchReader({group_}, leaves_), "cannot read ", file_.text,
                      ", row group ", group_);
    row_in_group_ = 0;
    return true;
  }

  std::string where(int64_t row) const {
    return file_.text + ", row group " + std::to_string(group_) + ", row " +
           std::to_string(row_in_group_ + row);
  }

  [[noreturn]] void wrong_type(const std::string& name, const arrow::DataType& type,
                               const char* expected) const {
    throw user_error(file_.text, ": column '", excerpt(name), "' is of the type ",
                     excerpt(type.ToString()), "; ", expected);
  }

  std::shared_ptr<arrow::Array> column(const arrow::RecordBatch& rows, size_t wanted) const {
    return rows.column(index_[wanted]);
  }

  void tokens(const arrow::RecordBatch& rows, size_t wanted, const std::string& name,
              bool may_be_empty, EventBatch& batch, std::vector<std::string_view>& out) const {
    const auto array = column(rows, wanted);
    if (!tokens_of(array, out, batch.owners))
      wrong_type(name, *array->type(), "tokens are text, integers or booleans: cast it to text");
    for (size_t row = 0; row < out.size(); ++row)
      check_token(out[row], may_be_empty, name, [&] { return where(static_cast<int64_t>(row)); });
  }

  void times(const arrow::RecordBatch& rows, size_t wanted, EventBatch& batch) const {
    const std::string& name = columns_.time;
    std::shared_ptr<arrow::Array> array = column(rows, wanted);
    TimeUnit unit = columns_.time_unit;
    if (array->type_id() == arrow::Type::TIMESTAMP) {
      unit = unit_of(*array->type());
      array = unwrap(array->View(arrow::int64()), "cannot read ", file_.text);
    }
    batch.ticks.resize(static_cast<size_t>(batch.rows));
    const auto one = [&](int64_t row, bool null, auto value) {
      const Place place = [&] { return where(row); };
      if (null) throw user_error(place(), ", column '", excerpt(name), "': the time is null");
      int64_t& ticks = batch.ticks[static_cast<size_t>(row)];
      if constexpr (std::is_unsigned_v<decltype(value)>)
        ticks = ticks_from_unsigned(value, unit, name, place);
      else if constexpr (std::is_integral_v<decltype(value)>)
        ticks = ticks_from_integer(value, unit, name, place);
      else
        ticks = ticks_from_number(static_cast<double>(value), unit, name, place);
      // A timestamp column may be finer or coarser than --time-unit; one of the two divides the other.
      const int64_t from = ticks_per_second(unit), to = ticks_per_second(columns_.time_unit);
      if (from > to)
        ticks = ticks / (from / to) - (ticks % (from / to) < 0);
      else if (__builtin_mul_overflow(ticks, to / from, &ticks))
        throw user_error(place(), ", column '", excerpt(name),
                         "': the time does not fit into nanoseconds");
    };
    if (array->type_id() == arrow::Type::BOOL || !visit_numbers(*array, one)) {
      const bool text =
          array->type_id() == arrow::Type::STRING || array->type_id() == arrow::Type::LARGE_STRING;
      wrong_type(name, *array->type(),
                 text ? "these are timestamps as text; times must be numbers since 1970 or of "
                        "Parquet's timestamp type"
                      : "times must be numbers since 1970 or of Parquet's timestamp type: cast it");
    }
  }

  void dense(const arrow::RecordBatch& rows, size_t wanted, const std::string& name,
             std::vector<float>& out) const {
    const auto array = column(rows, wanted);
    out.resize(static_cast<size_t>(rows.num_rows()));
    const bool numbers = visit_numbers(*array, [&](int64_t row, bool null, auto value) {
      if (null)
        throw user_error(where(row), ", column '", excerpt(name),
                         "': the value is null; fill it, or leave the column out");
      out[static_cast<size_t>(row)] =
          checked_dense(static_cast<double>(value), name, [&] { return where(row); });
    });
    if (!numbers)
      wrong_type(name, *array->type(), "a number is expected: integer, float, double or boolean");
  }

  void decode(const arrow::RecordBatch& rows, EventBatch& batch) const {
    batch.rows = rows.num_rows();
    size_t wanted = 0;
    tokens(rows, wanted++, columns_.user, false, batch, batch.user);
    tokens(rows, wanted++, columns_.item, false, batch, batch.item);
    times(rows, wanted++, batch);
    batch.categorical.resize(columns_.categorical.size());
    for (size_t c = 0; c < columns_.categorical.size(); ++c)
      tokens(rows, wanted++, columns_.categorical[c], true, batch, batch.categorical[c]);
    batch.dense.resize(columns_.dense.size());
    for (size_t d = 0; d < columns_.dense.size(); ++d) {
      dense(rows, wanted++, columns_.dense[d], batch.dense[d]);
      if (columns_.is_label(d))
        check_labels(batch.dense[d], columns_.dense[d], [&](int64_t row) { return where(row); });
    }
  }

  Location file_;
  LogColumns columns_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;  // of the row group being read
  std::vector<int> leaves_;
  std::vector<int> index_;  // of each wanted column among the leaves
  int groups_ = 0, group_ = -1;
  int64_t rows_ = 0, row_in_group_ = 0;
  std::atomic<int64_t> read_{0};
};

}  // namespace

std::unique_ptr<EventSource> open_parquet(const Location& file, const LogColumns& columns) {
  return std::make_unique<ParquetSource>(file, columns);
}

}  // namespace tautline::data
