#include "tautline/train/saved_state.h"

#include <memory>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

namespace tautline::train {
namespace {

struct Saved {
  std::string name;
  at::Tensor tensor;  // in place
  RowLayout layout;
  bool saved_here = true;
  bool weight = true;  // false: optimiser state
};

std::vector<Saved> saved_tensors(const Network& network, const dense::AdamW& optimizer, int rank) {
  std::vector<Saved> out;
  for (const dense::Parameter& p : network.model.parameters().all()) {
    const auto part = [&](const at::Tensor& flat) {
      return flat.narrow(0, p.begin, p.end - p.begin).view(p.value.sizes());
    };
    out.push_back({"dense." + p.name, part(network.model.parameters().values()), RowLayout::whole(),
                   rank == 0, true});
    out.push_back({"adamw.first." + p.name, part(optimizer.first_moment()), RowLayout::whole(),
                   rank == 0, false});
    out.push_back({"adamw.second." + p.name, part(optimizer.second_moment()), RowLayout::whole(),
                   rank == 0, false});
  }
  for (const auto& [name, table] : network.tables) {
    for (const embedding::TableState& state : table->state()) {
      out.push_back({"table." + name + "." + state.kind, state.tensor,
                     RowLayout::dealt(state.global_rows, state.first, state.stride),
                     state.saved_here && state.tensor.size(0) > 0, state.kind == "weight"});
    }
  }
  return out;
}

DataType data_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DataType::kF32;
    case at::kBFloat16:
      return DataType::kBf16;
    case at::kHalf:
      return DataType::kF16;
    default:
      return DataType::kI64;
  }
}

}  // namespace

Snapshot take_snapshot(const Network& network, const dense::AdamW& optimizer, int rank) {
  const at::NoGradGuard no_grad;
  auto copies = std::make_shared<std::vector<at::Tensor>>();
  std::vector<CheckpointTensor> tensors;
  for (const Saved& saved : saved_tensors(network, optimizer, rank)) {
    if (!saved.saved_here) continue;
    at::Tensor copy = saved.tensor.detach().contiguous();
    copy = copy.is_cpu() ? copy.clone() : copy.cpu();
    tensors.push_back(
        {{saved.name, data_type(copy), copy.sizes().vec(), copy.const_data_ptr()}, saved.layout});
    copies->push_back(std::move(copy));
  }
  return Snapshot(std::move(tensors), copies);
}

void restore(CheckpointReader& reader, Network& network, const dense::AdamW& optimizer,
             Restore what) {
  const at::NoGradGuard no_grad;
  for (Saved& saved : saved_tensors(network, optimizer, 0)) {
    if (what == Restore::kWeights && !saved.weight) continue;
    if (saved.tensor.numel() == 0) continue;
    at::Tensor host = at::empty(saved.tensor.sizes(), saved.tensor.options().device(at::kCPU));
    const CheckpointReader::Rows rows =
        saved.layout.replicated ? CheckpointReader::Rows{}
                                : CheckpointReader::Rows{saved.layout.offset, saved.layout.stride};
    reader.read_rows(saved.name, data_type(host), rows, host.mutable_data_ptr(),
                     static_cast<int64_t>(host.nbytes()));
    saved.tensor.copy_(host);
  }
}

}  // namespace tautline::train
