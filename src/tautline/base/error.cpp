#include "tautline/base/error.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace tautline {
namespace {
std::atomic<int> rank_for_errors{-1};  // -1: no rank yet; only ever used in the text of an abort
}

void set_rank_for_errors(int rank) { rank_for_errors = rank; }

void broken_invariant(const char* file, int line, const char* condition,
                      const std::string& details) {
  std::fprintf(stderr, "tautline: broken invariant");
  if (rank_for_errors >= 0) std::fprintf(stderr, " [rank %d]", rank_for_errors.load());
  std::fprintf(stderr, " %s:%d: %s: %s\n", file, line, condition, details.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace tautline
