package store

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
)

const identChildEnv = "MOONCAKE_IDENT_CHILD" // set in a child: directory, tmpfs, and how to leave

// TestIdentChild is not a test but another process with a store.
func TestIdentChild(t *testing.T) {
	dir, rest, ok := strings.Cut(os.Getenv(identChildEnv), "|")
	if !ok {
		t.Skip("a child of other tests")
	}
	shm, value, _ := strings.Cut(rest, "|")
	s, err := Open(context.Background(), Options{Dir: dir, ShmDir: shm, MemoryBytes: MinMemoryBytes})
	if err != nil {
		fmt.Printf("result: %v\n", err)
		return
	}
	if value != "" {
		err = s.Upsert(context.Background(), "k", []byte(value), nil)
	}
	got, _ := s.Get(context.Background(), "k", nil)
	fmt.Printf("result: %s %v\n", got, err)
	_, _ = io.Copy(io.Discard, os.Stdin)
	require.NoError(t, s.Close())
}

type identChild struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	result string
}

func startIdent(t *testing.T, dir, shm, value string, attr *syscall.SysProcAttr) *identChild {
	t.Helper()
	c := &identChild{cmd: exec.Command("/proc/self/exe", "-test.run=^TestIdentChild$")}
	c.cmd.Env = append(os.Environ(), identChildEnv+"="+dir+"|"+shm+"|"+value)
	c.cmd.SysProcAttr = attr
	stdin, err := c.cmd.StdinPipe()
	require.NoError(t, err)
	c.stdin = stdin
	stdout, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	t.Cleanup(func() { _ = c.cmd.Process.Kill() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	c.result = strings.TrimSpace(strings.TrimPrefix(line, "result: "))
	return c
}

func (c *identChild) close(t *testing.T) {
	t.Helper()
	require.NoError(t, c.stdin.Close())
	require.NoError(t, c.cmd.Wait())
}

func (c *identChild) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, c.cmd.Process.Kill())
	require.Error(t, c.cmd.Wait())
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	out, err := exec.Command("cp", "-a", from, to).CombinedOutput()
	require.NoError(t, err, string(out))
}

func identDirs(t *testing.T) (one, two, shm string) {
	needRocksDB(t)
	parent := t.TempDir()
	return filepath.Join(parent, "one"), filepath.Join(parent, "two"), shmDir(t)
}

// A copied directory never shares memory with the original, opened in turns or at once, by this process or by two.
func TestCopiedDirectory(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%v", killed), func(t *testing.T) {
			one, two, shm := identDirs(t)
			c := startIdent(t, one, shm, "first", nil)
			require.Equal(t, "first <nil>", c.result)
			if killed {
				c.kill(t)
			} else {
				c.close(t)
			}
			copyDir(t, one, two)
			before := snapshot(t, shm)

			c = startIdent(t, two, shm, "", nil)
			require.Equal(t, "<nil>", c.result, "the copy starts cold")
			for path, was := range before {
				require.Equal(t, was, snapshot(t, shm)[path], "the copy leaves the original's memory alone")
			}
			other := startIdent(t, one, shm, "", nil)
			require.Equal(t, "first <nil>", other.result, "the original has its memory back")
			other.close(t)
			c.close(t)

			c = startIdent(t, two, shm, "of the copy", nil)
			other = startIdent(t, one, shm, "of the original", nil)
			c.close(t)
			other.kill(t)
			for range 2 {
				for dir, want := range map[string]string{two: "of the copy <nil>", one: "of the original <nil>"} {
					c := startIdent(t, dir, shm, "", nil)
					require.Equal(t, want, c.result, dir)
					c.close(t)
				}
			}
		})
	}
}

// A directory that was moved, or is named by another path, is the same one.
func TestMovedDirectory(t *testing.T) {
	one, two, shm := identDirs(t)
	startIdent(t, one, shm, "value", nil).close(t)
	require.NoError(t, os.Rename(one, two))
	startIdent(t, filepath.Join(filepath.Dir(one), "third"), shm, "x", nil).close(t) // must not take it for gone
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(two, link))
	c := startIdent(t, link, shm, "", nil)
	require.Equal(t, "value <nil>", c.result)
	c.close(t)
	mounted := t.TempDir()
	if err := unix.Mount(two, mounted, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("bind mount: %v", err)
	}
	defer unix.Unmount(mounted, unix.MNT_DETACH)
	c = startIdent(t, mounted, shm, "", nil)
	require.Equal(t, "value <nil>", c.result)
	c.close(t)
}

// A directory that is set back to an earlier state, in place, does not get memory of a later one.
func TestRestoredDirectory(t *testing.T) {
	for _, open := range []bool{false, true} { // the backup is of an open store
		one, backup, shm := identDirs(t)
		c := startIdent(t, one, shm, "old", nil)
		if !open {
			c.close(t)
		}
		copyDir(t, one, backup)
		if open {
			c.close(t)
		}
		startIdent(t, one, shm, "new", nil).close(t)
		out, err := exec.Command("sh", "-c", `rm -rf "$1"/* && cp -a "$0"/. "$1"`, backup, one).CombinedOutput()
		require.NoError(t, err, string(out))
		c = startIdent(t, one, shm, "", nil)
		require.Equal(t, "<nil>", c.result)
		c.close(t)
	}
}

// Two clones with one inode, as virtual machines can have: the first that opens has the memory, the other starts cold.
func TestClonedInode(t *testing.T) {
	one, clone, shm := identDirs(t)
	startIdent(t, one, shm, "value", nil).close(t)
	copyDir(t, one, clone) // the state of the clone; put in place below, so that the inode is the same
	c := startIdent(t, one, shm, "", nil)
	require.Equal(t, "value <nil>", c.result)
	c.close(t)
	out, err := exec.Command("sh", "-c", `rm -rf "$1"/* && cp -a "$0"/. "$1"`, clone, one).CombinedOutput()
	require.NoError(t, err, string(out))
	c = startIdent(t, one, shm, "", nil)
	require.Equal(t, "<nil>", c.result)
	c.close(t)
}

// A process that dies between the two sides of an epoch leaves memory that the directory gets back, and no other does.
func TestDeathBetweenEpochs(t *testing.T) {
	one, two, shm := identDirs(t)
	startIdent(t, one, shm, "value", nil).close(t)
	handle, err := os.Open(one)
	require.NoError(t, err)
	defer handle.Close()
	c, ok, err := readClaim(int(handle.Fd()))
	require.NoError(t, err)
	require.True(t, ok)
	c.has, c.next = c.next, newEpoch()
	require.NoError(t, writeClaim(int(handle.Fd()), &c)) // the directory's side is written, the segment's is not
	copyDir(t, one, two)
	child := startIdent(t, two, shm, "", nil)
	require.Equal(t, "<nil>", child.result)
	child.close(t)
	child = startIdent(t, one, shm, "", nil)
	require.Equal(t, "value <nil>", child.result)
	child.close(t)

	// A side that was damaged is none.
	require.NoError(t, os.WriteFile(filepath.Join(one, claimFile), c.encode()[:30], 0o600))
	child = startIdent(t, one, shm, "", nil)
	require.Equal(t, "<nil>", child.result)
	child.close(t)
	left, err := Leftovers(shm)
	require.NoError(t, err)
	require.Len(t, left, 2, "what the directory did not have back is freed")
}

// Memory of a version that recorded no owner is not adopted: it may be a copy's. It is freed unless a process has it.
func TestMemoryOfEarlierVersion(t *testing.T) {
	one, _, shm := identDirs(t)
	startIdent(t, one, shm, "value", nil).close(t)
	require.NoError(t, os.Remove(filepath.Join(one, claimFile)))
	segments, err := filepath.Glob(filepath.Join(shm, "*", "segment"))
	require.NoError(t, err)
	require.Len(t, segments, 1)
	patch(t, segments[0], func(p []byte) {
		clear(p[120:4088])
		p[8] = 1
		sealBlock(p)
	})
	held, err := os.OpenFile(segments[0], os.O_RDWR, 0)
	require.NoError(t, err)
	c := startIdent(t, one, shm, "", nil)
	require.Equal(t, "<nil>", c.result)
	c.kill(t)
	require.FileExists(t, segments[0], "a process has it open")
	require.NoError(t, held.Close())
	require.NoError(t, os.Remove(filepath.Join(one, claimFile)))
	c = startIdent(t, one, shm, "", nil)
	require.Equal(t, "<nil>", c.result)
	c.close(t)
	all, err := Leftovers(shm)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, LeftoverKept, all[0].State)
}

// The lock of a directory survives what other code of the process does with its files.
func TestStillLocked(t *testing.T) {
	one, _, shm := identDirs(t)
	s, err := Open(context.Background(), Options{Dir: one, ShmDir: shm, MemoryBytes: MinMemoryBytes})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	refused := func() {
		t.Helper()
		c := startIdent(t, one, shm, "", nil)
		require.Contains(t, c.result, fmt.Sprint("process ", os.Getpid()))
		c.close(t)
	}
	refused()
	require.NoError(t, filepath.Walk(one, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			_, err = os.ReadFile(path)
		}
		return err
	}))
	refused()
	require.NoError(t, os.Remove(filepath.Join(one, "LOCK")))
	refused()
}

// A crash loop with a new directory each time does not fill the machine.
func TestCrashLoop(t *testing.T) {
	_, _, shm := identDirs(t)
	parent := t.TempDir()
	kept := filepath.Join(parent, "kept")
	startIdent(t, kept, shm, "value", nil).close(t)
	for i := range 4 {
		dir := filepath.Join(parent, fmt.Sprint("run", i))
		c := startIdent(t, dir, shm, "x", nil)
		require.Equal(t, "x <nil>", c.result)
		left, err := Leftovers(shm)
		require.NoError(t, err)
		require.Len(t, left, 2, "that of this round and the one that is kept")
		c.kill(t)
		require.NoError(t, os.RemoveAll(dir))
	}
	left, err := Leftovers(shm)
	require.NoError(t, err)
	states := map[LeftoverState]int{}
	for _, l := range left {
		states[l.State]++
		require.Positive(t, l.Bytes)
		require.Positive(t, l.PID)
		require.Equal(t, parent, filepath.Dir(l.Dir))
	}
	require.Equal(t, map[LeftoverState]int{LeftoverKept: 1, LeftoverAbandoned: 1}, states)
	freed, err := FreeLeftovers(shm)
	require.NoError(t, err)
	require.Len(t, freed, 1)
	c := startIdent(t, kept, shm, "", nil)
	require.Equal(t, "value <nil>", c.result)
	left, err = Leftovers(shm)
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, LeftoverInUse, left[0].State)
	freed, err = FreeLeftovers(shm, left[0].Path)
	require.NoError(t, err)
	require.Empty(t, freed)
	c.close(t)
}

// What another mount namespace left, or a directory on a file system that is not mounted, is not decided here.
func TestUndecided(t *testing.T) {
	var st unix.Stat_t
	require.NoError(t, unix.Stat("/", &st))
	gone := arena.Owner{Dev: st.Dev, Ino: 1 << 60, MountSpace: mountSpace(), Path: "/no/such/directory"}
	found := func(o arena.Owner) *arena.Found {
		return &arena.Found{Known: true, Owned: true, Owner: o, BootID: "b"}
	}
	require.Equal(t, LeftoverAbandoned, stateOf("x", found(gone), "b"))
	require.Equal(t, LeftoverAbandoned, stateOf("x", found(gone), "next boot"))
	o := gone
	o.MountSpace++
	require.Equal(t, LeftoverUnknown, stateOf("x", found(o), "b"))
	o = gone
	o.Dev++
	require.Equal(t, LeftoverUnknown, stateOf("x", found(o), "b"), "its file system is not mounted there")
	o = gone
	o.Path = ""
	require.Equal(t, LeftoverUnknown, stateOf("x", found(o), "b"))
	f := found(gone)
	f.InUse = true
	require.Equal(t, LeftoverInUse, stateOf("x", f, "next boot"))
}

// Shared memory that is deleted while the store is open: it goes on, files are made again, Close tells.
func TestSharedMemoryEmptied(t *testing.T) {
	ctx := context.Background()
	opts := testOptions(t, Options{Dir: t.TempDir(), MemoryBytes: 32 << 20})
	for _, what := range []string{"all of it", "its directory", "its files"} {
		t.Run(what, func(t *testing.T) {
			s, err := Open(ctx, opts)
			require.NoError(t, err)
			require.NoError(t, s.Upsert(ctx, "k", random(3000), nil))
			require.NoError(t, s.Upsert(ctx, "own", random(2<<20), &PutOptions{OwnFile: true}))
			homes, err := filepath.Glob(filepath.Join(opts.ShmDir, homePrefix+"*"))
			require.NoError(t, err)
			require.Len(t, homes, 1)
			switch what {
			case "all of it":
				crashEmptyDir(t, opts.ShmDir)
			case "its directory":
				require.NoError(t, os.RemoveAll(homes[0]))
			case "its files":
				require.NoError(t, os.RemoveAll(filepath.Join(homes[0], "files")))
			}
			requireBytes(t, s, "k", random(3000))
			require.NoError(t, s.Upsert(ctx, "later", random(4000), nil))
			requireBytes(t, s, "later", random(4000))
			requireBytes(t, s, "own", random(2<<20))
			for range 2 {
				f, err := s.File(ctx, "own", nil)
				require.NoError(t, err)
				got, err := os.ReadFile(f.Path())
				require.NoError(t, err)
				require.True(t, bytes.Equal(random(2<<20), got))
				require.NoError(t, f.Close())
			}
			err = s.Close()
			if what == "its files" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, "was deleted while the store was open")
			}
			s, err = Open(ctx, opts)
			require.NoError(t, err)
			_, err = s.Get(ctx, "k", nil)
			if what == "its files" {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, ErrNotFound)
			}
			require.NoError(t, s.Close())
		})
	}
}

// What another user puts where the memory shall go is avoided and left as it is.
func TestHostileUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be two users")
	}
	one, _, shm := identDirs(t)
	require.NoError(t, os.Chmod(shm, os.ModeSticky|0o777))
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	startIdent(t, one, shm, "value", nil).close(t)
	homes, err := filepath.Glob(filepath.Join(shm, homePrefix+"*"))
	require.NoError(t, err)
	require.Len(t, homes, 1)
	for name, plant := range map[string]func(){
		"directory": func() {
			require.NoError(t, os.Mkdir(homes[0], 0o777))
			require.NoError(t, os.Mkdir(filepath.Join(homes[0], "files"), 0o777))
			require.NoError(t, os.Symlink(secret, filepath.Join(homes[0], "segment")))
			require.NoError(t, os.Lchown(homes[0], 65534, 65534))
		},
		"link to a directory": func() {
			require.NoError(t, os.Symlink(t.TempDir(), homes[0]))
			require.NoError(t, os.Lchown(homes[0], 65534, 65534))
		},
		"file": func() {
			require.NoError(t, os.WriteFile(homes[0], nil, 0o666))
			require.NoError(t, os.Lchown(homes[0], 65534, 65534))
		},
	} {
		require.NoError(t, os.RemoveAll(homes[0]))
		plant()
		for range 2 {
			c := startIdent(t, one, shm, "", nil)
			require.NotContains(t, c.result, "permission", name)
			require.NotContains(t, c.result, "open store", name)
			c.close(t)
		}
		_, err := os.Lstat(homes[0])
		require.NoError(t, err, "%s: it is left to its user", name)
		info, err := os.Stat(secret)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), name)
	}
}

// A user who swaps directory and links as fast as he can never gets a file of ours or of root.
func TestHostileSwap(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be two users")
	}
	one, _, shm := identDirs(t)
	require.NoError(t, os.Chmod(shm, os.ModeSticky|0o777))
	startIdent(t, one, shm, "value", nil).close(t)
	secrets, err := os.MkdirTemp("/dev/shm", "mooncake-secret-")
	require.NoError(t, err)
	defer os.RemoveAll(secrets)
	secret := filepath.Join(secrets, "0000000000000001.obj")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	homes, err := filepath.Glob(filepath.Join(shm, homePrefix+"*"))
	require.NoError(t, err)
	attacker := exec.Command("sh", "-c", `
while :; do
  mkdir "$0" && mkdir "$0/files"; ln -s "$1/0000000000000001.obj" "$0/segment"
  for i in 1 2 3 4; do ln -s "$1/0000000000000001.obj" "$0/files/000000000000000$i.obj"; done
  rm -rf "$0"; ln -s "$1" "$0"; rm -f "$0"
done 2>/dev/null`, homes[0], secrets)
	attacker.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, Setpgid: true}
	require.NoError(t, attacker.Start())
	defer func() {
		_ = syscall.Kill(-attacker.Process.Pid, syscall.SIGKILL)
		_ = attacker.Wait()
	}()
	ctx := context.Background()
	for i := range 30 {
		_ = os.RemoveAll(homes[0]) // what the gap between remove and make was
		s, err := Open(ctx, Options{Dir: one, ShmDir: shm, MemoryBytes: MinMemoryBytes})
		require.NoError(t, err)
		require.NoError(t, s.Upsert(ctx, "k", random(3000+i), nil))
		require.NoError(t, s.Upsert(ctx, "own", random(1<<20), nil))
		f, err := s.File(ctx, "own", nil)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.NoError(t, s.Close())
		info, err := os.Stat(secret)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		require.Equal(t, int64(6), info.Size())
	}
}

// A tmpfs in which others may rename our directory is refused by name.
func TestNoStickyBit(t *testing.T) {
	one, _, shm := identDirs(t)
	require.NoError(t, os.Chmod(shm, 0o777))
	c := startIdent(t, one, shm, "", nil)
	require.Contains(t, c.result, "without the sticky bit")
	c.close(t)
}

func TestClaimFile(t *testing.T) {
	handle, err := os.Open(t.TempDir())
	require.NoError(t, err)
	defer handle.Close()
	dir := int(handle.Fd())
	_, ok, err := readClaim(dir)
	require.NoError(t, err)
	require.False(t, ok)
	want := claim{name: newEpoch(), has: newEpoch(), next: newEpoch()}
	require.NoError(t, writeClaim(dir, &want))
	got, ok, err := readClaim(dir)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, want, got)
	require.Equal(t, homePrefix+hex.EncodeToString(want.name[:]), got.home())
	whole := want.encode()
	path := filepath.Join(handle.Name(), claimFile)
	for i := range whole {
		for _, bad := range [][]byte{whole[:i], append([]byte{}, whole...)} {
			if len(bad) == len(whole) {
				bad[i] ^= 1
			}
			require.NoError(t, os.WriteFile(path, bad, 0o600))
			_, ok, err := readClaim(dir)
			require.NoError(t, err)
			require.False(t, ok)
		}
	}
	require.NoError(t, dropClaim(dir))
	require.NoError(t, dropClaim(dir))
}
