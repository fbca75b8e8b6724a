// What the CUDA kernels of block attention share: where blocks lie, work memory, which kernel takes a
// problem.
#pragma once

#include "tautline/kernels/block_attention.h"
#include "tautline/kernels/launch.cuh"

namespace tautline::kernels {

/// Where the blocks of a batch lie, on the device.
struct BlockPlaces {
  const int64_t* token;  // [blocks + 1]: first token; T behind the last one
  const int64_t* place;  // [blocks]: of that token in its sequence
};

/// Taken from one piece of memory, front to back; with a null base only the size counts.
struct Workspace {
  char* base;
  int64_t used = 0;
  template <class X>
  X* take(int64_t count) {
    X* result = base ? reinterpret_cast<X*>(base + used) : nullptr;
    used += (count * static_cast<int64_t>(sizeof(X)) + 255) / 256 * 256;
    return result;
  }
  HeadsView heads(int64_t tokens, int64_t heads, int64_t dim, Element element) {
    return {take<char>(tokens * heads * dim * element_bytes(element)), heads * dim, dim};
  }
};

/// Fused kernels (block_attention_fused*.cu): D 64 or 128, rows of whole 16 bytes; the backward
/// without grouped heads.
bool fused_takes(const BlockAttention& p, bool backward);
void block_attention_fused_forward(const BlockAttention& p, const BlockPlaces& blocks);
void block_attention_fused_backward(const BlockAttention& p, const BlockPlaces& blocks);
/// The backward on Hopper (block_attention_backward_sm90.cu): what the fused one takes, if TMA can
/// address it.
bool block_attention_backward_sm90_takes(const BlockAttention& p);
void block_attention_backward_sm90(const BlockAttention& p, const BlockPlaces& blocks);

/// The plain ones, for the rest (block_attention_portable.cu). With a null workspace nothing runs,
/// only its size is counted.
void block_attention_portable_forward(const BlockAttention& p, const BlockPlaces& blocks,
                                      Workspace& workspace);
void block_attention_portable_backward(const BlockAttention& p, const BlockPlaces& blocks,
                                       Workspace& workspace);

}  // namespace tautline::kernels
