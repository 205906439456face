package arena

import (
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// More files than may be mapped are all readable, and no more than may be are mapped at once.
func TestFilesAreMappedOnDemand(t *testing.T) {
	for _, dir := range []string{"", filepath.Join(shmDir(t), "files")} {
		set, err := OpenFileSet(dir, MemLimits{Headroom: -1, Mappings: 8})
		require.NoError(t, err)
		before := processMappings.files.Load()
		var files []*File
		for i := range 100 {
			f, err := set.Create(5000)
			require.NoError(t, err)
			f.Bytes()[4999] = byte(i)
			require.NoError(t, f.Seal())
			f.Unpin()
			files = append(files, f)
		}
		require.Equal(t, 8, set.Mapped())

		var pinned []*File
		for i, f := range files[:8] {
			mem, err := f.Pin()
			require.NoError(t, err)
			require.Equal(t, byte(i), mem[4999])
			pinned = append(pinned, f)
		}
		_, err = files[50].Pin()
		require.ErrorIs(t, err, ErrTooManyFiles)
		require.ErrorContains(t, err, "vm.max_map_count")
		_, err = set.Create(5000)
		require.ErrorIs(t, err, ErrTooManyFiles)
		again, err := pinned[3].Pin()
		require.NoError(t, err, "it is mapped")
		require.Equal(t, byte(3), again[4999])
		pinned[3].Unpin()
		for _, f := range pinned {
			f.Unpin()
		}

		pinInTurns(t, files)
		require.LessOrEqual(t, set.Mapped(), 8)
		for _, f := range files {
			require.NoError(t, f.Remove())
			_, err := f.Pin()
			require.ErrorIs(t, err, os.ErrClosed)
		}
		require.Zero(t, set.Mapped())
		require.Equal(t, before, processMappings.files.Load())
	}
}

// pinInTurns reads the files from several goroutines, fewer than files may be mapped.
func pinInTurns(t *testing.T, files []*File) {
	var wait sync.WaitGroup
	for g := range uint64(4) {
		wait.Go(func() {
			r := rand.New(rand.NewPCG(g, 1))
			for range 3000 {
				i := r.IntN(len(files))
				mem, err := files[i].Pin()
				if err != nil || mem[4999] != byte(i) {
					t.Errorf("file %d: %v", i, err)
					return
				}
				files[i].Unpin()
			}
		})
	}
	wait.Wait()
}

// A file that was replaced or deleted while it was not mapped is an error, not other bytes.
func TestMappedAgain(t *testing.T) {
	set, err := OpenFileSet(filepath.Join(shmDir(t), "files"), MemLimits{Headroom: -1, Mappings: 1})
	require.NoError(t, err)
	var files [3]*File
	for i := range files {
		files[i], err = set.Create(4096)
		require.NoError(t, err)
		require.NoError(t, files[i].Seal())
		files[i].Unpin()
	}
	require.NoError(t, os.Remove(files[0].Path()))
	require.NoError(t, os.WriteFile(files[0].Path(), []byte(strings.Repeat("x", 4096)), 0o600))
	_, err = files[0].Pin()
	require.ErrorIs(t, err, ErrCorrupt)
	require.NoError(t, os.Remove(files[1].Path()))
	_, err = files[1].Pin()
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = files[2].Pin()
	require.NoError(t, err, "the failures gave their slots back")
	require.NoError(t, files[2].Close())
}

// A pin of a mapped file allocates nothing.
func TestPinAllocates(t *testing.T) {
	set, err := OpenFileSet("", MemLimits{Headroom: -1})
	require.NoError(t, err)
	f, err := set.Create(4096)
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, _ = f.Pin()
		f.Unpin()
	}))
	require.NoError(t, f.Remove())
}
