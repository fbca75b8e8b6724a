#include "tautline/comm/threads.h"

#include <barrier>
#include <exception>
#include <optional>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tautline/comm/backends.h"
#include "tautline/comm/launch.h"

namespace tautline::comm {

void run_rank_threads(int world, const std::function<void(Communicator)>& body) {
  if (world == 1) return body(Communicator(at::kCPU));
  keep_flight_recorder_off();
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world));
  std::barrier connected(world);  // a rank that ends at once closes on none that still connects
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      const auto guarded = [&](const auto& work) {
        try {
          work();
        } catch (...) {
          errors[static_cast<size_t>(rank)] = std::current_exception();
        }
      };
      std::optional<Communicator> communicator;
      guarded([&] {
        const BackendOptions options{rank, world, "threads", std::chrono::seconds(60)};
        communicator.emplace(make_gloo(store, options, "127.0.0.1", ""), at::kCPU, "threads");
      });
      connected.arrive_and_wait();
      if (communicator) guarded([&] { body(*communicator); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace tautline::comm
