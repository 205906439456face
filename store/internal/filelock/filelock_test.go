package filelock

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func opener(path string) func() (int, error) {
	return func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) }
}

func newFile(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	return path
}

func TestHeld(t *testing.T) {
	path := newFile(t)
	l, err := Take(opener(path))
	require.NoError(t, err)
	_, err = Take(opener(path))
	require.ErrorIs(t, err, ErrHeld)

	// What other code of the process does with the file does not drop the lock.
	_, err = os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
	require.NoError(t, os.Rename(path, path+".moved"))
	_, err = Take(opener(path + ".moved"))
	require.ErrorIs(t, err, ErrHeld)

	require.NoError(t, l.Release())
	require.ErrorIs(t, l.Release(), os.ErrClosed)
	l, err = Take(opener(path + ".moved"))
	require.NoError(t, err)
	require.NoError(t, l.Release())
}

// TestForkDoesNotInherit forks a real child without exec, in Python, that outlives its parent.
func TestForkDoesNotInherit(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3, whose os.fork runs no exec")
	}
	path := newFile(t)
	// The same system calls as Take's: flock, mmap, madvise(MADV_DONTFORK), close. Python maps with PROT_READ.
	cmd := exec.Command(python, "-c", `
import fcntl, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
os.ftruncate(fd, 4096)
fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
libc = __import__("ctypes").CDLL(None, use_errno=True)
libc.mmap.restype = __import__("ctypes").c_void_p
libc.mmap.argtypes = [__import__("ctypes").c_void_p, __import__("ctypes").c_size_t] + [__import__("ctypes").c_int] * 3 + [__import__("ctypes").c_long]
libc.madvise.argtypes = [__import__("ctypes").c_void_p, __import__("ctypes").c_size_t, __import__("ctypes").c_int]
p = libc.mmap(None, 4096, 0, mmap.MAP_SHARED, fd, 0)
assert libc.madvise(p, 4096, 10) == 0  # MADV_DONTFORK
os.close(fd)
held = os.open(sys.argv[1], os.O_RDONLY)
try:
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    sys.exit("the lock fell with the descriptor")
except BlockingIOError:
    pass
if os.fork() == 0:
    os.close(1); os.close(2)
    sys.stdin.read()  # until the test ends it
    os._exit(0)
os._exit(0)
`, path)
	in, child, err := os.Pipe()
	require.NoError(t, err)
	defer child.Close() // which ends the child
	cmd.Stdin = in
	out, err := cmd.Output()
	_ = in.Close()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		t.Fatalf("%v: %s%s", err, out, failed.Stderr)
	}
	require.NoError(t, err)
	l, err := Take(opener(path))
	require.NoError(t, err, "a forked child holds the lock of its dead parent")
	require.NoError(t, l.Release())
}
