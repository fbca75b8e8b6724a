#include "tautline/train/step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include "tautline/workload/describe.h"

namespace tautline::train {
namespace {

double attention_pairs(const data::Batch& batch, const BackboneConfig& backbone) {
  double pairs = 0;
  for (int64_t i = 0; i < batch.samples(); ++i) {
    pairs += tautline::attention_pairs(static_cast<double>(batch.offsets[i + 1] - batch.offsets[i]),
                                       backbone);
  }
  return pairs;
}

}  // namespace

Step::Step(Network& network, const StepOptions& options, comm::Communicator world,
           comm::Communicator dense, Recorder& recorder)
    : network_(network),
      options_(options),
      world_(std::move(world)),
      clock_(recorder, world_.device()),
      gradients_(network.model.parameters(), std::move(dense), options.dense_gradient),
      optimizer_(network.model.parameters(), options.dense) {}

void Step::run(const data::Batch& batch) {
  const int64_t step = batch.step;
  models::Inputs inputs;
  {
    const auto span = clock_.phase(step, "input", "to_device");
    inputs = network_.inputs.training(batch);
  }
  Routes routes;
  const models::Rows rows = look_up(inputs, routes, step);
  models::Loss loss;
  {
    const auto span = clock_.phase(step, "forward");
    const at::Tensor hidden = network_.model.hidden(inputs, rows, {true, step});
    loss = models::step_loss({network_.model, network_.class_table(), network_.classes, world_},
                             inputs, rows, hidden);
  }
  {
    const auto span = clock_.phase(step, "backward");
    gradients_.begin();
    torch::autograd::backward(loss.roots, loss.gradients);
  }
  update_tables(rows, loss, routes, step);
  {
    const auto span = clock_.phase(step, "all_reduce", "dense_gradients");
    gradients_.finish();
  }
  const auto span = clock_.phase(step, "optimizer", "dense");
  optimizer_.step(step);
  start_report(batch, loss.value);
}

/// The rows of every table as leaves of autograd.
models::Rows Step::look_up(const models::Inputs& inputs, Routes& routes, int64_t step) {
  models::Rows rows;
  {
    const auto span = clock_.phase(step, "all_to_all", "ids");
    for (const auto& [name, ids] : inputs.ids) {
      routes[name] =
          network_.tables.at(name)->start_ids(ids, embedding::ShardedTable::Ids::kChecked);
    }
    for (auto& [name, route] : routes) network_.tables.at(name)->send_ids(route);
  }
  for (auto& [name, route] : routes) {
    const auto span = clock_.phase(step, "lookup", name);
    rows[name] = network_.tables.at(name)->look_up(route);
  }
  for (auto& [name, route] : routes) {
    const auto span = clock_.phase(step, "all_to_all", name + ".rows");
    at::Tensor values = network_.tables.at(name)->return_rows(route, rows[name]);
    rows[name] = values.detach().set_requires_grad(true);
  }
  return rows;
}

void Step::update_tables(const models::Rows& rows, const models::Loss& loss, Routes& routes,
                         int64_t step) {
  const at::NoGradGuard no_grad;
  const double rate = dense::learning_rate_factor(options_.dense, step);
  std::map<std::string, at::Tensor> gradients;
  for (auto& [name, route] : routes) {
    const auto span = clock_.phase(step, "all_to_all", name + ".gradients");
    const at::Tensor& values = rows.at(name);
    gradients[name] = values.grad().defined() ? values.grad() : at::zeros_like(values);
    network_.tables.at(name)->send_gradients(route, gradients[name]);
  }
  for (auto& [name, route] : routes) {
    const auto span = clock_.phase(step, "optimizer", name);
    embedding::ShardedTable& table = *network_.tables.at(name);
    if (loss.class_gradient.defined() && &table == network_.class_table()) {
      const embedding::Touched touched = table.coalesce(route, gradients[name]);
      table.apply(table.add_dense_gradient(touched, loss.class_gradient), rate);
    } else {
      table.apply_gradients(route, gradients[name], rate);
    }
  }
}

void Step::start_report(const data::Batch& batch, const at::Tensor& loss) {
  const at::NoGradGuard no_grad;
  Pending pending;
  pending.step = batch.step;
  pending.values = at::empty({3}, loss.options().dtype(at::kDouble));
  pending.values[0].copy_(loss);
  pending.values[1].fill_(static_cast<double>(batch.tokens()));
  pending.values[2].fill_(attention_pairs(batch, network_.config.backbone));
  pending.sum = world_.all_reduce(pending.values, comm::Communicator::Reduction::kSum, "report");
  if (loss.is_cuda()) {
    pending.sum.wait();  // the stream's wait, not the host's
    pending.host = at::empty({3}, at::TensorOptions(at::kDouble).pinned_memory(true));
    pending.host.copy_(pending.values, /*non_blocking=*/true);
    const c10::impl::VirtualGuardImpl guard(loss.device().type());
    auto event = std::make_shared<c10::Event>(loss.device().type());
    event->record(guard.getStream(loss.device()));
    pending.copied = std::move(event);
  }
  pending_.push_back(std::move(pending));
}

std::optional<StepReport> Step::next_report(size_t ahead) {
  if (pending_.size() <= ahead) return std::nullopt;
  Pending pending = std::move(pending_.front());
  pending_.pop_front();
  if (pending.copied) {
    std::static_pointer_cast<c10::Event>(pending.copied)->synchronize();
  } else {
    pending.sum.wait();
    pending.host = pending.values;
  }
  const double* values = pending.host.const_data_ptr<double>();
  return StepReport{pending.step, values[0], values[1], values[2]};
}

}  // namespace tautline::train
