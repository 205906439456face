package weight

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store"
)

func inode(t testing.TB, path string) (dev, ino, links uint64) {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st), path)
	return st.Dev, st.Ino, uint64(st.Nlink)
}

func (e *env) load(r Ref) *Loaded {
	e.t.Helper()
	l, err := e.m.Load(context.Background(), r, nil)
	require.NoError(e.t, err)
	return l
}

// TestLoadLinks makes sure that a load copies nothing: the directory's files are the store's.
func TestLoadLinks(t *testing.T) {
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.put(2*mib, 1)
	e.doImport(ref)
	stored := map[uint64]bool{}
	for _, f := range ownFiles(t, e.opts.Dir) {
		_, ino, _ := inode(t, filepath.Join(e.opts.Dir, "ssd", f))
		stored[ino] = true
	}
	require.Len(t, stored, 2)
	served := e.bytesServed()
	l := e.load(ref)
	require.Less(t, e.bytesServed()-served, int64(4096), "bytes read from the store")
	for _, name := range []string{shard1, shard2} {
		_, ino, links := inode(t, filepath.Join(l.Dir(), name))
		require.True(t, stored[ino], "%s is not the store's file", name)
		require.Equal(t, uint64(2), links)
		info, err := os.Lstat(filepath.Join(l.Dir(), name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o400), info.Mode())
	}
	require.Equal(t, l.Manifest().Files, e.mustManifest(ref).Files)
	dir := l.Dir()
	require.Equal(t, filepath.Join(e.opts.Dir, "loads", "org--model--1"), dir)
	require.NoError(t, l.Close())
	require.ErrorIs(t, l.Close(), ErrClosed)
	require.NoDirExists(t, dir)
	require.Empty(t, files(t, e.m.loadRoot))

	for range 3 { // the path is the same for every load, also of another process
		e.reopen()
		l = e.load(ref)
		require.Equal(t, dir, l.Dir())
		require.NoError(t, l.Close())
	}
	e.deepOK(ref)
}

func (e *env) mustManifest(r Ref) *Manifest {
	e.t.Helper()
	m, err := e.m.Manifest(context.Background(), r)
	require.NoError(e.t, err)
	return m
}

// TestLoadsShare gives two loads one directory, which goes with the last.
func TestLoadsShare(t *testing.T) {
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.put(2*mib, 1)
	e.doImport(ref)
	a, b := e.load(ref), e.load(ref)
	require.Equal(t, a.Dir(), b.Dir())
	require.NoError(t, a.Close())
	require.DirExists(t, b.Dir())
	c := e.load(ref)
	require.NoError(t, b.Close())
	require.DirExists(t, c.Dir())
	require.NoError(t, c.Close())
	require.NoDirExists(t, c.Dir())
}

// TestManyLoads loads, lists, checks and closes from many goroutines: every load sees a whole directory.
func TestManyLoads(t *testing.T) {
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.put(mib, 1)
	e.doImport(ref)
	two := Ref{ref.ModelID, "2"}
	e.doImport(two)
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			for range 8 {
				if err := e.loadOnce([]Ref{ref, two}[i%2]); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Go(func() {
		for range 50 {
			if _, err := e.m.List(context.Background(), ""); err != nil {
				t.Error(err)
			}
		}
	})
	all.Wait()
	require.Empty(t, files(t, e.m.loadRoot))
	e.deepOK(ref)
}

func (e *env) loadOnce(r Ref) error {
	l, err := e.m.Load(context.Background(), r, nil)
	if err != nil {
		return err
	}
	for _, f := range l.Manifest().Files {
		if st, err := os.Stat(filepath.Join(l.Dir(), f.Name)); err != nil || st.Size() != f.Size {
			_ = l.Close()
			return fmt.Errorf("file %s of an open load: %v", f.Name, err)
		}
	}
	return l.Close()
}

// TestLoadCancelled cancels the load that makes the directory while another waits for it.
func TestLoadCancelled(t *testing.T) {
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.put(mib, 1)
	e.doImport(ref)
	for range 50 {
		ctx, cancel := context.WithCancel(context.Background())
		var both sync.WaitGroup
		both.Go(func() {
			if l, err := e.m.Load(ctx, ref, nil); err == nil {
				_ = l.Close()
			}
		})
		both.Go(func() {
			l, err := e.m.Load(context.Background(), ref, nil)
			if err != nil {
				t.Errorf("the load that was not cancelled: %v", err)
				return
			}
			_ = l.Close()
		})
		cancel()
		both.Wait()
	}
	require.Empty(t, files(t, e.m.loadRoot))
}

func TestLoadOfNothing(t *testing.T) {
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	_, err := e.m.Load(context.Background(), ref, nil)
	require.ErrorIs(t, err, ErrNotFound)
	require.ErrorContains(t, err, ref.String())
	_, err = e.m.Load(context.Background(), Ref{"a/../b", "1"}, nil)
	require.ErrorIs(t, err, ErrInvalid)
	e.nothing()
}

// TestDeleteWhileLoaded refuses, naming who.
func TestDeleteWhileLoaded(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.put(mib, 1)
	e.doImport(ref)
	l := e.load(ref)
	err := e.m.Delete(ctx, ref)
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, fmt.Sprintf("pid %d", os.Getpid()))
	list, err := e.m.List(ctx, "")
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), list[0].InUse[0].PID)
	e.deepOK(ref)
	require.NoError(t, l.Close())
	require.NoError(t, e.m.Delete(ctx, ref))
	e.nothing()
}

// TestDeleteAgainstLoads lets deletions and loads race: a load is whole or fails, never half.
func TestDeleteAgainstLoads(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.put(mib, 1)
	for range 12 {
		e.doImport(ref)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				l, err := e.m.Load(ctx, ref, nil)
				if err != nil {
					return
				}
				for _, f := range l.Manifest().Files {
					p, err := os.ReadFile(filepath.Join(l.Dir(), f.Name))
					if err != nil || sha(p) != f.SHA256 {
						t.Errorf("%s of an open load: %v", f.Name, err)
					}
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		err := e.m.Delete(ctx, ref)
		if err != nil {
			require.ErrorIs(t, err, ErrInUse)
		}
		all.Wait()
		if err != nil {
			require.NoError(t, e.m.Delete(ctx, ref))
		}
	}
	e.nothing()
}

// TestLoadSurvivesUntilEngineEnds kills a process that has loaded. The next Open keeps the directory while an engine
// lives that inherited LockFile, and removes it otherwise.
func TestLoadSurvivesUntilEngineEnds(t *testing.T) {
	ctx := context.Background()
	for _, inherit := range []bool{true, false} {
		e := newEnv(t, store.Options{Dir: t.TempDir()})
		e.put(mib+mib/2, 1)
		e.mem.Put("empty.json", nil)
		e.doImport(ref)
		e.close()
		p := start(t, "load", e.opts.Dir, map[bool]string{true: "inherit", false: "not"}[inherit])
		pid, dir, _ := strings.Cut(p.line(t), " ")
		engine, err := strconv.Atoi(pid)
		require.NoError(t, err)
		require.DirExists(t, dir)
		p.kill()
		e.open()
		if !inherit {
			require.NoDirExists(t, dir)
			require.Empty(t, files(t, e.m.loadRoot))
			_ = p.stdin.Close()
			continue
		}
		require.DirExists(t, dir)
		err = e.m.Delete(ctx, ref)
		require.ErrorIs(t, err, ErrInUse)
		require.ErrorContains(t, err, "pid "+pid)
		for range 2 { // to load it again, beside the engine, changes nothing
			l := e.load(ref)
			require.Equal(t, dir, l.Dir())
			require.Len(t, files(t, dir), len(e.mustManifest(ref).Files))
			require.NoError(t, l.Close())
			require.DirExists(t, dir)
		}
		e.reopen()
		require.DirExists(t, dir)
		_ = p.stdin.Close() // the engine's too
		require.Eventually(t, func() bool { return syscall.Kill(engine, 0) != nil || zombie(engine) }, 5*time.Second, time.Millisecond)
		require.Eventually(t, func() bool { return e.m.Delete(ctx, ref) == nil }, 5*time.Second, time.Millisecond)
		require.NoDirExists(t, dir)
		e.nothing()
	}
}

func zombie(pid int) bool {
	p, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(p, []byte(") Z "))
}

// TestDetach gives the directory to a child and closes everything here.
func TestDetach(t *testing.T) {
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.put(mib, 1)
	e.doImport(ref)
	l := e.load(ref)
	dir := l.Dir()
	lock, err := l.Detach()
	require.NoError(t, err)
	_, err = l.Detach()
	require.Error(t, err)
	e.reopen()
	require.DirExists(t, dir)
	err = e.m.Delete(context.Background(), ref)
	require.ErrorIs(t, err, ErrInUse)
	require.NoError(t, lock.Close())
	require.NoError(t, e.m.Delete(context.Background(), ref))
	e.nothing()
}

// TestDetachOfMemory refuses: the bytes would go with the process.
func TestDetachOfMemory(t *testing.T) {
	for name, opts := range map[string]store.Options{"memory": {}, "volatile": {Dir: t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, opts)
			e.put(mib, 1)
			q := e.request(ref)
			q.Volatile = true
			_, err := e.m.Import(context.Background(), q)
			require.NoError(t, err)
			l := e.load(ref)
			want := e.mustManifest(ref)
			for _, f := range want.Files {
				require.Equal(t, f.SHA256, sha(read(t, filepath.Join(l.Dir(), f.Name))))
			}
			_, err = l.Detach()
			require.ErrorIs(t, err, ErrInvalid)
			require.NoError(t, l.Close())
		})
	}
}

// TestVerifyThenDetach reads every byte first, which may bring the bytes to memory; the directory must still be good
// for a process that outlives this one.
func TestVerifyThenDetach(t *testing.T) {
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.put(mib, 1)
	e.doImport(ref)
	for range 3 {
		e.deepOK(ref)
	}
	l, err := e.m.Load(context.Background(), ref, &LoadOptions{Verify: true})
	require.NoError(t, err)
	dir := l.Dir()
	lock, err := l.Detach()
	require.NoError(t, err)
	man := e.mustManifest(ref)
	e.close()
	for _, f := range man.Files {
		require.Equal(t, f.SHA256, sha(read(t, filepath.Join(dir, f.Name))))
	}
	require.NoError(t, lock.Close())
	e.open()
}

// TestLoadDirElsewhere links by symbolic link where the file system is another one, also when the store's directory was
// given as a relative path.
func TestLoadDirElsewhere(t *testing.T) {
	shm, err := os.MkdirTemp("/dev/shm", "weight-test-")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(shm) })
	t.Chdir(t.TempDir())
	e := newEnv(t, store.Options{Dir: "store"})
	e.close()
	e.wo.LoadDir = shm
	e.open()
	e.put(mib, 1)
	e.doImport(ref)
	l := e.load(ref)
	require.True(t, strings.HasPrefix(l.Dir(), shm))
	for _, f := range e.mustManifest(ref).Files {
		require.Equal(t, f.SHA256, sha(read(t, filepath.Join(l.Dir(), f.Name))))
	}
	target, err := os.Readlink(filepath.Join(l.Dir(), shard1))
	require.NoError(t, err)
	require.True(t, filepath.IsAbs(target))
	require.NoError(t, l.Close())
	require.Empty(t, files(t, shm))
}

// TestFailedLoadLeavesNothing makes the building of the directory fail in the middle.
func TestFailedLoadLeavesNothing(t *testing.T) {
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.put(mib, 1)
	e.doImport(ref)
	require.NoError(t, os.RemoveAll(e.m.loadRoot))
	require.NoError(t, os.WriteFile(e.m.loadRoot, nil, 0o644))
	_, err := e.m.Load(context.Background(), ref, nil)
	require.Error(t, err)
	require.NoError(t, os.Remove(e.m.loadRoot))
	require.NoError(t, e.loadOnce(ref), "the loads directory is made again")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = e.m.Load(ctx, ref, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, files(t, e.m.loadRoot))
	require.NoError(t, e.m.Delete(context.Background(), ref), "nothing is in use")
}

// TestLeftOverLoads are removed by Open: half-built ones too.
func TestLeftOverLoads(t *testing.T) {
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.put(mib, 1)
	e.doImport(ref)
	path := e.m.directoryPath(ref)
	for _, p := range []string{path, path + buildSuffix, filepath.Join(e.m.loadRoot, "empty")} {
		require.NoError(t, os.MkdirAll(p, 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(path, "x"), nil, 0o444))
	require.NoError(t, os.WriteFile(path+lockSuffix, []byte("half"), 0o644))
	e.reopen()
	require.Empty(t, files(t, e.m.loadRoot))
}

// TestCloseEndsLoads closes the manager while loads are open.
func TestCloseEndsLoads(t *testing.T) {
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.put(mib, 1)
	e.doImport(ref)
	l := e.load(ref)
	require.NoError(t, e.m.Close())
	require.NoDirExists(t, l.Dir())
	require.NoError(t, l.Close())
	require.NoError(t, e.m.Close())
}

// TestOpenClose opens and closes many times with a load in between: no descriptor, no goroutine and no file is left.
func TestOpenClose(t *testing.T) {
	t.Parallel()
	e := newEnv(t, store.Options{Dir: t.TempDir(), MemoryBytes: 16 * mib})
	e.mem.Put("m.safetensors", shard(map[string]int{"t": mib}, 1))
	e.doImport(ref)
	fds := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(list)
	}
	e.reopen()
	before := fds()
	for i := range 100 {
		if i%10 == 0 {
			e.reopen()
		} else {
			require.NoError(t, e.m.Close())
			var err error
			e.m, err = Open(context.Background(), e.s, e.wo)
			require.NoError(t, err)
		}
		require.NoError(t, e.loadOnce(ref))
	}
	require.Eventually(t, func() bool { return fds() <= before+4 }, 5*time.Second, 10*time.Millisecond, "descriptors: %d, now %d", before, fds())
	e.deepOK(ref)
	require.Empty(t, files(t, e.m.loadRoot))
}

// TestOpenThatFailsLeavesNothing opens on a store that is closed.
func TestOpenThatFailsLeavesNothing(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	e := newEnv(t, store.Options{})
	require.NoError(t, e.m.Close())
	require.NoError(t, e.s.Close())
	_, err := Open(context.Background(), e.s, Options{})
	require.ErrorIs(t, err, store.ErrClosed)
	require.Empty(t, files(t, tmp))
}

// TestLoadsOfDeadProcess removes what a process with a store in memory has left in the temporary directory.
func TestLoadsOfDeadProcess(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	old := filepath.Join(tmp, ownRootPrefix+"old")
	require.NoError(t, os.MkdirAll(filepath.Join(old, "m", "1"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(old, "m", "1"+lockSuffix), nil, 0o644))
	long := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(old, long, long))
	e := newEnv(t, store.Options{})
	require.NoDirExists(t, old)
	require.DirExists(t, e.m.loadRoot)
	mine := e.m.loadRoot
	require.NoError(t, os.Chtimes(mine, long, long))
	other := newEnv(t, store.Options{})
	require.DirExists(t, mine, "its process lives")
	require.NoError(t, other.m.Close())
	require.NoError(t, e.m.Close())
	require.Empty(t, files(t, tmp))
}

// TestLoadsAmongForks loads and closes while other goroutines start processes, which for a moment have every lock.
func TestLoadsAmongForks(t *testing.T) {
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.mem.Put("m.safetensors", shard(map[string]int{"t": 100}, 1))
	e.doImport(ref)
	stop := make(chan struct{})
	var forks sync.WaitGroup
	for range 2 {
		forks.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_ = exec.Command("/bin/true").Run()
				}
			}
		})
	}
	for range 200 {
		require.NoError(t, e.loadOnce(ref))
		// A process that was started during Close has the directory for that moment: then the next look takes it away.
		require.Eventually(t, func() bool {
			_, err := e.m.List(t.Context(), "")
			require.NoError(t, err)
			return len(files(t, e.m.loadRoot)) == 0
		}, time.Minute, time.Millisecond)
	}
	close(stop)
	forks.Wait()
}
