// Operators over an embedding table that lies on one device: look up rows, sum the gradients of
// repeated rows, change the touched rows. embedding/ shards tables over these. No autograd: a
// lookup is separate calls, so that prefetch, clipping and replicas can stand between them. From
// Python the same functions are torch.ops.tautline.NAME, with meta kernels.
//
// R rows, E columns, N ids, U distinct rows, B bags. Tables and gradients are float32, bfloat16 or
// float16, contiguous; ids and offsets int64; state float32. Id -1 means "none": zeros from a
// lookup, no part in an update. Any other id outside [0, R) throws UserError with the id and R on
// the CPU; on CUDA the kernel prints them and traps. Formulas and order of sums:
// kernels/embedding_update.h. Bitwise deterministic, on any number of threads. Empty inputs are
// fine.
#pragma once

#include <cstdint>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace tautline::ops {

/// table [R, E], rows [N] in any order -> [N, E] of `out_type`.
at::Tensor lookup(const at::Tensor& table, const at::Tensor& rows, at::ScalarType out_type);

/// Sum or mean over each bag rows[offsets[b] : offsets[b+1]]: offsets [B + 1] -> [B, E].
at::Tensor pooled_lookup(const at::Tensor& table, const at::Tensor& rows, const at::Tensor& offsets,
                         bool mean, at::ScalarType out_type);
/// gradients [B, E] of pooled_lookup -> [count, E], one a looked-up row; count = offsets[B].
at::Tensor pooled_gradients(const at::Tensor& gradients, const at::Tensor& offsets, int64_t count,
                            bool mean);

/// rows [N], gradients [N, E] -> (distinct rows [U] ascending, their sums [U, E] float32).
/// `table_rows` bounds the ids. On CUDA this waits for U, unless the caller knows it: `distinct`.
std::tuple<at::Tensor, at::Tensor> coalesce(const at::Tensor& rows, const at::Tensor& gradients,
                                            int64_t table_rows, int64_t distinct = -1);

/// The three optimisers over what coalesce gave: rows distinct, sums [U, E] float32. In place.
/// Weight decay is decoupled.
void apply_sgd(at::Tensor& table, const at::Tensor& rows, const at::Tensor& sums, double lr,
               double weight_decay);
/// state [R].
void apply_rowwise_adagrad(at::Tensor& table, at::Tensor& state, const at::Tensor& rows,
                           const at::Tensor& sums, double lr, double eps, double weight_decay);
/// moment1, moment2 [R, E]; `step` of the whole job, counted from 1.
void apply_adam(at::Tensor& table, at::Tensor& moment1, at::Tensor& moment2, const at::Tensor& rows,
                const at::Tensor& sums, int64_t step, double lr, double beta1, double beta2,
                double eps, double weight_decay);

/// coalesce and apply in one, for when nothing lies between: same result, bit for bit, and no wait
/// on CUDA. SGD and Adagrad store no sums.
void update_sgd(at::Tensor& table, const at::Tensor& rows, const at::Tensor& gradients, double lr,
                double weight_decay);
void update_rowwise_adagrad(at::Tensor& table, at::Tensor& state, const at::Tensor& rows,
                            const at::Tensor& gradients, double lr, double eps,
                            double weight_decay);
void update_adam(at::Tensor& table, at::Tensor& moment1, at::Tensor& moment2,
                 const at::Tensor& rows, const at::Tensor& gradients, int64_t step, double lr,
                 double beta1, double beta2, double eps, double weight_decay);

/// table[r, c] = std x normal of (seed, table_index, first_row + r x stride, c): a shard's rows get
/// the values that they have in the whole table. Same bits on CPU and GPU.
void init_rows(at::Tensor& table, int64_t seed, int64_t table_index, int64_t first_row,
               int64_t stride, double std);

}  // namespace tautline::ops
