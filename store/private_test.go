package store

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store/internal/ssd/ssdtest"
)

// readableBy lists what another user can read below some directories: files that open, directories that list.
func readableBy(t *testing.T, uid uint32, dirs ...string) string {
	t.Helper()
	canary := publicDir(t)
	c := exec.Command("find", append(append(dirs, canary), "-readable", "-printf", "%p %m\n")...)
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, _ := c.Output() // find fails where it can't enter
	found, ok := strings.CutSuffix(string(out), canary+" 755\n")
	require.True(t, ok, "find: %q", out)
	return found
}

// publicDir is a directory that every user can enter and list.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "store-test-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// TestOtherUsersReadNothing walks a store's directory and its shared memory as another user, under several umasks.
func TestOtherUsersReadNothing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	ctx := context.Background()
	for _, mask := range []int{0o000, 0o022, 0o027, 0o077} {
		t.Run(fmt.Sprintf("%03o", mask), func(t *testing.T) {
			old := unix.Umask(mask)
			defer unix.Umask(old)
			opts := testOptions(t, Options{Dir: filepath.Join(publicDir(t), "store"), ShmDir: publicDir(t)})
			opts.FileBytes = 4096
			s, err := Open(ctx, opts)
			require.NoError(t, err)
			p := random(1 << 20)
			require.NoError(t, s.Put(ctx, "kv", p, nil))
			require.NoError(t, s.Put(ctx, "memory", p, &PutOptions{Type: Weight}))
			require.NoError(t, s.Put(ctx, "disk", p, &PutOptions{Type: Weight, Durable: true}))
			require.NoError(t, s.Sync(ctx))
			for _, key := range []string{"memory", "disk"} {
				f, err := s.File(ctx, key, nil)
				require.NoError(t, err)
				got, err := os.ReadFile(f.Path())
				require.NoError(t, err)
				require.Equal(t, p, got)
				require.Empty(t, readableBy(t, 65534, f.Path()))
				defer f.Close()
			}
			require.Empty(t, readableBy(t, 65534, opts.Dir, filepath.Join(opts.ShmDir, shmNames(t, opts.ShmDir)[0])))
		})
	}
}

func shmNames(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestOpenClosesOldModes opens directories as an earlier version left them: readable by everybody.
func TestOpenClosesOldModes(t *testing.T) {
	ctx := context.Background()
	opts := testOptions(t, Options{Dir: t.TempDir(), ShmDir: t.TempDir()})
	opts.FileBytes = 4096
	s, err := Open(ctx, opts)
	require.NoError(t, err)
	p := random(1 << 20)
	require.NoError(t, s.Put(ctx, "memory", p, &PutOptions{Type: Weight}))
	require.NoError(t, s.Put(ctx, "disk", p, &PutOptions{Type: Weight, Durable: true}))
	require.NoError(t, s.Close())
	dirs := []string{filepath.Join(opts.Dir, catalogueDir), filepath.Join(opts.Dir, tierDir)}
	for _, name := range shmNames(t, opts.ShmDir) {
		dirs = append(dirs, filepath.Join(opts.ShmDir, name), filepath.Join(opts.ShmDir, name, "files"))
	}
	for _, dir := range dirs {
		require.NoError(t, os.Chmod(dir, 0o755))
		for _, f := range shmNames(t, dir) {
			if info, err := os.Lstat(filepath.Join(dir, f)); err == nil && info.Mode().IsRegular() {
				require.NoError(t, os.Chmod(filepath.Join(dir, f), info.Mode().Perm()|info.Mode().Perm()>>3&0o044|info.Mode().Perm()>>6&0o044))
			}
		}
	}
	s, err = Open(ctx, opts)
	require.NoError(t, err)
	defer s.Close()
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o700), info.Mode().Perm(), dir)
	}
	for _, dir := range dirs[1:] { // RocksDB makes its own files, behind the directory's mode
		for _, f := range shmNames(t, dir) {
			info, err := os.Lstat(filepath.Join(dir, f))
			require.NoError(t, err)
			require.Zero(t, info.Mode().Perm()&0o077, "%s/%s: %v", dir, f, info.Mode())
		}
	}
	for _, key := range []string{"memory", "disk"} {
		got, err := s.Get(ctx, key, nil)
		require.NoError(t, err)
		require.Equal(t, p, got)
	}
}

// TestFileSystemWithoutSize is one whose statfs is all zero: that says nothing about its room.
func TestFileSystemWithoutSize(t *testing.T) {
	fs := new(ssdtest.FaultFS)
	fs.HideFree()
	ctx := context.Background()
	s, err := openWith(ctx, testOptions(t, Options{Dir: t.TempDir(), PromoteAfter: -1}), seams{fs: fs})
	require.NoError(t, err)
	defer s.Close()
	free, _, err := s.Room(TierSSD)
	require.NoError(t, err)
	require.Greater(t, free, int64(1)<<40)
	p := random(1 << 20)
	require.NoError(t, s.Put(ctx, "disk", p, &PutOptions{Durable: true}))
	got, err := s.Get(ctx, "disk", nil)
	require.NoError(t, err)
	require.Equal(t, p, got)
}
