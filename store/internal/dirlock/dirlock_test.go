package dirlock

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const childDir = "MOONCAKE_DIRLOCK_TEST_DIR" // set in a child: the directory it shall lock

const childInherits = "MOONCAKE_DIRLOCK_TEST_INHERITS" // set in a child: it starts one that inherits its descriptors

// TestMain lets the test binary be the other process: it says what came of Acquire, and holds on until its input ends.
func TestMain(m *testing.M) {
	dir := os.Getenv(childDir)
	if dir == "" {
		os.Exit(m.Run())
	}
	l, err := Acquire(dir)
	if l != nil && os.Getenv(childInherits) != "" {
		// What a forked child has of its parent: the descriptors, not the mappings.
		heir := exec.Command("cat")
		heir.Stdin, heir.ExtraFiles = os.Stdin, []*os.File{l.handle, l.file}
		if err := heir.Start(); err != nil {
			panic(err)
		}
	}
	fmt.Println("result:", err)
	_, _ = io.Copy(io.Discard, os.Stdin)
	if l != nil {
		_ = l.Release()
	}
}

type child struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	result string
}

func start(t *testing.T, dir string, attr *syscall.SysProcAttr) *child {
	t.Helper()
	c := &child{cmd: exec.Command("/proc/self/exe")}
	c.cmd.Env = append(os.Environ(), childDir+"="+dir)
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

func TestOtherProcess(t *testing.T) {
	dir := t.TempDir()
	c := start(t, dir, nil)
	require.Equal(t, "<nil>", c.result)
	_, err := Acquire(dir)
	require.ErrorIs(t, err, ErrHeld)
	require.ErrorContains(t, err, fmt.Sprintf("held by process %d", c.cmd.Process.Pid))

	require.NoError(t, c.stdin.Close())
	require.NoError(t, c.cmd.Wait())
	l, err := Acquire(dir)
	require.NoError(t, err)
	c = start(t, dir, nil)
	require.Contains(t, c.result, fmt.Sprintf("held by process %d", os.Getpid()))
	require.NoError(t, c.stdin.Close())
	require.NoError(t, c.cmd.Wait())
	require.NoError(t, l.Release())
}

func TestKilledProcessLetsGo(t *testing.T) {
	dir := t.TempDir()
	c := start(t, dir, nil)
	require.Equal(t, "<nil>", c.result)
	require.NoError(t, c.cmd.Process.Kill())
	require.Error(t, c.cmd.Wait())
	l, err := Acquire(dir)
	require.NoError(t, err)
	require.NoError(t, l.Release())
}

func TestSameProcess(t *testing.T) {
	dir := t.TempDir()
	l, err := Acquire(dir)
	require.NoError(t, err)
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	for _, path := range []string{dir, dir + "/.", link} {
		_, err = Acquire(path)
		require.ErrorIs(t, err, ErrHeld)
		require.ErrorContains(t, err, "this process")
	}
	// The failed tries have not dropped the lock.
	c := start(t, dir, nil)
	require.Contains(t, c.result, "held by process")
	require.NoError(t, c.stdin.Close())
	require.NoError(t, c.cmd.Wait())

	require.NoError(t, l.Release())
	require.ErrorIs(t, l.Release(), os.ErrClosed)
	l, err = Acquire(link)
	require.NoError(t, err)
	other, err := Acquire(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, other.Release())
	require.NoError(t, l.Release())
}

func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	_, err := Acquire(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.Symlink("/dev/null", filepath.Join(dir, fileName)))
	_, err = Acquire(dir)
	require.ErrorIs(t, err, unix.ELOOP)
}

// TestReadOnlyDirectory runs as another user when it is root, for whom no directory is read-only.
func TestReadOnlyDirectory(t *testing.T) {
	dir, err := os.MkdirTemp("", "dirlock") // below nothing that only its owner may enter
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o555))
	if os.Geteuid() != 0 {
		_, err := Acquire(dir)
		require.ErrorContains(t, err, "read-only")
		return
	}
	c := start(t, dir, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}})
	require.Contains(t, c.result, "read-only")
	require.NoError(t, c.stdin.Close())
	require.NoError(t, c.cmd.Wait())
}

func TestReadOnlyFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, "size=1m"); err != nil {
		t.Skipf("mount: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	_, err := Acquire(dir)
	require.ErrorIs(t, err, unix.EROFS)
	require.ErrorContains(t, err, "read-only")
}

func TestConcurrent(t *testing.T) {
	dir := t.TempDir()
	var holders, won atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				l, err := Acquire(dir)
				if err != nil {
					continue
				}
				if holders.Add(1) != 1 {
					panic("two holders")
				}
				won.Add(1)
				holders.Add(-1)
				if err := l.Release(); err != nil {
					panic(err)
				}
			}
		})
	}
	wg.Wait()
	require.Positive(t, won.Load())
}

// TestOtherCodeOpensFiles does in the process of the holder what a backup or a scanner does, and worse.
func TestOtherCodeOpensFiles(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "a")
	require.NoError(t, os.Mkdir(dir, 0o700))
	l, err := Acquire(dir)
	require.NoError(t, err)
	refused := func(dir string) {
		t.Helper()
		c := start(t, dir, nil)
		require.Contains(t, c.result, fmt.Sprintf("held by process %d", os.Getpid()))
		require.NoError(t, c.stdin.Close())
		require.NoError(t, c.cmd.Wait())
	}
	_, err = os.ReadFile(filepath.Join(dir, fileName))
	require.NoError(t, err)
	refused(dir)
	handle, err := os.Open(dir)
	require.NoError(t, err)
	require.NoError(t, handle.Close())
	refused(dir)
	require.NoError(t, os.Rename(filepath.Join(dir, fileName), filepath.Join(dir, "moved")))
	refused(dir)
	require.NoFileExists(t, filepath.Join(dir, fileName), "a directory that is taken is not given a new lock file")
	require.NoError(t, os.WriteFile(filepath.Join(dir, fileName), nil, 0o600))
	refused(dir)
	text, err := os.ReadFile(filepath.Join(dir, "moved"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, fileName), text, 0o600))
	refused(dir) // a copy of the lock file proves nothing
	require.NoError(t, os.Rename(dir, filepath.Join(parent, "b")))
	refused(filepath.Join(parent, "b"))
	_, err = Acquire(filepath.Join(parent, "b"))
	require.ErrorIs(t, err, ErrHeld)
	require.NoError(t, l.Release())
	l, err = Acquire(filepath.Join(parent, "b"))
	require.NoError(t, err)
	require.NoError(t, l.Release())
}

// TestForkedChildOutlivesHolder kills a holder whose descriptors live on in a child.
func TestForkedChildOutlivesHolder(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(childInherits, "1")
	c := start(t, dir, nil)
	require.NoError(t, os.Unsetenv(childInherits))
	require.Equal(t, "<nil>", c.result)
	_, err := Acquire(dir)
	require.ErrorIs(t, err, ErrHeld)
	require.NoError(t, c.cmd.Process.Kill())
	_, err = c.cmd.Process.Wait()
	require.NoError(t, err)
	// c.stdin is still open: the heir lives.
	handle, err := os.Open(dir)
	require.NoError(t, err)
	require.ErrorIs(t, unix.Flock(int(handle.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
	require.NoError(t, handle.Close())
	l, err := Acquire(dir)
	require.NoError(t, err)
	other := start(t, dir, nil)
	require.Contains(t, other.result, fmt.Sprintf("held by process %d", os.Getpid()))
	require.NoError(t, other.stdin.Close())
	require.NoError(t, l.Release())
	require.NoError(t, c.stdin.Close())
}

// TestEarlierVersions checks that the record lock of an earlier version keeps us out, and ours keeps it out.
func TestEarlierVersions(t *testing.T) {
	dir := t.TempDir()
	l, err := Acquire(dir)
	require.NoError(t, err)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3 as the other process")
	}
	const script = `
import fcntl, sys
f = open(sys.argv[1], "r+")
try:
    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("locked", flush=True)
    sys.stdin.read()
except OSError:
    print("refused", flush=True)
`
	out, err := exec.Command(python, "-c", script, l.path).Output()
	require.NoError(t, err)
	require.Equal(t, "refused\n", string(out))
	require.NoError(t, l.Release())
	cmd := exec.Command(python, "-c", script, l.path)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "locked\n", line)
	_, err = Acquire(dir)
	require.ErrorIs(t, err, ErrHeld)
	require.ErrorContains(t, err, fmt.Sprintf("held by process %d", cmd.Process.Pid))
	require.NoError(t, stdin.Close())
	require.NoError(t, cmd.Wait())
	l, err = Acquire(dir)
	require.NoError(t, err)
	require.NoError(t, l.Release())
}
