//go:build cgo && !norocksdb

package store

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pkg/errors"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// smallDisk mounts a file system of its own with room for n bytes.
func smallDisk(t *testing.T, n int) string {
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, fmt.Sprint("size=", n)); err != nil {
		t.Skipf("mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	return mount
}

// fillDisk writes to a file until not a byte more fits.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(t, err)
	defer f.Close()
	for n := 1 << 20; n > 0; {
		if _, err := f.Write(make([]byte, n)); err != nil {
			require.ErrorIs(t, err, unix.ENOSPC)
			n /= 2
		}
	}
}

// putAcknowledged puts durable objects until one fails, and notes those that were acknowledged.
func putAcknowledged(s *Store, acknowledged map[string]int, most int) error {
	for range most {
		n := len(acknowledged)
		key := fmt.Sprint("k", n)
		if err := s.Put(context.Background(), key, random(20000+n), &PutOptions{Durable: true, HardPin: true}); err != nil {
			return err
		}
		acknowledged[key] = 20000 + n
	}
	return nil
}

func wantAcknowledged(t *testing.T, s *Store, acknowledged map[string]int) {
	t.Helper()
	for key, n := range acknowledged {
		wantWhole(t, s, key, random(n))
	}
}

// TestFullFileSystem fills the disk under a store to the last byte: before an open, while it is open, and before its close. Errors
// that say so, and once there is room all that was acknowledged, without a bit of what was not.
func TestFullFileSystem(t *testing.T) {
	mount := smallDisk(t, 24<<20)
	ballast := filepath.Join(mount, "ballast")
	opts := crashOptions()
	opts.Dir, opts.ShmDir, opts.SSDBytes = filepath.Join(mount, "store"), crashShmDir(t), 1<<30
	acknowledged := map[string]int{}
	for round := range 6 {
		require.NoError(t, os.RemoveAll(ballast))
		s, err := Open(context.Background(), opts)
		require.NoError(t, err, "round %d", round)
		wantAcknowledged(t, s, acknowledged)
		require.NoError(t, putAcknowledged(s, acknowledged, 20))
		if round%2 == 0 { // else it is full at the close and at the next open
			fillDisk(t, ballast)
			err = putAcknowledged(s, acknowledged, 1000)
			require.ErrorIs(t, err, ErrNoSpace, "round %d", round)
			wantAcknowledged(t, s, acknowledged)
			require.NoError(t, os.RemoveAll(ballast))
			require.NoError(t, putAcknowledged(s, acknowledged, 5), "round %d: there is room again", round)
		}
		fillDisk(t, ballast)
		_ = s.Close()
		fillDisk(t, ballast)
		if s, err := Open(context.Background(), opts); err != nil {
			require.ErrorIs(t, err, ErrNoSpace, "round %d", round)
		} else {
			wantAcknowledged(t, s, acknowledged)
			_ = s.Close()
		}
	}
}

// TestReadOnlyDisk turns the file system read-only under an open store.
func TestReadOnlyDisk(t *testing.T) {
	mount := smallDisk(t, 24<<20)
	opts := crashOptions()
	opts.Dir, opts.ShmDir = filepath.Join(mount, "store"), crashShmDir(t)
	acknowledged := map[string]int{}
	s, err := Open(context.Background(), opts)
	require.NoError(t, err)
	require.NoError(t, putAcknowledged(s, acknowledged, 20))
	require.NoError(t, s.Close())

	require.NoError(t, unix.Mount("", mount, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	_, err = Open(context.Background(), opts)
	require.Error(t, err)
	require.ErrorContains(t, err, "read-only file system")
	require.NoError(t, unix.Mount("", mount, "", unix.MS_REMOUNT, ""))
	s, err = Open(context.Background(), opts)
	require.NoError(t, err)
	wantAcknowledged(t, s, acknowledged)
	require.NoError(t, s.Close())
}

const dyingChild = "STORE_TEST_DYING_DISK"

// TestDyingDiskChild is the process of TestDyingDisk: it prints each key that was acknowledged.
func TestDyingDiskChild(t *testing.T) {
	dir, shm, ok := strings.Cut(os.Getenv(dyingChild), ":")
	if !ok {
		t.Skip("a part of TestDyingDisk")
	}
	opts := crashOptions()
	opts.Dir, opts.ShmDir = dir, shm
	s, err := Open(context.Background(), opts)
	for i := 0; err == nil && i < 12; i++ {
		if err = s.Put(context.Background(), fmt.Sprint("k", i), random(20000+i), &PutOptions{Durable: true, HardPin: true}); err == nil {
			fmt.Printf("put k%d\n", i)
		}
		if i == 6 && err == nil {
			err = s.Remove("k0", true)
		}
	}
	if s != nil {
		if e := s.Close(); err == nil {
			err = e
		}
	}
	fmt.Printf("survived: %v\n", err)
}

// TestDyingDisk has the kernel fail the system calls of a real process, each kind from its nth on. The process must live to
// say so, and the directory must open afterwards with all that was acknowledged.
func TestDyingDisk(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("strace is not installed")
	}
	step := 1
	if testing.Short() {
		step = 3
	}
	calls := []string{"write", "pwrite64", "fdatasync", "fsync", "openat", "renameat,rename", "mkdirat,mkdir", "unlinkat,unlink",
		"ftruncate", "fallocate", "sync_file_range", "pread64"}
	for i, call := range calls {
		for nth := 1; nth <= 40; nth = nth*2 + i%2*step + step - 1 {
			errno := []string{"EIO", "ENOSPC", "EROFS"}[(i+nth)%3]
			t.Run(fmt.Sprintf("%s/%d/%s", call, nth, errno), func(t *testing.T) { dieOn(t, call, nth, errno) })
		}
	}
}

func dieOn(t *testing.T, call string, nth int, errno string) {
	opts := crashOptions()
	opts.Dir, opts.ShmDir = filepath.Join(t.TempDir(), "store"), crashShmDir(t)
	require.NoError(t, os.Mkdir(opts.Dir, 0o700))
	args := []string{"-f", "-qq", "-o", "/dev/null", "-e", "trace=" + call,
		"-e", fmt.Sprintf("inject=%s:error=%s:when=%d+", call, errno, nth)}
	for _, dir := range []string{opts.Dir, filepath.Join(opts.Dir, catalogueDir), filepath.Join(opts.Dir, tierDir)} {
		args = append(args, "-P", dir)
	}
	for _, name := range []string{"SYNCED", "CURRENT", "MANIFEST-000001", "MANIFEST-000005", "000004.log", "000001.dbtmp", "000005.dbtmp",
		"IDENTITY", "LOCK", "LOG", "OPTIONS-000007", "OPTIONS-000007.dbtmp", "000006.dbtmp", "000007.dbtmp"} {
		args = append(args, "-P", filepath.Join(opts.Dir, catalogueDir, name))
	}
	cmd := exec.Command("strace", append(args, os.Args[0], "-test.run=^TestDyingDiskChild$", "-test.v")...)
	cmd.Env = append(os.Environ(), dyingChild+"="+opts.Dir+":"+opts.ShmDir)
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "Operation not permitted") && !strings.Contains(string(out), "RUN") {
		t.Skipf("strace may not trace here: %s", out)
	}
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "survived: ", "%s", out)

	s, err := Open(context.Background(), opts)
	require.NoError(t, err, "%s", out)
	defer s.Close()
	removed := strings.Contains(string(out), "put k7\n")
	for i := range 12 {
		key := fmt.Sprint("k", i)
		if strings.Contains(string(out), "put "+key+"\n") && (i > 0 || !removed) {
			p, err := s.Get(context.Background(), key, nil)
			if i == 0 && errors.Is(err, ErrNotFound) {
				continue // its removal may have been the operation that failed
			}
			require.NoError(t, err, "%s\n%s", key, out)
			require.Equal(t, random(20000+i), p, key)
		}
	}
}
