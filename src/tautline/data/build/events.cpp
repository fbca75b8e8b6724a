#include "tautline/data/build/events.h"

#include <cstring>

#include <arrow/buffer.h>
#include <arrow/io/interfaces.h>

#include "tautline/base/error.h"
#include "tautline/data/arrow_status.h"

namespace tautline::data {

std::vector<std::string> LogColumns::all() const {
  std::vector<std::string> names = {user, item, time};
  names.insert(names.end(), categorical.begin(), categorical.end());
  names.insert(names.end(), dense.begin(), dense.end());
  return names;
}

bool is_parquet(const Location& file) {
  if (file.path.ends_with(".parquet") || file.path.ends_with(".pq")) return true;
  auto input = unwrap(file.filesystem->OpenInputFile(file.path), "cannot open ", file.text);
  const auto magic = unwrap(input->ReadAt(0, 4), "cannot read ", file.text);
  return magic->size() == 4 && std::memcmp(magic->data(), "PAR1", 4) == 0;
}

std::unique_ptr<EventSource> open_events(const Location& file, const LogColumns& columns) {
  return is_parquet(file) ? open_parquet(file, columns) : open_delimited(file, columns);
}

}  // namespace tautline::data
