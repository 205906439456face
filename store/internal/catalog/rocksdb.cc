//go:build cgo && !norocksdb

#include "rocksdb.h"

#include <stdlib.h>
#include <string.h>

#include <memory>
#include <string>
#include <vector>

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include "guard.h"

using rocksdb::Slice;
using rocksdb::Status;

struct catalog_db {
  std::shared_ptr<catalog::Guard> guard;
  std::unique_ptr<rocksdb::Env> env;
  std::unique_ptr<rocksdb::DB> db;  // goes before env
  bool read_only;
};

struct catalog_scan {
  std::unique_ptr<rocksdb::Iterator> it;
};

namespace {

class NoLogger : public rocksdb::Logger {
 public:
  NoLogger() : Logger(rocksdb::InfoLogLevel::FATAL_LEVEL) {}
  using Logger::Logv;
  void Logv(const char*, va_list) override {}

 protected:
  Status CloseImpl() override { return Status::OK(); }
};

catalog_status Result(const Status& s) {
  if (s.ok()) return {CATALOG_OK, nullptr};
  int code = CATALOG_FAILED;
  const std::string text = s.ToString();
  if (s.IsCorruption()) {
    code = CATALOG_CORRUPT;
  } else if (s.IsNoSpace()) {
    code = CATALOG_NO_SPACE;
  } else if (text.find("lock hold by current process") != std::string::npos ||
             text.find("While lock file") != std::string::npos) {
    code = CATALOG_LOCKED;
  }
  return {code, strdup(text.c_str())};
}

// The error of the disk explains what RocksDB made of it.
catalog_status Result(const catalog::Guard& guard, const Status& s) { return Result(guard.frozen() ? guard.why() : s); }

rocksdb::Options Options(const catalog_options& o, rocksdb::Env* env) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(o.block_cache_bytes);
  table.cache_index_and_filter_blocks = true;
  table.pin_l0_filter_and_index_blocks_in_cache = true;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.block_size = 16 << 10;
  table.format_version = 5;

  rocksdb::Options r;
  r.env = env;
  r.info_log = std::make_shared<NoLogger>();
  r.create_if_missing = true;
  r.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  r.compression = rocksdb::kNoCompression;  // records are short and mostly hashes
  r.write_buffer_size = o.memtable_bytes;
  r.max_write_buffer_number = o.max_memtables;
  r.max_total_wal_size = o.max_wal_bytes;
  r.level_compaction_dynamic_level_bytes = true;
  r.max_background_jobs = 2;
  r.bytes_per_sync = 1 << 20;
  // A torn tail of the log ends the recovery there: a prefix. What must not be torn was checked before, see mark.go.
  r.wal_recovery_mode =
      o.salvage ? rocksdb::WALRecoveryMode::kSkipAnyCorruptedRecords : rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  r.max_open_files = o.max_open_files;
  r.max_file_opening_threads = 1;
  r.skip_stats_update_on_db_open = true;
  r.max_manifest_file_size = o.max_manifest_bytes;
  r.manifest_preallocation_size = 64 << 10;
  r.stats_dump_period_sec = 0;
  r.stats_persist_period_sec = 0;
  r.avoid_flush_during_shutdown = true;  // the log has it
  return r;
}

}  // namespace

catalog_status catalog_open(const char* dir, const catalog_options* options, catalog_db** out) {
  *out = nullptr;
  auto c = std::make_unique<catalog_db>();
  c->read_only = options->read_only;
  c->guard = std::make_shared<catalog::Guard>(dir, *options);
  if (c->guard->frozen()) return Result(c->guard->why());
  c->env = rocksdb::NewCompositeEnv(catalog::NewGuardedFileSystem(c->guard));
  rocksdb::DB* db = nullptr;
  const rocksdb::Options o = Options(*options, c->env.get());
  Status s = options->read_only ? rocksdb::DB::OpenForReadOnly(o, dir, &db) : rocksdb::DB::Open(o, dir, &db);
  c->db.reset(db);
  if (s.ok() && !c->guard->frozen()) {
    *out = c.release();
    return {CATALOG_OK, nullptr};
  }
  catalog_status failed = Result(*c->guard, s);
  c->db.reset();
  return failed;
}

catalog_status catalog_close(catalog_db* c) {
  Status s;
  if (!c->read_only && !c->guard->frozen()) s = c->db->SyncWAL();
  c->db->Close().PermitUncheckedError();
  c->db.reset();
  catalog_status result = c->read_only ? catalog_status{CATALOG_OK, nullptr} : Result(*c->guard, s);
  delete c;
  return result;
}

catalog_status catalog_frozen(catalog_db* c) { return Result(*c->guard, Status::OK()); }

catalog_status catalog_write(catalog_db* c, const char* batch, size_t size, int sync) {
  if (c->guard->frozen()) return Result(c->guard->why());
  rocksdb::WriteBatch b(std::string(batch, size));
  rocksdb::WriteOptions o;
  o.sync = sync != 0;
  return Result(*c->guard, c->db->Write(o, &b));
}

catalog_status catalog_get(catalog_db* c, const char* key, size_t key_size, char** value, size_t* value_size) {
  rocksdb::PinnableSlice v;
  *value = nullptr;
  Status s = c->db->Get(rocksdb::ReadOptions(), c->db->DefaultColumnFamily(), Slice(key, key_size), &v);
  if (s.IsNotFound()) return {CATALOG_OK, nullptr};
  if (!s.ok()) return Result(*c->guard, s);
  *value = static_cast<char*>(malloc(v.size() + 1));
  memcpy(*value, v.data(), v.size());
  *value_size = v.size();
  return {CATALOG_OK, nullptr};
}

catalog_scan* catalog_scan_begin(catalog_db* c, char prefix) {
  rocksdb::ReadOptions o;  // large reads that leave the cache to the point reads
  o.fill_cache = false;
  o.readahead_size = 2 << 20;
  auto scan = new catalog_scan{std::unique_ptr<rocksdb::Iterator>(c->db->NewIterator(o))};
  scan->it->Seek(Slice(&prefix, prefix ? 1 : 0));
  return scan;
}

catalog_status catalog_scan_error(catalog_scan* scan) { return Result(scan->it->status()); }

void catalog_scan_end(catalog_scan* scan) { delete scan; }

catalog_filled catalog_fill(catalog_scan* scan, char prefix, char* buf, size_t cap) {
  catalog_filled f = {0, 0};
  for (; scan->it->Valid(); scan->it->Next()) {
    const Slice key = scan->it->key();
    if (key.empty() || (prefix && key[0] != prefix)) break;
    const Slice value = scan->it->value();
    const size_t n = 8 + key.size() + value.size();
    if (n > cap - f.used) {
      f.need = n;
      break;
    }
    const uint32_t sizes[2] = {static_cast<uint32_t>(key.size()), static_cast<uint32_t>(value.size())};
    char* p = buf + f.used;
    memcpy(p, sizes, 8);
    memcpy(p + 8, key.data(), key.size());
    memcpy(p + 8 + key.size(), value.data(), value.size());
    f.used += n;
  }
  return f;
}

size_t catalog_sum(catalog_scan* scan, char prefix) {
  size_t sum = 0;
  for (; scan->it->Valid(); scan->it->Next()) {
    const Slice key = scan->it->key();
    if (key.empty() || key[0] != prefix) break;
    sum += key.size() + scan->it->value().size();
  }
  return sum;
}

catalog_status catalog_rebuild(const char* dir, const catalog_options* options) {
  auto guard = std::make_shared<catalog::Guard>(dir, *options);
  auto env = rocksdb::NewCompositeEnv(catalog::NewGuardedFileSystem(guard));
  return Result(*guard, rocksdb::RepairDB(dir, Options(*options, env.get())));
}

catalog_status catalog_flush(catalog_db* c) {
  c->db->Flush(rocksdb::FlushOptions()).PermitUncheckedError();
  return {CATALOG_OK, nullptr};
}

void catalog_operations(catalog_db* c, uint64_t* writes, uint64_t* reads) {
  *writes = c->guard->writes();
  *reads = c->guard->reads();
}
