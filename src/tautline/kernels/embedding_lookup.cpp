#include "tautline/kernels/embedding_lookup.h"

namespace tautline::kernels {

int64_t find_bad_row(const int64_t* rows, int64_t count, int64_t table_rows) {
  const auto places = static_cast<uint64_t>(table_rows) + 1;  // -1 becomes 0
  for (int64_t n = 0; n < count; ++n)
    if (static_cast<uint64_t>(rows[n] + 1) >= places) return n;
  return -1;
}

}  // namespace tautline::kernels
