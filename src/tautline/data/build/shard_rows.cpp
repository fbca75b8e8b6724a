// Reading a shard back, for the baselines.
#include <arrow/array.h>
#include <arrow/table.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>

#include "tautline/data/arrow_status.h"
#include "tautline/data/build/shard.h"

namespace tautline::data {
namespace {

const int64_t* values_of(const arrow::ListArray& list) {
  return static_cast<const arrow::Int64Array&>(*list.values()).raw_values();
}

}  // namespace

void for_each_user(const Location& file, const std::function<void(const UserView&)>& visit) {
  auto input = unwrap(file.filesystem->OpenInputFile(file.path), "cannot open ", file.text);
  const auto reader = unwrap(parquet::arrow::OpenFile(input, arrow::default_memory_pool()),
                             "cannot read ", file.text);
  const std::vector<int> columns = {0, 2, 3};  // user, item, time: leaves in the writer's order
  for (int group = 0; group < reader->num_row_groups(); ++group) {
    const auto table = unwrap(
        unwrap(reader->ReadRowGroup(group, columns), "cannot read ", file.text)->CombineChunks(),
        "cannot read ", file.text);
    if (table->num_rows() == 0) continue;
    const auto& users = static_cast<const arrow::StringArray&>(*table->column(0)->chunk(0));
    const auto& items = static_cast<const arrow::ListArray&>(*table->column(1)->chunk(0));
    const auto& times = static_cast<const arrow::ListArray&>(*table->column(2)->chunk(0));
    for (int64_t row = 0; row < table->num_rows(); ++row) {
      const auto length = static_cast<size_t>(items.value_length(row));
      visit({users.GetView(row),
             {values_of(items) + items.value_offset(row), length},
             {values_of(times) + times.value_offset(row), length}});
    }
  }
}

}  // namespace tautline::data
