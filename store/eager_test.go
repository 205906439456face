package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// A store that is idle after one small put writes it to the SSD tier all the same.
func TestEagerOffloadOfASmallPut(t *testing.T) {
	s := openTest(t, Options{Dir: t.TempDir(), MemoryBytes: 64 << 20, Offload: OffloadEager})
	require.NoError(t, s.Put(context.Background(), "k", []byte("value"), nil))
	eventually(t, "a copy on the SSD tier", func() bool {
		info, err := s.Stat("k")
		require.NoError(t, err)
		return info.OnSSD && info.InMemory
	})
}
