// Who is alive, who is gone, and why: no collective ends in a silent time-out.
//
// Every rank beats in the store from a thread of its own and watches the next `span` ranks of the
// ring: by their process where they run on this machine, by their beats elsewhere. Whoever finds
// one gone writes one sentence under the key "failed"; the first sentence wins and every rank reads
// it within one beat. A rank that ends by an error writes its reason there itself, before it exits.
// Where the store goes, its host is the one that died. O(1) keys read per rank and beat.
//
// A caller that waits in a collective gets RankFailure with that sentence; a NCCL communicator that
// hangs on the device is aborted, so that the wait returns.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "tautline/comm/launch.h"
#include "tautline/comm/peer.h"

namespace c10d {
class Store;
}

namespace tautline::comm {

struct WatchOptions {
  double beat_seconds = 0.5;
  double silent_seconds = 15;   // without a beat: taken for dead
  double explain_seconds = 20;  // how long a failed collective waits for the name of the dead rank
  int span = 2;                 // how many ranks of the ring each one watches
};

class Watch {
 public:
  /// Collective over all ranks: each publishes its Peer and reads the others'.
  Watch(c10::intrusive_ptr<c10d::Store> store, const Launch& launch, const WatchOptions& options);
  ~Watch();  // as `finish` where there was no failure
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// This rank ends by an error: its peers will name it with this reason. Waits shortly until they
  /// read it.
  void fail(const std::string& reason) noexcept;
  /// The ordered end: every rank calls it; returns once all have, or a failure is known.
  void finish();

  /// The sentence about the failure, if there is one.
  std::optional<std::string> failure() const;
  /// The failure is a rank's own sentence, which it left where our launcher reads it.
  bool told() const;
  /// Throws RankFailure where there is one.
  void check() const;
  /// A collective threw `error`: waits until it is known who is gone, then throws RankFailure.
  [[noreturn]] void explain(const std::string& error);

  /// Called once, by the watching thread, when a failure becomes known. Returns a number for
  /// `forget`.
  int on_failure(std::function<void()> act);
  void forget(int number);

  const std::vector<Peer>& peers() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared with the watching thread
};

}  // namespace tautline::comm
