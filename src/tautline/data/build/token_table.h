// Texts to dense ids in order of first appearance: 0, 1, 2, ...
//
// Open addressing with linear probing over 8-byte slots (24 bits of hash, 40 of id + 1), texts in
// an arena that never moves. About 40 bytes a token beside its text.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>
#include <xxhash.h>

namespace tautline::data {

class TokenTable {
 public:
  TokenTable() : slots_(64, 0) {}

  int64_t find_or_add(std::string_view token) {
    if (tokens_.size() * 2 >= slots_.size()) grow();
    const uint64_t hash = XXH3_64bits(token.data(), token.size());
    const uint64_t mask = slots_.size() - 1;
    for (uint64_t place = hash & mask;; place = (place + 1) & mask) {
      const uint64_t slot = slots_[place];
      if (slot == 0) {
        slots_[place] = (hash & kTagMask) | (tokens_.size() + 1);
        tokens_.push_back(keep(token));
        return static_cast<int64_t>(tokens_.size()) - 1;
      }
      if (((slot ^ hash) & kTagMask) == 0) {
        const uint64_t id = (slot & ~kTagMask) - 1;
        if (tokens_[id] == token) return static_cast<int64_t>(id);
      }
    }
  }

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  std::string_view token(int64_t id) const { return tokens_[static_cast<size_t>(id)]; }

 private:
  static constexpr uint64_t kTagMask = ~uint64_t{0} << 40;
  static constexpr size_t kChunk = 1 << 16;

  std::string_view keep(std::string_view token) {
    if (chunks_.empty() || left_ < token.size()) {
      left_ = std::max(kChunk, token.size());
      chunks_.push_back(std::make_unique<char[]>(left_));
      next_ = chunks_.back().get();
    }
    std::memcpy(next_, token.data(), token.size());
    const std::string_view kept(next_, token.size());
    next_ += token.size();
    left_ -= token.size();
    return kept;
  }

  void grow() {
    std::vector<uint64_t> larger(slots_.size() * 2, 0);
    const uint64_t mask = larger.size() - 1;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const uint64_t hash = XXH3_64bits(tokens_[id].data(), tokens_[id].size());
      uint64_t place = hash & mask;
      while (larger[place] != 0) place = (place + 1) & mask;
      larger[place] = (hash & kTagMask) | (id + 1);
    }
    slots_.swap(larger);
  }

  std::vector<uint64_t> slots_;
  std::vector<std::string_view> tokens_;
  std::vector<std::unique_ptr<char[]>> chunks_;
  char* next_ = nullptr;
  size_t left_ = 0;
};

}  // namespace tautline::data
