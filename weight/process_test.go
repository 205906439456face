package weight

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store"
)

// childExec detaches a revision and turns into a shell that runs script, with the directory as $1.
func childExec(dir, script string) error {
	m, s, err := childOpen(dir)
	if err != nil {
		return err
	}
	l, err := m.Load(context.Background(), ref, nil)
	if err != nil {
		return err
	}
	at := l.Dir()
	if _, err := l.Detach(); err != nil {
		return err
	}
	if err := m.Close(); err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	return unix.Exec("/bin/sh", []string{"sh", "-c", script, "sh", at}, os.Environ())
}

// TestEngineWithoutDescriptor starts engines whose launcher closed the lock's descriptor. The revision stays in use until
// they end: told by pid and start time, or by the files that they have open, mapped or work in.
func TestEngineWithoutDescriptor(t *testing.T) {
	python := func(s string) string {
		return `exec python3 -c 'import os,sys,subprocess,mmap
dir=sys.argv[1]
` + s + `' "$1"`
	}
	const closes, says, waits = "os.closerange(3, 256)\n", "print(os.getpid(), flush=True)\n", "sys.stdin.read()\n"
	const fork = "if os.fork(): os._exit(0)\nos.setsid()\n" + closes
	for name, script := range map[string]string{
		"shell":         `exec bash -c 'for fd in /proc/$$/fd/*; do fd=${fd##*/}; [ $fd -gt 2 ] && eval "exec $fd>&-"; done; echo $$; read x'`,
		"closefrom":     python(closes + `os.execvp("sh", ["sh", "-c", "echo $$; read x"])`),
		"close_fds":     python(closes + `p = subprocess.Popen(["cat"], stdin=0, stdout=2, close_fds=True)` + "\n" + says + "p.wait()"),
		"daemon maps":   python(fork + `f = open(dir + "/` + shard1 + `", "rb")` + "\nm = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\nf.close()\n" + says + waits),
		"daemon opens":  python(fork + `f = open(dir + "/` + shard1 + `", "rb")` + "\n" + says + waits),
		"daemon in cwd": python(fork + "os.chdir(dir)\n" + says + waits),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(strings.Fields(script)[1]); err != nil {
				t.Skip(err)
			}
			ctx := context.Background()
			e := newEnv(t, store.Options{Dir: t.TempDir()})
			e.put(mib, 1)
			e.doImport(ref)
			e.close()
			p := start(t, "exec", e.opts.Dir, script)
			pid, err := strconv.Atoi(p.line(t))
			require.NoError(t, err)
			lock := e.m.directoryPath(ref) + lockSuffix
			e.open()
			require.NotContains(t, lockHolders(lock), pid, "it has the lock's descriptor")
			dir := e.m.directoryPath(ref)
			err = e.m.Delete(ctx, ref)
			require.ErrorIs(t, err, ErrInUse)
			require.ErrorContains(t, err, fmt.Sprintf("pid %d", pid))
			l := e.load(ref) // beside it
			require.NoError(t, l.Close())
			e.reopen()
			require.Len(t, files(t, dir), len(e.mustManifest(ref).Files))
			_ = p.stdin.Close()
			require.Eventually(t, func() bool { return e.m.Delete(ctx, ref) == nil }, 20*time.Second, time.Millisecond)
			_ = p.Wait()
			require.NoDirExists(t, dir)
			e.nothing()
		})
	}
}

// TestProcessIdentity tells a process from a later one of the same pid, from one of another boot, and from one of a
// namespace that can't be seen from here.
func TestProcessIdentity(t *testing.T) {
	self, err := thisProcess()
	if err != nil {
		t.Skip(err)
	}
	require.Equal(t, os.Getpid(), self.find())
	for name, change := range map[string]func(*processID){
		"reused pid": func(p *processID) { p.Start-- }, "earlier boot": func(p *processID) { p.Boot = "x" },
		"no such pid": func(p *processID) { p.PID = 1 << 30 }, "other namespace": func(p *processID) { p.Namespace = "pid:[1]" },
	} {
		p := self
		change(&p)
		require.Zero(t, p.find(), name)
	}
	require.Empty(t, lockRecord{Holders: []processID{self}}.living(), "the lock tells of this program")
	self.Program = "an earlier one"
	require.Equal(t, []int{os.Getpid()}, lockRecord{Holders: []processID{self}}.living(), "this program was started by that one")

	c := exec.Command("/bin/true")
	require.NoError(t, c.Start())
	require.Eventually(t, func() bool { return zombie(c.Process.Pid) }, 10*time.Second, time.Millisecond)
	st, ok := statOf(c.Process.Pid)
	require.True(t, ok)
	require.True(t, st.dead, "a zombie has ended")
	require.NoError(t, c.Wait())
}

// TestProcessInOtherNamespace finds a process by the pid that it has in a container below this one.
func TestProcessInOtherNamespace(t *testing.T) {
	c := exec.Command("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
		`echo $$; cut -d' ' -f22 /proc/$$/stat; readlink /proc/self/ns/pid; exec cat`)
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	if err := c.Start(); err != nil {
		t.Skip(err)
	}
	var lines []string
	for scan := bufio.NewScanner(out); len(lines) < 3 && scan.Scan(); {
		lines = append(lines, scan.Text())
	}
	if len(lines) < 3 {
		t.Skip("can't make a pid namespace: ", c.Wait())
	}
	begin, err := strconv.ParseUint(lines[1], 10, 64)
	require.NoError(t, err)
	p := processID{PID: 1, Start: begin, Boot: bootID(), Namespace: lines[2]}
	require.Equal(t, "1", lines[0])
	found := p.find()
	require.NotZero(t, found)
	require.NotEqual(t, 1, found)
	require.NoError(t, in.Close())
	require.NoError(t, c.Wait())
	require.Zero(t, p.find())
}

// TestLockFiles reads what earlier versions and crashes leave in a lock file.
func TestLockFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	f, made, err := openLock(path)
	require.NoError(t, err)
	require.True(t, made)
	defer f.Close()
	require.Equal(t, lockRecord{}, readLock(f))
	for text, want := range map[string]lockRecord{"abc": {Digest: "abc"}, `{"digest":"x"}`: {Digest: "x"}, `{"digest":"x"`: {},
		`{"digest":"x"}rest"}`: {Digest: "x"}} {
		require.NoError(t, os.WriteFile(path+lockSuffix, []byte(text), 0o600))
		require.Equal(t, want, readLock(f), text)
	}
	want := lockRecord{Digest: "d", Holders: []processID{{PID: 3, Start: 4, Boot: "b", Namespace: "n", Program: "p"}}, Readers: []reader{{7, []string{"/a"}}}}
	require.NoError(t, writeLock(f, want))
	require.Equal(t, want, readLockAt(path))
	require.NoError(t, writeLock(f, lockRecord{Digest: "e"}))
	require.Equal(t, lockRecord{Digest: "e"}, readLockAt(path))
}

// TestOldLayout opens what an earlier version left: directories of the form model/revision, with a lock beside each. One
// that its engine uses stays and keeps the revision; the others go.
func TestOldLayout(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.put(mib, 1)
	e.doImport(ref)
	old := func(r Ref) string {
		p := e.m.oldPath(r)
		require.NoError(t, os.MkdirAll(p, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(p, "config.json"), nil, 0o444))
		require.NoError(t, os.WriteFile(p+lockSuffix, []byte("digest"), 0o644))
		return p
	}
	idle, used := old(Ref{"x/y", "2"}), old(ref)
	lock, err := os.Open(used + lockSuffix)
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_SH))
	e.reopen()
	require.NoDirExists(t, filepath.Dir(idle))
	require.DirExists(t, used)
	require.ErrorIs(t, e.m.Delete(ctx, ref), ErrInUse)
	require.NoError(t, e.loadOnce(ref))
	require.DirExists(t, used)
	require.NoError(t, lock.Close())
	require.NoError(t, e.m.Delete(ctx, ref))
	e.reopen()
	e.nothing()

	// A model of an earlier version may have the name that a revision has now.
	e.doImport(ref)
	clash := old(Ref{loadName(ref), "1"})
	lock, err = os.Open(clash + lockSuffix)
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_SH))
	_, err = e.m.Load(ctx, ref, nil)
	require.ErrorIs(t, err, ErrInUse)
	require.FileExists(t, filepath.Join(clash, "config.json"))
	require.NoError(t, lock.Close())
	e.reopen()
	require.NoError(t, e.loadOnce(ref))
}
