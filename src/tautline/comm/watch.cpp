#include "tautline/comm/watch.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tautline/base/error.h"
#include "tautline/comm/communicator.h"

namespace tautline::comm {
namespace {

constexpr const char* kFailed = " failed: ";  // between a rank's name and its own sentence
constexpr double kLingerSeconds = 5;  // for peers to read a reason before the store's host leaves

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::string key(const char* name, int rank) { return std::string(name) + std::to_string(rank); }

// Seconds that this process ran while somebody looked. One that was stopped (Ctrl-Z) and goes on has
// heard nothing for an hour, and so has nothing to say about the others.
class RunningClock {
 public:
  explicit RunningClock(double most) : most_(most) {}
  double seconds() {
    const std::lock_guard lock(mutex_);
    const double now = steady_seconds();
    total_ += std::min(most_, now - last_);
    last_ = now;
    return total_;
  }

 private:
  const double most_;  // between two looks
  std::mutex mutex_;
  double last_ = steady_seconds(), total_ = 0;
};

}  // namespace

// Keys in the store, below "watch/": peer/R, beat/R, reason/R, failed (the first sentence), seen
// (how many ranks read it), done and left (how many ranks ended in order), all_done.
struct Watch::Impl {
  Impl(const Launch& of, const WatchOptions& with)
      : launch(of),
        options(with),
        clock(std::max(2 * with.beat_seconds, with.silent_seconds / 4)) {}

  c10::intrusive_ptr<c10d::Store> store;    // of the caller's thread
  c10::intrusive_ptr<c10d::Store> beating;  // of the watching thread: a connection of its own
  Launch launch;
  WatchOptions options;
  RunningClock clock;
  Peer self;
  std::vector<Peer> peers;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::optional<std::string> failure;
  std::map<int, std::function<void()>> actions;
  int next_action = 0;
  bool ending = false;  // peers may go from now on
  bool finished = false;
  std::thread thread;
  std::atomic<double> last_answer{0};  // of the store, or of one whose launcher is only stopped

  struct Heard {
    std::string beat;
    double when = 0;
  };
  std::map<int, Heard> heard;

  bool hosts_store() const { return launch.rank == 0 && !launch.agent_store; }
  void introduce();
  void run();
  void beat(int64_t number, double last_beat);
  void look_at(int rank);
  void publish(c10d::Store& through, const std::string& sentence);
  void set_failure(const std::string& sentence);
  std::string store_gone() const;
  void linger() noexcept;
  void end_thread();
  bool store_silent();
  bool wait_for_failure(double seconds) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::duration<double>(seconds),
                            [&] { return failure.has_value(); });
  }
};

// Every rank writes who it is and reads the others; a rank that does not come is named.
void Watch::Impl::introduce() {
  self = this_process(launch.rank);
  store->set(key("beat/", launch.rank), bytes("0"));
  store->set(key("peer/", launch.rank), bytes(to_text(self)));
  std::vector<std::string> keys;
  for (int rank = 0; rank < launch.world; ++rank) keys.push_back(key("peer/", rank));
  try {
    store->wait(keys, store->getTimeout());
  } catch (const std::exception&) {
    std::string missing;
    for (int rank = 0; rank < launch.world; ++rank)
      if (!store->check({keys[static_cast<size_t>(rank)]})) missing += " " + std::to_string(rank);
    throw RankFailure("these ranks did not arrive within " +
                      std::to_string(store->getTimeout().count() / 1000) + " s:" + missing);
  }
  for (const auto& value : store->multiGet(keys)) peers.push_back(peer_from_text(text(value)));
}

Watch::Watch(c10::intrusive_ptr<c10d::Store> store, const Launch& launch,
             const WatchOptions& options)
    : impl_(std::make_shared<Impl>(launch, options)) {
  impl_->store = c10::make_intrusive<c10d::PrefixStore>("watch", std::move(store));
  impl_->introduce();
  impl_->beating = impl_->store->clone();
  impl_->last_answer = impl_->clock.seconds();
  impl_->thread = std::thread([impl = impl_] { impl->run(); });
}

// Our own launcher hosts the store, and we die with it: a launcher that is stopped comes back.
bool Watch::Impl::store_silent() {
  const double now = clock.seconds();
  if (now - last_answer <= options.silent_seconds) return false;
  if (launch.launcher != "local" || !process_stopped(::getppid())) return true;
  last_answer = now;
  return false;
}

void Watch::Impl::run() {
  double last_beat = clock.seconds();
  for (int64_t number = 1;; ++number) {
    try {
      beat(number, last_beat);
      last_answer = last_beat = clock.seconds();
    } catch (const std::exception&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // let its host end for good
      std::unique_lock lock(mutex);
      if (ending) return;
      lock.unlock();
      set_failure(store_gone());
    }
    std::unique_lock lock(mutex);
    const bool over = changed.wait_for(lock, std::chrono::duration<double>(options.beat_seconds),
                                       [&] { return ending; });
    if (over || failure) return;
  }
}

void Watch::Impl::beat(int64_t number, double last_beat) {
  beating->set(key("beat/", launch.rank), bytes(std::to_string(number)));
  if (beating->check({"failed"})) {
    const std::string sentence = text(beating->get("failed"));
    beating->add("seen", 1);
    set_failure(sentence);
    return;
  }
  // Where the store kept us waiting, it kept the others waiting too: their beats are yet to come.
  if (clock.seconds() - last_beat > options.silent_seconds / 3) heard.clear();
  for (int step = 1; step <= std::min(options.span, launch.world - 1); ++step)
    look_at((launch.rank + step) % launch.world);
}

void Watch::Impl::look_at(int rank) {
  const Peer& peer = peers[static_cast<size_t>(rank)];
  std::string sentence;
  if (process_gone(peer, self.machine) == true) {
    sentence = describe(peer) + " died: its process is gone";
  } else {
    const std::string beat = text(beating->get(key("beat/", rank)));
    Heard& last = heard[rank];
    const double now = clock.seconds();
    if (last.beat.empty() || beat != last.beat) last = {beat, now};
    if (now - last.when < options.silent_seconds) return;
    sentence = describe(peer) + " died or hangs: it has been silent for " +
               std::to_string(static_cast<int>(now - last.when)) + " s";
  }
  if (beating->check({"all_done"})) return;  // it ended in order
  if (beating->check({key("reason/", rank)}))
    sentence = describe(peer) + kFailed + text(beating->get(key("reason/", rank)));
  publish(*beating, sentence);
}

// The first sentence wins: what follows a death are its consequences.
void Watch::Impl::publish(c10d::Store& through, const std::string& sentence) {
  const std::string won = text(through.compareSet("failed", bytes(""), bytes(sentence)));
  through.add("seen", 1);
  set_failure(won);
}

void Watch::Impl::set_failure(const std::string& sentence) {
  std::map<int, std::function<void()>> act;
  {
    const std::lock_guard lock(mutex);
    if (failure) return;
    failure = sentence;
    act.swap(actions);
    changed.notify_all();
  }
  for (const auto& [number, action] : act) action();
}

std::string Watch::Impl::store_gone() const {
  const std::string where = launch.master_addr + ":" + std::to_string(launch.master_port);
  if (launch.agent_store) return "the launcher died: its store at " + where + " is gone";
  return describe(peers.front()) + " died: the store that it hosted at " + where + " is gone";
}

// The store's host leaves last, so that the others can still read who failed.
void Watch::Impl::linger() noexcept {
  if (!hosts_store()) return;
  try {
    const double begin = steady_seconds();
    while (steady_seconds() - begin < kLingerSeconds) {
      int64_t alive = 0;
      for (const Peer& peer : peers) alive += process_gone(peer, self.machine) != true;
      if (store->add("seen", 0) >= alive) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  } catch (const std::exception&) {  // nothing left to wait for
  }
}

void Watch::Impl::end_thread() {
  {
    const std::lock_guard lock(mutex);
    ending = true;
    changed.notify_all();
  }
  if (!thread.joinable()) return;
  if (store_silent()) {
    thread.detach();  // it waits for a store that does not answer
  } else {
    thread.join();
  }
}

void Watch::fail(const std::string& reason) noexcept {
  try {
    if (!failure()) {
      impl_->store->set(key("reason/", impl_->launch.rank), bytes(reason));
      impl_->publish(*impl_->store, describe(impl_->self) + kFailed + reason);
    }
  } catch (const std::exception&) {  // the store is gone: the peers know by that
  }
  impl_->linger();
}

void Watch::finish() {
  if (impl_->finished || failure()) return;
  c10d::Store& store = *impl_->store;
  const int64_t world = impl_->launch.world;
  try {
    if (store.add("done", 1) == world) store.set("all_done", bytes("1"));
    while (!store.check({"all_done"}))
      if (impl_->wait_for_failure(0.02)) check();
    impl_->end_thread();
    store.add("left", 1);
    const double begin = steady_seconds();
    while (impl_->hosts_store() && store.add("left", 0) < world &&
           steady_seconds() - begin < kLingerSeconds)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } catch (const c10::Error& error) {
    explain(error.what_without_backtrace());
  }
  impl_->finished = true;
}

Watch::~Watch() {
  if (!impl_->finished && !failure()) fail("it left before the end of the job");
  impl_->end_thread();
  if (failure()) impl_->linger();
}

std::optional<std::string> Watch::failure() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->failure;
}

bool Watch::told() const {
  const auto sentence = failure();
  return sentence && sentence->find(kFailed) != std::string::npos;
}

void Watch::check() const {
  if (!failure() && !impl_->finished && impl_->store_silent())
    impl_->set_failure(impl_->store_gone() + " or does not answer");
  if (const auto sentence = failure()) throw RankFailure(*sentence);
}

void Watch::explain(const std::string& error) {
  for (double waited = 0; waited < impl_->options.explain_seconds; waited += 0.2) {
    impl_->wait_for_failure(0.2);
    check();
  }
  throw RankFailure(error + "; every rank still answers");
}

int Watch::on_failure(std::function<void()> act) {
  const std::lock_guard lock(impl_->mutex);
  impl_->actions[impl_->next_action] = std::move(act);
  return impl_->next_action++;
}

void Watch::forget(int number) {
  const std::lock_guard lock(impl_->mutex);
  impl_->actions.erase(number);
}

const std::vector<Peer>& Watch::peers() const { return impl_->peers; }

}  // namespace tautline::comm
