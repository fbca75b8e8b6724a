// Launches both passes of loss.h for one element type and width.
#pragma once

#include <type_traits>

#include "tautline/kernels/attention_problem.h"
#include "tautline/kernels/hopper_map.h"
#include "tautline/kernels/launch.cuh"
#include "tautline/kernels/softmax_loss_sm90/items.cuh"
#include "tautline/kernels/softmax_loss_sm90/rows.cuh"
#include "tautline/kernels/softmax_loss_sm90/stream.cuh"

namespace tautline::kernels::softmax_sm90 {

inline CUtensorMap map_of(const void* data, int64_t count, const SoftmaxLossSm90& p, int box) {
  const HeadsView view{const_cast<void*>(data), p.width, 0};
  return hopper::tensor_map(view, p.element, count, 1, p.width, box);
}

inline PassArguments arguments_of(const SoftmaxLossSm90& p) {
  PassArguments a{};
  a.scale = p.scale;
  a.to_log2 = p.scale * kLog2E;
  a.weight = p.weight;
  a.log_q = p.log_q;
  a.column_id = p.column_id, a.row_id = p.row_id, a.target = p.target;
  a.extra = p.extra, a.lse = p.lse;
  a.max = p.max, a.sum = p.sum, a.target_logit = p.target_logit;
  a.h = p.h, a.items = p.items;
  a.d_h = p.d_h, a.d_items = p.d_items;
  a.float_items = p.items_element == Element::kFloat32;
  a.width = static_cast<int32_t>(p.width);
  return a;
}

/// `function` with `flag` as a type.
template <class Function>
void with_bool(bool flag, Function&& function) {
  flag ? function(std::true_type{}) : function(std::false_type{});
}

template <class C, class F>
void launch_pass(const PassArguments& a, void* stream) {
  auto* kernel = softmax_pass<C, F>;
  constexpr int kBytes = sizeof(typename C::Shared) + 1024;
  static_assert(kBytes <= 227 * 1024);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "shared memory of the softmax loss");
  kernel<<<a.plan.splits * a.plan.members, C::kThreads, kBytes, stream_of(stream)>>>(a);
  check_launch("softmax loss");
}

template <class E, int kD>
void rows_pass(const SoftmaxLossSm90& p) {
  constexpr PassShape kShape = rows_shape(kD);
  constexpr int kItems = items_shape(kD).block;
  using C = Config<E, kD, kShape>;
  char* const workspace = static_cast<char*>(p.workspace);
  const Workspace w = workspace_of(p);
  PassArguments a = arguments_of(p);
  a.stay = map_of(p.h, p.rows, p, kTile);
  a.stream = map_of(p.items, p.classes, p, kShape.block);
  a.corrections = workspace + w.columns;
  if (p.d_items) a.row_corrections = workspace + w.rows;
  a.stay_count = static_cast<int32_t>(p.rows), a.stream_count = static_cast<int32_t>(p.classes);
  a.plan = rows_plan(p);
  with_bool(p.d_h != nullptr, [&](auto product) {
    const auto launch = [&](auto start) {
      launch_pass<C, RowsPass<E, kD, kShape.block, kItems, product.value, start.value>>(a,
                                                                                        p.stream);
    };
    if (p.column_id && p.row_id)
      launch(std::integral_constant<Start, Start::kHits>{});
    else if (p.log_q)
      launch(std::integral_constant<Start, Start::kOwn>{});
    else
      launch(std::integral_constant<Start, Start::kZero>{});
  });
}

template <class E, int kD>
void items_pass(const SoftmaxLossSm90& p) {
  constexpr PassShape kShape = items_shape(kD);
  using C = Config<E, kD, kShape>;
  char* const workspace = static_cast<char*>(p.workspace);
  const Workspace w = workspace_of(p);
  PassArguments a = arguments_of(p);
  a.stay = map_of(p.items, p.classes, p, kTile);
  a.stream = map_of(p.h, p.rows, p, kShape.block);
  a.corrections = workspace + w.rows;
  a.stay_count = static_cast<int32_t>(p.classes), a.stream_count = static_cast<int32_t>(p.rows);
  a.plan = items_plan(p);
  if (a.plan.splits > 1) a.sums = reinterpret_cast<float*>(workspace + w.sums);
  with_bool(p.column_id && p.row_id, [&](auto hits) {
    launch_pass<C, ItemsPass<E, kD, kShape.block, hits.value>>(a, p.stream);
  });
}

}  // namespace tautline::kernels::softmax_sm90
