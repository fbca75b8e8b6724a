#include "tautline/base/log.h"

namespace tautline {

bool Logger::shows(LogLevel level) const {
  if (level < options_.least) return false;
  return level >= LogLevel::kWarning || options_.ranks.contains(options_.rank);
}

void Logger::write(LogLevel level, const std::string& text) const {
  std::string line;
  // Who speaks is told where it could be another: a line that only rank 0 says needs no name.
  if (options_.world > 1 && (level >= LogLevel::kWarning || options_.ranks.size() > 1))
    line += "[rank " + std::to_string(options_.rank) + "] ";
  if (level == LogLevel::kDebug) line += "debug: ";
  if (level == LogLevel::kWarning) line += "warning: ";
  if (level == LogLevel::kError) line += "error: ";
  line += text;
  line += '\n';
  std::FILE* out = options_.out ? options_.out : stderr;
  std::fwrite(line.data(), 1, line.size(), out);
  std::fflush(out);
}

}  // namespace tautline
