// One synthetic user: interests, sessions, items, clicks.
#include <algorithm>
#include <cmath>

#include "tautline/base/random.h"
#include "tautline/data/synth.h"

namespace tautline::data {
namespace {

constexpr double kExponent = 0.9;           // of popularity over rank
constexpr double kSuccessorExponent = 0.5;  // successors lean to the popular, but less
constexpr double kLengthSigma = 0.8;        // of ln(events of a user)
constexpr double kFollow = 0.7, kStay = 0.2;
constexpr double kMain = 0.8;  // of the three successors, the one that the item before chooses
constexpr int64_t kItemsPerCluster = 40;
constexpr double kSessionEvents = 6;
constexpr int64_t kStart = 1'577'836'800;  // Wednesday 1 January 2020, 0:00 UTC
constexpr int64_t kDays = 90;
constexpr uint32_t kTraits = 0x100 + static_cast<uint32_t>(RandomUse::kSynthetic);

enum Trait : uint32_t { kSuccessor0, kQuality = 8, kPrice };

/// A uniform number that belongs to an item for good.
double item_trait(uint64_t seed, int64_t item, uint32_t trait) {
  const Philox4 bits =
      philox(seed, static_cast<uint32_t>(item), static_cast<uint32_t>(item >> 32), trait, kTraits);
  return (static_cast<double>(bits.v[0]) + 0.5) * 0x1p-32;
}

/// u in [0, 1) to x in [low, high) with density x^-s, by the inverse of its integral.
double power_law(double u, double low, double high, double s) {
  const double a = std::pow(low, 1 - s), b = std::pow(high, 1 - s);
  return std::pow(a + u * (b - a), 1 / (1 - s));
}

class Catalogue {
 public:
  Catalogue(uint64_t seed, int64_t items)
      : seed_(seed), items_(items), clusters_(std::max<int64_t>(1, items / kItemsPerCluster)) {}

  int64_t clusters() const { return clusters_; }
  int64_t cluster_of(int64_t item) const { return item % clusters_; }

  /// Any item by its popularity. Its cluster is how clusters are drawn: so the items of all
  /// sessions together keep their popularity.
  int64_t popular(double u) const {
    const double x = power_law(u, 1, static_cast<double>(items_ + 1), kExponent);
    return std::clamp<int64_t>(static_cast<int64_t>(x) - 1, 0, items_ - 1);
  }

  /// Item number j of the cluster has popularity rank j G + g: weight (j + (g + 1) / G)^-s.
  int64_t popular(int64_t cluster, double u, double exponent) const {
    const int64_t size = (items_ - cluster + clusters_ - 1) / clusters_;
    const double low = static_cast<double>(cluster + 1) / static_cast<double>(clusters_);
    const double x = power_law(u, low, low + static_cast<double>(size), exponent);
    const auto place = std::clamp<int64_t>(static_cast<int64_t>(x - low), 0, size - 1);
    return place * clusters_ + cluster;
  }

  /// Less popular than `popular`: else every chain would end in the cluster's head.
  int64_t successor(int64_t item, uint32_t which) const {
    return popular(cluster_of(item), item_trait(seed_, item, kSuccessor0 + which),
                   kSuccessorExponent);
  }

 private:
  uint64_t seed_;
  int64_t items_, clusters_;
};

/// How busy an hour is: evenings four times the early morning, weekends half as much again.
double activity(int64_t time) {
  const double hour = static_cast<double>(time % 86'400) / 3600;
  const int64_t weekday = (time / 86'400 + 3) % 7;  // 0: Monday
  return (1 + 0.6 * std::cos(2 * M_PI * (hour - 20) / 24)) * (weekday >= 5 ? 1.5 : 1.0) / 2.4;
}

/// Starts of sessions, ascending, by rejection.
std::vector<int64_t> session_starts(int64_t count, Random& random) {
  std::vector<int64_t> starts;
  while (static_cast<int64_t>(starts.size()) < count) {
    const auto time = kStart + static_cast<int64_t>(random.below(kDays * 86'400));
    if (random.uniform() < activity(time)) starts.push_back(time);
  }
  std::sort(starts.begin(), starts.end());
  return starts;
}

struct Interests {
  int64_t cluster[3];
  int64_t draw(Random& random) const {
    const double u = random.uniform();
    return cluster[u < 0.6 ? 0 : u < 0.9 ? 1 : 2];
  }
};

/// The last two items of the session decide.
class Session {
 public:
  Session(const Catalogue& catalogue, const Interests& interests, Random& random)
      : catalogue_(catalogue),
        interests_(interests),
        random_(random),
        cluster_(interests.draw(random)) {
    item_ = before_ = popular();
  }

  int64_t item() const { return item_; }

  void advance() {
    const double u = random_.uniform();
    int64_t next;
    if (u < kFollow) {
      // Which successor: the place of the item before in its cluster says it, most of the time.
      auto which = static_cast<uint32_t>(before_ / catalogue_.clusters() % 3);
      if (random_.uniform() >= kMain) which = static_cast<uint32_t>(random_.below(3));
      next = catalogue_.successor(item_, which);
    } else {
      if (u >= kFollow + kStay) cluster_ = interests_.draw(random_);
      next = popular();
    }
    before_ = item_;
    item_ = next;
  }

 private:
  int64_t popular() { return catalogue_.popular(cluster_, random_.uniform(), kExponent); }
  const Catalogue& catalogue_;
  const Interests& interests_;
  Random& random_;
  int64_t cluster_, item_, before_;
};

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

std::vector<SynthEvent> synthetic_user(const SynthOptions& options, int64_t user) {
  Random random(options.seed, RandomUse::kSynthetic, static_cast<uint64_t>(user));
  const Catalogue catalogue(options.seed, options.items);
  const double log_mean = std::log(options.events_mean) - kLengthSigma * kLengthSigma / 2;
  const auto length =
      std::max<int64_t>(1, std::llround(std::exp(log_mean + kLengthSigma * random.normal())));
  Interests interests{};
  for (int64_t& cluster : interests.cluster)
    cluster = catalogue.cluster_of(catalogue.popular(random.uniform()));
  const double user_bias = random.normal();

  const auto sessions =
      static_cast<int64_t>(std::ceil(static_cast<double>(length) / kSessionEvents));
  const std::vector<int64_t> starts = session_starts(sessions, random);
  std::vector<SynthEvent> events;
  int64_t time = 0;
  for (size_t s = 0; s < starts.size(); ++s) {
    const auto left = static_cast<double>(length - static_cast<int64_t>(events.size()));
    const auto count = std::llround(std::ceil(left / static_cast<double>(starts.size() - s)));
    time = std::max(time + 1, starts[s]);
    Session session(catalogue, interests, random);
    for (int64_t i = 0; i < count; ++i) {
      SynthEvent event;
      event.item = session.item();
      event.time = time;
      const double quality = 2 * item_trait(options.seed, event.item, kQuality) - 1;
      const bool favourite = catalogue.cluster_of(event.item) == interests.cluster[0];
      const double taste = user_bias + 1.5 * quality + (favourite ? 0.5 : -0.5);
      event.clicked = random.uniform() < logistic(taste);
      event.action = random.uniform() < logistic(taste - 2) ? (random.uniform() < 0.4 ? 2 : 1) : 0;
      event.price = static_cast<float>(
          std::round(100 * std::exp(1 + 3 * item_trait(options.seed, event.item, kPrice))) / 100);
      events.push_back(event);
      session.advance();
      time += 1 + static_cast<int64_t>(-90 * std::log1p(-random.uniform()));
    }
  }
  return events;
}

}  // namespace tautline::data
