package store

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
)

// mappingOf is the line of /proc/self/maps that p is in, "" if nothing is mapped there.
func mappingOf(t *testing.T, p uintptr) string {
	t.Helper()
	maps, err := os.Open("/proc/self/maps")
	require.NoError(t, err)
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		var from, to uintptr
		_, err := fmt.Sscanf(lines.Text(), "%x-%x", &from, &to)
		require.NoError(t, err)
		if from <= p && p < to {
			return lines.Text()
		}
	}
	return ""
}

func viewRange(t *testing.T, s *Store, key string, off, n int64) *View {
	t.Helper()
	v, err := s.ViewRange(context.Background(), key, off, n, nil)
	require.NoError(t, err)
	require.Equal(t, n, v.Size())
	require.Len(t, v.Segments(), 1)
	return v
}

// requireCopy closes a view of a copy, which takes its mapping away.
func requireCopy(t *testing.T, s *Store, v *View) {
	t.Helper()
	size := v.Size()
	require.Equal(t, size, usage(t, s).ViewCopies)
	at := uintptr(unsafe.Pointer(unsafe.SliceData(v.Bytes())))
	mapped := mappingOf(t, at)
	require.Contains(t, mapped, "rw-p")
	require.Zero(t, at%4096)
	require.NoError(t, v.Close())
	require.NotEqual(t, mapped, mappingOf(t, at), "the copy of %d bytes is still mapped", size)
	require.Zero(t, usage(t, s).ViewCopies)
	require.Nil(t, v.Bytes())
	require.ErrorIs(t, v.Close(), ErrClosed)
}

func usage(t *testing.T, s *Store) Usage {
	t.Helper()
	u, err := s.Usage()
	require.NoError(t, err)
	return u
}

// A range inside one piece of memory is borrowed; one over several is copied out of the Go heap.
func TestViewRange(t *testing.T) {
	s := openTest(t, Options{})
	ctx, slab := context.Background(), s.SlabBytes()
	want := random(int(5 * slab / 2))
	require.NoError(t, s.Put(ctx, "k", want, nil))
	whole, err := s.View(ctx, "k", nil)
	require.NoError(t, err)
	pieces := whole.Segments()
	require.Greater(t, len(pieces), 1)
	require.Nil(t, whole.Bytes())
	first := int64(len(pieces[0]))
	for _, r := range [][2]int64{{0, 1}, {0, first}, {first - 1, 1}, {first, 1}, {first, int64(len(pieces[1]))}, {int64(len(want)) - 7, 7}} {
		v := viewRange(t, s, "k", r[0], r[1])
		require.True(t, bytes.Equal(want[r[0]:r[0]+r[1]], v.Bytes()), "%v", r)
		require.Equal(t, r[1], int64(cap(v.Bytes())))
		require.Zero(t, usage(t, s).ViewCopies, "%v", r)
		if r[0] == 0 {
			require.Equal(t, unsafe.SliceData(pieces[0]), unsafe.SliceData(v.Bytes()), "borrowed")
		}
		require.NoError(t, v.Close())
	}
	for _, r := range [][2]int64{{first - 1, 2}, {0, int64(len(want))}} {
		v := viewRange(t, s, "k", r[0], r[1])
		require.True(t, bytes.Equal(want[r[0]:r[0]+r[1]], v.Bytes()), "%v", r)
		requireCopy(t, s, v)
	}
	for _, r := range [][2]int64{{0, 0}, {-1, 2}, {0, -1}, {0, int64(len(want)) + 1}, {int64(len(want)), 1}, {1 << 62, 1 << 62}} {
		_, err := s.ViewRange(ctx, "k", r[0], r[1], nil)
		require.ErrorIs(t, err, ErrInvalidParams, "%v", r)
	}
	_, err = s.ViewRange(ctx, "none", 0, 1, nil)
	require.ErrorIs(t, err, ErrNotFound)
	require.NoError(t, whole.Close())
	info, err := s.Stat("k")
	require.NoError(t, err)
	require.Zero(t, info.Readers)
	require.Equal(t, int64(1+6+2), s.Counters().Hits[TierMemory])
}

// Bytes that are only on SSD and have no room in memory are copied, and the copy goes with the view: also when that
// closes after the store.
func TestViewOfSSDIsOffHeap(t *testing.T) {
	ctx := context.Background()
	opts := testOptions(t, Options{Dir: t.TempDir(), MemoryBytes: 16 << 20})
	s, err := Open(ctx, opts)
	require.NoError(t, err)
	want := random(20<<20 + 13)
	require.NoError(t, s.Put(ctx, "k", want, &PutOptions{Type: Weight, Durable: true}))
	v, err := s.View(ctx, "k", nil)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, v.Bytes()))
	requireCopy(t, s, v)
	v = viewRange(t, s, "k", 5<<20+1, 70_001)
	require.True(t, bytes.Equal(want[5<<20+1:][:70_001], v.Bytes()))
	requireCopy(t, s, v)

	last := viewRange(t, s, "k", 0, 4097)
	require.NoError(t, s.Close())
	require.True(t, bytes.Equal(want[:4097], last.Bytes()))
	at := uintptr(unsafe.Pointer(unsafe.SliceData(last.Bytes())))
	mapped := mappingOf(t, at)
	require.NotEmpty(t, mapped)
	require.NoError(t, last.Close())
	require.NotEqual(t, mapped, mappingOf(t, at))
}

// A machine that has no memory for the copy is an error, and leaves nothing open.
func TestNoMemoryForViewsCopy(t *testing.T) {
	ctx := context.Background()
	opts := testOptions(t, Options{Dir: t.TempDir(), MemoryBytes: 16 << 20})
	s, err := openWith(ctx, opts, seams{})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	require.NoError(t, s.WaitReady(ctx))
	require.NoError(t, s.Put(ctx, "k", random(20<<20), &PutOptions{Type: Weight, Durable: true}))
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "proc"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "proc", "meminfo"), []byte("MemAvailable: 1000 kB\n"), 0o644))
	s.limits = arena.MemLimits{Root: root, Headroom: -1}
	_, err = s.View(ctx, "k", nil)
	require.ErrorIs(t, err, ErrMemoryLimit)
	require.ErrorContains(t, err, "MemAvailable")
	v := viewRange(t, s, "k", 0, 900_000)
	require.NoError(t, v.Close())
	info, err := s.Stat("k")
	require.NoError(t, err)
	require.Zero(t, info.Readers)
}
