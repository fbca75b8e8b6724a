// A file that is whole or not there: written beside its place and put there at the end, so that
// neither a crash nor a full disk leaves half of one, nor takes away the one before it.
#pragma once

#include <fstream>
#include <string>
#include <string_view>

namespace tautline {

/// PATH.tmp until finish() has synced it and renamed it to PATH. Where PATH is something else than a
/// plain file (a device, a pipe) there is nothing to replace: it is written straight.
class NewFile {
 public:
  /// Errors: it cannot be made, with the reason.
  explicit NewFile(const std::string& path);
  /// Without finish(): what was written goes, PATH stays as it was.
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  std::ostream& out() { return out_; }
  /// Errors: it cannot be written (a full disk), with the reason.
  void finish();

 private:
  [[noreturn]] void fail(int error) const;

  std::string path_, target_;  // as it was named; what takes the place, behind a link
  std::string written_;        // target_ itself, or beside it
  std::ofstream out_;
};

/// The whole text of a small file. Errors: NewFile's.
void write_text_file(const std::string& path, std::string_view text);

}  // namespace tautline
