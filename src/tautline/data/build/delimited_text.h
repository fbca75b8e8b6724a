// The parts of a delimited file that Arrow's CSV reader does not tell us about: its first line
// before it is read, the delimiter, the compression, and the line number of a record.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <arrow/io/interfaces.h>

#include "tautline/data/uri.h"

namespace tautline::data {

/// A file read from front to back, decompressed: gz, zst, bz2 by their first bytes.
struct TextStream {
  std::shared_ptr<arrow::io::InputStream> text;
  int64_t stored_bytes = 0;                     // of the file
  std::shared_ptr<std::atomic<int64_t>> read =  // of them so far, by whichever thread
      std::make_shared<std::atomic<int64_t>>(0);
};
TextStream open_text(const Location& file);

/// The first line without its end and without a byte order mark; empty for a file without text.
/// Errors: a first line that is empty, what is no text in UTF-8, or whose lines end with CR only.
std::string first_text_line(const Location& file);

/// Goes on after the first line, or at the end if there is but one.
void skip_first_line(TextStream& stream, const Location& file);

/// Fields of one line; quotes as in RFC 4180.
std::vector<std::string> split_line(std::string_view line, char delimiter);

/// `wish`, or by extension (.csv, .tsv, .tab before .gz and the like), or tab if the line has one.
char choose_delimiter(char wish, const std::string& path, std::string_view first_line);

/// The line on which record `record` (from 0, the header counts, empty lines do not) begins,
/// from 1.
int64_t line_of_record(const Location& file, char delimiter, int64_t record);

/// The line on which a quoted field begins that the file never ends; 0: there is none.
int64_t line_of_open_quote(const Location& file, char delimiter);

}  // namespace tautline::data
