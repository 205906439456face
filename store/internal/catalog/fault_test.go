//go:build cgo && !norocksdb

package catalog

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/pkg/errors"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// history is what became of the batches that were written to a disk, and how many operations on it there were.
type history struct {
	synced, applied int // batches acknowledged with a sync, and applied at most
	failed          error
	writes, reads   uint64
}

// dying writes batches to a disk that begins to fail.
func dying(t *testing.T, dir string, f faults) (h history) {
	c, err := openWith(dir, how{faults: f})
	if err != nil {
		return history{failed: err}
	}
	r := c.(*rocks)
	for i := range 12 {
		var b Batch
		for j := range 40 {
			b.Put(&Record{Tenant: fmt.Sprintf("%02d", i), Key: fmt.Sprint(j), Group: string(make([]byte, 4000))})
		}
		h.applied++
		if h.failed = c.Apply(&b, i%3 == 2); h.failed != nil {
			break
		}
		if i%3 == 2 {
			h.synced = h.applied
		}
		if i == 5 {
			require.NoError(t, r.mu.db.flush()) // or it is frozen, which the next Apply tells
		}
	}
	_ = c.Scan(t.Context(), func(*Record) error { return nil })
	h.writes, h.reads = r.mu.db.operations()
	if err := c.Close(); h.failed == nil {
		h.failed = err
	}
	return h
}

// TestDyingDisk fails each operation on the disk in turn, from the first open to the last close, alone and with all that come
// after it: an error, never the end of the process, and a directory that opens again with all that was acknowledged.
func TestDyingDisk(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOSPC, unix.EIO, unix.EROFS, unix.EDQUOT} {
		for _, all := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v/all=%v", errno, all), func(t *testing.T) {
				t.Parallel()
				whole := dying(t, filepath.Join(t.TempDir(), "c"), faults{})
				require.NoError(t, whole.failed)
				require.Greater(t, whole.writes, uint64(60))
				step := uint64(9) // the others of its kind take the same way
				if errno == unix.ENOSPC && all || errno == unix.EIO {
					step = 2
				}
				if testing.Short() {
					step *= 4
				}
				const slack = 10 // background work may come a few operations sooner or later
				for at := 1 + rand.Uint64N(step); at <= whole.writes+slack; at += step {
					failOnce(t, faults{write: at, errno: int(errno), all: all}, at <= whole.writes-slack)
				}
				for at := 1 + rand.Uint64N(step); at <= whole.reads+slack; at += step {
					failOnce(t, faults{read: at, errno: int(errno), all: all}, false)
				}
			})
		}
	}
}

func failOnce(t *testing.T, f faults, mustFail bool) {
	dir := filepath.Join(t.TempDir(), "c")
	h := dying(t, dir, f)
	if mustFail {
		require.Error(t, h.failed, "%+v", f)
		full := f.errno == int(unix.ENOSPC) || f.errno == int(unix.EDQUOT)
		require.Equal(t, full, errors.Is(h.failed, ErrNoSpace), "%+v: %v", f, h.failed)
	}
	c, err := Open(dir)
	require.NoError(t, err, "%+v", f)
	n := count(t, c)
	require.Zero(t, n%40, "%+v: a part of a batch", f)
	require.GreaterOrEqual(t, n, 40*h.synced, "%+v: what was synced is lost", f)
	require.LessOrEqual(t, n, 40*h.applied, "%+v", f)
	require.NoError(t, c.Close())
	require.NoError(t, os.RemoveAll(dir))
}

// TestPrivate checks that other users read nothing, and that files of earlier versions are taken from them.
func TestPrivate(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	dir := filepath.Join(t.TempDir(), "c")
	check := func() {
		t.Helper()
		c, err := Open(dir)
		require.NoError(t, err)
		fill(t, c, "k", 10)
		defer c.Close()
		fi, err := os.Stat(dir)
		require.NoError(t, err)
		require.Zero(t, fi.Mode().Perm()&0o077, "%s %v", dir, fi.Mode())
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			fi, err := e.Info()
			require.NoError(t, err)
			require.True(t, fi.Mode().Perm()&0o077 == 0, "%s %v", e.Name(), fi.Mode())
			require.NotEqual(t, "LOG", e.Name(), "RocksDB's own log")
		}
	}
	check()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		require.NoError(t, os.Chmod(filepath.Join(dir, e.Name()), 0o644))
	}
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "LOG"), nil, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "LOG.old.1"), nil, 0o644))

	reader, err := os.Open(filepath.Join(dir, "LOCK")) // another user has a read lock on the file of before
	require.NoError(t, err)
	defer reader.Close()
	check()
}

// TestFormat1 opens a directory of the format before, which has no mark, and finds all its records: five in a table, five in the
// log. From then on it has a mark.
func TestFormat1(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c")
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "format1"))))
	for range 2 {
		c, err := Open(dir)
		require.NoError(t, err)
		require.Equal(t, 10, count(t, c))
		value, _, err := c.Meta(formatMeta)
		require.NoError(t, err)
		require.Equal(t, formatValue(FormatVersion), value)
		require.NoError(t, c.Close())
	}
	require.NoError(t, os.Remove(filepath.Join(dir, markName)))
	_, err := Open(dir)
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, markName)
}

// TestFileSizeLimit writes past RLIMIT_FSIZE in a process that would die of SIGXFSZ: an error that names the limit.
func TestFileSizeLimit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c")
	out, err := exec.Command("sh", "-c", `ulimit -f 64; trap - XFSZ; exec "$0" -test.run '^TestFileSizeLimitChild$' -test.v "$1"`, os.Args[0], dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "RLIMIT_FSIZE", "%s", out)
	c, err := Open(dir)
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

func TestFileSizeLimitChild(t *testing.T) {
	dir := os.Args[len(os.Args)-1]
	if !filepath.IsAbs(dir) {
		t.Skip("a part of TestFileSizeLimit")
	}
	c, err := Open(dir)
	require.NoError(t, err)
	defer c.Close()
	for err == nil {
		var b Batch
		b.Put(&Record{Key: "k", Group: string(make([]byte, 4000))})
		err = c.Apply(&b, false)
	}
	fmt.Println(err)
}

// TestFormat1Damage damages the log of a directory without a mark: a damaged record with a whole one behind it is damage, and
// changes nothing; a damaged or cut last record is a torn end.
func TestFormat1Damage(t *testing.T) {
	master := filepath.Join(t.TempDir(), "c")
	require.NoError(t, os.CopyFS(master, os.DirFS(filepath.Join("testdata", "format1"))))
	logs, err := filepath.Glob(filepath.Join(master, "*.log"))
	require.NoError(t, err)
	require.Len(t, logs, 1)
	p, err := os.ReadFile(logs[0])
	require.NoError(t, err)
	first := p[:logHeader+int(p[4])+int(p[5])<<8]
	require.Equal(t, -1, checkBlock(first))
	try := func(log []byte) error {
		dir := filepath.Join(t.TempDir(), "c")
		require.NoError(t, os.CopyFS(dir, os.DirFS(master)))
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(logs[0])), log, 0o600))
		before := contents(t, dir)
		c, err := Open(dir)
		if err != nil {
			require.Equal(t, before, contents(t, dir), "Open of a refused directory wrote to it")
			return err
		}
		return c.Close()
	}
	for at := range first {
		bad := append(append([]byte(nil), first...), first...)
		bad[at] ^= 4
		require.ErrorIs(t, try(bad), ErrCorrupt, "byte %d", at)
	}
	require.NoError(t, try(p[:len(p)-3]), "a torn end")
}
