#include "tautline/data/build/build.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <xxhash.h>

#include "tautline/base/error.h"
#include "tautline/base/excerpt.h"
#include "tautline/data/build/baselines.h"
#include "tautline/data/build/columns.h"
#include "tautline/data/build/decode.h"
#include "tautline/data/build/events.h"
#include "tautline/data/build/log_files.h"
#include "tautline/data/build/prefetched.h"
#include "tautline/data/build/shard.h"
#include "tautline/data/build/spill.h"
#include "tautline/data/build/times.h"
#include "tautline/data/build/vocabulary.h"
#include "tautline/data/format.h"
#include "tautline/data/log_folder.h"
#include "tautline/data/parallel.h"

namespace tautline::data {
namespace {

constexpr int64_t kMostPartitions = 256;  // open files; larger spills are split again

int thread_count(int wish) {
  return wish > 0 ? wish : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

/// The built log has a column, and of a category a file, of that name.
void check_further_name(const std::string& name) {
  constexpr size_t kLongest = 200;  // of a file's name 255 bytes are allowed
  const std::set<std::string> own = {"user", "length", "item", "time"};
  if (own.count(name))
    throw user_error("a further column cannot be called '", excerpt(name),
                     "': the built log has a column of that name already");
  const char* wrong = name.find('/') != name.npos ? "has a '/' in its name"
                      : name.size() > kLongest    ? "has a name of more than 200 bytes"
                      : !is_utf8(name)            ? "has a name that is not UTF-8"
                                                  : nullptr;
  if (wrong) throw user_error("the column '", excerpt(name), "' ", wrong, "; rename it in the log");
}

/// What the options say about columns, with each further name used once and none of the log's own.
LogColumns event_columns(const BuildOptions& options) {
  LogColumns columns;
  columns.user = options.user;
  columns.item = options.item;
  columns.time = options.time;
  columns.time_unit = options.time_unit;
  columns.delimiter = options.delimiter;
  columns.header = options.header;
  columns.categorical = options.categorical;
  columns.dense = options.dense;
  if (!options.action.empty())
    columns.categorical.insert(columns.categorical.begin(), options.action);
  if (!options.rating.empty()) columns.dense.insert(columns.dense.begin(), options.rating);
  columns.dense.insert(columns.dense.end(), options.labels.begin(), options.labels.end());
  columns.labels = options.labels.size();
  for (const auto& [one, other] : {std::pair{&options.user, &options.item},
                                   {&options.user, &options.time},
                                   {&options.item, &options.time}})
    if (!one->empty() && *one == *other)
      throw user_error("the column '", excerpt(*one), "' cannot be two of user, item and time");
  std::set<std::string> seen;
  for (const auto* names : {&columns.categorical, &columns.dense})
    for (const std::string& name : *names) {
      check_further_name(name);
      if (!seen.insert(name).second)
        throw user_error("the column '", excerpt(name), "' is asked for twice");
    }
  return columns;
}

/// A log inside OUT would go with what OUT holds (part-00000.parquet is how others call theirs too).
void check_apart(const std::vector<Location>& files, const Location& out) {
  const auto path_of = [](const Location& place) {
    std::error_code error;
    const std::filesystem::path real = std::filesystem::weakly_canonical(place.path, error);
    return place.local && !error ? real.string() : place.path;
  };
  const std::string folder = path_of(out) + "/";
  for (const Location& file : files)
    if (file.filesystem->Equals(*out.filesystem) && path_of(file).starts_with(folder))
      throw user_error("the log ", file.text, " lies in ", out.text,
                       ", where the built log is to be written; name another folder");
}

/// From the stored size: how many partitions keep each below the limit. A wrong guess costs a
/// second pass over what is too large (split_large), or smaller shards.
int64_t partition_count(const std::vector<Location>& files, int64_t limit) {
  double bytes = 0;
  for (const Location& file : files) {
    const bool plain =
        file.path.ends_with(".csv") || file.path.ends_with(".tsv") || file.path.ends_with(".txt");
    bytes += static_cast<double>(file_size(file)) * (plain ? 0.8 : 4.0);
  }
  return std::clamp<int64_t>(static_cast<int64_t>(bytes / static_cast<double>(limit)) + 1, 1,
                             kMostPartitions);
}

/// Pass 1: reads the log, counts tokens, spills events.
class Reading {
 public:
  Reading(const LogColumns& columns, SpillWriter& spill)
      : columns_(columns), spill_(spill), vocabularies_(1 + columns.categorical.size()) {}

  void add(const EventBatch& batch) {
    std::vector<int64_t> ids(vocabularies_.size());
    std::vector<float> dense(columns_.dense.size());
    for (size_t row = 0; row < static_cast<size_t>(batch.rows); ++row) {
      ids[0] = vocabularies_[0].count(batch.item[row]);
      for (size_t c = 0; c < batch.categorical.size(); ++c) {
        const std::string_view token = batch.categorical[c][row];
        ids[c + 1] = token.empty() ? kUnknownId : vocabularies_[c + 1].count(token);
      }
      for (size_t d = 0; d < dense.size(); ++d) dense[d] = batch.dense[d][row];
      times.add(batch.ticks[row]);
      spill_.add({batch.user[row], batch.ticks[row], ids.data(), dense.data()});
    }
    events += batch.rows;
  }

  int64_t events = 0;
  MajorityVote times;
  std::vector<Vocabulary> take_vocabularies() { return std::move(vocabularies_); }

 private:
  const LogColumns& columns_;
  SpillWriter& spill_;
  std::vector<Vocabulary> vocabularies_;  // item, then categorical columns
};

void read_log(const std::vector<Location>& files, const LogColumns& columns, Reading& reading,
              const BuildProgressFunction& progress) {
  for (size_t f = 0; f < files.size(); ++f) {
    PrefetchedEvents source(open_events(files[f], columns));
    for (EventBatch batch; source.next(batch);) {
      reading.add(batch);
      if (progress)
        progress(
            {"read",
             (static_cast<double>(f) + source.share_read()) / static_cast<double>(files.size()),
             reading.events});
    }
  }
}

/// Pass 2: partitions to shards, on several threads; shard k is partition k whatever the number.
ShardSummary write_shards(const std::vector<Partition>& partitions, const ShardSchema& schema,
                          const FinalIds& ids, const LogFolder& folder, int threads,
                          const BuildProgressFunction& progress) {
  std::vector<ShardSummary> shapes(partitions.size());
  const std::atomic<bool> never{false};
  std::mutex mutex;
  int64_t done = 0;
  parallel_for(static_cast<int64_t>(partitions.size()), threads, never, [&](int64_t p) {
    const Partition& partition = partitions[static_cast<size_t>(p)];
    shapes[static_cast<size_t>(p)] = write_shard(partition, schema, ids, folder.shard(p));
    std::filesystem::remove(partition.path);
    const std::lock_guard lock(mutex);
    if (progress)
      progress({"write", static_cast<double>(++done) / static_cast<double>(partitions.size()), 0});
  });
  ShardSummary shape;
  for (const ShardSummary& part : shapes) shape.merge(part);
  return shape;
}

std::string hexadecimal(uint64_t digest) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(digest));
  return text;
}

/// Of a categorical column the values are ids, which mean what its vocabulary says.
std::map<std::string, std::string> column_digests(const ShardSchema& schema,
                                                  const std::vector<uint64_t>& vocabularies,
                                                  const ShardSummary& written) {
  std::map<std::string, std::string> out;
  size_t column = 0;
  for (size_t c = 1; c < schema.ids.size(); ++c) {
    const uint64_t values = written.column_digests[column++];
    out[schema.ids[c]] = hexadecimal(XXH3_64bits_withSeed(&values, sizeof values, vocabularies[c]));
  }
  for (const std::string& name : schema.dense)
    out[name] = hexadecimal(written.column_digests[column++]);
  return out;
}

std::string log_name(const Location& log) {
  const std::string file = log.path.substr(log.path.rfind('/') + 1);
  return file.substr(0, file.find('.'));
}

LogStatistics statistics_of(const BuildOptions& options, const LogColumns& columns,
                            const ShardSummary& shape, int64_t shards) {
  LogStatistics statistics;
  statistics.name =
      excerpt(options.name.empty() ? log_name(open_filesystem(options.log)) : options.name);
  statistics.format = kFormatVersion;
  statistics.users = shape.users;
  statistics.events = shape.events;
  statistics.shards = shards;
  statistics.first_time = shape.first_time;
  statistics.last_time = shape.last_time;
  statistics.length = shape.lengths.statistics();
  statistics.histories_digest = hexadecimal(shape.digest);
  statistics.categorical = columns.categorical;
  statistics.labels = options.labels;
  statistics.dense.assign(columns.dense.begin(),
                          columns.dense.end() - static_cast<int64_t>(options.labels.size()));
  return statistics;
}

std::map<std::string, BaselineMetrics> baselines_of(const BuildOptions& options,
                                                    const LogStatistics& statistics,
                                                    const LogFolder& folder,
                                                    const BuildProgressFunction& progress) {
  std::vector<Location> shards;
  for (int64_t s = 0; s < statistics.shards; ++s) shards.push_back(folder.shard(s));
  BaselineOptions wish;
  wish.items = statistics.vocabularies.at("item").size;
  wish.events = statistics.events;
  wish.rule_events = options.rule_events;
  wish.threads = thread_count(options.threads);
  return measure_baselines(shards, wish, [&](double share) {
    if (progress) progress({"baselines", share, 0});
  });
}

std::string scratch_parent(const BuildOptions& options, const Location& out) {
  if (!options.scratch.empty()) return options.scratch;
  if (out.local) return out.path;
  std::error_code error;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  if (error)
    throw user_error("there is no folder for temporary files: ", error.message(),
                     "; --scratch names one");
  return temporary.string();
}

}  // namespace

LogStatistics build_log(const BuildOptions& options, const BuildProgressFunction& progress,
                        const std::function<void(const std::string&)>& warn) {
  LogColumns columns = event_columns(options);
  const Location log = open_filesystem(options.log);
  const std::vector<Location> files = log_files(log);
  check_apart(files, open_filesystem(options.out));
  choose_usual_columns(columns, log, files);
  LogFolder folder(options.out, options.overwrite);
  const ScratchFolder scratch(scratch_parent(options, folder.location()));
  ShardSchema schema;
  schema.ids.insert(schema.ids.end(), columns.categorical.begin(), columns.categorical.end());
  schema.dense = columns.dense;
  schema.ticks_per_second = ticks_per_second(columns.time_unit);
  const RecordShape shape{schema.ids.size(), schema.dense.size()};

  std::optional<SpillWriter> spill(std::in_place, scratch.path() + "/p",
                                   partition_count(files, options.partition_bytes), shape, 0);
  Reading reading(columns, *spill);
  read_log(files, columns, reading, progress);
  std::vector<Partition> partitions = spill->close();
  spill.reset();
  if (reading.events == 0) throw user_error(log.text, " holds no events");
  schema.common_ticks = reading.times.candidate();
  folder.begin();
  partitions = split_large(std::move(partitions), options.partition_bytes, shape);

  FinalIds ids;
  std::map<std::string, VocabularyStatistics> vocabularies;
  std::vector<uint64_t> digests;  // of the vocabularies
  std::vector<Vocabulary> counted = reading.take_vocabularies();
  for (size_t c = 0; c < schema.ids.size(); ++c) {
    const Vocabulary vocabulary = std::move(counted[c]);  // its texts go as soon as written
    vocabulary.write(folder.vocabulary(schema.ids[c]));
    vocabularies[schema.ids[c]] = vocabulary_statistics(vocabulary.sorted_counts());
    digests.push_back(vocabulary.digest());
    ids.push_back(vocabulary.final_ids());
  }
  const ShardSummary written =
      write_shards(partitions, schema, ids, folder, thread_count(options.threads), progress);
  TAUTLINE_INVARIANT(written.events == reading.events,
                     "read " << reading.events << " events, wrote " << written.events);
  const std::string doubtful = time_warning(
      {columns.time, written.first_time, written.last_time, written.events, written.common_times});
  if (warn && !doubtful.empty()) warn(doubtful);
  LogStatistics statistics =
      statistics_of(options, columns, written, static_cast<int64_t>(partitions.size()));
  statistics.vocabularies = std::move(vocabularies);
  statistics.items_digest = hexadecimal(digests[0]);
  statistics.column_digests = column_digests(schema, digests, written);
  if (options.baselines) statistics.baselines = baselines_of(options, statistics, folder, progress);
  folder.finish(statistics);
  return statistics;
}

}  // namespace tautline::data
