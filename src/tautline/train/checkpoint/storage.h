// Files of a checkpoint folder, on local disks (POSIX, with fsync and an atomic publish) and on
// what Arrow reaches by URI (object stores: no rename; the file that is written last is the commit
// point).
//
// Every failure is a UserError that names the file, what was being done and the system's reason.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tautline::train {

/// A file being written from front to back. Dropped without finish(): no promise about its content.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  virtual void write(const void* data, int64_t bytes) = 0;
  /// Everything written is on the medium when this returns.
  virtual void finish() = 0;
};

/// A file read at any place; one thread at a time.
class InputFile {
 public:
  virtual ~InputFile() = default;
  virtual int64_t size() const = 0;
  /// Fills out[0, bytes) from `offset`; a file that ends earlier is an error.
  virtual void read_at(int64_t offset, int64_t bytes, void* out) = 0;
  virtual const std::string& name() const = 0;  // for messages
};

/// A folder and what lies below it. Names are relative to it ("step-00000500/manifest.json").
class Storage {
 public:
  virtual ~Storage() = default;
  /// True: publish() moves a folder in one indivisible step. False: there is no such thing here.
  virtual bool can_publish() const = 0;
  virtual void create_folder(const std::string& name) = 0;  // and its parents; fine if it exists
  virtual std::unique_ptr<OutputFile> create(const std::string& name) = 0;
  virtual std::unique_ptr<InputFile> open(const std::string& name) = 0;
  virtual bool exists(const std::string& name) = 0;
  virtual std::vector<std::string> list(const std::string& name) = 0;  // sorted; empty: not there
  virtual void remove(const std::string& name) = 0;  // a file or a whole folder; fine if not there
  /// Makes folder `to` be what `from` is, replacing an older `to` without a moment in which neither
  /// is there; durable on return.
  virtual void publish(const std::string& from, const std::string& to) = 0;
  virtual std::string path_of(const std::string& name) const = 0;  // for messages
};

/// A path, or an Arrow URI (file://, s3://bucket/prefix). Creates nothing.
std::unique_ptr<Storage> open_storage(const std::string& folder);

std::unique_ptr<Storage> open_local_storage(const std::string& folder);
std::unique_ptr<Storage> open_arrow_storage(const std::string& uri);

}  // namespace tautline::train
