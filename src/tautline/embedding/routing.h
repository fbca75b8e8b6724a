// Rows that a rank wants, grouped by the rank that holds them. Local work, no communication.
#pragma once

#include <ATen/core/Tensor.h>

#include "tautline/embedding/placement.h"

namespace tautline::embedding {

/// u distinct rows (or all n of them, where duplicates are kept).
struct Groups {
  at::Tensor local;    // [n], the first u are meant: the row on its holder, by (holder, local row)
  at::Tensor inverse;  // [n]: where among them asked row i stands
  at::Tensor counts;   // [W]: how many each rank holds; sums to u
};

/// rows [n] int64 in [0, placement.rows), on any device; no host synchronisation.
Groups group_by_holder(const at::Tensor& rows, const Placement& placement, bool deduplicate);

/// The form in tensor operators that other devices take; the CPU's results are its very own.
Groups group_by_holder_generic(const at::Tensor& rows, const Placement& placement,
                               bool deduplicate);

}  // namespace tautline::embedding
