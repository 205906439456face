package arena

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestFileSet(t *testing.T) {
	for _, dir := range []string{"", filepath.Join(shmDir(t), "files")} {
		t.Run("named="+filepath.Base(dir), func(t *testing.T) {
			set, err := OpenFileSet(dir, MemLimits{Headroom: -1})
			require.NoError(t, err)
			for _, size := range []int64{0, 1, 4096, StepBytes, 3<<20 + 1} {
				f, err := set.Create(size)
				require.NoError(t, err)
				require.Len(t, f.Bytes(), int(size))
				for i := range f.Bytes() {
					f.Bytes()[i] = byte(i * 7)
				}
				require.NoError(t, f.Seal())
				checkSealed(t, f, size)
				require.NoError(t, f.Remove())
				require.ErrorIs(t, f.Close(), os.ErrClosed)
				require.ErrorIs(t, f.Seal(), os.ErrClosed)
				_, err = f.Stamp()
				require.ErrorIs(t, err, os.ErrClosed)
			}
			ids, err := set.List()
			require.NoError(t, err)
			require.Empty(t, ids)
			_, err = set.Create(-1)
			require.Error(t, err)
			set.Skip(100)
			set.Skip(50)
			f, err := set.Create(1)
			require.NoError(t, err)
			require.Equal(t, uint64(101), f.ID())
			require.NoError(t, f.Close())
		})
	}
}

func checkSealed(t *testing.T, f *File, size int64) {
	t.Helper()
	if size > 0 {
		require.True(t, faults(func() { f.Bytes()[0] = 1 }), "a sealed file can be written")
	}
	p, err := os.ReadFile(f.ProcPath())
	require.NoError(t, err)
	require.Len(t, p, int(size))
	for i := range p {
		if p[i] != byte(i*7) {
			t.Fatalf("byte %d", i)
		}
	}
	info, err := os.Stat(f.ProcPath())
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o400), info.Mode().Perm())
	before, err := f.Stamp()
	require.NoError(t, err)
	require.Equal(t, size, before.Size)
	if f.Path() == "" {
		require.ErrorIs(t, unix.Ftruncate(f.fd, 9), unix.EPERM)
		return
	}
	require.NoError(t, os.Chmod(f.Path(), 0o600))
	require.NoError(t, os.WriteFile(f.Path(), p, 0))
	after, err := f.Stamp()
	require.NoError(t, err)
	require.NotEqual(t, before, after, "tampering shows")
}

// faults reports whether f touches memory it may not.
func faults(f func()) (fault bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { fault = recover() != nil }()
	f()
	return false
}

func TestFileSetForeignNames(t *testing.T) {
	dir := shmDir(t)
	for _, name := range []string{
		"x", "1.obj", "000000000000000A.obj", "0000000000000000.obj", "000000000000000g.obj", "0000000000000007.obj.bak",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "00000000000000ff.obj"), nil, 0o600))
	set, err := OpenFileSet(dir, MemLimits{})
	require.NoError(t, err)
	ids, err := set.List()
	require.NoError(t, err)
	require.Equal(t, []uint64{0xff}, ids)
	_, err = set.Attach(0x100, 0)
	require.ErrorIs(t, err, fs.ErrNotExist)
	f, err := set.Create(0)
	require.NoError(t, err)
	require.Equal(t, uint64(0x101), f.ID())
	_, err = OpenFileSet(filepath.Join(dir, "x"), MemLimits{})
	require.Error(t, err)

	memfds, err := OpenFileSet("", MemLimits{})
	require.NoError(t, err)
	_, err = memfds.Attach(1, 0)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorIs(t, memfds.Remove(1), fs.ErrNotExist)
}

// TestFileReplaced checks that Remove leaves what someone else put under the name.
func TestFileReplaced(t *testing.T) {
	set, err := OpenFileSet(shmDir(t), MemLimits{})
	require.NoError(t, err)
	f, err := set.Create(10)
	require.NoError(t, err)
	require.NoError(t, os.Remove(f.Path()))
	_, err = f.Stamp()
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.WriteFile(f.Path(), []byte("other"), 0o600))
	require.NoError(t, f.Remove())
	require.FileExists(t, f.Path())
}

func TestAccounting(t *testing.T) {
	a := NewAccounting(1000)
	require.Equal(t, int64(1000), a.Budget())
	a.Add(Staging, 300)
	require.True(t, a.TryReserve(Data, 700))
	require.False(t, a.TryReserve(Data, 1))
	require.False(t, a.TryReserve(Data, 1<<62))
	a.Add(Metadata, 100) // what is there is there
	require.False(t, a.TryReserve(OwnFile, 0))
	a.Sub(Data, 500)
	require.Equal(t, int64(600), a.Total())
	require.Equal(t, int64(200), a.Used(Data))
	require.True(t, a.TryReserve(OwnFile, 400))
	require.Panics(t, func() { a.Sub(Metadata, 101) })
	require.Equal(t, "own file", OwnFile.String())

	a = NewAccounting(1000)
	var wg sync.WaitGroup
	var got [4]int64
	for w := range got {
		wg.Go(func() {
			for range 1000 {
				if a.TryReserve(Purpose(w), 3) {
					got[w] += 3
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, int64(999), a.Total())
	for w, n := range got {
		require.Equal(t, n, a.Used(Purpose(w)))
	}
}

func TestPoison(t *testing.T) {
	p := []byte{1, 2, 3}
	Poison(p)
	if invariants {
		require.Equal(t, []byte{0xDB, 0xDB, 0xDB}, p)
	} else {
		require.Equal(t, []byte{1, 2, 3}, p)
	}
}
