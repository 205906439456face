package store

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
)

const manyFilesEnv = "MOONCAKE_TEST_MANY_FILES"

// Any number of objects in files of their own neither ends the process nor takes the host its descriptors and mappings.
func TestManyOwnFiles(t *testing.T) {
	if limit := os.Getenv(manyFilesEnv); limit != "" {
		manyOwnFiles(t, limit)
		return
	}
	for _, limit := range []string{"256", "1024"} {
		for _, dir := range []string{"", t.TempDir()} {
			child := exec.Command(os.Args[0], "-test.run=^TestManyOwnFiles$", "-test.short="+strconv.FormatBool(testing.Short()))
			child.Env = append(os.Environ(), manyFilesEnv+"="+limit, "MOONCAKE_TEST_DIR="+dir, "MOONCAKE_TEST_SHM="+shmDir(t))
			out, err := child.CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
	}
}

func manyOwnFiles(t *testing.T, limit string) {
	n, err := strconv.ParseUint(limit, 10, 64)
	require.NoError(t, err)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}))
	objects := 70_000
	if n < 1024 || testing.Short() || raceEnabled || arena.Invariants {
		objects = 5_000
	}
	opts := Options{MemoryBytes: 1 << 30, FileBytes: 4096, Dir: os.Getenv("MOONCAKE_TEST_DIR"), ShmDir: os.Getenv("MOONCAKE_TEST_SHM"),
		Offload: OffloadNever}
	ctx := context.Background()
	const maps = 1000
	for round := range 2 {
		s, err := openWith(ctx, opts, seams{limits: arena.MemLimits{Headroom: -1, Mappings: maps}})
		require.NoError(t, err)
		value := bytes.Repeat([]byte{1}, 4096)
		for i := range objects {
			if round == 1 {
				break // the first round's are there
			}
			copy(value, fmt.Sprintf("%08d", i))
			require.NoError(t, s.Put(ctx, fmt.Sprint(i), value, &PutOptions{OwnFile: true}))
		}
		if round == 0 || opts.Dir != "" {
			checkManyFiles(t, s, objects, value)
		}
		require.LessOrEqual(t, s.files.Mapped(), maps)
		hostIsWell(t, int(n), maps)
		require.NoError(t, s.Close())
	}
	require.Less(t, countOpen(t), 64)
}

func checkManyFiles(t *testing.T, s *Store, objects int, value []byte) {
	ctx := context.Background()
	dst := make([]byte, 4096)
	for i := range objects {
		copy(value, fmt.Sprintf("%08d", i))
		_, err := s.GetInto(ctx, fmt.Sprint(i), dst, nil)
		require.NoError(t, err)
		require.Equal(t, value[:8], dst[:8], i)
	}
	var views []*View
	for i := range min(objects, 3000) { // more than may be mapped
		v, err := s.View(ctx, fmt.Sprint(i), nil)
		if err != nil {
			require.ErrorIs(t, err, ErrBusy)
			require.ErrorContains(t, err, "vm.max_map_count")
			break
		}
		views = append(views, v)
	}
	require.GreaterOrEqual(t, len(views), 900)
	for i, v := range views {
		copy(value, fmt.Sprintf("%08d", i))
		require.Equal(t, value[:8], v.Bytes()[:8])
		require.NoError(t, v.Close())
	}
	v, err := s.View(ctx, fmt.Sprint(objects-1), nil)
	require.NoError(t, err, "the others are closed")
	require.NoError(t, v.Close())
	var files []*File
	for i := range 300 {
		f, err := s.File(ctx, fmt.Sprint(i), nil)
		if err != nil {
			require.ErrorIs(t, err, ErrBusy)
			break
		}
		files = append(files, f)
	}
	for _, f := range files {
		_, err := os.ReadFile(f.Path())
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
}

// hostIsWell checks that the process can still open files and map memory.
func hostIsWell(t *testing.T, limit, maps int) {
	t.Helper()
	require.Less(t, countOpen(t), limit*3/4)
	p, err := os.Open("/proc/self/maps")
	require.NoError(t, err)
	defer p.Close()
	lines := 0
	for scan := bufio.NewScanner(p); scan.Scan(); {
		lines++
	}
	require.Less(t, lines, 2*maps+1000)
}

func countOpen(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}
