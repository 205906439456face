package store

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const rlimitsEnv = "MOONCAKE_TEST_RLIMITS"

// Limits on addresses and on file sizes are errors that name them, and a store within them opens.
func TestResourceLimits(t *testing.T) {
	which := os.Getenv(rlimitsEnv)
	if which == "" {
		for _, which := range []string{"addresses", "file size"} {
			child := exec.Command(os.Args[0], "-test.run=^TestResourceLimits$")
			child.Env = append(os.Environ(), rlimitsEnv+"="+which, "MOONCAKE_TEST_DIR="+t.TempDir(), "MOONCAKE_TEST_SHM="+shmDir(t))
			out, err := child.CombinedOutput()
			require.NoError(t, err, "%s: %s", which, out)
		}
		return
	}
	if raceEnabled {
		t.Skip("the race detector takes terabytes of addresses")
	}
	ctx := context.Background()
	opts := Options{MemoryBytes: 64 << 20, FileBytes: 4096, Dir: os.Getenv("MOONCAKE_TEST_DIR"), ShmDir: os.Getenv("MOONCAKE_TEST_SHM")}
	large := Options{MemoryBytes: 8 << 30, ShmDir: opts.ShmDir}
	if which == "addresses" {
		setLimit(t, unix.RLIMIT_AS, addresses(t)+3<<30)
		for range 2 {
			s, err := Open(ctx, opts)
			require.NoError(t, err)
			require.NoError(t, s.Put(ctx, "key", []byte("value"), &PutOptions{Replace: true}))
			require.NoError(t, s.Close())
		}
		_, err := Open(ctx, large)
		require.ErrorIs(t, err, ErrMemoryLimit)
		require.ErrorContains(t, err, "ulimit -v")
		return
	}
	setLimit(t, unix.RLIMIT_FSIZE, 2<<30)
	s, err := Open(ctx, opts)
	require.NoError(t, err)
	_, err = Open(ctx, large)
	require.ErrorIs(t, err, ErrMemoryLimit)
	require.ErrorContains(t, err, "ulimit -f")
	require.NoError(t, s.WaitReady(ctx))
	setLimit(t, unix.RLIMIT_FSIZE, 4<<20)
	value := make([]byte, 8<<20)
	err = s.Put(ctx, "own", value, &PutOptions{OwnFile: true})
	require.ErrorIs(t, err, ErrMemoryLimit)
	require.ErrorContains(t, err, "ulimit -f")
	err = s.Put(ctx, "ssd", value, &PutOptions{OwnFile: true, Durable: true})
	require.ErrorIs(t, err, unix.EFBIG)
	require.ErrorContains(t, err, "ulimit -f")
	require.NoError(t, s.Put(ctx, "small", value[:1<<20], &PutOptions{OwnFile: true, Durable: true}))
	require.NoError(t, s.Close())
}

func setLimit(t *testing.T, which int, n uint64) {
	t.Helper()
	var r unix.Rlimit
	require.NoError(t, unix.Getrlimit(which, &r))
	r.Cur = n
	require.NoError(t, unix.Setrlimit(which, &r))
}

// addresses is how many bytes of addresses this process has mapped.
func addresses(t *testing.T) uint64 {
	t.Helper()
	f, err := os.Open("/proc/self/status")
	require.NoError(t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kib uint64
		if rest, ok := strings.CutPrefix(lines.Text(), "VmSize:"); ok {
			_, err := fmt.Sscan(rest, &kib)
			require.NoError(t, err)
			return kib << 10
		}
	}
	t.Fatal("no VmSize")
	return 0
}
