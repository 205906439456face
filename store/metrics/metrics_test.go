package metrics_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store"
	"github.com/kvcache-ai/mooncake-go/store/metrics"
)

func open(t *testing.T) *store.Store {
	s, err := store.Open(context.Background(), store.Options{MemoryBytes: 32 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestCollector(t *testing.T) {
	ctx, s := context.Background(), open(t)
	require.NoError(t, s.Put(ctx, "a", make([]byte, 1000), &store.PutOptions{Type: store.KVCache}))
	require.NoError(t, s.Put(ctx, "b", make([]byte, 3000), &store.PutOptions{Type: store.Tensor, HardPin: true}))
	for range 3 {
		_, err := s.Get(ctx, "a", nil)
		require.NoError(t, err)
	}
	_, err := s.Get(ctx, "missing", nil)
	require.ErrorIs(t, err, store.ErrNotFound)
	require.NoError(t, s.Remove("b", true))

	const want = `
		# HELP master_key_count Committed objects, links included.
		# TYPE master_key_count gauge
		master_key_count 1
		# HELP mem_cache_hit_bytes_total Bytes read from memory.
		# TYPE mem_cache_hit_bytes_total counter
		mem_cache_hit_bytes_total 3000
		# HELP mem_cache_hit_nums_ Reads answered from memory.
		# TYPE mem_cache_hit_nums_ counter
		mem_cache_hit_nums_ 3
		# HELP total_get_nums_ Reads.
		# TYPE total_get_nums_ counter
		total_get_nums_ 4
		# HELP mooncake_store_put_bytes_total Bytes committed.
		# TYPE mooncake_store_put_bytes_total counter
		mooncake_store_put_bytes_total 4000
		# HELP mooncake_store_removed_total Objects removed by a caller.
		# TYPE mooncake_store_removed_total counter
		mooncake_store_removed_total 1
		# HELP mooncake_store_up 1 while the store is open, 0 after it was closed.
		# TYPE mooncake_store_up gauge
		mooncake_store_up 1
	`
	require.NoError(t, testutil.CollectAndCompare(metrics.New(s, nil), strings.NewReader(want), "master_key_count",
		"mem_cache_hit_bytes_total", "mem_cache_hit_nums_", "total_get_nums_", "mooncake_store_put_bytes_total",
		"mooncake_store_removed_total", "mooncake_store_up"))

	value := gather(t, s)
	require.Equal(t, 1000.0, value["mooncake_store_replica_bytes{memory,KVCACHE}"])
	require.Equal(t, 0.0, value["mooncake_store_replica_bytes{ssd,KVCACHE}"])
	require.Equal(t, 1.0, value["mooncake_store_objects{KVCACHE}"])
	require.Equal(t, 0.0, value["mooncake_store_objects{TENSOR}"])
	require.Equal(t, float64(32<<20), value["master_total_capacity_bytes{}"])
	require.GreaterOrEqual(t, value["segment_allocated_bytes{local}"], 1000.0)
}

// gather reads all metrics as name{label values}, label names in their order.
func gather(t *testing.T, s *store.Store) map[string]float64 {
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(metrics.New(s, prometheus.Labels{})))
	families, err := reg.Gather()
	require.NoError(t, err)
	out := map[string]float64{}
	for _, f := range families {
		require.NotEmpty(t, f.GetHelp(), f.GetName())
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			out[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

func TestCollectorOfTwoStores(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(metrics.New(open(t), prometheus.Labels{"store": "1"})))
	require.NoError(t, reg.Register(metrics.New(open(t), prometheus.Labels{"store": "2"})))
	_, err := reg.Gather()
	require.NoError(t, err)
}

func TestCollectorOfClosedStore(t *testing.T) {
	s, err := store.Open(context.Background(), store.Options{MemoryBytes: 32 << 20})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.Equal(t, map[string]float64{"mooncake_store_up{}": 0}, gather(t, s))
}

// A removal shows in the gauges at the next scrape, although the disk is given back later.
func TestGaugesFollowRemoveAll(t *testing.T) {
	ctx := context.Background()
	s, err := store.Open(ctx, store.Options{MemoryBytes: 32 << 20, Dir: t.TempDir(), VolatileMemory: true})
	if errors.Is(err, store.ErrUnavailable) {
		t.Skip(err) // built without RocksDB
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	for _, key := range []string{"a", "b"} {
		require.NoError(t, s.Put(ctx, key, make([]byte, 1000), nil))
	}
	require.NoError(t, s.Sync(ctx)) // writes both to the SSD tier
	value := gather(t, s)
	require.Equal(t, 2000.0, value["master_allocated_file_size_bytes{}"])
	require.Equal(t, 2.0, value["file_cache_nums_{}"])
	require.GreaterOrEqual(t, value["mooncake_store_ssd_disk_bytes{}"], 2000.0)

	_, err = s.RemoveAll(ctx, true)
	require.NoError(t, err)
	value = gather(t, s)
	for _, name := range []string{"master_allocated_file_size_bytes{}", "master_allocated_bytes{}", "master_key_count{}",
		"file_cache_nums_{}", "mem_cache_nums_{}", "mooncake_store_replica_bytes{ssd,UNKNOWN}"} {
		require.Contains(t, value, name)
		require.Zero(t, value[name], name)
	}
}
