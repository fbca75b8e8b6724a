#include "tautline/kernels/embedding_lookup.h"
#include "tautline/kernels/normal.h"
#include "tautline/kernels/rows_cpu.h"

namespace tautline::kernels::TAUTLINE_ISA {
namespace {

template <class From, class To>
void convert_row(const From* in, int64_t width, To* out) {
  if constexpr (std::is_same_v<From, To>) {
    std::memcpy(out, in, static_cast<size_t>(width) * sizeof(To));
  } else if constexpr (std::is_same_v<From, float>) {
    store_row(in, width, out);
  } else if constexpr (std::is_same_v<To, float>) {
    load_row<false>(in, width, out);
  } else {
    float block[kColumnBlock];
    for (int64_t c = 0; c < width; c += kColumnBlock) {
      const int64_t n = width - c < kColumnBlock ? width - c : kColumnBlock;
      load_row<false>(in + c, n, block);
      store_row(block, n, out + c);
    }
  }
}

template <class From>
const From* table_row(const Lookup& p, int64_t row) {
  return static_cast<const From*>(p.table) + row * p.width;
}

template <class From>
void prefetch_ahead(const Lookup& p, int64_t n, int64_t end) {
  if (n + kPrefetchAhead >= end) return;
  const int64_t row = p.rows[n + kPrefetchAhead];
  if (row >= 0)
    prefetch_row(reinterpret_cast<const char*>(table_row<From>(p, row)),
                 p.width * static_cast<int64_t>(sizeof(From)));
}

template <class From, class To>
void lookup(const Lookup& p, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n) {
    prefetch_ahead<From>(p, n, end);
    To* out = static_cast<To*>(p.out) + n * p.width;
    if (p.rows[n] >= 0)
      convert_row(table_row<From>(p, p.rows[n]), p.width, out);
    else
      std::memset(out, 0, static_cast<size_t>(p.width) * sizeof(To));
  }
}

template <class From, class To>
void pooled_lookup(const PooledLookup& p, int64_t begin, int64_t end) {
  const Lookup& lookup = p.lookup;
  float block[kColumnBlock];
  for (int64_t b = begin; b < end; ++b) {
    const int64_t first = p.offsets[b], last = p.offsets[b + 1];
    const float factor = p.mean && last > first ? 1.0f / static_cast<float>(last - first) : 1.0f;
    for (int64_t c = 0; c < lookup.width; c += kColumnBlock) {
      const int64_t width = lookup.width - c < kColumnBlock ? lookup.width - c : kColumnBlock;
      for (int64_t i = 0; i < width; ++i) block[i] = 0;
      for (int64_t n = first; n < last; ++n) {
        if (c == 0) prefetch_ahead<From>(lookup, n, last);
        if (lookup.rows[n] >= 0)
          load_row<true>(table_row<From>(lookup, lookup.rows[n]) + c, width, block);
      }
      for (int64_t i = 0; i < width; ++i) block[i] *= factor;
      store_row(block, width, static_cast<To*>(lookup.out) + b * lookup.width + c);
    }
  }
}

template <class T>
void pooled_gradients(const PooledGradients& p, int64_t begin, int64_t end) {
  float block[kColumnBlock];
  for (int64_t b = begin; b < end; ++b) {
    const int64_t first = p.offsets[b], last = p.offsets[b + 1];
    const float factor = p.mean && last > first ? 1.0f / static_cast<float>(last - first) : 1.0f;
    for (int64_t c = 0; c < p.width; c += kColumnBlock) {
      const int64_t width = p.width - c < kColumnBlock ? p.width - c : kColumnBlock;
      load_row<false>(static_cast<const T*>(p.gradients) + b * p.width + c, width, block);
      for (int64_t i = 0; i < width; ++i) block[i] *= factor;
      for (int64_t n = first; n < last; ++n)
        store_row(block, width, static_cast<T*>(p.out) + n * p.width + c);
    }
  }
}

template <class T>
void init_rows(const InitRows& p, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    T* out = static_cast<T*>(p.table) + r * p.width;
    for (int64_t c = 0; c < p.width; c += 4) {
      float value[4];
      initial_quad(p.seed, p.table_index, p.first_row + r * p.stride, static_cast<uint32_t>(c / 4),
                   value);
      for (int64_t i = 0; i < 4 && c + i < p.width; ++i)
        out[c + i] = from_float<T>(p.std * value[i]);
    }
  }
}

}  // namespace

void lookup_cpu(const Lookup& p, int64_t begin, int64_t end) {
  with_element(p.table_type, [&](auto from) {
    with_element(p.out_type, [&](auto to) { lookup<decltype(from), decltype(to)>(p, begin, end); });
  });
}

void pooled_lookup_cpu(const PooledLookup& p, int64_t begin, int64_t end) {
  with_element(p.lookup.table_type, [&](auto from) {
    with_element(p.lookup.out_type,
                 [&](auto to) { pooled_lookup<decltype(from), decltype(to)>(p, begin, end); });
  });
}

void pooled_gradients_cpu(const PooledGradients& p, int64_t begin, int64_t end) {
  with_element(p.type, [&](auto type) { pooled_gradients<decltype(type)>(p, begin, end); });
}

void init_rows_cpu(const InitRows& p, int64_t begin, int64_t end) {
  with_element(p.type, [&](auto type) { init_rows<decltype(type)>(p, begin, end); });
}

}  // namespace tautline::kernels::TAUTLINE_ISA
