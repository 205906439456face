package store

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// held is what a process holds that a store could leak.
type held struct {
	goroutines, descriptors, mappings, shm int
}

func whatIsHeld(t *testing.T, shm string) (h held) {
	t.Helper()
	runtime.GC()
	h.goroutines = runtime.NumGoroutine()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	h.descriptors = len(fds)
	maps, err := os.Open("/proc/self/maps")
	require.NoError(t, err)
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if strings.Contains(lines.Text(), "mooncake") { // others are the runtime's and RocksDB's
			h.mappings++
		}
	}
	require.NoError(t, filepath.WalkDir(shm, func(string, os.DirEntry, error) error { h.shm++; return nil }))
	return h
}

// Opening and closing, with everything in use in between, leaves nothing.
func TestNothingLeaks(t *testing.T) {
	for name, opts := range map[string]Options{"memory": {}, "directory": {Dir: t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			opts.MemoryBytes, opts.FileBytes, opts.ShmDir = 16<<20, 4096, shmDir(t)
			cycles := 100
			if raceEnabled {
				cycles = 30
			}
			var base held
			for i := range cycles {
				cycle(t, opts, i)
				if i == 4 { // what is made once is there now
					eventually(t, "quiet", func() bool {
						was := base
						base = whatIsHeld(t, opts.ShmDir)
						return base == was
					})
				}
			}
			var now held
			eventually(t, fmt.Sprintf("no more than %+v", base), func() bool {
				now = whatIsHeld(t, opts.ShmDir)
				return now.goroutines <= base.goroutines && now.descriptors <= base.descriptors && now.mappings <= base.mappings &&
					now.shm <= base.shm
			})
		})
	}
}

func cycle(t *testing.T, opts Options, i int) {
	ctx := context.Background()
	if opts.Dir != "" {
		needRocksDB(t)
	}
	s, err := Open(ctx, opts)
	require.NoError(t, err)
	durable := opts.Dir != ""
	for j, put := range []PutOptions{{}, {OwnFile: true}, {Durable: durable}, {OwnFile: true, Durable: durable}} {
		key := fmt.Sprint("k", j)
		require.NoError(t, s.Upsert(ctx, key, random(5000+i), &put))
		v, err := s.View(ctx, key, nil)
		require.NoError(t, err)
		f, err := s.File(ctx, key, nil)
		require.NoError(t, err)
		if i%2 == 0 {
			require.NoError(t, v.Close())
			require.NoError(t, f.Close())
		} else {
			defer func() { // after the store
				require.NoError(t, f.Close())
				require.NoError(t, v.Close())
			}()
		}
	}
	_, err = s.Create(ctx, "dropped", 5000, &PutOptions{OwnFile: true, Durable: durable})
	require.NoError(t, err)
	_, _ = s.Events(10)
	if i%3 == 0 {
		require.NoError(t, s.WaitReady(ctx))
	}
	require.NoError(t, s.Close())
}

// An emptied store has taken what it took when it was new.
func TestUsageReturnsToTheStart(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{Dir: t.TempDir(), MemoryBytes: 32 << 20, FileBytes: 4096})
	require.NoError(t, s.WaitReady(ctx))
	for round := range 5 {
		for i := range 500 {
			opts := &PutOptions{OwnFile: i%3 == 0, Group: fmt.Sprint("g", i%7), SoftPin: 1, Durable: i%50 == 0}
			require.NoError(t, s.Put(ctx, fmt.Sprint(round, i), random(i*100+1), opts))
		}
		require.NoError(t, s.Sync(ctx))
		requireEmptied(t, s)
		require.NoError(t, s.WaitReady(ctx))
		u, err := s.Usage()
		require.NoError(t, err)
		require.LessOrEqual(t, u.MemoryTaken, u.MemoryBudget)
		require.Less(t, u.SSDOnDisk, int64(1<<20), "round %d", round)
	}
	// All of the memory can be used again.
	u, err := s.Usage()
	require.NoError(t, err)
	require.NoError(t, s.Put(ctx, "large", random(int(u.MemoryBudget-u.MetadataTaken)*3/4), nil))
}

// Failed opens leave nothing either.
func TestFailedOpenLeavesNothing(t *testing.T) {
	shm := shmDir(t)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	corrupt := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(corrupt, catalogueDir), []byte("no directory"), 0o644))
	var base held
	for i := range 20 {
		for _, opts := range []Options{{Dir: file}, {Dir: corrupt}, {MemoryBytes: 1 << 44}, {Dir: t.TempDir(), MemoryBytes: 1 << 44},
			{Dir: filepath.Join(file, "below")}} {
			opts.ShmDir = shm
			_, err := Open(context.Background(), opts)
			require.Error(t, err)
		}
		if i == 2 {
			base = whatIsHeld(t, t.TempDir())
		}
	}
	now := whatIsHeld(t, t.TempDir())
	require.LessOrEqual(t, now.goroutines, base.goroutines)
	require.LessOrEqual(t, now.descriptors, base.descriptors)
	require.LessOrEqual(t, now.mappings, base.mappings)
}
