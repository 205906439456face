//go:build cgo && !norocksdb

#include "guard.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <vector>

using rocksdb::FileOptions;
using rocksdb::FileSystem;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

namespace catalog {
namespace {

IOStatus Failed(const std::string& name, int err) {
  if (err == ENOSPC || err == EDQUOT) return IOStatus::NoSpace(name, strerror(err));
  return IOStatus::IOError(name, strerror(err));
}

std::string Base(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool EndsWith(const std::string& s, const std::string& end) {
  return s.size() >= end.size() && s.compare(s.size() - end.size(), end.size(), end) == 0;
}

// The tag of a file in the mark: its number, with the highest bit for a manifest. 0 is any other file.
constexpr uint64_t kManifest = 1ull << 63;

uint64_t Tag(const std::string& path) {
  const std::string name = Base(path), manifest = "MANIFEST-";
  std::string digits;
  uint64_t kind = 0;
  if (name.compare(0, manifest.size(), manifest) == 0) {
    digits = name.substr(manifest.size());
    kind = kManifest;
  } else if (EndsWith(name, ".log")) {
    digits = name.substr(0, name.size() - 4);
  }
  if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) return 0;
  return std::stoull(digits) | kind;
}

// The mark: see mark.go.
constexpr size_t kSlotBytes = 2048, kEntryBytes = 16, kHeadBytes = 32, kMaxEntries = 120;
constexpr uint64_t kMagic = 0x314b52414d434d4dull;  // "MMCMARK1", little endian

uint32_t Crc32c(const char* p, size_t n) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t i = 0; i < 256; i++) {
      uint32_t c = i;
      for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0x82f63b78u : c >> 1;
      t[i] = c;
    }
    return t;
  }();
  uint32_t c = ~0u;
  for (size_t i = 0; i < n; i++) c = table[(c ^ static_cast<unsigned char>(p[i])) & 255] ^ c >> 8;
  return ~c;
}

void Put64(char* p, uint64_t v) {
  for (int i = 0; i < 8; i++) p[i] = static_cast<char>(v >> 8 * i);
}

}  // namespace

Guard::Guard(const std::string& dir, const catalog_options& options) : dir_(dir), options_(options) {
  why_.PermitUncheckedError();
  if (!options.read_only) Change("SYNCED", [this] { return OpenMark(); }).PermitUncheckedError();
}

Guard::~Guard() {
  if (fd_ >= 0) close(fd_);
  why_.PermitUncheckedError();
}

IOStatus Guard::why() const {
  std::lock_guard<std::mutex> lock(mu_);
  return why_;
}

void Guard::Freeze(const IOStatus& why) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!frozen()) {
    why_ = why;
    why_.PermitUncheckedError();
    frozen_.store(true, std::memory_order_release);
  }
}

IOStatus Guard::Injected(const std::string& name, std::atomic<uint64_t>* count, uint64_t at) {
  const uint64_t n = count->fetch_add(1) + 1;
  if (at != 0 && (n == at || (options_.fail_all && n > at))) return Failed("injected: " + Base(name), options_.fail_errno);
  return IOStatus::OK();
}

// OpenMark begins a new mark: what the file had to say was checked before the database was opened, and the files that recovery
// goes on to use are noted again as they are synced. Until then the entries stay.
IOStatus Guard::OpenMark() {
  const std::string path = dir_ + "/SYNCED";
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd_ < 0) return Failed(path, errno);
  std::vector<char> slots(2 * kSlotBytes);
  ssize_t n = pread(fd_, slots.data(), slots.size(), 0);
  if (n < 0) return Failed(path, errno);
  auto get = [](const char* p) {
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) v = v << 8 | static_cast<unsigned char>(p[i]);
    return v;
  };
  for (int i = 0; i < 2; i++) {
    const char* p = slots.data() + i * kSlotBytes;
    const uint64_t entries = get(p + 24);
    if (get(p) != kMagic || entries > kMaxEntries || get(p + 8) < sequence_) continue;
    const size_t used = kHeadBytes + entries * kEntryBytes;
    if ((get(p + used) & 0xffffffff) != Crc32c(p, used)) continue;
    sequence_ = get(p + 8);
    current_ = next_current_ = get(p + 16);
    sizes_.clear();
    for (uint64_t k = 0; k < entries; k++) sizes_[get(p + kHeadBytes + k * 16)] = get(p + kHeadBytes + k * 16 + 8);
  }
  if (n == static_cast<ssize_t>(slots.size()) && sequence_ > 0) return IOStatus::OK();
  std::lock_guard<std::mutex> lock(mu_);
  for (int i = 0; i < 2; i++) {  // both slots have their blocks from now on: later writes need no space
    IOStatus s = WriteMark(true);
    if (!s.ok()) return s;
  }
  int d = open(dir_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (d < 0) return Failed(dir_, errno);
  const int bad = fsync(d) != 0 ? errno : 0;
  close(d);
  return bad ? Failed(dir_, bad) : IOStatus::OK();
}

// WriteMark writes the slot that was not written last. The caller holds mu_.
IOStatus Guard::WriteMark(bool sync) {
  std::vector<std::pair<uint64_t, uint64_t>> entries;
  for (const auto& e : sizes_) {
    if (fresh_.count(e.first) == 0 && entries.size() < kMaxEntries) entries.push_back(e);
  }
  char slot[kSlotBytes] = {};
  Put64(slot, kMagic);
  Put64(slot + 8, ++sequence_);
  Put64(slot + 16, current_);
  Put64(slot + 24, entries.size());
  size_t used = kHeadBytes;
  for (const auto& e : entries) {
    Put64(slot + used, e.first);
    Put64(slot + used + 8, e.second);
    used += kEntryBytes;
  }
  Put64(slot + used, Crc32c(slot, used));
  const ssize_t n = pwrite(fd_, slot, kSlotBytes, (sequence_ % 2) * kSlotBytes);
  if (n != static_cast<ssize_t>(kSlotBytes)) return Failed(dir_ + "/SYNCED", n < 0 ? errno : ENOSPC);
  if (sync && fdatasync(fd_) != 0) return Failed(dir_ + "/SYNCED", errno);
  return IOStatus::OK();
}

void Guard::Made(const std::string& name) {
  const uint64_t tag = Tag(name);
  if (tag == 0) return;
  Forget(name);
  std::lock_guard<std::mutex> lock(mu_);
  fresh_.insert(tag);
}

void Guard::Synced(const std::string& name, uint64_t size) {
  const uint64_t tag = Tag(name);
  if (tag == 0) return;
  Change(dir_ + "/SYNCED", [&] {
    std::lock_guard<std::mutex> lock(mu_);
    uint64_t& known = sizes_[tag];
    if (known >= size) return IOStatus::OK();
    known = size;
    return fresh_.count(tag) ? IOStatus::OK() : WriteMark(false);
  }).PermitUncheckedError();
}

void Guard::Forget(const std::string& name) {
  const uint64_t tag = Tag(name);
  if (tag == 0) return;
  Change(dir_ + "/SYNCED", [&] {
    std::lock_guard<std::mutex> lock(mu_);
    const bool noted = sizes_.erase(tag) > 0 && fresh_.count(tag) == 0;
    return noted ? WriteMark(true) : IOStatus::OK();
  }).PermitUncheckedError();
}

void Guard::SetCurrent(const std::string& manifest) {
  std::lock_guard<std::mutex> lock(mu_);
  next_current_ = Tag(manifest) & ~kManifest;
}

IOStatus Guard::SyncDirectory(const std::string& name, const std::function<IOStatus()>& sync) {
  std::set<uint64_t> durable;
  uint64_t current;
  {
    std::lock_guard<std::mutex> lock(mu_);
    durable = fresh_;
    current = next_current_;
  }
  Change(name, sync).PermitUncheckedError();
  return Change(dir_ + "/SYNCED", [&] {
    std::lock_guard<std::mutex> lock(mu_);
    if (durable.empty() && current == current_) return IOStatus::OK();
    for (uint64_t tag : durable) fresh_.erase(tag);
    current_ = current;
    return WriteMark(false);
  });
}

namespace {

// A file that takes what is written as long as the disk does. RocksDB's own has assertions on what the system calls return.
class GuardedFile : public FSWritableFile {
 public:
  using FSWritableFile::Append;

  GuardedFile(std::shared_ptr<Guard> guard, const std::string& name, const FileOptions& o, int fd, uint64_t size)
      : FSWritableFile(o), guard_(std::move(guard)), name_(name), fd_(fd), size_(size) {}
  ~GuardedFile() override { Close(IOOptions(), nullptr).PermitUncheckedError(); }

  IOStatus Append(const Slice& data, const IOOptions&, IODebugContext*) override {
    IOStatus s = guard_->Change(name_, [&] { return Write(data.data(), data.size()); });
    size_ += data.size();
    return s;
  }
  IOStatus Truncate(uint64_t size, const IOOptions&, IODebugContext*) override {
    size_ = size;
    return guard_->Change(name_, [&] { return Result(ftruncate(fd_, size)); });
  }
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    const uint64_t size = size_;  // read first: what is appended meanwhile may not be synced
    IOStatus s = guard_->Change(name_, [&] { return Result(fdatasync(fd_)); });
    if (!guard_->frozen()) guard_->Synced(name_, size);
    return s;
  }
  bool IsSyncThreadSafe() const override { return true; }
  IOStatus RangeSync(uint64_t at, uint64_t n, const IOOptions&, IODebugContext*) override {
    return guard_->Change(name_, [&] {
      const int bad = sync_file_range(fd_, at, n, SYNC_FILE_RANGE_WRITE);
      return bad != 0 && (errno == ENOSYS || errno == EINVAL || errno == ESPIPE) ? IOStatus::OK() : Result(bad);
    });
  }
  IOStatus Allocate(uint64_t at, uint64_t n, const IOOptions&, IODebugContext*) override {
    if (!guard_->frozen() && fallocate(fd_, FALLOC_FL_KEEP_SIZE, at, n) == 0) allocated_ = true;
    return IOStatus::OK();  // only a hint: the write tells
  }
  IOStatus Close(const IOOptions&, IODebugContext*) override {
    if (fd_ < 0) return IOStatus::OK();
    if (!guard_->frozen() && allocated_ && ftruncate(fd_, size_) != 0) allocated_ = false;  // the space stays taken for longer
    const int fd = fd_;
    fd_ = -1;
    const int bad = close(fd), err = errno;
    return guard_->Change(name_, [&] { return bad != 0 && err != EINTR ? Failed(name_, err) : IOStatus::OK(); });
  }
  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override { return size_; }

 private:
  IOStatus Result(int bad) { return bad == 0 ? IOStatus::OK() : Failed(name_, errno); }

  // A write past RLIMIT_FSIZE would raise SIGXFSZ, which ends a process that does not handle it.
  IOStatus Write(const char* p, size_t n) {
    rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && size_ + n > limit.rlim_cur) {
      return IOStatus::IOError(name_, "the limit of file sizes, RLIMIT_FSIZE (ulimit -f), is " + std::to_string(limit.rlim_cur));
    }
    while (n > 0) {
      const ssize_t done = write(fd_, p, n);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return Failed(name_, done < 0 ? errno : ENOSPC);
      p += done;
      n -= done;
    }
    return IOStatus::OK();
  }

  const std::shared_ptr<Guard> guard_;
  const std::string name_;
  int fd_;
  bool allocated_ = false;
  std::atomic<uint64_t> size_;
};

// What RocksDB gets in the place of a file that could not be made.
class NoFile : public FSWritableFile {
 public:
  using FSWritableFile::Append;
  IOStatus Append(const Slice& data, const IOOptions&, IODebugContext*) override {
    size_ += data.size();
    return IOStatus::OK();
  }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Sync(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override { return size_; }

 private:
  uint64_t size_ = 0;
};

class GuardedDirectory : public rocksdb::FSDirectory {
 public:
  GuardedDirectory(std::shared_ptr<Guard> guard, const std::string& name, int fd)
      : guard_(std::move(guard)), name_(name), fd_(fd) {}
  ~GuardedDirectory() override {
    if (fd_ >= 0) close(fd_);
  }
  IOStatus Fsync(const IOOptions&, IODebugContext*) override {
    return guard_->SyncDirectory(name_, [&] { return fsync(fd_) == 0 ? IOStatus::OK() : Failed(name_, errno); });
  }

 private:
  const std::shared_ptr<Guard> guard_;
  const std::string name_;
  const int fd_;
};

// Files to read, whose reads fail on request. RocksDB copes with those.
class ReadFile : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  ReadFile(std::shared_ptr<Guard> guard, const std::string& name, std::unique_ptr<rocksdb::FSRandomAccessFile>&& file)
      : FSRandomAccessFileOwnerWrapper(std::move(file)), guard_(std::move(guard)), name_(name) {}
  IOStatus Read(uint64_t at, size_t n, const IOOptions& o, Slice* r, char* scratch, IODebugContext* d) const override {
    IOStatus s = guard_->Reading(name_);
    return s.ok() ? target()->Read(at, n, o, r, scratch, d) : s;
  }
  IOStatus MultiRead(rocksdb::FSReadRequest* q, size_t n, const IOOptions& o, IODebugContext* d) override {
    IOStatus s = guard_->Reading(name_);
    return s.ok() ? target()->MultiRead(q, n, o, d) : s;
  }

 private:
  const std::shared_ptr<Guard> guard_;
  const std::string name_;
};

class SequentialFile : public rocksdb::FSSequentialFileOwnerWrapper {
 public:
  SequentialFile(std::shared_ptr<Guard> guard, const std::string& name, std::unique_ptr<rocksdb::FSSequentialFile>&& file)
      : FSSequentialFileOwnerWrapper(std::move(file)), guard_(std::move(guard)), name_(name) {}
  IOStatus Read(size_t n, const IOOptions& o, Slice* r, char* scratch, IODebugContext* d) override {
    IOStatus s = guard_->Reading(name_);
    return s.ok() ? target()->Read(n, o, r, scratch, d) : s;
  }

 private:
  const std::shared_ptr<Guard> guard_;
  const std::string name_;
};

class GuardedFileSystem : public rocksdb::FileSystemWrapper {
 public:
  explicit GuardedFileSystem(std::shared_ptr<Guard> guard)
      : FileSystemWrapper(FileSystem::Default()), guard_(std::move(guard)) {}
  const char* Name() const override { return "mooncake.catalog"; }

  IOStatus NewSequentialFile(const std::string& f, const FileOptions& o, std::unique_ptr<rocksdb::FSSequentialFile>* r,
                             IODebugContext* d) override {
    std::unique_ptr<rocksdb::FSSequentialFile> file;
    IOStatus s = guard_->Reading(f);
    if (s.ok()) s = target()->NewSequentialFile(f, o, &file, d);
    if (s.ok()) r->reset(new SequentialFile(guard_, f, std::move(file)));
    return s;
  }
  IOStatus NewRandomAccessFile(const std::string& f, const FileOptions& o, std::unique_ptr<rocksdb::FSRandomAccessFile>* r,
                               IODebugContext* d) override {
    std::unique_ptr<rocksdb::FSRandomAccessFile> file;
    IOStatus s = guard_->Reading(f);
    if (s.ok()) s = target()->NewRandomAccessFile(f, o, &file, d);
    if (s.ok()) r->reset(new ReadFile(guard_, f, std::move(file)));
    return s;
  }
  IOStatus NewWritableFile(const std::string& f, const FileOptions& o, std::unique_ptr<FSWritableFile>* r,
                           IODebugContext*) override {
    guard_->Made(f);
    return Make(f, O_CREAT | O_TRUNC, o, r);
  }
  IOStatus ReopenWritableFile(const std::string& f, const FileOptions& o, std::unique_ptr<FSWritableFile>* r,
                              IODebugContext*) override {
    return Make(f, O_CREAT | O_APPEND, o, r);
  }
  IOStatus ReuseWritableFile(const std::string& f, const std::string& old, const FileOptions& o,
                             std::unique_ptr<FSWritableFile>* r, IODebugContext* d) override {
    DeleteFile(old, IOOptions(), d).PermitUncheckedError();
    return NewWritableFile(f, o, r, d);
  }
  IOStatus NewDirectory(const std::string& f, const IOOptions&, std::unique_ptr<rocksdb::FSDirectory>* r,
                        IODebugContext*) override {
    int fd = -1;
    IOStatus s = guard_->Change(f, [&] {
      fd = open(f.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      return fd >= 0 ? IOStatus::OK() : Failed(f, errno);
    });
    r->reset(new GuardedDirectory(guard_, f, fd));
    return s;
  }
  IOStatus DeleteFile(const std::string& f, const IOOptions& o, IODebugContext* d) override {
    guard_->Forget(f);
    return guard_->Change(f, [&] {
      IOStatus s = target()->DeleteFile(f, o, d);
      return s.IsPathNotFound() || s.IsNotFound() ? IOStatus::OK() : s;
    });
  }
  IOStatus Truncate(const std::string& f, size_t size, const IOOptions& o, IODebugContext* d) override {
    return guard_->Change(f, [&] { return target()->Truncate(f, size, o, d); });
  }
  IOStatus CreateDir(const std::string& f, const IOOptions& o, IODebugContext* d) override {
    return guard_->Change(f, [&] { return target()->CreateDir(f, o, d); });
  }
  IOStatus CreateDirIfMissing(const std::string& f, const IOOptions& o, IODebugContext* d) override {
    return guard_->Change(f, [&] { return target()->CreateDirIfMissing(f, o, d); });
  }
  IOStatus DeleteDir(const std::string& f, const IOOptions& o, IODebugContext* d) override {
    return guard_->Change(f, [&] { return target()->DeleteDir(f, o, d); });
  }
  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions& o, IODebugContext* d) override {
    std::string manifest;
    if (Base(to) == "CURRENT") manifest = FirstLine(from);
    IOStatus s = guard_->Change(to, [&] { return target()->RenameFile(from, to, o, d); });
    if (!guard_->frozen() && !manifest.empty()) guard_->SetCurrent(manifest);
    return s;
  }
  IOStatus LockFile(const std::string& f, const IOOptions& o, rocksdb::FileLock** l, IODebugContext* d) override {
    IOStatus s = target()->LockFile(f, o, l, d);
    if (s.ok()) chmod(f.c_str(), 0600);  // nothing is in it, and the directory is private
    return s;
  }
  IOStatus LinkFile(const std::string& from, const std::string& to, const IOOptions& o, IODebugContext* d) override {
    return guard_->Change(to, [&] { return target()->LinkFile(from, to, o, d); });
  }

 private:
  IOStatus Make(const std::string& f, int flags, const FileOptions& o, std::unique_ptr<FSWritableFile>* r) {
    int fd = -1;
    struct stat st {};
    IOStatus s = guard_->Change(f, [&] {
      fd = open(f.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
      return fd >= 0 && fchmod(fd, 0600) == 0 && fstat(fd, &st) == 0 ? IOStatus::OK() : Failed(f, errno);
    });
    if (fd >= 0) {
      r->reset(new GuardedFile(guard_, f, o, fd, st.st_size));
    } else {
      r->reset(new NoFile);
    }
    return s;
  }

  static std::string FirstLine(const std::string& path) {
    char buf[64];
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return "";
    const ssize_t n = read(fd, buf, sizeof buf);
    close(fd);
    const std::string text(buf, n > 0 ? n : 0);
    return text.substr(0, text.find('\n'));
  }

  const std::shared_ptr<Guard> guard_;
};

}  // namespace

std::shared_ptr<FileSystem> NewGuardedFileSystem(std::shared_ptr<Guard> guard) {
  return std::make_shared<GuardedFileSystem>(std::move(guard));
}

}  // namespace catalog
