package ssdtest

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
)

// Blocks returns aligned memory of n blocks for direct I/O.
func Blocks(t testing.TB, n int) []byte {
	b, err := unix.Mmap(-1, 0, n*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

// NoError ends the test if err is not nil.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("unexpected error: %v", err)
	}
}

// ErrorIs ends the test unless err is want.
func ErrorIs(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want %v", err, want)
	}
}

func check(t testing.TB, ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		t.Fatalf(format, args...)
	}
}

// TestFS is what every file layer does. dir need not exist.
func TestFS(t *testing.T, x ssd.FS, dir string) {
	NoError(t, x.MkdirAll(dir, 0o755))
	NoError(t, x.MkdirAll(dir, 0o755))
	name := filepath.Join(dir, "a")
	_, err := x.OpenFile(name, os.O_RDWR, 0)
	ErrorIs(t, err, fs.ErrNotExist)
	_, err = x.Stat(name)
	ErrorIs(t, err, fs.ErrNotExist)
	ErrorIs(t, x.Remove(name), fs.ErrNotExist)

	f, err := x.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	NoError(t, err)
	_, err = x.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	ErrorIs(t, err, fs.ErrExist)

	t.Run("blocks", func(t *testing.T) { testBlocks(t, x, f, name) })
	t.Run("names", func(t *testing.T) {
		NoError(t, f.Chmod(0o444))
		info, err := x.Stat(name)
		NoError(t, err)
		check(t, info.Mode == 0o444 && info.Ino != 0, "Chmod, Stat: %+v", info)
		to := filepath.Join(dir, "b")
		NoError(t, x.Rename(name, to))
		NoError(t, x.SyncDir(dir))
		names, err := x.ReadDir(dir)
		NoError(t, err)
		check(t, slices.Equal(names, []string{"b"}), "ReadDir = %q, want b", names)
		NoError(t, x.Remove(to))
		free, err := x.FreeBytes(dir)
		NoError(t, err)
		check(t, free > 0, "FreeBytes = %d", free)
	})
	NoError(t, f.Close())
}

func testBlocks(t *testing.T, x ssd.FS, f ssd.File, name string) {
	size := func() (int64, int64) {
		info, err := x.Stat(name)
		NoError(t, err)
		return info.Size, info.Blocks
	}
	NoError(t, f.Allocate(0, 8*page))
	n, _ := size()
	check(t, n == 8*page, "size %d after Allocate, want %d", n, 8*page)

	b := Blocks(t, 4)
	for i := range b {
		b[i] = byte(i/page + 1)
	}
	done, err := f.WriteAt(b, page)
	NoError(t, err)
	check(t, done == len(b), "WriteAt = %d, want %d", done, len(b))
	NoError(t, f.Sync())
	n, blocks := size()
	check(t, n == 8*page, "size %d after WriteAt, want %d", n, 8*page)

	NoError(t, f.Truncate(4*page+100))
	_, after := size()
	check(t, after < blocks, "Truncate gave nothing back: %d blocks, were %d", after, blocks)
	NoError(t, f.PunchHole(2*page, page))
	n, last := size()
	check(t, n == 4*page+100 && last < after, "PunchHole: size %d, %d blocks, were %d", n, last, after)

	got := Blocks(t, 6)
	done, err = f.ReadAt(got, 0)
	ErrorIs(t, err, io.EOF)
	check(t, done == 4*page+100, "ReadAt = %d at the end, want %d", done, 4*page+100)
	want := make([]byte, 4*page+100)
	copy(want[page:], b)
	clear(want[2*page : 3*page])
	check(t, bytes.Equal(want, got[:done]), "ReadAt: wrong bytes")
	done, err = f.ReadAt(got[:page], 8*page)
	ErrorIs(t, err, io.EOF)
	check(t, done == 0, "ReadAt = %d behind the end", done)
	NoError(t, f.Readahead(0, n))
}
