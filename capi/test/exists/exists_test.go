// Package exists measures in Go what bench.c measures from C.
package exists

import (
	"testing"

	"github.com/kvcache-ai/mooncake-go/store"
)

func BenchmarkExists(b *testing.B) {
	s, err := store.Open(b.Context(), store.Options{MemoryBytes: 256 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	if err := s.WaitReady(b.Context()); err != nil {
		b.Fatal(err)
	}
	if err := s.Put(b.Context(), "key-0", make([]byte, 4096), nil); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if found, err := s.Exists("key-0"); !found || err != nil {
			b.Fatal(found, err)
		}
	}
}
