package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPinnedIsNotPromoted reads hard-pinned objects from SSD often: they take no memory, which nothing would get back.
func TestPinnedIsNotPromoted(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{Dir: t.TempDir(), MemoryBytes: 32 << 20, PromoteAfter: 1, FileBytes: 64 << 10})
	for i := range 8 {
		opts := &PutOptions{Type: Weight, Durable: true, HardPin: true}
		w, err := s.Create(ctx, fmt.Sprint(i), 1<<20, opts)
		require.NoError(t, err)
		_, err = w.Write(random(1 << 20))
		require.NoError(t, err)
		require.NoError(t, w.Commit(ctx))
	}
	get := func(i int) Info {
		_, err := s.Get(ctx, fmt.Sprint(i), nil)
		require.NoError(t, err)
		info, err := s.Stat(fmt.Sprint(i))
		require.NoError(t, err)
		return info
	}
	for range 20 {
		for i := range 8 {
			require.False(t, get(i).InMemory)
		}
		time.Sleep(time.Millisecond)
	}
}
