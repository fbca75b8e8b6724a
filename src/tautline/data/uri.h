// Where data lies: a local path or an Arrow file system URI (file:///..., s3://bucket/prefix?...).
// Logs, built logs and checkpoints are opened through here, so a bucket works like a folder.
//
// S3: credentials come from the URI (s3://KEY:SECRET@bucket/prefix) or from the usual AWS places.
// Query keys are Arrow's: region, scheme, endpoint_override, ... `allow_delayed_open=true` is added
// where the URI does not say otherwise: a file that fits one part is then a single PUT.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <arrow/filesystem/filesystem.h>

namespace tautline::data {

/// A file or folder that may or may not exist: a file system and a path inside it.
struct Location {
  std::shared_ptr<arrow::fs::FileSystem> filesystem;
  std::string path;  // inside the file system, without a trailing slash
  std::string text;  // for messages: what the user wrote, without the URI's query and credentials
  bool local = false;

  /// path/name.
  Location child(const std::string& name) const;
};

/// Opens the file system; touches no file. Relative local paths are taken from the current folder.
/// Errors: UserError for a scheme that Arrow does not know or a URI it cannot read.
Location open_filesystem(const std::string& uri);

/// A name with a scheme, such as s3://bucket or file:///tmp.
bool is_uri(const std::string& text);

/// Kind of what lies there: NotFound, File or Directory.
arrow::fs::FileType file_type(const Location& location);

/// Names directly inside a folder, sorted; empty if it does not exist.
std::vector<std::string> list_folder(const Location& folder);

}  // namespace tautline::data
