#include "tautline/train/exchange.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace tautline::train {
namespace {

std::vector<std::string> exchange_texts(comm::Communicator communicator, const std::string& mine) {
  const int64_t world = communicator.size();
  if (world == 1) return {mine};
  at::Tensor length = at::empty({1}, at::kLong).fill_(static_cast<int64_t>(mine.size()));
  at::Tensor lengths = at::empty({world}, at::kLong);
  communicator.all_gather(lengths, length, "exchange.length").wait();
  const int64_t* sizes = lengths.const_data_ptr<int64_t>();
  const int64_t longest = std::max<int64_t>(1, *std::max_element(sizes, sizes + world));

  at::Tensor text = at::zeros({longest}, at::kByte);
  if (!mine.empty()) std::memcpy(text.mutable_data_ptr(), mine.data(), mine.size());
  at::Tensor texts = at::empty({world * longest}, at::kByte);
  communicator.all_gather(texts, text, "exchange.text").wait();
  std::vector<std::string> out;
  const char* bytes = static_cast<const char*>(texts.const_data_ptr());
  for (int64_t r = 0; r < world; ++r) out.emplace_back(bytes + r * longest, sizes[r]);
  return out;
}

}  // namespace

Exchange exchange_over(comm::Communicator communicator) {
  return [communicator](const std::string& mine) { return exchange_texts(communicator, mine); };
}

}  // namespace tautline::train
