//go:build cgo && !norocksdb

package catalog

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
)

// benchRecord is a typical record: a key of 64 hex digits in one tenant.
func benchRecord(r *Record, i int) {
	h := xxhash.Sum64(binary.LittleEndian.AppendUint64(nil, uint64(i)))
	*r = Record{
		Tenant: "default", Key: fmt.Sprintf("%016x%016x%016x%016x", h, h*3, h*5, h*7), Gen: uint64(i), Size: 4 << 20,
		Type: 1, Digest: h, Loc: Loc{File: uint32(i >> 8), Off: uint32(h)},
	}
}

// BenchmarkScan reads 1 M records, through Scan and with the least that plain C can do.
func BenchmarkScan(b *testing.B) {
	const records = 1 << 20
	dir := b.TempDir()
	c, err := Open(dir)
	require.NoError(b, err)
	defer func() { require.NoError(b, c.Close()) }()
	var batch Batch
	var r Record
	for i := range records {
		benchRecord(&r, i)
		batch.Put(&r)
		if batch.Len() == 4096 {
			require.NoError(b, c.Apply(&batch, false))
			batch.Reset()
		}
	}
	perRecord := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/records, "ns/record")
	}
	for _, state := range []string{"fresh", "reopened"} {
		if state == "reopened" {
			require.NoError(b, c.Close())
			c, err = Open(dir)
			require.NoError(b, err)
		}
		b.Run("C/"+state, func(b *testing.B) {
			for b.Loop() {
				if c.(*rocks).SumC() == 0 {
					b.Fatal("nothing read")
				}
			}
			perRecord(b)
		})
		b.Run("Go/"+state, func(b *testing.B) {
			b.ReportAllocs()
			var n int
			for b.Loop() {
				n = 0
				err := c.Scan(b.Context(), func(r *Record) error {
					n += int(r.Loc.File&1) | 1
					return nil
				})
				if err != nil || n != records {
					b.Fatalf("Scan: %d records, %v", n, err)
				}
			}
			perRecord(b)
		})
	}
}

// BenchmarkApply gives 1000 objects a new generation and forgets the one before, in one batch.
func BenchmarkApply(b *testing.B) {
	for _, sync := range []bool{false, true} {
		b.Run(fmt.Sprintf("1000/sync=%t", sync), func(b *testing.B) {
			c, err := Open(b.TempDir())
			require.NoError(b, err)
			defer c.Close()
			records := make([]Record, 1000)
			for j := range records {
				benchRecord(&records[j], j)
			}
			var batch Batch
			b.ReportAllocs()
			for b.Loop() {
				batch.Reset()
				for j := range records {
					r := &records[j]
					batch.Delete(r.Tenant, r.Key, r.Gen)
					r.Gen++
					batch.Put(r)
				}
				if err := c.Apply(&batch, sync); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "records/s")
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	var r, got Record
	benchRecord(&r, 1)
	key, value := encode(&r)
	b.SetBytes(int64(len(key) + len(value)))
	b.ReportAllocs()
	for b.Loop() {
		if err := got.Decode(key, value); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		c, err := Open(dir)
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}
