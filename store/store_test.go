package store

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func random(n int) []byte {
	p := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	_, _ = r.Read(p)
	return p
}

// openTest opens a small store that the test closes at its end.
func openTest(t testing.TB, opts Options) *Store {
	t.Helper()
	if opts.MemoryBytes == 0 {
		opts.MemoryBytes = 64 << 20
	}
	s, err := Open(context.Background(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

var sizes = []int{1, 7, 511, 512, 513, 4095, 4096, 65535, 65536, 65537, 1<<20 - 1, 1 << 20, 1<<20 + 1, 5 << 20}

func TestPutGet(t *testing.T) {
	ctx := context.Background()
	for name, opts := range map[string]Options{"memory": {}, "directory": {Dir: t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, opts)
			for _, put := range []PutOptions{{}, {Type: Weight}, {Durable: true}, {Type: Weight, Durable: true}} {
				if put.Durable && opts.Dir == "" {
					continue
				}
				for _, n := range sizes {
					key, want := fmt.Sprintf("%v-%v-%d", put.Type, put.Durable, n), random(n)
					require.NoError(t, s.Put(ctx, key, want, &put), key)
					require.ErrorIs(t, s.Put(ctx, key, want, &put), ErrExists)
					for _, v := range []Verify{VerifyAuto, VerifyAlways, VerifyNever} {
						got, err := s.Get(ctx, key, &ReadOptions{Verify: v})
						require.NoError(t, err, "%s %v", key, v)
						require.True(t, bytes.Equal(want, got), key)
					}
					v, err := s.View(ctx, key, nil)
					require.NoError(t, err, key)
					require.True(t, bytes.Equal(want, bytes.Join(v.Segments(), nil)))
					require.NoError(t, v.Close())
					require.NoError(t, s.Remove(key, true), key)
					_, err = s.Get(ctx, key, nil)
					require.ErrorIs(t, err, ErrNotFound)
				}
			}
			u, err := s.Usage()
			require.NoError(t, err)
			require.Zero(t, u.InUse)
			require.Equal(t, [Types]int64{}, u.Objects)
		})
	}
}
