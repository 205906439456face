package weight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store"
	"github.com/kvcache-ai/mooncake-go/weight/internal/acl"
)

const nobody = 65534

// as runs a shell command as another user.
func as(uid uint32, script string, args ...string) (string, error) {
	c := exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := c.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return string(out), err
}

// readable lists what another user can read below a directory.
func readable(t *testing.T, uid uint32, dir string) []string {
	t.Helper()
	out, _ := as(uid, `find /etc/passwd "$1" -readable 2>/dev/null`, dir)
	list := strings.Fields(out)
	require.NotEmpty(t, list)
	require.Equal(t, "/etc/passwd", list[0], "find works")
	return list[1:]
}

// sharedEnv is a store in a directory that every user can get to. The test needs root, and access control lists.
func sharedEnv(t *testing.T, opts store.Options) *env {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	dir, err := os.MkdirTemp("/var/tmp", "weight-test-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	if err := acl.Grant(dir, 1, 0); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip(err)
	}
	require.NoError(t, acl.Revoke(dir, 1))
	opts.Dir = filepath.Join(dir, "s")
	return newEnv(t, opts)
}

// TestHandOut lets one other user read what is handed out to him, nobody else, and nothing before and after, whatever
// the umask.
func TestHandOut(t *testing.T) {
	for _, mask := range []int{0o000, 0o022, 0o027, 0o077} {
		t.Run(fmt.Sprintf("%03o", mask), func(t *testing.T) {
			old := unix.Umask(mask)
			defer unix.Umask(old)
			ctx := context.Background()
			e := sharedEnv(t, store.Options{})
			e.put(mib, 1)
			e.mem.Put("sub/config.json", []byte("{}"))
			e.doImport(ref)
			require.Empty(t, readable(t, nobody, e.opts.Dir))
			plain := e.load(ref)
			require.Empty(t, plain.HandedOut())
			require.Empty(t, readable(t, nobody, e.opts.Dir), "a load for this user")

			l, err := e.m.Load(ctx, ref, &LoadOptions{User: "65534"})
			require.NoError(t, err)
			require.Equal(t, plain.Dir(), l.Dir())
			require.Equal(t, []string{e.opts.Dir, e.m.loadRoot, l.Dir()}, l.HandedOut())
			for _, f := range e.mustManifest(ref).Files {
				out, err := as(nobody, `cat "$1/$2" | sha256sum`, l.Dir(), f.Name)
				require.NoError(t, err)
				require.Equal(t, f.SHA256, strings.Fields(out)[0], f.Name)
			}
			for _, path := range readable(t, nobody, e.opts.Dir) {
				require.True(t, path == l.Dir() || strings.HasPrefix(path, l.Dir()+"/"), "%s can be read", path)
			}
			require.Empty(t, readable(t, 1, e.opts.Dir), "a third user")
			for _, script := range []string{`echo x >> "$1/` + shard1 + `"`, `echo x >> "$1/config.json"`, `rm "$1/config.json"`, `rm -r "$1"`, `ln "$1/config.json" /var/tmp/`} {
				_, err := as(nobody, script, l.Dir())
				require.Error(t, err, script)
			}
			require.NoError(t, l.Close())
			require.NoError(t, plain.Close())
			e.deepOK(ref)
			require.Empty(t, readable(t, nobody, e.opts.Dir), "after the load")
			requireNoLists(t, e.opts.Dir)
		})
	}
}

// requireNoLists makes sure that no file of a store has an access control list, and none is open to others by its mode.
func requireNoLists(t *testing.T, dir string) {
	t.Helper()
	for _, f := range append(files(t, dir), ".") {
		path := filepath.Join(dir, f)
		_, err := unix.Getxattr(path, "system.posix_acl_access", nil)
		require.ErrorIs(t, err, unix.ENODATA, path)
	}
}

// TestHandOutShares hands two revisions that share files to one user, and one of them to another: the end of one load
// takes nothing from the other.
func TestHandOutShares(t *testing.T) {
	ctx := context.Background()
	e := sharedEnv(t, store.Options{})
	e.put(mib, 1)
	two := Ref{ref.ModelID, "2"}
	e.doImport(ref)
	e.doImport(two)
	load := func(r Ref, uid string) *Loaded {
		l, err := e.m.Load(ctx, r, &LoadOptions{User: uid})
		require.NoError(t, err)
		return l
	}
	reads := func(uid uint32, l *Loaded) error {
		_, err := as(uid, `cat "$1"/* > /dev/null`, l.Dir())
		return err
	}
	a, b, c := load(ref, "65534"), load(two, "65534"), load(two, "1:1")
	require.NoError(t, a.Close())
	require.NoError(t, reads(nobody, b))
	require.NoError(t, reads(1, c))
	require.Error(t, reads(2, c))
	require.NoError(t, b.Close())
	require.NoError(t, c.Close())
	requireNoLists(t, e.opts.Dir)
}

// TestHandOutAfterCrash takes back at Open what a killed process had handed out, and keeps it while an engine lives.
func TestHandOutAfterCrash(t *testing.T) {
	e := sharedEnv(t, store.Options{})
	e.put(mib, 1)
	e.doImport(ref)
	l, err := e.m.Load(context.Background(), ref, &LoadOptions{User: "65534"})
	require.NoError(t, err)
	dir := l.Dir()
	lock, err := l.Detach() // the descriptor stands for the engine
	require.NoError(t, err)
	e.reopen()
	require.NotEmpty(t, readable(t, nobody, dir), "the engine lives")
	require.NoError(t, lock.Close())
	e.reopen()
	require.Empty(t, readable(t, nobody, e.opts.Dir))
	requireNoLists(t, e.opts.Dir)
}

// TestHandOutRefused names what stands in the way, before anything is handed out.
func TestHandOutRefused(t *testing.T) {
	ctx := context.Background()
	e := sharedEnv(t, store.Options{})
	e.put(mib, 1)
	e.doImport(ref)
	parent := filepath.Dir(e.opts.Dir)
	require.NoError(t, os.Chmod(parent, 0o700))
	_, err := e.m.Load(ctx, ref, &LoadOptions{User: "65534"})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "setfacl -m u:65534:x "+parent)
	requireNoLists(t, parent)
	require.Empty(t, files(t, e.m.loadRoot))
	require.NoError(t, acl.Grant(parent, nobody, acl.Exec)) // what it says
	l, err := e.m.Load(ctx, ref, &LoadOptions{User: "65534"})
	require.NoError(t, err)
	require.NotEmpty(t, readable(t, nobody, l.Dir()))
	require.NoError(t, l.Close())
	_, err = unix.Getxattr(parent, "system.posix_acl_access", nil)
	require.NoError(t, err, "what the administrator has set stays")

	_, err = e.m.Load(ctx, ref, &LoadOptions{User: "no such user"})
	require.ErrorIs(t, err, ErrInvalid)

	l = e.load(ref)
	require.NoError(t, l.HandOut("65534"))
	require.NotEmpty(t, readable(t, nobody, l.Dir()))
	require.Contains(t, l.HandedOut(), l.Dir())
	require.ErrorIs(t, l.HandOut("no such user"), ErrInvalid)
	require.NoError(t, l.Close())
	require.ErrorIs(t, l.HandOut("65534"), ErrClosed)
}

// TestHandOutOfMemory refuses: the bytes are where only this user can get to.
func TestHandOutOfMemory(t *testing.T) {
	e := sharedEnv(t, store.Options{})
	e.put(mib, 1)
	q := e.request(ref)
	q.Volatile = true
	_, err := e.m.Import(context.Background(), q)
	require.NoError(t, err)
	_, err = e.m.Load(context.Background(), ref, &LoadOptions{User: "65534"})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "in memory")
	require.Empty(t, files(t, e.m.loadRoot))
	require.Empty(t, readable(t, nobody, e.opts.Dir))
}

// TestLinkRefused makes a directory where the file system refuses hard links, in each of the ways that they have.
func TestLinkRefused(t *testing.T) {
	for _, errno := range []syscall.Errno{unix.EXDEV, unix.EPERM, unix.EMLINK, unix.ENOSYS, unix.EOPNOTSUPP} {
		e := newEnv(t, store.Options{Dir: t.TempDir()})
		e.m.link = func(from, to string) error { return &os.LinkError{Op: "link", Old: from, New: to, Err: errno} }
		e.put(mib, 1)
		e.doImport(ref)
		l := e.load(ref)
		for _, f := range e.mustManifest(ref).Files {
			require.Equal(t, f.SHA256, sha(read(t, filepath.Join(l.Dir(), f.Name))), "%v: %s", errno, f.Name)
		}
		require.NoError(t, l.Close())
	}
}
