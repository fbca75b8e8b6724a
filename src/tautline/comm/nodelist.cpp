// Slurm's node lists and counts, and ports of jobs: text in, values out.
#include <cstdio>

#include "tautline/base/error.h"
#include "tautline/comm/launch.h"

namespace tautline::comm {
namespace {

constexpr size_t kMaximumHosts = 1 << 20;  // a list longer than this is a typing error

UserError malformed(const std::string& list) {
  return user_error("the node list '", list,
                    "' cannot be read; a list like 'node[01-04,7],login2' is right");
}

bool digits(const std::string& text) {
  return !text.empty() && text.size() < 10 &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

// The text of each number in "01-04,7": leading zeros keep the width.
std::vector<std::string> expand_ranges(const std::string& ranges, const std::string& list) {
  std::vector<std::string> numbers;
  size_t begin = 0;
  while (begin <= ranges.size()) {
    const size_t end = std::min(ranges.find(',', begin), ranges.size());
    const std::string part = ranges.substr(begin, end - begin);
    const size_t dash = part.find('-');
    const std::string first = part.substr(0, dash);
    const std::string last = dash == std::string::npos ? first : part.substr(dash + 1);
    if (!digits(first) || !digits(last) || std::stol(last) < std::stol(first))
      throw malformed(list);
    for (long number = std::stol(first); number <= std::stol(last); ++number) {
      char text[16];
      std::snprintf(text, sizeof text, "%0*ld", static_cast<int>(first.size()), number);
      numbers.push_back(text);
      if (numbers.size() > kMaximumHosts) throw malformed(list);
    }
    begin = end + 1;
  }
  return numbers;
}

// Each piece between the commas that stand outside brackets.
std::vector<std::string> split_outside_brackets(const std::string& list) {
  std::vector<std::string> pieces(1);
  bool inside = false;
  for (const char c : list) {
    if (c == '[' || c == ']') {
      if (inside == (c == '[')) throw malformed(list);
      inside = c == '[';
    }
    if (c == ',' && !inside) {
      pieces.emplace_back();
    } else {
      pieces.back() += c;
    }
  }
  if (inside) throw malformed(list);
  return pieces;
}

// "rack[1-2]n[01-02]": brackets may stand anywhere, and more than once.
void expand_piece(const std::string& done, const std::string& rest, const std::string& list,
                  std::vector<std::string>& hosts) {
  const size_t open = rest.find('[');
  if (open == std::string::npos) {
    hosts.push_back(done + rest);
    if (hosts.size() > kMaximumHosts) throw malformed(list);
    return;
  }
  const size_t close = rest.find(']', open);
  for (const std::string& number : expand_ranges(rest.substr(open + 1, close - open - 1), list))
    expand_piece(done + rest.substr(0, open) + number, rest.substr(close + 1), list, hosts);
}

}  // namespace

std::vector<std::string> expand_nodelist(const std::string& list) {
  std::vector<std::string> hosts;
  for (const std::string& piece : split_outside_brackets(list)) {
    if (piece.empty()) throw malformed(list);
    expand_piece("", piece, list, hosts);
  }
  return hosts;
}

std::vector<int> expand_task_counts(const std::string& counts) {
  std::vector<int> tasks;
  size_t begin = 0;
  while (begin < counts.size()) {
    const size_t end = std::min(counts.find(',', begin), counts.size());
    int count = 0, times = 1;
    const std::string part = counts.substr(begin, end - begin);
    const int read = std::sscanf(part.c_str(), "%d(x%d)", &count, &times);
    if (read < 1 || count < 1 || times < 1 || times > static_cast<int>(kMaximumHosts))
      throw user_error("the tasks per node '", counts, "' cannot be read; '2(x3),1' is right");
    tasks.insert(tasks.end(), static_cast<size_t>(times), count);
    begin = end + 1;
  }
  return tasks;
}

int port_of_job(const std::string& job) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return 10000 + static_cast<int>(hash % 20000u);
}

}  // namespace tautline::comm
