package store

import (
	"bytes"
	"context"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every way to put a durable object that is to have a file of its own gives it one, on the SSD tier.
func TestDurableOwnFile(t *testing.T) {
	ctx, s := context.Background(), openTest(t, Options{Dir: t.TempDir()})
	want, opts := random(3<<20+1), &PutOptions{OwnFile: true, Durable: true}
	require.NoError(t, s.Put(ctx, "put", want, opts))
	require.NoError(t, s.PutParts(ctx, "parts", [][]byte{want[:1000], want[1000:]}, opts))
	require.NoError(t, s.PutFrom(ctx, "bytes", bytes.NewReader(want), int64(len(want)), opts))
	require.NoError(t, s.PutFrom(ctx, "reader", io.MultiReader(bytes.NewReader(want)), int64(len(want)), opts))
	require.Equal(t, []error{nil}, s.PutBatch(ctx, []PutItem{{Key: "batch", Parts: [][]byte{want}, Opts: opts}}))
	for _, key := range []string{"put", "parts", "bytes", "reader", "batch"} {
		f, err := s.File(ctx, key, nil)
		require.NoError(t, err, key)
		require.Equal(t, TierSSD, f.Tier(), key)
		got, err := os.ReadFile(f.Path())
		require.NoError(t, err, key)
		require.True(t, bytes.Equal(want, got), key)
		require.NoError(t, f.Close())
	}
}
