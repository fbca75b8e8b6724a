// The one file that sees gloo's headers. Debian's are older than the gloo inside libtorch, so they
// serve as declarations only: nothing of gloo is constructed or subclassed here, and the file is
// compiled with hidden visibility.
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "tautline/comm/backends.h"

namespace tautline::comm {
namespace {

// The local address of a route to `host` (nothing is sent: connecting a datagram socket only looks
// it up). Empty: none.
std::string address_towards(const std::string& host) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return "";
  std::string address;
  for (const addrinfo* entry = found; entry != nullptr && address.empty(); entry = entry->ai_next) {
    const int descriptor = ::socket(entry->ai_family, SOCK_DGRAM, 0);
    sockaddr_storage local = {};
    socklen_t length = sizeof local;
    char text[INET6_ADDRSTRLEN] = {};
    if (descriptor >= 0 && ::connect(descriptor, entry->ai_addr, entry->ai_addrlen) == 0 &&
        ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&local), &length) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&local), length, text, sizeof text, nullptr, 0,
                      NI_NUMERICHOST) == 0)
      address = text;
    if (descriptor >= 0) ::close(descriptor);
  }
  ::freeaddrinfo(found);
  return address;
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                            const BackendOptions& options,
                                            const std::string& master_addr,
                                            const std::string& interface) {
  using Gloo = c10d::ProcessGroupGloo;
  auto gloo = Gloo::Options::create(options.timeout);
  const std::string address = interface.empty() ? address_towards(master_addr) : "";
  gloo->devices.push_back(!interface.empty() ? Gloo::createDeviceForInterface(interface)
                          : address.empty()  ? Gloo::createDefaultDevice()
                                             : Gloo::createDeviceForHostname(address));
  return c10::make_intrusive<Gloo>(store, options.rank, options.world, gloo);
}

}  // namespace tautline::comm
