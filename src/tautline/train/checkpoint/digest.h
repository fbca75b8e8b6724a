// XXH3 with 128 bits: the digest of a checkpoint's files. It finds damage (a flipped bit, a torn
// write), at memory speed; it is no protection against someone who forges files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace tautline::train {

class Digest {
 public:
  Digest();
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;
  void add(const void* data, int64_t bytes);
  std::string text() const;  // 32 hexadecimal digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string digest_of(const std::string& text);

}  // namespace tautline::train
