#include <vector>

#include "tautline/kernels/embedding_lookup.h"

namespace tautline::kernels {
namespace {

template <class Out>
void store(void* out, int64_t index, double value) {
  static_cast<Out*>(out)[index] = from_float<Out>(static_cast<float>(value));
}

double table_value(const Lookup& p, int64_t row, int64_t column) {
  if (row < 0) return 0.0;
  return with_element(p.table_type, [&](auto type) {
    return to_float(static_cast<const decltype(type)*>(p.table)[row * p.width + column]);
  });
}

void store_row(const Lookup& p, int64_t n, const std::vector<double>& values) {
  with_element(p.out_type, [&](auto type) {
    for (int64_t c = 0; c < p.width; ++c)
      store<decltype(type)>(p.out, n * p.width + c, values[static_cast<size_t>(c)]);
  });
}

}  // namespace

void lookup_ref(const Lookup& p) {
  std::vector<double> values(static_cast<size_t>(p.width));
  for (int64_t n = 0; n < p.count; ++n) {
    for (int64_t c = 0; c < p.width; ++c)
      values[static_cast<size_t>(c)] = table_value(p, p.rows[n], c);
    store_row(p, n, values);
  }
}

void pooled_lookup_ref(const PooledLookup& p) {
  const Lookup& lookup = p.lookup;
  std::vector<double> values(static_cast<size_t>(lookup.width));
  for (int64_t b = 0; b < p.bags; ++b) {
    const int64_t length = p.offsets[b + 1] - p.offsets[b];
    for (int64_t c = 0; c < lookup.width; ++c) {
      double sum = 0;
      for (int64_t n = p.offsets[b]; n < p.offsets[b + 1]; ++n)
        sum += table_value(lookup, lookup.rows[n], c);
      values[static_cast<size_t>(c)] =
          p.mean && length > 0 ? sum / static_cast<double>(length) : sum;
    }
    store_row(lookup, b, values);
  }
}

}  // namespace tautline::kernels
