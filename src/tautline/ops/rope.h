// The rotation of a packed projection's heads, for operators that are made of it.
#pragma once

#include <string_view>

#include "tautline/ops/ops.h"

namespace tautline::ops {

/// UserError, beginning with `name`, unless qkv is [T, 3, H, D] with an even D and position [T].
void check_rope(const Tensor& qkv, const Tensor& position, std::string_view name);

/// q and k of `in` [T, 3 or 2, H, D] turned into `out` [T, 3 or 2, H, D]; v is copied where both have
/// it. Heads and channels are contiguous, FP32 on the CPU; `out` may be `in`. position: contiguous
/// int64 [T]. backward: by the negative angles.
void turn_heads(const Tensor& in, const Tensor& out, const Tensor& position, double base,
                bool backward);

}  // namespace tautline::ops
