#include "tautline/data/build/shard.h"

#include <algorithm>
#include <numeric>
#include <xxhash.h>

#include <arrow/array.h>
#include <arrow/buffer.h>
#include <arrow/table.h>
#include <arrow/type.h>
#include <parquet/arrow/writer.h>

#include "tautline/base/error.h"
#include "tautline/data/arrow_status.h"
#include "tautline/data/build/token_table.h"
#include "tautline/data/format.h"

namespace tautline::data {
namespace {

constexpr int64_t kEventsPerRowGroup = 1 << 20;  // long histories make fewer users a row group

/// The events of a partition in columns, in the spill's order.
struct Events {
  TokenTable users;
  std::vector<int64_t> user, ticks;
  std::vector<std::vector<int64_t>> ids;
  std::vector<std::vector<float>> dense;
  std::vector<int64_t> begin;  // [users + 1] into `order`
  std::vector<int64_t> order;  // events by user, time, place in the file
};

Events read_events(const Partition& partition, const ShardSchema& schema,
                   const FinalIds& final_ids) {
  Events events;
  const auto count = static_cast<size_t>(partition.records);
  events.user.reserve(count);
  events.ticks.reserve(count);
  events.ids.resize(schema.ids.size());
  events.dense.resize(schema.dense.size());
  for (auto& column : events.ids) column.reserve(count);
  for (auto& column : events.dense) column.reserve(count);
  SpillReader reader(partition, {schema.ids.size(), schema.dense.size()});
  for (SpillRecord record; reader.next(record);) {
    events.user.push_back(events.users.find_or_add(record.user));
    events.ticks.push_back(record.ticks);
    for (size_t c = 0; c < schema.ids.size(); ++c)
      events.ids[c].push_back(final_ids[c][static_cast<size_t>(record.ids[c])]);
    for (size_t d = 0; d < schema.dense.size(); ++d) events.dense[d].push_back(record.dense[d]);
  }
  return events;
}

/// A counting sort by user, then a stable sort by time inside each (most logs come sorted).
void sort_events(Events& events) {
  events.begin.assign(static_cast<size_t>(events.users.size()) + 1, 0);
  for (int64_t user : events.user) ++events.begin[static_cast<size_t>(user) + 1];
  std::partial_sum(events.begin.begin(), events.begin.end(), events.begin.begin());
  std::vector<int64_t> place(events.begin.begin(), events.begin.end() - 1);
  events.order.resize(events.user.size());
  for (size_t i = 0; i < events.user.size(); ++i)
    events.order[static_cast<size_t>(place[static_cast<size_t>(events.user[i])]++)] =
        static_cast<int64_t>(i);
  const auto earlier = [&](int64_t a, int64_t b) {
    return events.ticks[static_cast<size_t>(a)] < events.ticks[static_cast<size_t>(b)];
  };
  for (int64_t user = 0; user < events.users.size(); ++user) {
    const auto from = events.order.begin() + events.begin[static_cast<size_t>(user)];
    const auto to = events.order.begin() + events.begin[static_cast<size_t>(user) + 1];
    if (!std::is_sorted(from, to, earlier)) std::stable_sort(from, to, earlier);
  }
}

int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b < 0); }

std::shared_ptr<arrow::Schema> arrow_schema(const ShardSchema& schema) {
  arrow::FieldVector fields = {arrow::field("user", arrow::utf8(), false),
                               arrow::field("length", arrow::int32(), false)};
  const auto list = [](const std::string& name, std::shared_ptr<arrow::DataType> type) {
    return arrow::field(name, arrow::list(arrow::field("element", std::move(type), false)), false);
  };
  fields.push_back(list("item", arrow::int64()));
  fields.push_back(list("time", arrow::int64()));
  for (size_t c = 1; c < schema.ids.size(); ++c)
    fields.push_back(list(schema.ids[c], arrow::int64()));
  for (const std::string& name : schema.dense) fields.push_back(list(name, arrow::float32()));
  return arrow::schema(std::move(fields));
}

/// A list column over users [first, last): the same offsets for all, values in `order`.
template <class T, class Value>
std::shared_ptr<arrow::Array> list_column(const std::shared_ptr<arrow::Field>& field,
                                          const std::shared_ptr<arrow::Buffer>& offsets,
                                          int64_t users, const Events& events, int64_t first,
                                          int64_t last, Value&& value) {
  const int64_t from = events.begin[static_cast<size_t>(first)];
  const int64_t to = events.begin[static_cast<size_t>(last)];
  std::vector<T> values(static_cast<size_t>(to - from));
  for (int64_t i = from; i < to; ++i)
    values[static_cast<size_t>(i - from)] =
        value(static_cast<size_t>(events.order[static_cast<size_t>(i)]));
  const auto& type = static_cast<const arrow::ListType&>(*field->type());
  auto data = arrow::ArrayData::Make(type.value_type(), to - from,
                                     {nullptr, arrow::Buffer::FromVector(std::move(values))}, 0);
  return std::make_shared<arrow::ListArray>(field->type(), users, offsets, arrow::MakeArray(data),
                                            nullptr, 0);
}

std::shared_ptr<arrow::Table> row_group(const std::shared_ptr<arrow::Schema>& schema,
                                        const ShardSchema& shard, const Events& events,
                                        int64_t first, int64_t last) {
  const int64_t users = last - first;
  std::vector<int32_t> lengths, offsets{0}, text_offsets{0};
  std::string text;
  for (int64_t user = first; user < last; ++user) {
    const auto u = static_cast<size_t>(user);
    lengths.push_back(static_cast<int32_t>(events.begin[u + 1] - events.begin[u]));
    offsets.push_back(
        static_cast<int32_t>(events.begin[u + 1] - events.begin[static_cast<size_t>(first)]));
    text.append(events.users.token(user));
    text_offsets.push_back(static_cast<int32_t>(text.size()));
  }
  arrow::ArrayVector columns;
  columns.push_back(std::make_shared<arrow::StringArray>(
      users, arrow::Buffer::FromVector(std::move(text_offsets)),
      arrow::Buffer::FromString(std::move(text))));
  columns.push_back(
      std::make_shared<arrow::Int32Array>(users, arrow::Buffer::FromVector(std::move(lengths))));
  const std::shared_ptr<arrow::Buffer> shared = arrow::Buffer::FromVector(std::move(offsets));
  const auto add = [&]<class T>(T, auto&& value) {
    columns.push_back(list_column<T>(schema->field(static_cast<int>(columns.size())), shared, users,
                                     events, first, last, value));
  };
  add(int64_t{}, [&](size_t i) { return events.ids[0][i]; });
  add(int64_t{}, [&](size_t i) { return floor_divide(events.ticks[i], shard.ticks_per_second); });
  for (size_t c = 1; c < shard.ids.size(); ++c)
    add(int64_t{}, [&](size_t i) { return events.ids[c][i]; });
  for (size_t d = 0; d < shard.dense.size(); ++d)
    add(float{}, [&](size_t i) { return events.dense[d][i]; });
  return arrow::Table::Make(schema, std::move(columns), users);
}

std::shared_ptr<parquet::WriterProperties> writer_properties() {
  parquet::WriterProperties::Builder builder;
  // zstd 1 halves the file against none and costs less than the disk; dictionaries of ids and times
  // overflow at once on real logs.
  builder.compression(arrow::Compression::ZSTD)->compression_level(1)->disable_dictionary();
  builder.encoding("time.list.element", parquet::Encoding::DELTA_BINARY_PACKED);
  builder.max_row_group_length(int64_t{1} << 40);  // row groups are cut here, not there
  builder.enable_page_checksum();                  // zstd frames carry none: a flipped bit decodes
  return builder.build();
}

/// Each user's name, items and times seed the hash of what follows: order counts.
uint64_t digest_of(const Events& events, const ShardSchema& schema) {
  uint64_t digest = 0;
  const auto add = [&](const void* data, size_t bytes) {
    digest = XXH3_64bits_withSeed(data, bytes, digest);
  };
  std::vector<int64_t> history;
  for (int64_t user = 0; user < events.users.size(); ++user) {
    const std::string_view token = events.users.token(user);
    add(token.data(), token.size());
    history.clear();
    for (int64_t at = events.begin[static_cast<size_t>(user)];
         at < events.begin[static_cast<size_t>(user) + 1]; ++at) {
      const auto i = static_cast<size_t>(events.order[static_cast<size_t>(at)]);
      history.push_back(events.ids[0][i]);
      history.push_back(floor_divide(events.ticks[i], schema.ticks_per_second));
    }
    add(history.data(), history.size() * sizeof(int64_t));
  }
  return digest;
}

/// In the order in which the values are written.
template <class T>
uint64_t digest_of_column(const std::vector<T>& values, const std::vector<int64_t>& order) {
  constexpr size_t kAtOnce = 4096;
  uint64_t digest = 0;
  std::vector<T> some;
  for (size_t from = 0; from < order.size(); from += kAtOnce) {
    some.clear();
    for (size_t i = from; i < std::min(order.size(), from + kAtOnce); ++i)
      some.push_back(values[static_cast<size_t>(order[i])]);
    digest = XXH3_64bits_withSeed(some.data(), some.size() * sizeof(T), digest);
  }
  return digest;
}

ShardSummary shape_of(const Events& events, const ShardSchema& schema) {
  ShardSummary shape;
  shape.users = events.users.size();
  shape.events = static_cast<int64_t>(events.user.size());
  shape.digest = digest_of(events, schema);
  for (size_t c = 1; c < events.ids.size(); ++c)
    shape.column_digests.push_back(digest_of_column(events.ids[c], events.order));
  for (const auto& column : events.dense)
    shape.column_digests.push_back(digest_of_column(column, events.order));
  for (size_t u = 0; u + 1 < events.begin.size(); ++u)
    shape.lengths.add(events.begin[u + 1] - events.begin[u]);
  for (int64_t ticks : events.ticks) {
    const int64_t seconds = floor_divide(ticks, schema.ticks_per_second);
    shape.first_time = std::min(shape.first_time, seconds);
    shape.last_time = std::max(shape.last_time, seconds);
    shape.common_times += ticks == schema.common_ticks;
  }
  return shape;
}

}  // namespace

ShardSummary write_shard(const Partition& partition, const ShardSchema& schema,
                         const FinalIds& final_ids, const Location& file) {
  Events events = read_events(partition, schema, final_ids);
  sort_events(events);
  const auto fields = arrow_schema(schema);
  auto sink = unwrap(file.filesystem->OpenOutputStream(file.path), "cannot create ", file.text);
  auto writer = unwrap(parquet::arrow::FileWriter::Open(*fields, arrow::default_memory_pool(), sink,
                                                        writer_properties(),
                                                        parquet::default_arrow_writer_properties()),
                       "cannot write ", file.text);
  const int64_t users = events.users.size();
  for (int64_t first = 0; first < users;) {
    int64_t last = first + 1;
    while (last < users && last - first < kUsersPerRowGroup &&
           events.begin[static_cast<size_t>(last) + 1] - events.begin[static_cast<size_t>(first)] <=
               kEventsPerRowGroup)
      ++last;
    const auto table = row_group(fields, schema, events, first, last);
    check(writer->WriteTable(*table, last - first), "cannot write ", file.text);
    first = last;
  }
  check(writer->Close(), "cannot write ", file.text);
  check(sink->Close(), "cannot write ", file.text);
  return shape_of(events, schema);
}

}  // namespace tautline::data
