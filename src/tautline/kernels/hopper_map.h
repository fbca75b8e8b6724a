// Tensor maps for TMA over a [T, H, D] view of a jagged batch, which end where a sequence does.
//
// A map knows one bound per dimension, the batch has many sequences. So a row's coordinate is a sum:
// dimensions 1 and 2 both step by one token, dimension 1 has as many elements as a box has rows (R),
// and the base lies R tokens before the tensor. A box whose first `count` <= R rows lie in the
// sequence and start at token t is read at (column, R - count, t + count, head): its other rows fall
// out of dimension 1, so a load fills them with zeros and a store leaves them out. (Triton's ragged
// descriptors have the idea.) At least one row must be inside: boxes wholly outside, in whatever
// dimension, ended now and then in an illegal address on an H200.
#pragma once

#include <cstdint>

#include <cuda.h>

#include "tautline/kernels/attention_problem.h"

namespace tautline::kernels::hopper {

/// Whether a map of the view can be made: addresses of 16 bytes, strides above 0 that 8 divides.
bool fits_map(const HeadsView& view, int64_t heads);

/// Boxes of `rows` tokens and 64 columns of one head, swizzled by 128 bytes. The view must fit.
CUtensorMap tensor_map(const HeadsView& view, Element element, int64_t tokens, int64_t heads,
                       int64_t dim, int32_t rows);

}  // namespace tautline::kernels::hopper
