package store

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"

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
	s, err := Open(context.Background(), testOptions(t, opts))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// testOptions fills in a small memory, and for a store with a directory a tmpfs directory that goes with the test.
func testOptions(t testing.TB, opts Options) Options {
	t.Helper()
	if opts.MemoryBytes == 0 {
		opts.MemoryBytes = 64 << 20
	}
	if opts.Dir != "" {
		needRocksDB(t)
	}
	if opts.Dir != "" && opts.ShmDir == "" {
		opts.ShmDir = shmDir(t)
	}
	return opts
}

// shmDir is a directory on tmpfs that is gone after the test.
func shmDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "mooncake-test-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// eventually polls for something that background work is about to do.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after a minute still not: %s", what)
		}
	}
}

// fakeClock is an Options.Clock that a test sets.
type fakeClock struct{ ns atomic.Int64 }

// fakeTime is no time that a file of a test has.
var fakeTime = time.Unix(1_600_000_000, 0)

func newClock() *fakeClock {
	c := new(fakeClock)
	c.ns.Store(1_700_000_000e9)
	return c
}

func (c *fakeClock) now() time.Time          { return time.Unix(0, c.ns.Load()) }
func (c *fakeClock) advance(d time.Duration) { c.ns.Add(int64(d)) }

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
