// Which rows of a softmax's backward sum their own delta = sum_j P_j dP_j instead of d_o . o.
#pragma once

#include "tautline/kernels/attention_problem.h"

namespace tautline::kernels {

/// o is rounded to 16 bits, relative 2^-9: that error of d_o . o is common to all of a row's keys, and
/// with few of them it does not average out but stands beside dP - delta, which may cancel to nothing.
/// From some 16 keys on it is below what rounding P and dS to 16 bits makes.
TAUTLINE_ELEMENT_FUNCTION bool few_keys(KeyRange keys) { return keys.last - keys.first <= 16; }

}  // namespace tautline::kernels
