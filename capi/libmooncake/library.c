// SPDX-License-Identifier: Apache-2.0

// Section 2 of mooncake.h: what is about the library itself.

#include <stdlib.h>

#include "guard.h"

int mooncake_abi_version(void) { return MOONCAKE_ABI_VERSION; }

void mooncake_free(void *p) { free(p); }

int mooncake_last_error_code(void) { return mc_err()->code; }

static const struct {
    int code;
    const char *name, *text;
} codes[] = {
    {0, "OK", ""},
    {-1, "INTERNAL_ERROR", "internal error"},
    {-10, "BUFFER_OVERFLOW", "buffer overflow"},
    {-100, "SHARD_INDEX_OUT_OF_RANGE", "shard index out of range"},
    {-101, "SEGMENT_NOT_FOUND", "no such segment"},
    {-102, "SEGMENT_ALREADY_EXISTS", "segment exists"},
    {-103, "CLIENT_NOT_FOUND", "no such client"},
    {-200, "NO_AVAILABLE_HANDLE", "no space"},
    {-300, "INVALID_VERSION", "written by a newer version"},
    {-400, "INVALID_KEY", "invalid key"},
    {-500, "WRITE_FAIL", "write failed"},
    {-600, "INVALID_PARAMS", "invalid argument"},
    {-601, "ILLEGAL_CLIENT", "the put belongs to someone else or was taken away"},
    {-700, "INVALID_WRITE", "write in a state that does not allow it"},
    {-701, "INVALID_READ", "read in a state that does not allow it"},
    {-702, "INVALID_REPLICA", "no readable replica of the wanted kind"},
    {-703, "REPLICA_IS_NOT_READY", "object is still being written"},
    {-704, "OBJECT_NOT_FOUND", "object not found"},
    {-705, "OBJECT_ALREADY_EXISTS", "object exists"},
    {-706, "OBJECT_HAS_LEASE", "object is leased"},
    {-707, "LEASE_EXPIRED", "lease expired"},
    {-708, "OBJECT_HAS_REPLICATION_TASK", "object is being copied or moved"},
    {-709, "OBJECT_NO_REPLICATION_TASK", "object is not being copied or moved"},
    {-710, "REPLICA_NOT_FOUND", "no such replica"},
    {-711, "REPLICA_ALREADY_EXISTS", "replica exists"},
    {-712, "REPLICA_IS_GONE", "replica is gone"},
    {-713, "REPLICA_NOT_IN_LOCAL_MEMORY", "replica is not in local memory"},
    {-714, "OBJECT_REPLICA_BUSY", "object is in use"},
    {-800, "TRANSFER_FAIL", "transfer failed"},
    {-801, "CHECKSUM_MISMATCH", "checksum mismatch"},
    {-900, "RPC_FAIL", "remote call failed"},
    {-901, "RPC_TIMEOUT", "remote call timed out"},
    {-1000, "ETCD_OPERATION_ERROR", "etcd operation failed"},
    {-1001, "ETCD_KEY_NOT_EXIST", "no such key in etcd"},
    {-1002, "ETCD_TRANSACTION_FAIL", "etcd transaction failed"},
    {-1003, "ETCD_CTX_CANCELLED", "etcd call cancelled"},
    {-1004, "OPLOG_ENTRY_NOT_FOUND", "no such log entry"},
    {-1005, "K8S_LEASE_OPERATION_ERROR", "Kubernetes lease operation failed"},
    {-1006, "K8S_LEASE_NOT_FOUND", "no such Kubernetes lease"},
    {-1007, "INCOMPLETE_OPLOG_CATCH_UP", "log was not caught up with"},
    {-1010, "UNAVAILABLE_IN_CURRENT_STATUS", "store is closed"},
    {-1011, "UNAVAILABLE_IN_CURRENT_MODE", "not available in this build or mode"},
    {-1012, "NOT_SUPPORTED", "not supported"},
    {-1100, "FILE_NOT_FOUND", "no such file"},
    {-1101, "FILE_OPEN_FAIL", "file can't be opened"},
    {-1102, "FILE_READ_FAIL", "read failed"},
    {-1103, "FILE_WRITE_FAIL", "write failed"},
    {-1104, "FILE_INVALID_BUFFER", "invalid buffer"},
    {-1105, "FILE_LOCK_FAIL", "directory is in use by another store"},
    {-1106, "FILE_INVALID_HANDLE", "file was changed from outside"},
    {-1200, "BUCKET_NOT_FOUND", "no such bucket"},
    {-1201, "BUCKET_ALREADY_EXISTS", "bucket exists"},
    {-1202, "KEYS_EXCEED_BUCKET_LIMIT", "too many keys for a bucket"},
    {-1203, "KEYS_ULTRA_LIMIT", "too many keys"},
    {-1300, "UNABLE_OFFLOAD", "offload is not possible"},
    {-1301, "UNABLE_OFFLOADING", "offload is not possible now"},
    {-1400, "TASK_NOT_FOUND", "no such task"},
    {-1401, "TASK_PENDING_LIMIT_EXCEEDED", "too many tasks"},
    {-1402, "JOB_NOT_FOUND", "no such job"},
    {-1500, "SERIALIZE_UNSUPPORTED", "can't be serialised"},
    {-1501, "SERIALIZE_FAIL", "serialising failed"},
    {-1502, "DESERIALIZE_FAIL", "corrupt metadata"},
    {-1503, "PERSISTENT_FAIL", "could not be made durable"},
    {-1600, "DFS_NETWORK_TIMEOUT", "distributed file system timed out"},
    {-1601, "DFS_SERVICE_UNAVAILABLE", "distributed file system is not available"},
    {-1602, "DFS_QUOTA_EXCEEDED", "quota of the distributed file system exceeded"},
    {-1603, "DFS_PERMISSION_DENIED", "distributed file system denied permission"},
    {-1604, "DFS_STALE_HANDLE", "stale handle of the distributed file system"},
    {-1605, "DFS_PARTIAL_WRITE", "partial write to the distributed file system"},
    {-1700, "TENANT_QUOTA_EXCEEDED", "tenant's quota exceeded"},
    {-1701, "TENANT_NOT_REGISTERED", "no such tenant"},
    {-1702, "TENANT_NOT_EMPTY", "tenant still has objects"},
    {-2001, "OBJECT_PINNED", "object is pinned"},
    {-2002, "GROUP_NOT_FOUND", "no such group"},
    {-2003, "OBJECT_INCOMPLETE", "object is not completely written"},
    {-2005, "CANCELED", "cancelled"},
    {-2006, "TIMEOUT", "timed out"},
    {-2101, "SOURCE_INVALID", "source is not a complete model"},
    {-2102, "REVISION_DAMAGED", "a file of the revision is missing or damaged"},
    {-2103, "REVISION_IMPORTING", "an import of the revision is running"},
    {-2104, "TENSOR_NOT_FOUND", "no such tensor"},
};

const char *mooncake_error_name(int code) {
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].code == code) return codes[i].name;
    return "UNKNOWN";
}

const char *mooncake_last_error(void) {
    const mc_error *e = mc_err();
    if (e->text[0] != 0) return e->text;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].code == e->code) return codes[i].text;
    return "unknown error";
}
