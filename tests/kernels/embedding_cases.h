// Ids and gradients for tests of the embedding kernels, with the shapes that matter: nothing, one,
// around the piece and the strands of a sum, one row only, -1 among the ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tautline/base/random.h"
#include "tautline/kernels/element.h"
#include "tautline/kernels/normal.h"

namespace tautline::kernels::testing {

struct RowCase {
  std::string name;
  int64_t table_rows, width;
  std::vector<int64_t> rows;
};

/// `count` ids, log-uniform (Zipf with exponent 1) over the table.
inline std::vector<int64_t> zipf_rows(int64_t count, int64_t table_rows, uint64_t seed) {
  Random random(seed, RandomUse::kSynthetic);
  std::vector<int64_t> rows(static_cast<size_t>(count));
  for (int64_t& row : rows)
    row = static_cast<int64_t>(std::exp(random.uniform() * std::log(double(table_rows)))) - 1;
  return rows;
}

inline std::vector<RowCase> row_cases() {
  std::vector<RowCase> cases;
  cases.push_back({"no ids", 7, 5, {}});
  cases.push_back({"one id", 1, 1, {0}});
  cases.push_back({"only -1", 9, 8, {-1, -1, -1}});
  for (const int64_t n : {31, 32, 33, 64, 65, 1023, 1024, 1025, 2049})
    cases.push_back({"one row " + std::to_string(n) + " times", 3, 20,
                     std::vector<int64_t>(static_cast<size_t>(n), 2)});
  for (const int64_t width : {1, 3, 4, 31, 32, 64, 100, 128, 256, 257, 512, 520}) {
    RowCase zipf{"zipf width " + std::to_string(width), 1000, width, zipf_rows(3000, 1000, 7)};
    for (size_t n = 0; n < zipf.rows.size(); n += 17) zipf.rows[n] = -1;
    cases.push_back(std::move(zipf));
  }
  RowCase uniform{"uniform, large table", int64_t{1} << 33, 4, {}};
  Random random(3, RandomUse::kSynthetic);
  for (int n = 0; n < 5000; ++n)
    uniform.rows.push_back(static_cast<int64_t>(random.below(uint64_t{1} << 33)));
  cases.push_back(std::move(uniform));
  return cases;
}

/// Standard normal values of an element type, as the bytes of a tensor.
inline std::vector<uint8_t> normal_values(Element element, int64_t count, uint64_t seed,
                                          float std = 1.0f) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count * element_bytes(element)));
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    auto* out = reinterpret_cast<T*>(bytes.data());
    for (int64_t i = 0; i < count; i += 4) {
      float quad[4];
      initial_quad(seed, 77, i, 0, quad);
      for (int64_t j = i; j < i + 4 && j < count; ++j) out[j] = from_float<T>(std * quad[j - i]);
    }
  });
  return bytes;
}

inline float value_at(const std::vector<uint8_t>& bytes, Element element, int64_t index) {
  return with_element(element, [&](auto zero) {
    return to_float(reinterpret_cast<const decltype(zero)*>(bytes.data())[index]);
  });
}

inline std::string name_of(Element element) {
  return element == Element::kFloat32    ? "float32"
         : element == Element::kBFloat16 ? "bfloat16"
                                         : "float16";
}

inline constexpr Element kElements[] = {Element::kFloat32, Element::kBFloat16, Element::kFloat16};

/// Half a unit in the last place, relative.
inline double half_ulp(Element element) {
  return element == Element::kFloat32 ? 0x1p-24 : element == Element::kBFloat16 ? 0x1p-8 : 0x1p-11;
}

}  // namespace tautline::kernels::testing
