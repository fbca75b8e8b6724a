// Reading back what `data build` wrote, with ids turned into tokens again; and writing logs.
#pragma once

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <arrow/api.h>
#include <arrow/io/compressed.h>
#include <arrow/io/file.h>
#include <arrow/util/compression.h>
#include <gtest/gtest.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/writer.h>

#include "tautline/base/error.h"
#include "tautline/data/build/build.h"
#include "tautline/data/uri.h"

#include "data/log_writer.h"

namespace tautline::data::testing_build {

using testing_log::TemporaryFolder;

struct History {
  std::vector<std::string> item;
  std::vector<int64_t> time;
  std::map<std::string, std::vector<std::string>> categorical;  // "" where absent
  std::map<std::string, std::vector<float>> dense;
  bool operator==(const History&) const = default;
};

struct Built {
  std::map<std::string, History> users;
  std::map<std::string, std::vector<std::string>> vocabulary;  // by column; [id - 1]
  std::map<std::string, std::vector<int64_t>> counts;
  int64_t rows = 0, row_groups = 0;
};

inline std::shared_ptr<arrow::Table> read_parquet(const Location& file) {
  auto input = file.filesystem->OpenInputFile(file.path).ValueOrDie();
  auto reader = parquet::arrow::OpenFile(input, arrow::default_memory_pool()).ValueOrDie();
  return reader->ReadTable().ValueOrDie()->CombineChunks().ValueOrDie();
}

inline void read_vocabularies(const Location& folder, Built& built) {
  for (const std::string& name : list_folder(folder.child("vocabulary"))) {
    const std::string column = name.substr(0, name.rfind('.'));
    const auto table = read_parquet(folder.child("vocabulary").child(name));
    for (int64_t row = 0; row < table->num_rows(); ++row) {
      const auto& ids = static_cast<const arrow::Int64Array&>(*table->column(0)->chunk(0));
      const auto& tokens = static_cast<const arrow::StringArray&>(*table->column(1)->chunk(0));
      const auto& counts = static_cast<const arrow::Int64Array&>(*table->column(2)->chunk(0));
      EXPECT_EQ(ids.Value(row), row + 1) << column;
      built.vocabulary[column].push_back(tokens.GetString(row));
      built.counts[column].push_back(counts.Value(row));
    }
  }
}

inline void read_row(const arrow::Table& table, int64_t row, Built& built) {
  const auto& users = static_cast<const arrow::StringArray&>(*table.column(0)->chunk(0));
  const auto& lengths = static_cast<const arrow::Int32Array&>(*table.column(1)->chunk(0));
  EXPECT_EQ(built.users.count(users.GetString(row)), 0u) << "two rows of one user";
  History& history = built.users[users.GetString(row)];
  for (int c = 2; c < table.num_columns(); ++c) {
    const std::string& name = table.field(c)->name();
    const auto& list = static_cast<const arrow::ListArray&>(*table.column(c)->chunk(0));
    EXPECT_EQ(list.value_length(row), lengths.Value(row)) << name;
    const auto values = list.value_slice(row);
    for (int64_t i = 0; i < values->length(); ++i) {
      if (values->type_id() == arrow::Type::FLOAT) {
        history.dense[name].push_back(static_cast<const arrow::FloatArray&>(*values).Value(i));
        continue;
      }
      const int64_t value = static_cast<const arrow::Int64Array&>(*values).Value(i);
      if (name == "time") {
        history.time.push_back(value);
        continue;
      }
      const auto& tokens = built.vocabulary[name];
      ASSERT_LE(value, static_cast<int64_t>(tokens.size()));
      const std::string token = value == 0 ? "" : tokens[static_cast<size_t>(value) - 1];
      (name == "item" ? history.item : history.categorical[name]).push_back(token);
    }
  }
}

inline Built read_built(const std::string& uri) {
  Built built;
  const Location folder = open_filesystem(uri);
  read_vocabularies(folder, built);
  for (const std::string& name : list_folder(folder)) {
    if (name.rfind("part-", 0) != 0) continue;
    const auto table = read_parquet(folder.child(name));
    for (int64_t row = 0; row < table->num_rows(); ++row) read_row(*table, row, built);
    built.rows += table->num_rows();
  }
  return built;
}

inline void write_file(const std::string& path, const std::string& text,
                       arrow::Compression::type compression = arrow::Compression::UNCOMPRESSED) {
  std::shared_ptr<arrow::io::OutputStream> sink =
      arrow::io::FileOutputStream::Open(path).ValueOrDie();
  if (compression != arrow::Compression::UNCOMPRESSED) {
    const auto codec = arrow::util::Codec::Create(compression).ValueOrDie();
    sink = arrow::io::CompressedOutputStream::Make(codec.get(), sink).ValueOrDie();
  }
  ASSERT_TRUE(sink->Write(text).ok());
  ASSERT_TRUE(sink->Close().ok());
}

/// The sentence of the UserError that a build ends with; empty if it ends well.
inline std::string build_error(const BuildOptions& options) {
  try {
    build_log(options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace tautline::data::testing_build
