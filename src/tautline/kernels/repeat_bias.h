// One learned number on the scores of the classes that a row's history holds already.
//
// People come back to the same song and never to the same film. A dot product can say the second
// only by turning away from everything that looks like the history; with this number it need not.
//
//   x_rj = (score_rj + bias * [j is among row r's classes]) * scale
//
// Row r's classes are column[first[r]] .. column[last[r] - 1], distinct; -1 is a class of another
// shard. Prefixes of one history share their places in `column`, so it holds at most one a token.
#pragma once

#include <cstdint>

namespace tautline::kernels {

struct RepeatBias {
  const int64_t* first = nullptr;   // [N], null: no such bias
  const int64_t* last = nullptr;    // [N]
  const int64_t* column = nullptr;  // [U]
  const float* bias = nullptr;      // one number, where the scores are
  float* d_bias = nullptr;          // [N]: each row's part of its gradient; may be null
};

}  // namespace tautline::kernels
