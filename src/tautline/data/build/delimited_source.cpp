// Delimited text by Arrow's streaming CSV reader. All columns are read as bytes; numbers are parsed
// here, so that an error can say which value stands in which line.
#include <algorithm>
#include <mutex>

#include <arrow/array/array_binary.h>
#include <arrow/csv/api.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>

#include "tautline/base/error.h"
#include "tautline/base/excerpt.h"
#include "tautline/base/nearest.h"
#include "tautline/data/arrow_status.h"
#include "tautline/data/build/columns.h"
#include "tautline/data/build/decode.h"
#include "tautline/data/build/delimited_text.h"
#include "tautline/data/build/events.h"

namespace tautline::data {
namespace {

constexpr int32_t kLongestLine = 128 << 10;  // of a block: Arrow reads some thirty of them ahead

/// Positions (from 0) of the wanted columns.
std::vector<size_t> column_positions(const Location& file, const LogColumns& columns,
                                     const std::vector<std::string>& fields) {
  std::vector<size_t> positions;
  for (const std::string& name : columns.all()) {
    if (!columns.header) {
      const bool number =
          !name.empty() && name.size() < 6 &&
          std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
      const size_t position = number ? std::stoul(name) : 0;
      if (position < 1 || position > fields.size())
        throw user_error(file.text, " is read without a header: column '", excerpt(name),
                         "' must be a number from 1 to ", fields.size());
      positions.push_back(position - 1);
      continue;
    }
    const auto found = std::find(fields.begin(), fields.end(), name);
    if (found == fields.end())
      throw user_error(file.text, ", line 1: there is no column '", excerpt(name), "'",
                       suggestion(name, fields), another_delimiter(fields));
    if (std::find(found + 1, fields.end(), name) != fields.end())
      throw user_error(file.text, ", line 1: two columns are called '", excerpt(name), "'");
    positions.push_back(static_cast<size_t>(found - fields.begin()));
  }
  return positions;
}

/// What Arrow's parser says of the first row with a wrong number of fields.
struct BadRow {
  std::mutex mutex;
  bool seen = false;
  int expected = 0, actual = 0;
  int64_t number = 0;
  std::string text;
};

class DelimitedSource : public EventSource {
 public:
  DelimitedSource(const Location& file, const LogColumns& columns)
      : file_(file), columns_(columns) {
    const std::string first = first_text_line(file);
    delimiter_ = choose_delimiter(columns.delimiter, file.path, first);
    const std::vector<std::string> fields = split_line(first, delimiter_);
    if (first.empty()) return;  // no events
    const std::vector<size_t> positions = column_positions(file, columns, fields);
    stream_ = open_text(file);
    if (columns.header) skip_first_line(stream_, file);  // by Arrow it would have to fit a block
    open_reader(fields.size(), positions);
  }

  bool next(EventBatch& batch) override {
    batch = {};
    if (!reader_) return false;
    std::shared_ptr<arrow::RecordBatch> rows;
    fail_if(reader_->ReadNext(&rows));
    if (!rows) return false;
    decode(*rows, batch);
    batch.owners.push_back(rows);
    rows_before_ += rows->num_rows();
    return true;
  }

  double share_read() const override {
    if (stream_.stored_bytes == 0) return 1;
    return static_cast<double>(*stream_.read) / static_cast<double>(stream_.stored_bytes);
  }

 private:
  void open_reader(size_t field_count, const std::vector<size_t>& positions) {
    auto read = arrow::csv::ReadOptions::Defaults();
    read.use_threads = false;
    read.block_size = kLongestLine;
    auto convert = arrow::csv::ConvertOptions::Defaults();
    // Columns go by position: names could repeat.
    for (size_t i = 0; i < field_count; ++i) read.column_names.push_back(std::to_string(i));
    for (size_t position : positions) {
      const std::string name = std::to_string(position);
      if (convert.column_types.emplace(name, arrow::binary()).second)
        convert.include_columns.push_back(name);
    }
    for (size_t position : positions) {
      const auto& included = convert.include_columns;
      index_.push_back(std::find(included.begin(), included.end(), std::to_string(position)) -
                       included.begin());
    }
    auto parse = arrow::csv::ParseOptions::Defaults();
    parse.delimiter = delimiter_;
    parse.newlines_in_values = true;
    parse.invalid_row_handler = [bad = bad_](const arrow::csv::InvalidRow& row) {
      const std::lock_guard lock(bad->mutex);
      if (!bad->seen) {
        bad->seen = true;
        bad->expected = row.expected_columns;
        bad->actual = row.actual_columns;
        bad->number = row.number;
        bad->text = excerpt(row.text);
      }
      return arrow::csv::InvalidRowResult::Error;
    };
    auto made = arrow::csv::StreamingReader::Make(arrow::io::default_io_context(), stream_.text,
                                                  read, parse, convert);
    // Nothing after the header is no error yet: another file may hold events.
    if (!made.ok() && made.status().ToString().find("Empty CSV file") != std::string::npos) return;
    fail_if(made.status());
    reader_ = *made;
  }

  void fail_if(const arrow::Status& status) {
    if (status.ok()) return;
    const std::lock_guard lock(bad_->mutex);
    // It swallows all that follows: what the parser says of that is no help.
    const int64_t open = status.IsInvalid() ? line_of_open_quote(file_, delimiter_) : 0;
    if (open > 0)
      throw user_error(file_.text, ", line ", open,
                       ": a quoted field begins here and never ends; a quote inside a field is "
                       "doubled");
    if (bad_->seen) {
      const int64_t line =
          bad_->number > 0 ? line_of_record(file_, delimiter_, record(bad_->number - 1)) : 0;
      throw user_error(file_.text, ", line ", line, ": ", bad_->actual, " fields instead of ",
                       bad_->expected, ": '", bad_->text, "'");
    }
    if (status.message().find("straddl") != std::string::npos)  // Arrow's word for it
      throw user_error(where(0), " or below: a line is longer than ", kLongestLine >> 10, " KiB");
    throw user_error("cannot read ", file_.text, " after ", rows_before_,
                     " events: ", first_line(status));
  }

  /// Of an event, counted in the file.
  int64_t record(int64_t event) const { return event + (columns_.header ? 1 : 0); }

  std::string where(int64_t row) const {
    const int64_t line = line_of_record(file_, delimiter_, record(rows_before_ + row));
    return file_.text + ", line " + std::to_string(line);
  }

  const arrow::BinaryArray& column(const arrow::RecordBatch& rows, size_t wanted) const {
    return static_cast<const arrow::BinaryArray&>(*rows.column(static_cast<int>(index_[wanted])));
  }

  void tokens(const arrow::RecordBatch& rows, size_t wanted, const std::string& name,
              bool may_be_empty, std::vector<std::string_view>& out) const {
    const arrow::BinaryArray& values = column(rows, wanted);
    out.resize(static_cast<size_t>(rows.num_rows()));
    for (int64_t row = 0; row < rows.num_rows(); ++row) {
      out[static_cast<size_t>(row)] = values.GetView(row);
      check_token(out[static_cast<size_t>(row)], may_be_empty, name, [&] { return where(row); });
    }
  }

  void decode(const arrow::RecordBatch& rows, EventBatch& batch) const {
    batch.rows = rows.num_rows();
    size_t wanted = 0;
    tokens(rows, wanted++, columns_.user, false, batch.user);
    tokens(rows, wanted++, columns_.item, false, batch.item);
    const arrow::BinaryArray& times = column(rows, wanted++);
    batch.ticks.resize(static_cast<size_t>(batch.rows));
    for (int64_t row = 0; row < batch.rows; ++row)
      batch.ticks[static_cast<size_t>(row)] = parse_ticks(
          times.GetView(row), columns_.time_unit, columns_.time, [&] { return where(row); });
    batch.categorical.resize(columns_.categorical.size());
    for (size_t c = 0; c < columns_.categorical.size(); ++c)
      tokens(rows, wanted++, columns_.categorical[c], true, batch.categorical[c]);
    batch.dense.resize(columns_.dense.size());
    for (size_t d = 0; d < columns_.dense.size(); ++d) {
      const arrow::BinaryArray& values = column(rows, wanted++);
      batch.dense[d].resize(static_cast<size_t>(batch.rows));
      for (int64_t row = 0; row < batch.rows; ++row)
        batch.dense[d][static_cast<size_t>(row)] =
            parse_dense(values.GetView(row), columns_.dense[d], [&] { return where(row); });
      if (columns_.is_label(d))
        check_labels(batch.dense[d], columns_.dense[d], [&](int64_t row) { return where(row); });
    }
  }

  Location file_;
  LogColumns columns_;
  char delimiter_ = ',';
  TextStream stream_;
  std::shared_ptr<BadRow> bad_ = std::make_shared<BadRow>();
  std::shared_ptr<arrow::csv::StreamingReader> reader_;
  std::vector<int64_t> index_;  // of each wanted column among those that Arrow converts
  int64_t rows_before_ = 0;
};

}  // namespace

std::unique_ptr<EventSource> open_delimited(const Location& file, const LogColumns& columns) {
  return std::make_unique<DelimitedSource>(file, columns);
}

}  // namespace tautline::data
