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

// TestMain lets the test binary be the other process: it says what came of Acquire, and holds on until its input ends.
func TestMain(m *testing.M) {
	dir := os.Getenv(childDir)
	if dir == "" {
		os.Exit(m.Run())
	}
	l, err := Acquire(dir)
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
