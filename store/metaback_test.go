package store

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
)

// largestPut is the size of the largest object that a store takes.
func largestPut(t *testing.T, s *Store) int64 {
	t.Helper()
	ctx := context.Background()
	buf := make([]byte, s.opts.MemoryBytes)
	lo, hi := int64(0), s.opts.MemoryBytes // lo fits
	for hi-lo > 64<<10 {
		mid := (lo + hi) / 2
		if err := s.Put(ctx, "largest", buf[:mid], nil); err != nil {
			hi = mid
			continue
		}
		lo = mid
		if err := s.Remove("largest", true); err != nil {
			require.ErrorIs(t, err, ErrNotFound) // the background eviction was faster
		}
	}
	return lo
}

// Memory of metadata serves data again when the objects are gone.
func TestMetadataMemoryComesBack(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		opts := Options{MemoryBytes: 64 << 20, Dir: dir, ShmDir: shmDir(t), Offload: OffloadNever}
		ctx := context.Background()
		s, err := Open(ctx, opts)
		require.NoError(t, err)
		require.NoError(t, s.WaitReady(ctx))
		want := largestPut(t, s)
		u, err := s.Usage()
		require.NoError(t, err)
		require.InDelta(t, want, u.LargestObject, 64<<10, "Usage says what fits")
		require.GreaterOrEqual(t, want, int64(57<<20))
		err = s.Put(ctx, "60 MiB", make([]byte, 60<<20), nil)
		require.ErrorIs(t, err, ErrTooLarge)
		require.ErrorContains(t, err, fmt.Sprintf("has room for %d", u.LargestObject))
		objects := 600_000
		if testing.Short() || raceEnabled || arena.Invariants {
			objects = 100_000
		}
		for round := range 5 {
			for i := range objects {
				require.NoError(t, s.Put(ctx, fmt.Sprintf("%d/%d", round, i), []byte{1}, nil))
			}
			u, err = s.Usage()
			require.NoError(t, err)
			require.Greater(t, u.MetadataTaken, int64(10<<20))
			_, err = s.RemoveAll(ctx, true)
			require.NoError(t, err)
			require.Equal(t, want, largestPut(t, s), "round %d", round)
			u, err = s.Usage()
			require.NoError(t, err)
			require.LessOrEqual(t, u.MetadataTaken, int64(4<<20))
			if round == 2 && dir != "" {
				require.NoError(t, s.Close())
				s, err = Open(ctx, opts)
				require.NoError(t, err)
				require.Equal(t, want, largestPut(t, s), "after reopening")
			}
		}
		require.NoError(t, s.Close())
	}
}

// Gaps in the metadata keep the records on both sides, over a restart too.
func TestMetadataWithGaps(t *testing.T) {
	opts := Options{MemoryBytes: 64 << 20, Dir: t.TempDir(), ShmDir: shmDir(t), Offload: OffloadNever}
	ctx := context.Background()
	s, err := Open(ctx, opts)
	require.NoError(t, err)
	const objects = 100_000
	key := func(i int) string { return fmt.Sprintf("%06d", i) }
	for i := range objects {
		require.NoError(t, s.Put(ctx, key(i), []byte(key(i)), nil))
	}
	kept := func(i int) bool { return i < 100 || i >= objects-100 || i > objects/2 && i < objects/2+100 }
	for i := range objects {
		if !kept(i) {
			require.NoError(t, s.Remove(key(i), true))
		}
	}
	require.Positive(t, s.squeezeMeta())
	s.memory.Lock()
	require.NotEmpty(t, s.memory.gaps)
	s.memory.Unlock()
	check := func() {
		for i := range objects {
			got, err := s.Get(ctx, key(i), nil)
			if !kept(i) {
				require.ErrorIs(t, err, ErrNotFound)
				continue
			}
			require.NoError(t, err, i)
			require.Equal(t, key(i), string(got))
		}
		n := 0
		for page := uint32(1); page < s.m.Pages(); page++ {
			n += len(s.m.MemoryOnly(page))
		}
		require.Equal(t, 300-1, n)
	}
	check()
	for range 2 {
		require.NoError(t, s.Close())
		s, err = Open(ctx, opts)
		require.NoError(t, err)
		check()
	}
	for i := range objects { // the gaps are filled first
		if !kept(i) {
			require.NoError(t, s.Put(ctx, key(i), []byte(key(i)), nil))
		}
	}
	s.memory.Lock()
	require.Empty(t, s.memory.gaps)
	s.memory.Unlock()
	require.NoError(t, s.Close())
}

// Readers and scans go on while metadata memory goes back and comes again.
func TestMetadataShrinksUnderReaders(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	s, err := Open(ctx, Options{MemoryBytes: 64 << 20})
	require.NoError(t, err)
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprint(i % 30_000)
				if got, err := s.Get(context.Background(), key, nil); err == nil && string(got) != key {
					t.Errorf("%s has the value %s", key, got)
				}
			}
		})
		readers.Go(func() {
			for ctx.Err() == nil {
				for page := uint32(1); page < s.m.Pages(); page++ {
					s.m.MemoryOnly(page)
				}
			}
		})
	}
	given := int64(0)
	for range 5 {
		for i := range 30_000 {
			require.NoError(t, s.Put(ctx, fmt.Sprint(i), []byte(fmt.Sprint(i)), nil))
		}
		for i := range 30_000 {
			if i%3000 != 0 {
				require.NoError(t, s.Remove(fmt.Sprint(i), true))
			}
		}
		given += s.squeezeMeta()
		_, err := s.RemoveAll(ctx, true)
		require.NoError(t, err)
		given += s.squeezeMeta()
	}
	stop()
	readers.Wait()
	require.Positive(t, given)
	require.NoError(t, s.Close())
}
