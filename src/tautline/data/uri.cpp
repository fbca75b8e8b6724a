#include "tautline/data/uri.h"

#include <algorithm>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <mutex>

#include "tautline/base/error.h"
#include "tautline/base/excerpt.h"
#include "tautline/data/arrow_status.h"

namespace tautline::data {
namespace {

// S3 lives in a library of its own beside libarrow. It is loaded when the first s3:// URI is opened
// (17 MB and an SDK that starts threads: runs on local files do without).
void load_s3() {
  static std::once_flag once;
  std::call_once(once, [] {
    Dl_info arrow{};
    void* symbol = reinterpret_cast<void*>(&arrow::fs::EnsureFinalized);
    if (dladdr(symbol, &arrow) == 0) throw user_error("cannot find libarrow to load S3 beside it");
    std::string library = arrow.dli_fname;  // .../libarrow.so.2600 -> .../libarrow_s3.so.2600
    const size_t name = library.rfind("libarrow");
    if (name != std::string::npos) library.insert(name + 8, "_s3");
    check(arrow::fs::LoadFileSystemFactories(library.c_str()), "cannot load S3 support from ",
          library);
  });
}

// Registered after the first S3 file system stands: exit handlers run backwards, and this one must
// come before the destructors of the SDK's own statics.
void finalize_s3_at_exit() {
  static std::once_flag once;
  std::call_once(once, [] { std::atexit([] { arrow::fs::EnsureFinalized(); }); });
}

std::string with_delayed_open(const std::string& uri) {
  if (uri.find("allow_delayed_open=") != std::string::npos) return uri;
  return uri + (uri.find('?') == std::string::npos ? "?" : "&") + "allow_delayed_open=true";
}

// s3://KEY:SECRET@bucket/p?query -> s3://bucket/p: a secret never reaches a message or a file.
std::string for_messages(const std::string& uri) {
  std::string text = uri.substr(0, uri.find('?'));
  const size_t authority = text.find("://") + 3;
  const size_t at = text.find('@', authority);
  if (at != std::string::npos && at < text.find('/', authority))
    text.erase(authority, at + 1 - authority);
  return text;
}

constexpr size_t kLongestText = 1024;  // of a path in a message; the system takes 4095 bytes

/// Relative to the current folder, which may be gone.
std::string absolute_path(const std::string& path) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error);
  if (error)
    throw user_error("cannot find ", excerpt(path, kLongestText),
                     " from the current folder: ", error.message());
  return whole.lexically_normal().string();
}

void drop_trailing_slashes(std::string& path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
}

}  // namespace

bool is_uri(const std::string& text) {
  const size_t colon = text.find("://");
  return colon != std::string::npos && colon > 0 &&
         std::all_of(text.begin(), text.begin() + static_cast<int64_t>(colon), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '-';
         });
}

Location Location::child(const std::string& name) const {
  return {filesystem, path + "/" + name, text + "/" + excerpt(name, kLongestText), local};
}

Location open_filesystem(const std::string& uri) {
  if (uri.empty()) throw user_error("an empty path names no file or folder");
  Location location;
  if (is_uri(uri)) {
    const bool s3 = uri.rfind("s3://", 0) == 0;
    if (s3) load_s3();
    location.text = for_messages(uri);
    location.filesystem =
        unwrap(arrow::fs::FileSystemFromUri(s3 ? with_delayed_open(uri) : uri, &location.path),
               "cannot open ", location.text);
    if (s3) finalize_s3_at_exit();
    location.local = uri.rfind("file://", 0) == 0;
  } else {
    location.text = uri;
    location.filesystem =
        unwrap(arrow::fs::FileSystemFromUri("file:///", &location.path), "cannot open local files");
    location.path = absolute_path(uri);
    location.local = true;
  }
  drop_trailing_slashes(location.path);
  drop_trailing_slashes(location.text);
  location.text = excerpt(location.text, kLongestText);
  return location;
}

arrow::fs::FileType file_type(const Location& location) {
  return unwrap(location.filesystem->GetFileInfo(location.path), "cannot look at ", location.text)
      .type();
}

std::vector<std::string> list_folder(const Location& folder) {
  arrow::fs::FileSelector selector;
  selector.base_dir = folder.path;
  selector.allow_not_found = true;
  std::vector<std::string> names;
  for (const arrow::fs::FileInfo& info :
       unwrap(folder.filesystem->GetFileInfo(selector), "cannot list ", folder.text))
    names.push_back(info.base_name());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace tautline::data
