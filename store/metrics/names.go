package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvcache-ai/mooncake-go/store"
)

const (
	gauge = prometheus.GaugeValue
	count = prometheus.CounterValue
)

// metrics have no labels. The names before mooncake_store_ are the C++ Mooncake Store's, trailing underscores and all.
var metrics = []metric{
	{name: "master_allocated_bytes", help: "Memory that objects take, in bytes.", kind: gauge, value: memoryUsed},
	{name: "master_total_capacity_bytes", help: "Memory budget, in bytes.", kind: gauge,
		value: func(r *reading) int64 { return r.MemoryBudget }},
	{name: "master_allocated_file_size_bytes", help: "Bytes of objects on SSD.", kind: gauge, value: ssdUsed},
	{name: "master_total_file_capacity_bytes", help: "Most that the SSD tier may take, in bytes.", kind: gauge,
		value: func(r *reading) int64 { return r.SSDLimit }},
	{name: "master_key_count", help: "Committed objects, links included.", kind: gauge, value: keys},
	{name: "master_put_start_alloc_failures_total", help: "Puts that found no room at first.", kind: count,
		value: func(r *reading) int64 { return r.AllocationFailures }},

	{name: "mem_cache_nums_", help: "Replicas in memory.", kind: gauge,
		value: func(r *reading) int64 { return replicas(r, store.TierMemory) }},
	{name: "file_cache_nums_", help: "Replicas on SSD.", kind: gauge,
		value: func(r *reading) int64 { return replicas(r, store.TierSSD) }},
	{name: "mem_cache_hit_nums_", help: "Reads answered from memory.", kind: count,
		value: func(r *reading) int64 { return r.Hits[store.TierMemory] }},
	{name: "file_cache_hit_nums_", help: "Reads answered from SSD.", kind: count,
		value: func(r *reading) int64 { return r.Hits[store.TierSSD] }},
	{name: "mem_cache_hit_bytes_total", help: "Bytes read from memory.", kind: count,
		value: func(r *reading) int64 { return r.HitBytes[store.TierMemory] }},
	{name: "file_cache_hit_bytes_total", help: "Bytes read from SSD.", kind: count,
		value: func(r *reading) int64 { return r.HitBytes[store.TierSSD] }},
	{name: "valid_get_nums_", help: "Reads that found their object.", kind: count, value: hits},
	{name: "total_get_nums_", help: "Reads.", kind: count, value: func(r *reading) int64 { return hits(r) + r.Misses }},

	{name: "master_attempted_evictions_total", help: "Eviction passes over memory.", kind: count,
		value: func(r *reading) int64 { return r.Evictions }},
	{name: "master_successful_evictions_total", help: "Eviction passes over memory that freed something.", kind: count,
		value: func(r *reading) int64 { return r.EvictionsFreed }},
	{name: "master_evicted_key_count", help: "Replicas that evictions took, of both tiers.", kind: count,
		value: func(r *reading) int64 { return r.EvictedKeys[0] + r.EvictedKeys[1] }},
	{name: "master_evicted_size_bytes", help: "Bytes that evictions took, of both tiers.", kind: count,
		value: func(r *reading) int64 { return r.EvictedBytes[0] + r.EvictedBytes[1] }},

	{name: "master_promotion_completed_total", help: "Objects brought from SSD to memory.", kind: count,
		value: func(r *reading) int64 { return r.Promotions }},
	{name: "master_promotion_completed_bytes_total", help: "Bytes brought from SSD to memory.", kind: count,
		value: func(r *reading) int64 { return r.PromotedBytes }},
	{name: "master_promotion_failed_total", help: "Promotions that failed.", kind: count,
		value: func(r *reading) int64 { return r.PromotionFailures }},
	{name: "master_promotion_rejected_cap_total", help: "Promotions not begun because too many were waiting.", kind: count,
		value: func(r *reading) int64 { return r.PromotionsDropped }},

	{name: "mooncake_store_puts_total", help: "Objects committed.", kind: count,
		value: func(r *reading) int64 { return r.Puts }},
	{name: "mooncake_store_put_bytes_total", help: "Bytes committed.", kind: count,
		value: func(r *reading) int64 { return r.PutBytes }},
	{name: "mooncake_store_removed_total", help: "Objects removed by a caller.", kind: count,
		value: func(r *reading) int64 { return r.Removed }},
	{name: "mooncake_store_quarantined_total", help: "Replicas whose bytes were not what was put.", kind: count,
		value: func(r *reading) int64 { return r.Quarantined }},
	{name: "mooncake_store_evictions_leased_total", help: "Eviction passes that freed nothing because of leases.", kind: count,
		value: func(r *reading) int64 { return r.EvictionsLeased }},
	{name: "mooncake_store_offloaded_total", help: "Objects copied to the SSD tier.", kind: count,
		value: func(r *reading) int64 { return r.OffloadedKeys }},
	{name: "mooncake_store_offloaded_bytes_total", help: "Bytes copied to the SSD tier.", kind: count,
		value: func(r *reading) int64 { return r.OffloadedBytes }},
	{name: "mooncake_store_offload_failures_total", help: "Objects that could not be copied to the SSD tier.", kind: count,
		value: func(r *reading) int64 { return r.OffloadFailures }},
	{name: "mooncake_store_corrupt_records_total", help: "Catalogue records that did not verify at start.", kind: count,
		value: func(r *reading) int64 { return r.CorruptRecords }},
	{name: "mooncake_store_events_dropped_total", help: "Events that slow subscribers missed.", kind: count,
		value: func(r *reading) int64 { return r.EventsDropped }},

	{name: "mooncake_store_memory_taken_bytes", help: "Memory taken from the machine.", kind: gauge,
		value: func(r *reading) int64 { return r.MemoryTaken }},
	{name: "mooncake_store_largest_free_bytes", help: "Largest free piece of memory.", kind: gauge,
		value: func(r *reading) int64 { return r.LargestFree }},
	{name: "mooncake_store_record_bytes", help: "Memory of object records.", kind: gauge,
		value: func(r *reading) int64 { return r.RecordBytes }},
	{name: "mooncake_store_index_bytes", help: "Memory of the key index, on the Go heap.", kind: gauge,
		value: func(r *reading) int64 { return r.IndexBytes }},
	{name: "mooncake_store_view_copy_bytes", help: "Memory of copies that open views have, beside the budget.", kind: gauge,
		value: func(r *reading) int64 { return r.ViewCopies }},
	{name: "mooncake_store_reserved_bytes", help: "Bytes of unfinished puts.", kind: gauge,
		value: func(r *reading) int64 { return r.Reserved }},
	{name: "mooncake_store_retired_in_use", help: "Removed or replaced objects that somebody still reads.", kind: gauge,
		value: func(r *reading) int64 { return r.InUse }},
	{name: "mooncake_store_hard_pinned", help: "Objects with a hard pin.", kind: gauge,
		value: func(r *reading) int64 { return r.HardPinned }},
	{name: "mooncake_store_groups", help: "Groups with members.", kind: gauge,
		value: func(r *reading) int64 { return r.Groups }},
	{name: "mooncake_store_ssd_live_bytes", help: "Disk of the SSD tier in extents, in bytes. Removed objects count until " +
		"the catalogue has forgotten them.", kind: gauge, value: func(r *reading) int64 { return r.SSDLive }},
	{name: "mooncake_store_ssd_disk_bytes", help: "Disk that the SSD tier's files take, in bytes.", kind: gauge,
		value: func(r *reading) int64 { return r.SSDOnDisk }},
}

// families have labels. Every type and tier is always there, so that a rate over a counter sees its first step.
var families = []family{
	{metric{name: "segment_allocated_bytes", help: "Memory of a segment that objects take, in bytes.", kind: gauge,
		each: func(r *reading, to emit) { to(r.DataCapacity-r.DataFree, segment) }}, []string{"segment"}},
	{metric{name: "segment_total_capacity_bytes", help: "Memory of a segment for objects, in bytes.", kind: gauge,
		each: func(r *reading, to emit) { to(r.DataCapacity, segment) }}, []string{"segment"}},
	{metric{name: "mooncake_store_objects", help: "Committed objects by type, links included.", kind: gauge,
		each: func(r *reading, to emit) {
			for t, n := range r.Objects {
				to(n, store.ObjectType(t).String())
			}
		}}, []string{"type"}},
	{metric{name: "mooncake_store_replicas", help: "Replicas by type and tier.", kind: gauge,
		each: func(r *reading, to emit) {
			eachReplica(r, func(u store.TierUsage, l ...string) { to(u.Count, l...) })
		}}, []string{"type", "tier"}},
	{metric{name: "mooncake_store_replica_bytes", help: "Bytes of replicas by type and tier.", kind: gauge,
		each: func(r *reading, to emit) {
			eachReplica(r, func(u store.TierUsage, l ...string) { to(u.Bytes, l...) })
		}}, []string{"type", "tier"}},
	{metric{name: "mooncake_store_evicted_keys_total", help: "Replicas that evictions took, by tier.", kind: count,
		each: func(r *reading, to emit) { eachTier(r.EvictedKeys, to) }}, []string{"tier"}},
	{metric{name: "mooncake_store_evicted_bytes_total", help: "Bytes that evictions took, by tier.", kind: count,
		each: func(r *reading, to emit) { eachTier(r.EvictedBytes, to) }}, []string{"tier"}},
	{metric{name: "mooncake_store_restored_objects", help: "Objects found when the store was opened, by tier.", kind: gauge,
		each: func(r *reading, to emit) {
			eachTier([2]int64{r.RestoredFromMemory, r.RestoredFromSSD}, to)
		}}, []string{"tier"}},
}

// segment is the name of an embedded store's only segment.
const segment = "local"

func memoryUsed(r *reading) int64 { return r.DataCapacity - r.DataFree + r.OwnFiles }

// ssdUsed adds up what the master counts: a removal shows at once, before the disk is given back in the background.
func ssdUsed(r *reading) (n int64) {
	for _, u := range r.Tiers[store.TierSSD] {
		n += u.Bytes
	}
	return n
}

func hits(r *reading) int64 { return r.Hits[store.TierMemory] + r.Hits[store.TierSSD] }

func keys(r *reading) (n int64) {
	for _, k := range r.Objects {
		n += k
	}
	return n
}

func replicas(r *reading, t store.Tier) (n int64) {
	for _, u := range r.Tiers[t] {
		n += u.Count
	}
	return n
}

func eachReplica(r *reading, fn func(u store.TierUsage, labels ...string)) {
	for t := range r.Tiers {
		for k, u := range r.Tiers[t] {
			fn(u, store.ObjectType(k).String(), store.Tier(t).String())
		}
	}
}

func eachTier(values [2]int64, to emit) {
	for t, v := range values {
		to(v, store.Tier(t).String())
	}
}
