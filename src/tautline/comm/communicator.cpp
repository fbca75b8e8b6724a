#include "tautline/comm/communicator.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>

#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tautline/base/error.h"
#include "tautline/comm/bytes.h"
#include "tautline/comm/watch.h"

namespace tautline::comm {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

namespace {

// How long a thread sleeps in one piece before it looks at the watch again.
constexpr std::chrono::milliseconds kSlice{100};

// A moment on a device's stream. c10::Event needs no CUDA header.
struct Moment {
  explicit Moment(at::Device device) : event(device.type(), c10::EventFlag::BACKEND_DEFAULT) {
    event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  double seconds_since(const Moment& base) const { return base.event.elapsedTime(event) * 1e-3; }
  c10::Event event;
};

std::string sentence(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = c10_error ? c10_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

double bytes_of(const at::Tensor& tensor) { return static_cast<double>(tensor.nbytes()); }

}  // namespace

struct Communicator::Impl {
  c10::intrusive_ptr<c10d::Backend> backend;  // null: a single rank
  at::Device device = at::kCPU;
  std::string group;
  std::shared_ptr<Watch> watch;
  int watch_number = -1;
  RecordHook hook;
  int64_t sequence = 0;
  double last_end = 0;  // CUDA: when this group's stream was free again
  std::vector<std::shared_ptr<Work::State>> unflushed;
  std::unique_ptr<Moment> base;
  double base_seconds = 0;
  std::atomic<bool> aborted{false};

  ~Impl() {
    if (watch) watch->forget(watch_number);
    // A transport that hangs on a dead peer would hang here too: the process is about to end, let
    // it go.
    if (aborted || (watch && watch->failure())) backend.release();
  }
  void abort() {
    if (backend && !aborted.exchange(true)) backend->abort();
  }
  bool on_device() const { return !device.is_cpu(); }
  [[noreturn]] void fail(const std::string& name, const std::exception& error) const {
    const std::string text =
        "collective '" + name + "' of group '" + group + "': " + sentence(error);
    if (watch) watch->explain(text);
    throw RankFailure(text);
  }
};

struct Work::State {
  std::shared_ptr<Communicator::Impl> group;
  c10::intrusive_ptr<c10d::Work> work;
  std::vector<at::Tensor> tensors;
  CollectiveRecord record;
  std::function<void()> finish;  // what is left to do on the host when c10d's work is done; CPU
  std::mutex mutex;              // of `record.end` and `waited_for`
  bool waited_for = false;
  std::unique_ptr<Moment> arrival, wait_begin, wait_end;

  void hand_over() {
    if (group->hook) group->hook(record);
  }
  bool wait_on_host(double seconds);
  void wait_on_stream();
};

// c10d's own timed wait throws both when the time is over and when the collective failed. What was
// thrown before isCompleted() says nothing: the work may have ended well in between. Once it has
// ended, a further wait returns at once, or throws what really went wrong.
bool Work::State::wait_on_host(double seconds) {
  const double begin = steady_seconds();
  for (;;) {
    const bool ended = work->isCompleted();
    try {
      work->wait(kSlice);
      break;
    } catch (const std::exception& error) {
      if (ended) group->fail(record.name, error);
    }
    if (group->watch) group->watch->check();
    if (seconds >= 0 && steady_seconds() - begin > seconds) return false;
  }
  const double end = steady_seconds();
  const std::lock_guard lock(mutex);
  if (waited_for) return true;
  waited_for = true;
  if (finish) finish();
  tensors.clear();
  record.wait_start = begin;
  record.wait_end = end;
  if (record.end == 0) record.end = end;
  hand_over();
  return true;
}

void Work::State::wait_on_stream() {
  if (group->watch) group->watch->check();
  const std::lock_guard lock(mutex);
  const bool first = !waited_for;
  waited_for = true;
  if (first && group->hook) wait_begin = std::make_unique<Moment>(group->device);
  try {
    work->wait();
  } catch (const std::exception& error) {
    group->fail(record.name, error);
  }
  // A record may wait long for its times. The stream that waited owns the memory again: what it
  // does from now on comes after the collective.
  tensors.clear();
  if (first && group->hook) wait_end = std::make_unique<Moment>(group->device);
}

void Work::wait() {
  if (!state_) return;
  if (state_->group->on_device()) {
    state_->wait_on_stream();
  } else {
    state_->wait_on_host(-1);
  }
}

bool Work::wait_for(double seconds) {
  if (!state_) return true;
  if (!state_->group->on_device()) return state_->wait_on_host(seconds);
  state_->wait_on_stream();
  return true;
}

bool Work::done() const { return !state_ || state_->work->isCompleted(); }

Communicator::Communicator(at::Device device) : impl_(std::make_shared<Impl>()) {
  impl_->device = device;
}

Communicator::Communicator(const c10::intrusive_ptr<c10d::Backend>& backend, at::Device device,
                           std::string group, std::shared_ptr<Watch> watch)
    : impl_(std::make_shared<Impl>()) {
  impl_->backend = backend;
  impl_->device = device;
  impl_->group = std::move(group);
  impl_->watch = std::move(watch);
  if (impl_->watch) {
    impl_->watch_number = impl_->watch->on_failure([weak = std::weak_ptr<Impl>(impl_)] {
      if (const auto impl = weak.lock()) impl->abort();
    });
  }
}

int Communicator::rank() const { return impl_->backend ? impl_->backend->getRank() : 0; }
int Communicator::size() const { return impl_->backend ? impl_->backend->getSize() : 1; }
at::Device Communicator::device() const { return impl_->device; }
const std::string& Communicator::group() const { return impl_->group; }
void Communicator::abort() { impl_->abort(); }

void Communicator::set_record_hook(RecordHook hook) {
  impl_->hook = std::move(hook);
  if (!impl_->hook || !impl_->on_device() || !impl_->backend) return;
  impl_->backend->enableCollectivesTiming();
  impl_->base = std::make_unique<Moment>(impl_->device);
  impl_->base->event.synchronize();
  impl_->base_seconds = steady_seconds();
}

// Starts one collective: `start(backend)` gives c10d's work.
template <class Start>
static Work begin(const std::shared_ptr<Communicator::Impl>& group, const std::string& name,
                  const char* kind, double bytes, std::vector<at::Tensor> tensors,
                  const Start& start, std::function<void()> finish = nullptr) {
  auto state = std::make_shared<Work::State>();
  state->group = group;
  state->tensors = std::move(tensors);
  state->finish = std::move(finish);
  state->record = {.name = name,
                   .kind = kind,
                   .group = group->group,
                   .arrival = steady_seconds(),
                   .bytes = bytes,
                   .sequence = group->sequence++};
  state->record.start = state->record.arrival;
  if (group->watch) group->watch->check();
  if (group->hook && group->on_device()) {
    state->arrival = std::make_unique<Moment>(group->device);
    group->unflushed.push_back(state);
  }
  try {
    state->work = start(*group->backend);
  } catch (const c10::DistError& error) {
    group->fail(name, error);
  }
  if (group->hook && !group->on_device()) {
    // The transport's thread notes the end: the caller may come for the result much later.
    state->work->getFuture()->addCallback([weak = std::weak_ptr(state)](c10::ivalue::Future&) {
      if (const auto state = weak.lock()) {
        const std::lock_guard lock(state->mutex);
        if (!state->waited_for) state->record.end = steady_seconds();
      }
    });
  }
  return Work(state);
}

Work Communicator::all_to_all_rows(at::Tensor out, at::Tensor in,
                                   const std::vector<int64_t>& out_splits,
                                   const std::vector<int64_t>& in_splits, const std::string& name) {
  const size_t world = static_cast<size_t>(size());
  TAUTLINE_INVARIANT(out_splits.size() == world && in_splits.size() == world,
                     name << ": " << out_splits.size() << " and " << in_splits.size()
                          << " splits for " << world << " ranks");
  const int64_t out_rows = std::accumulate(out_splits.begin(), out_splits.end(), int64_t{0});
  const int64_t in_rows = std::accumulate(in_splits.begin(), in_splits.end(), int64_t{0});
  TAUTLINE_INVARIANT(out_rows == out.size(0) && in_rows == in.size(0),
                     name << ": splits of " << out_rows << " and " << in_rows
                          << " rows for tensors of " << out.size(0) << " and " << in.size(0));
  if (!impl_->backend) {
    out.copy_(in);
    return Work();
  }
  TAUTLINE_INVARIANT(out.is_contiguous() && in.is_contiguous(), name << ": not contiguous");
  const double row_bytes = in_rows > 0 ? bytes_of(in) / static_cast<double>(in_rows) : 0.0;
  std::vector<int64_t> received = out_splits, sent = in_splits;
  return begin(impl_, name, "all_to_all", all_to_all_bytes(in_splits, rank(), row_bytes), {out, in},
               [&](c10d::Backend& backend) {
                 return backend.alltoall_base(out, in, received, sent, c10d::AllToAllOptions());
               });
}

Work Communicator::all_reduce(at::Tensor tensor, Reduction reduction, const std::string& name) {
  if (!impl_->backend) return Work();
  c10d::AllreduceOptions options;
  options.reduceOp = reduction == Reduction::kSum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
  std::vector<at::Tensor> tensors{tensor};
  return begin(impl_, name, "all_reduce", all_reduce_bytes(bytes_of(tensor), size()), tensors,
               [&](c10d::Backend& backend) { return backend.allreduce(tensors, options); });
}

Work Communicator::all_gather(at::Tensor out, at::Tensor in, const std::string& name) {
  TAUTLINE_INVARIANT(out.numel() == in.numel() * size(), name << ": " << out.numel()
                                                              << " elements from " << size()
                                                              << " times " << in.numel());
  if (!impl_->backend) {
    out.view(in.sizes()).copy_(in);
    return Work();
  }
  return begin(impl_, name, "all_gather", all_gather_bytes(bytes_of(in), size()), {out, in},
               [&](c10d::Backend& backend) {
                 return backend._allgather_base(out, in, c10d::AllgatherOptions());
               });
}

Work Communicator::reduce_scatter(at::Tensor out, at::Tensor in, const std::string& name) {
  TAUTLINE_INVARIANT(in.numel() == out.numel() * size(), name << ": " << in.numel()
                                                              << " elements to " << size()
                                                              << " times " << out.numel());
  if (!impl_->backend) {
    out.copy_(in.view(out.sizes()));
    return Work();
  }
  const double bytes = reduce_scatter_bytes(bytes_of(in), size());
  if (!impl_->on_device()) {
    // c10d's Gloo has none: it sums all parts too, but behind a Work (LambdaWork) that has no future,
    // never says that it is done, and waits without a limit.
    const at::Tensor sums = in.clone(at::MemoryFormat::Contiguous);
    std::vector<at::Tensor> tensors{sums};
    return begin(
        impl_, name, "reduce_scatter", bytes, tensors,
        [&](c10d::Backend& backend) {
          return backend.allreduce(tensors, c10d::AllreduceOptions());
        },
        [out, parts = sums.view({size(), out.numel()}), rank = rank()] {
          out.copy_(parts[rank].view(out.sizes()));
        });
  }
  return begin(impl_, name, "reduce_scatter", bytes, {out, in}, [&](c10d::Backend& backend) {
    return backend._reduce_scatter_base(out, in, c10d::ReduceScatterOptions());
  });
}

Work Communicator::broadcast(at::Tensor tensor, int root, const std::string& name) {
  if (!impl_->backend) return Work();
  c10d::BroadcastOptions options;
  options.rootRank = root;
  std::vector<at::Tensor> tensors{tensor};
  return begin(impl_, name, "broadcast", broadcast_bytes(bytes_of(tensor), root == rank(), size()),
               tensors,
               [&](c10d::Backend& backend) { return backend.broadcast(tensors, options); });
}

// A sum over one number: back ends agree on its meaning, which is not so for their own barriers on
// a device.
void Communicator::barrier(const std::string& name) {
  if (!impl_->backend) return;
  at::Tensor one = at::zeros({1}, at::TensorOptions().device(impl_->device));
  std::vector<at::Tensor> tensors{one};
  begin(
      impl_, name, "barrier", all_reduce_bytes(bytes_of(one), size()), tensors,
      [&](c10d::Backend& backend) { return backend.allreduce(tensors, c10d::AllreduceOptions()); })
      .wait();
  if (!impl_->on_device()) return;
  one.cpu();
  if (impl_->watch) impl_->watch->check();
}

void Communicator::flush_records() {
  std::vector<std::shared_ptr<Work::State>> kept;
  for (const auto& state : impl_->unflushed) {
    if (!state->wait_end || !state->wait_end->event.query() || !state->work->isCompleted()) {
      kept.push_back(state);
      continue;
    }
    CollectiveRecord& record = state->record;
    const double zero = impl_->base_seconds;
    record.arrival = zero + state->arrival->seconds_since(*impl_->base);
    record.start = std::max(record.arrival, impl_->last_end);
    record.end = record.start + state->work->getDuration() * 1e-3;
    record.wait_start = zero + state->wait_begin->seconds_since(*impl_->base);
    record.wait_end = zero + state->wait_end->seconds_since(*impl_->base);
    impl_->last_end = record.end;
    state->hand_over();
  }
  impl_->unflushed = std::move(kept);
}

}  // namespace tautline::comm
