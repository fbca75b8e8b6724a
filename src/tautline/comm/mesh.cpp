#include "tautline/comm/mesh.h"

#include <algorithm>
#include <ctime>
#include <fstream>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tautline/base/error.h"
#include "tautline/comm/backends.h"

namespace tautline::comm {
namespace {

using StorePointer = c10::intrusive_ptr<c10d::Store>;

StorePointer connect(const Launch& launch, std::chrono::seconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launch.master_port);
  options.isServer = launch.rank == 0 && !launch.agent_store;
  options.waitWorkers = false;  // the watch waits, and names who is missing
  options.timeout = timeout;
  try {
    const StorePointer store = c10::make_intrusive<c10d::TCPStore>(launch.master_addr, options);
    return c10::make_intrusive<c10d::PrefixStore>(launch.store_prefix + "/tautline", store);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    throw user_error("the store at ", launch.master_addr, ":", launch.master_port,
                     options.isServer ? " cannot be started" : " cannot be reached", " (",
                     text.substr(0, text.find('\n')),
                     "); set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port");
  }
}

// torchrun shows this file's message as the reason of a failing rank.
void write_error_file(const std::string& path, const std::string& reason) {
  if (path.empty()) return;
  std::ofstream file(path);
  file << "{\"message\": \"";
  for (const char c : reason) {
    if (c == '"' || c == '\\') file << '\\';
    file << (static_cast<unsigned char>(c) < 0x20 ? ' ' : c);
  }
  file << "\", \"timestamp\": " << std::time(nullptr) << "}\n";
}

}  // namespace

struct Mesh::Impl {
  Launch launch;
  MeshOptions options;
  StorePointer store;
  std::shared_ptr<Watch> watch;
  std::optional<Communicator> world, control;
  int nodes = 1;

  Communicator make(const std::string& name, at::Device device);
  void count_nodes();
};

Communicator Mesh::Impl::make(const std::string& name, at::Device device) {
  if (launch.world == 1) return Communicator(device);
  const StorePointer below = c10::make_intrusive<c10d::PrefixStore>("group/" + name, store);
  const BackendOptions backend{launch.rank, launch.world, name, options.collective};
  try {
#ifdef TAUTLINE_CUDA
    if (device.is_cuda())
      return Communicator(make_nccl(below, backend, device), device, name, watch);
#endif
    TAUTLINE_INVARIANT(device.is_cpu(), "no transport for device " << device.str());
    return Communicator(
        make_gloo(below, backend, launch.master_addr, read_environment().gloo_interface), device,
        name, watch);
  } catch (const std::exception& error) {
    watch->explain("group '" + name + "' could not connect: " + std::string(error.what()));
  }
}

// Nodes are machines, numbered in order of their first rank. Ranks that the launcher put on nodes
// keep them.
void Mesh::Impl::count_nodes() {
  std::vector<std::string> machines;
  for (const Peer& peer : watch->peers()) {
    const std::string machine = peer.host + peer.machine;
    const auto found = std::find(machines.begin(), machines.end(), machine);
    if (peer.rank == launch.rank && launch.node < 0)
      launch.node = static_cast<int>(found - machines.begin());
    if (found == machines.end()) machines.push_back(machine);
  }
  nodes = std::max(static_cast<int>(machines.size()), launch.world / launch.local_world);
}

Mesh::Mesh() : impl_(std::make_unique<Impl>()) {}
Mesh::~Mesh() = default;

std::unique_ptr<Mesh> Mesh::open(const Launch& launch, const MeshOptions& options) {
  std::unique_ptr<Mesh> mesh(new Mesh);
  Impl& impl = *mesh->impl_;
  impl.launch = launch;
  impl.options = options;
  if (launch.world > 1) {
    impl.store = connect(launch, options.rendezvous);
    impl.watch = std::make_shared<Watch>(impl.store, launch, options.watch);
    impl.count_nodes();
  }
  impl.world = impl.make("world", options.device);
  impl.control = impl.make("control", at::kCPU);
  return mesh;
}

const Launch& Mesh::launch() const { return impl_->launch; }
int Mesh::rank() const { return impl_->launch.rank; }
int Mesh::size() const { return impl_->launch.world; }
int Mesh::nodes() const { return impl_->nodes; }
Communicator Mesh::world() const { return *impl_->world; }
Communicator Mesh::control() const { return *impl_->control; }
std::shared_ptr<Watch> Mesh::watch() const { return impl_->watch; }

Communicator Mesh::group(const std::string& name) {
  return impl_->make(name, impl_->options.device);
}

Communicator Mesh::host_group(const std::string& name) { return impl_->make(name, at::kCPU); }

void Mesh::fail(const std::string& reason) noexcept {
  try {
    write_error_file(impl_->launch.error_file, reason);
  } catch (const std::exception&) {  // it is only for show
  }
  if (impl_->watch) impl_->watch->fail(reason);
}

void Mesh::finish() {
  if (impl_->watch) impl_->watch->finish();
}

}  // namespace tautline::comm
