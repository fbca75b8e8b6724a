#include "tautline/data/build/columns.h"

#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>

#include "tautline/base/error.h"
#include "tautline/base/excerpt.h"
#include "tautline/base/nearest.h"
#include "tautline/data/arrow_status.h"
#include "tautline/data/build/delimited_text.h"

namespace tautline::data {
namespace {

/// "User_ID:token" -> "userid": RecBole writes types behind a colon.
std::string normal(const std::string& name) {
  std::string out;
  for (const char c : name.substr(0, name.find(':'))) {
    if (c >= 'A' && c <= 'Z') out += static_cast<char>(c - 'A' + 'a');
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) out += c;
  }
  return out;
}

// In order of preference; as public logs call them.
const std::vector<std::string> kUsers = {"user",       "userid",   "uid",        "visitorid",
                                         "customerid", "memberid", "reviewerid", "accountid",
                                         "sessionid",  "session"};
const std::vector<std::string> kItems = {
    "item",    "itemid", "iid",     "movieid",   "productid", "parentasin", "asin",
    "videoid", "sku",    "trackid", "songid",    "artistid",  "articleid",  "bookid",
    "newsid",  "adid",   "gmapid",  "contentid", "businessid"};
const std::vector<std::string> kTimes = {"time",       "timestamp", "ts",
                                         "unixtime",   "eventtime", "unixreviewtime",
                                         "timestamps", "datetime",  "date"};

std::string usual(const char* role, const std::vector<std::string>& usual_names,
                  const std::vector<std::string>& names, const Location& file) {
  for (const std::string& wanted : usual_names)
    for (const std::string& name : names)
      if (normal(name) == wanted) return name;
  throw user_error(file.text, ": no column is called as a ", role, " usually is; name it with --",
                   role, " (columns: ", excerpts(names), ")", another_delimiter(names));
}

}  // namespace

std::string another_delimiter(const std::vector<std::string>& names) {
  if (names.size() != 1) return "";
  const size_t at = names.front().find_first_of(";|\t,");
  if (at == std::string::npos) return "";
  const std::string found(1, names.front()[at]);
  return "; is --delimiter '" + (found == "\t" ? "tab" : found) + "' missing?";
}

std::vector<std::string> column_names(const Location& file, char delimiter) {
  if (!is_parquet(file)) {
    const std::string line = first_text_line(file);
    if (line.empty()) return {};
    return split_line(line, choose_delimiter(delimiter, file.path, line));
  }
  auto input = unwrap(file.filesystem->OpenInputFile(file.path), "cannot open ", file.text);
  parquet::arrow::FileReaderBuilder builder;
  check(builder.Open(input), file.text, " is cut short or not Parquet");
  std::vector<std::string> names;
  const auto* root = builder.raw_reader()->metadata()->schema()->group_node();
  for (int i = 0; i < root->field_count(); ++i) names.push_back(root->field(i)->name());
  return names;
}

void choose_usual_columns(LogColumns& columns, const Location& log,
                          const std::vector<Location>& files) {
  if (!columns.user.empty() && !columns.item.empty() && !columns.time.empty()) return;
  if (!columns.header)
    throw user_error(log.text,
                     " is read without a header: --user, --item and --time must give "
                     "the numbers of their columns, from 1");
  for (const Location& file : files) {
    const std::vector<std::string> names = column_names(file, columns.delimiter);
    if (names.empty()) continue;
    if (columns.user.empty()) columns.user = usual("user", kUsers, names, file);
    if (columns.item.empty()) columns.item = usual("item", kItems, names, file);
    if (columns.time.empty()) columns.time = usual("time", kTimes, names, file);
    return;
  }
  throw user_error(log.text, " holds no events");
}

}  // namespace tautline::data
