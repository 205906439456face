package store

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// smallShm is a tmpfs of a size.
func smallShm(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("mounting a tmpfs is not allowed here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// A tmpfs that is smaller than the budget is the budget: files and metadata drive objects out, as on a large machine.
func TestSharedMemoryBelowBudget(t *testing.T) {
	opts := Options{MemoryBytes: 1 << 30, FileBytes: 1 << 20, Dir: t.TempDir(), ShmDir: smallShm(t, "64m"), Offload: OffloadNever}
	ctx := context.Background()
	s, err := Open(ctx, opts)
	require.NoError(t, err)
	require.ErrorIs(t, s.WaitReady(ctx), ErrMemoryLimit)
	value := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for round := range 3 {
		for i := range 80 { // more than there is
			require.NoError(t, s.Put(ctx, fmt.Sprintf("kv%d/%d", round, i), value, nil))
		}
		for i := range 4 {
			err := s.Put(ctx, fmt.Sprintf("file%d/%d", round, i), bytes.Repeat(value, 8), &PutOptions{OwnFile: true})
			require.NoError(t, err, "round %d, file %d", round, i)
		}
		for i := range 20_000 {
			require.NoError(t, s.Put(ctx, fmt.Sprintf("small%d/%d", round, i), value[:16], nil), "round %d, %d", round, i)
		}
		got, err := s.Get(ctx, fmt.Sprintf("file%d/3", round), nil)
		require.NoError(t, err)
		require.True(t, bytes.Equal(got[7<<20:], value))
	}
	u, err := s.Usage()
	require.NoError(t, err)
	require.LessOrEqual(t, u.MemoryTaken, int64(64<<20))
	_, err = s.RemoveAll(ctx, true)
	require.NoError(t, err)
	require.NoError(t, s.Put(ctx, "large", bytes.Repeat(value, 48), nil))
	require.NoError(t, s.Close())
}
