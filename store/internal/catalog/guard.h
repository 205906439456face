// What stands between RocksDB and the disk.
//
// Debian builds RocksDB with assertions, and after a file has once failed to take a write, the next one to it ends the process.
// So a failed write never reaches RocksDB: the first one freezes the Guard. From then on the disk stays as it is, as if the power
// had gone: every change of a file is dropped and reported as done. The catalogue asks the Guard after each call, reports the
// error of the disk, and opens the directory again later. What a crash leaves is what this leaves, so nothing else has to cope.
//
// The Guard also keeps the file SYNCED: how much of each log and manifest is known to be on stable storage. What lies below must be
// whole at the next open; what lies above may be torn. See mark.go for its format and for who reads it.
//
// Files are made for their owner alone, and RocksDB's own log is dropped: what it has to say comes back as errors.
#ifndef MOONCAKE_CATALOG_GUARD_H
#define MOONCAKE_CATALOG_GUARD_H

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include <rocksdb/file_system.h>

#include "rocksdb.h"

namespace catalog {

class Guard {
 public:
  Guard(const std::string& dir, const catalog_options& options);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  bool frozen() const { return frozen_.load(std::memory_order_acquire); }
  rocksdb::IOStatus why() const;

  // Runs an operation that changes a file, unless the Guard is frozen. It always reports success; a failure freezes.
  template <typename F>
  rocksdb::IOStatus Change(const std::string& name, F operation) {
    if (frozen()) return rocksdb::IOStatus::OK();
    rocksdb::IOStatus s = Injected(name, &writes_, options_.fail_write);
    if (s.ok()) s = operation();
    if (!s.ok()) Freeze(s);
    return rocksdb::IOStatus::OK();
  }

  // Says whether a read is to fail, in tests.
  rocksdb::IOStatus Reading(const std::string& name) {
    return Injected(name, &reads_, options_.fail_read);
  }

  // The mark. A name counts as durable, and so its file is noted, once the directory was synced after it was made.
  void Made(const std::string& name);                          // before the file is made, or made again
  void Synced(const std::string& name, uint64_t size);         // the first size bytes
  void Forget(const std::string& name);                        // before the file goes
  void SetCurrent(const std::string& manifest);                // CURRENT was renamed into place
  rocksdb::IOStatus SyncDirectory(const std::string& name, const std::function<rocksdb::IOStatus()>& sync);
  void Freeze(const rocksdb::IOStatus& why);

  uint64_t writes() const { return writes_.load(); }
  uint64_t reads() const { return reads_.load(); }

 private:
  rocksdb::IOStatus Injected(const std::string& name, std::atomic<uint64_t>* count, uint64_t at);
  rocksdb::IOStatus OpenMark();
  rocksdb::IOStatus WriteMark(bool sync);

  const std::string dir_;
  const catalog_options options_;
  std::atomic<uint64_t> writes_{0}, reads_{0};
  std::atomic<bool> frozen_{false};
  mutable std::mutex mu_;  // guards the rest
  rocksdb::IOStatus why_;
  int fd_ = -1;
  uint64_t sequence_ = 0, current_ = 0, next_current_ = 0;
  std::map<uint64_t, uint64_t> sizes_;  // synced bytes of a file, by its tag
  std::set<uint64_t> fresh_;            // tags of files whose names may not be durable
};

// The default file system with guard in front of it.
std::shared_ptr<rocksdb::FileSystem> NewGuardedFileSystem(std::shared_ptr<Guard> guard);

}  // namespace catalog
#endif
