// A model on a log as a Workload: rows, lookups, tokens and FLOP of a training step.
//
// Useful FLOP of a step, forward and backward, whatever the precision and without recomputation:
//
//   6 P T + 3.5 x 4 H d A L
//
//   P dense parameters (everything outside the tables)   T tokens of the step
//   H heads, d head dimension, L layers                   A (query, key) pairs attention sees
//
// A matrix product costs 2 FLOP a parameter and token forward and twice that backward. Attention
// costs 4 H d a pair forward (Q K' and P V, 2 H d each) and 2.5 times that backward (its five
// products against two; Dao, "FlashAttention-2", 2023, section 4.1). Norms, activations, the loss
// and the tables are left out, as is usual for model FLOP utilisation (Chowdhery et al., "PaLM",
// 2022, appendix B): MFU = useful FLOP / (time x the device's peak rate).
#pragma once

#include <cstdint>

#include "tautline/workload/model.h"
#include "tautline/workload/workload.h"

namespace tautline {

/// The formula above. `pairs`: summed over the sequences of the step, of one layer.
double useful_flop(double dense_parameters, double tokens, double pairs, int64_t heads,
                   int64_t head_dim, int64_t layers);

/// Pairs of one sequence of n tokens: n^2 / 2 where causal (half of the diagonal's share is left
/// out, as in the figures we compare with: 1/n of the whole), n^2 otherwise; with block attention
/// the sum of that over its blocks.
double attention_pairs(double tokens, const BackboneConfig& backbone);

/// Parameters outside the tables: what models/ builds from the same config.
double dense_parameters(const ModelConfig& model);

/// The model with `rows: 0` filled in from the log's vocabularies (+ 1 for the unknown id 0).
/// Errors: a feature whose column the log does not have; a table with direct ids and fewer rows
/// than the vocabulary (an id would lie beyond the table).
ModelConfig with_rows(const ModelConfig& model, const LogStatistics& log);

/// What a step of `batch` samples asks for, expected over the log's log-normal lengths: histories
/// are cut into chunks of at most max_length tokens, and a user's last two events are held out.
Workload describe(const ModelConfig& model, const LogStatistics& log, int64_t batch);

}  // namespace tautline
