// Checkpoint folders by Arrow URI: a bucket works like a folder, without an atomic rename.
#include <arrow/buffer.h>
#include <arrow/io/interfaces.h>

#include "tautline/base/error.h"
#include "tautline/data/arrow_status.h"
#include "tautline/data/uri.h"
#include "tautline/train/checkpoint/storage.h"

namespace tautline::train {
namespace {

using data::check;
using data::Location;
using data::unwrap;

class ArrowOutput : public OutputFile {
 public:
  explicit ArrowOutput(const Location& file)
      : name_(file.text),
        stream_(unwrap(file.filesystem->OpenOutputStream(file.path), "cannot create ", file.text)) {
  }
  ~ArrowOutput() override {
    // A stream that only goes out of scope would store what it has so far as if that were all.
    if (!finished_) (void)stream_->Abort();
  }
  void write(const void* data, int64_t bytes) override {
    check(stream_->Write(data, bytes), "cannot write ", name_, " beyond ", written_, " bytes");
    written_ += bytes;
  }
  void finish() override {
    finished_ = true;
    check(stream_->Close(), "cannot write the ", written_, " bytes of ", name_);
  }

 private:
  std::string name_;
  std::shared_ptr<arrow::io::OutputStream> stream_;
  int64_t written_ = 0;
  bool finished_ = false;
};

class ArrowInput : public InputFile {
 public:
  explicit ArrowInput(const Location& file)
      : name_(file.text),
        file_(unwrap(file.filesystem->OpenInputFile(file.path), "cannot open ", file.text)),
        size_(unwrap(file_->GetSize(), "cannot read the size of ", file.text)) {}
  int64_t size() const override { return size_; }
  const std::string& name() const override { return name_; }
  void read_at(int64_t offset, int64_t bytes, void* out) override {
    const int64_t got =
        unwrap(file_->ReadAt(offset, bytes, out), "cannot read ", name_, " at byte ", offset);
    if (got != bytes)
      throw user_error(name_, " ends at byte ", offset + got, ", ", bytes - got,
                       " bytes too early");
  }

 private:
  std::string name_;
  std::shared_ptr<arrow::io::RandomAccessFile> file_;
  int64_t size_ = 0;
};

class ArrowStorage : public Storage {
 public:
  explicit ArrowStorage(const std::string& uri) : root_(data::open_filesystem(uri)) {}

  bool can_publish() const override { return false; }
  std::string path_of(const std::string& name) const override { return at(name).text; }
  void create_folder(const std::string& name) override {
    // A bucket has no folders: a marker object would only be litter.
    if (root_.filesystem->type_name() == "s3") return;
    check(root_.filesystem->CreateDir(at(name).path), "cannot create folder ", path_of(name));
  }
  std::unique_ptr<OutputFile> create(const std::string& name) override {
    return std::make_unique<ArrowOutput>(at(name));
  }
  std::unique_ptr<InputFile> open(const std::string& name) override {
    return std::make_unique<ArrowInput>(at(name));
  }
  bool exists(const std::string& name) override {
    return data::file_type(at(name)) != arrow::fs::FileType::NotFound;
  }
  std::vector<std::string> list(const std::string& name) override {
    return data::list_folder(at(name));
  }
  void remove(const std::string& name) override {
    const Location place = at(name);
    const arrow::fs::FileType type = data::file_type(place);
    if (type == arrow::fs::FileType::NotFound) return;
    check(type == arrow::fs::FileType::Directory ? root_.filesystem->DeleteDir(place.path)
                                                 : root_.filesystem->DeleteFile(place.path),
          "cannot remove ", place.text);
  }
  void publish(const std::string& from, const std::string& to) override {
    TAUTLINE_INVARIANT(false, "publish " << from << " to " << to << " on " << root_.text);
  }

 private:
  Location at(const std::string& name) const { return name.empty() ? root_ : root_.child(name); }
  Location root_;
};

}  // namespace

std::unique_ptr<Storage> open_arrow_storage(const std::string& uri) {
  return std::make_unique<ArrowStorage>(uri);
}

std::unique_ptr<Storage> open_storage(const std::string& folder) {
  if (!data::is_uri(folder)) return open_local_storage(folder);
  const data::Location location = data::open_filesystem(folder);
  return location.local ? open_local_storage(location.path) : open_arrow_storage(folder);
}

}  // namespace tautline::train
