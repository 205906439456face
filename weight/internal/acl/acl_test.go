package acl

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// needsLists skips a test where the file system has no lists.
func needsLists(t *testing.T, dir string) {
	t.Helper()
	err := Grant(dir, 65534, 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip(err)
	}
	require.NoError(t, err)
	require.NoError(t, Revoke(dir, 65534))
}

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Mode().Perm()
}

func TestGrantRevoke(t *testing.T) {
	for _, start := range []os.FileMode{0o000, 0o400, 0o640, 0o604, 0o077, 0o755} {
		path := filepath.Join(t.TempDir(), "f")
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		needsLists(t, path)
		require.NoError(t, os.Chmod(path, start))
		a, b := User{1001, []uint32{1001}}, User{1002, []uint32{1002}}
		before, err := Allows(path, b, Read)
		require.NoError(t, err)
		require.NoError(t, Grant(path, 1001, Read))
		require.NoError(t, Grant(path, 1001, Exec))
		for perm, want := range map[uint16]bool{Read: true, Exec: true, Read | Exec: true, 2: false} {
			got, err := Allows(path, a, perm)
			require.NoError(t, err)
			require.Equal(t, want, got, "mode %o, permission %d", start, perm)
		}
		got, err := Allows(path, b, Read)
		require.NoError(t, err)
		require.Equal(t, before, got, "mode %o: another user", start)
		require.NoError(t, Grant(path, 1002, Read))
		require.NoError(t, Revoke(path, 1001))
		require.NoError(t, Revoke(path, 1001), "nothing to revoke")
		got, err = Allows(path, b, Read)
		require.NoError(t, err)
		require.True(t, got)
		require.NoError(t, Keep(path, func(uint32) bool { return false }))
		require.Equal(t, start, mode(t, path))
		_, err = unix.Getxattr(path, attribute, nil)
		require.ErrorIs(t, err, unix.ENODATA, "no list is left")
	}
}

func TestClose(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Chmod(path, 0o755))
	require.NoError(t, Close(path))
	require.Equal(t, os.FileMode(0o700), mode(t, path))
	needsLists(t, path)
	require.NoError(t, os.Chmod(path, 0o755))
	require.NoError(t, Grant(path, 1001, Exec))
	require.NoError(t, Close(path))
	for u, want := range map[uint32]bool{1001: true, 1002: false} {
		got, err := Allows(path, User{u, []uint32{u}}, Exec)
		require.NoError(t, err)
		require.Equal(t, want, got, "user %d", u)
	}
}

// TestMaskStays grants on a file whose mask took a right from another user.
func TestMaskStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	needsLists(t, path)
	require.NoError(t, Grant(path, 1001, Read))
	require.NoError(t, os.Chmod(path, 0o600)) // the group's bits are the mask
	require.NoError(t, Grant(path, 1002, Read))
	for uid, want := range map[uint32]bool{1001: false, 1002: true} {
		got, err := Allows(path, User{uid, nil}, Read)
		require.NoError(t, err)
		require.Equal(t, want, got, "user %d", uid)
	}
}

// TestAllowsAsKernel compares what Allows says with what the kernel does.
func TestAllowsAsKernel(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	dir, err := os.MkdirTemp("/var/tmp", "acl-test-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	needsLists(t, dir)
	path := filepath.Join(dir, "f")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	users := []User{{1001, []uint32{1001}}, {1002, []uint32{1002, 2000}}, {1003, []uint32{2000, 2001}}, {0, []uint32{0}}}
	for _, l := range []list{
		{1001, 1001, []entry{{tagOwner, 0, noID}, {tagGroup, 4, noID}, {tagOther, 4, noID}}},
		{0, 2000, []entry{{tagOwner, 6, noID}, {tagGroup, 4, noID}, {tagOther, 0, noID}}},
		{0, 2000, []entry{{tagOwner, 6, noID}, {tagGroup, 0, noID}, {tagOther, 4, noID}}},
		{0, 0, []entry{{tagOwner, 6, noID}, {tagUser, 4, 1002}, {tagGroup, 0, noID}, {tagGroups, 0, 2000}, {tagOther, 4, noID}}},
		{0, 0, []entry{{tagOwner, 6, noID}, {tagUser, 0, 1002}, {tagGroup, 0, noID}, {tagGroups, 0, 2000}, {tagGroups, 4, 2001}, {tagOther, 0, noID}}},
	} {
		require.NoError(t, os.Chown(path, int(l.uid), int(l.gid)))
		require.NoError(t, l.write(path))
		for _, u := range users {
			c := exec.Command("/bin/cat", path)
			c.Dir = "/"
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: u.UID, Gid: u.Groups[0], Groups: u.Groups}}
			want := c.Run() == nil
			got, err := Allows(path, u, Read)
			require.NoError(t, err)
			require.Equal(t, want, got, "user %+v, list %+v", u, l)
		}
	}
}

func TestParse(t *testing.T) {
	for _, p := range [][]byte{nil, {2, 0, 0}, {1, 0, 0, 0}, {2, 0, 0, 0, 1}} {
		_, err := parse(p)
		require.Error(t, err, "%v", p)
	}
}
