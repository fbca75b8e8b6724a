#include "tautline/train/checkpoint/digest.h"

#include <cstdio>
#include <new>
#include <xxhash.h>

namespace tautline::train {

struct Digest::State {
  XXH3_state_t* hash = XXH3_createState();
  ~State() { XXH3_freeState(hash); }
};

Digest::Digest() : state_(std::make_unique<State>()) {
  if (state_->hash == nullptr || XXH3_128bits_reset(state_->hash) != XXH_OK) throw std::bad_alloc();
}
Digest::~Digest() = default;

void Digest::add(const void* data, int64_t bytes) {
  XXH3_128bits_update(state_->hash, data, static_cast<size_t>(bytes));
}

std::string Digest::text() const {
  const XXH128_hash_t value = XXH3_128bits_digest(state_->hash);
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(value.high64),
                static_cast<unsigned long long>(value.low64));
  return text;
}

std::string digest_of(const std::string& text) {
  Digest digest;
  digest.add(text.data(), static_cast<int64_t>(text.size()));
  return digest.text();
}

}  // namespace tautline::train
