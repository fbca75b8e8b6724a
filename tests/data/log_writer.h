// Small built logs for tests, written straight from memory as format.h describes them.
#pragma once

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <gtest/gtest.h>
#include <parquet/arrow/writer.h>

#include "tautline/base/config.h"
#include "tautline/base/random.h"
#include "tautline/data/format.h"
#include "tautline/workload/workload_fields.h"

namespace tautline::data::testing_log {

/// A folder that is gone when the test ends.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tautline-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

struct User {
  std::vector<int64_t> item, time;
  std::map<std::string, std::vector<int64_t>> categorical;
  std::map<std::string, std::vector<float>> real;
};

struct Log {
  std::vector<User> users;
  std::vector<std::string> categorical, dense, labels;
  int64_t items = 0, categories = 0;
  int64_t parts = 1, rows_per_group = kUsersPerRowGroup;
  int64_t format = kFormatVersion;
};

/// Users of 0 .. longest events; every value tells its user, position and column.
inline Log random_log(uint64_t seed, int64_t users, int64_t longest, int64_t parts = 1,
                      int64_t rows_per_group = kUsersPerRowGroup) {
  Random random(seed, RandomUse::kSynthetic);
  Log log;
  log.items = 1'000'000;
  log.categories = 1000;
  log.categorical = {"shop", "category"};
  log.dense = {"price"};
  log.labels = {"click", "like"};
  log.parts = parts;
  log.rows_per_group = rows_per_group;
  for (int64_t u = 0; u < users; ++u) {
    User user;
    const int64_t events = static_cast<int64_t>(random.below(longest + 1));
    int64_t time = 1'000'000'000 + u;
    for (int64_t e = 0; e < events; ++e) {
      user.item.push_back(1 + static_cast<int64_t>(random.below(log.items)));
      user.time.push_back(time += static_cast<int64_t>(random.below(3)));  // ties in a third
      for (const auto& name : log.categorical)
        user.categorical[name].push_back(static_cast<int64_t>(random.below(log.categories + 1)));
      for (const auto* names : {&log.dense, &log.labels})
        for (const auto& name : *names)
          user.real[name].push_back(static_cast<float>(random.uniform()));
    }
    log.users.push_back(std::move(user));
  }
  return log;
}

inline LogStatistics statistics_of(const Log& log) {
  LogStatistics s;
  s.name = "test";
  s.format = log.format;
  s.users = static_cast<int64_t>(log.users.size());
  for (const auto& user : log.users) s.events += static_cast<int64_t>(user.item.size());
  s.shards = log.parts;
  s.vocabularies["item"].size = log.items;
  for (const auto& name : log.categorical) s.vocabularies[name].size = log.categories;
  s.categorical = log.categorical;
  s.dense = log.dense;
  s.labels = log.labels;
  return s;
}

inline void write_part(const Log& log, int64_t begin, int64_t end, const std::string& file) {
  const auto must = [](const arrow::Status& status) {
    if (!status.ok()) throw std::runtime_error(status.ToString());
  };
  arrow::FieldVector fields;
  arrow::ArrayVector arrays;
  const auto add = [&](const std::string& name, arrow::ArrayBuilder& builder) {
    arrays.push_back(builder.Finish().ValueOrDie());
    fields.push_back(arrow::field(name, arrays.back()->type(), false));
  };
  const auto add_lists = [&](const std::string& name, auto values, const auto& of) {
    arrow::ListBuilder lists(arrow::default_memory_pool(), values);
    for (int64_t u = begin; u < end; ++u) {
      must(lists.Append());
      const auto& list = of(log.users[u]);
      must(values->AppendValues(list.data(), static_cast<int64_t>(list.size())));
    }
    add(name, lists);
  };
  arrow::StringBuilder names;
  arrow::Int32Builder lengths;
  for (int64_t u = begin; u < end; ++u) {
    must(names.Append("u" + std::to_string(u)));
    must(lengths.Append(static_cast<int32_t>(log.users[u].item.size())));
  }
  add("user", names);
  add("length", lengths);
  using Int64 = arrow::Int64Builder;
  using Float = arrow::FloatBuilder;
  static const std::vector<int64_t> kNone;
  static const std::vector<float> kNoReal;
  add_lists(
      "item", std::make_shared<Int64>(), [](const User& u) -> auto& { return u.item; });
  add_lists(
      "time", std::make_shared<Int64>(), [](const User& u) -> auto& { return u.time; });
  for (const auto& name : log.categorical)
    add_lists(
        name, std::make_shared<Int64>(), [&](const User& u) -> auto& {
          return u.categorical.contains(name) ? u.categorical.at(name) : kNone;
        });
  for (const auto* group : {&log.dense, &log.labels})
    for (const auto& name : *group)
      add_lists(
          name, std::make_shared<Float>(), [&](const User& u) -> auto& {
            return u.real.contains(name) ? u.real.at(name) : kNoReal;
          });
  const auto table = arrow::Table::Make(arrow::schema(fields), arrays);
  const auto out = arrow::io::FileOutputStream::Open(file).ValueOrDie();
  const auto properties = parquet::WriterProperties::Builder().enable_page_checksum()->build();
  must(parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), out, log.rows_per_group,
                                  properties));
  must(out->Close());
}

/// Writes OUT; `finished` false leaves workload.yaml out, as a build that was killed.
inline void write_log(const Log& log, const std::string& out, bool finished = true) {
  std::filesystem::create_directories(out);
  const int64_t users = static_cast<int64_t>(log.users.size());
  for (int64_t part = 0; part < log.parts; ++part) {
    char name[32];
    std::snprintf(name, sizeof name, "part-%05d.parquet", static_cast<int>(part));
    write_part(log, users * part / log.parts, users * (part + 1) / log.parts, out + "/" + name);
  }
  if (finished) std::ofstream(out + "/workload.yaml") << to_yaml(statistics_of(log));
}

}  // namespace tautline::data::testing_log
