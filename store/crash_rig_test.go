package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/catalog/catalogtest"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd/ssdtest"
)

// crashRig is a machine whose power can fail: a disk that drops what was not synced, and shared memory that only a
// kill survives.
type crashRig struct {
	t     testing.TB
	opts  Options
	fs    *ssdtest.FaultFS
	disk  *catalogtest.Disk
	boots int
	power *powerFS
	gate  atomic.Pointer[applyGate]
	cut   atomic.Pointer[applyCut]
	s     *Store
}

func newCrashRig(t testing.TB, opts Options) *crashRig {
	t.Helper()
	if opts.MemoryBytes == 0 {
		opts.MemoryBytes = MinMemoryBytes
	}
	opts.Dir, opts.ShmDir = t.TempDir(), crashShmDir(t)
	r := &crashRig{t: t, opts: opts, fs: new(ssdtest.FaultFS), disk: new(catalogtest.Disk)}
	t.Cleanup(func() {
		if r.s != nil {
			require.NoError(t, r.s.Close())
		}
	})
	return r
}

// crashShmDir is a directory on tmpfs that goes with the test.
func crashShmDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "mooncake-crash-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (r *crashRig) seams() seams {
	r.power = &powerFS{FS: r.fs}
	return seams{
		fs:     r.power,
		bootID: fmt.Sprintf("boot-%d", r.boots),
		ssd:    ssd.Options{ContainerBytes: 1 << 20, BatchBytes: 256 << 10, OwnWriters: 2, ReadaheadBytes: -1},
		catalog: func(string) (catalog.Catalog, error) {
			c, err := r.disk.Open()
			if err != nil {
				return nil, err
			}
			return gatedCatalog{c, r}, nil
		},
	}
}

func (r *crashRig) open() (err error) {
	r.s, err = openWith(context.Background(), r.opts, r.seams())
	return err
}

// boot opens the store.
func (r *crashRig) boot() *Store {
	r.t.Helper()
	require.NoError(r.t, r.open())
	return r.s
}

// kill is kill -9: what the process had handed to the kernel survives, shared memory too.
func (r *crashRig) kill() {
	r.power.off.Store(true)
	r.disk.Kill()
	_ = r.s.Close()
	r.s = nil
}

// powerFails loses what was not synced: all of it, or with a generator a random part.
func (r *crashRig) powerFails(rng *rand.Rand) {
	r.t.Helper()
	keep := 0
	if rng != nil {
		keep = rng.IntN(r.disk.Unsynced() + 1)
	}
	r.power.off.Store(true)
	r.fs.Crash(rng)
	r.disk.Crash(keep)
	_ = r.s.Close()
	r.s = nil
	r.loseMemory()
}

// loseMemory is what a reboot does to shared memory.
func (r *crashRig) loseMemory() {
	r.t.Helper()
	r.boots++
	left, err := filepath.Glob(filepath.Join(r.opts.ShmDir, "*"))
	require.NoError(r.t, err)
	for _, name := range left {
		require.NoError(r.t, os.RemoveAll(name))
	}
}

// reboot is a power failure and a start.
func (r *crashRig) reboot() *Store {
	r.t.Helper()
	r.powerFails(nil)
	return r.boot()
}

// powerFS is a file layer that a dead process can't reach any more.
type powerFS struct {
	ssd.FS
	off atomic.Bool
}

func (p *powerFS) OpenFile(name string, flag int, perm fs.FileMode) (ssd.File, error) {
	if p.off.Load() {
		return nil, syscall.EIO
	}
	f, err := p.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &powerFile{f, p}, nil
}

func (p *powerFS) Remove(name string) error {
	if p.off.Load() {
		return syscall.EIO
	}
	return p.FS.Remove(name)
}

func (p *powerFS) Rename(from, to string) error {
	if p.off.Load() {
		return syscall.EIO
	}
	return p.FS.Rename(from, to)
}

func (p *powerFS) SyncDir(dir string) error {
	if p.off.Load() {
		return syscall.EIO
	}
	return p.FS.SyncDir(dir)
}

type powerFile struct {
	ssd.File
	p *powerFS
}

func (f *powerFile) WriteAt(b []byte, off int64) (int, error) {
	if f.p.off.Load() {
		return 0, syscall.EIO
	}
	return f.File.WriteAt(b, off)
}

func (f *powerFile) Truncate(size int64) error {
	if f.p.off.Load() {
		return syscall.EIO
	}
	return f.File.Truncate(size)
}

func (f *powerFile) PunchHole(off, n int64) error {
	if f.p.off.Load() {
		return syscall.EIO
	}
	return f.File.PunchHole(off, n)
}

// applyGate stops one Apply that has changes, before it does anything.
type applyGate struct {
	after            atomic.Int32 // how many pass before
	arrived, release chan struct{}
}

// holdApply arms a gate for the next Apply.
func (r *crashRig) holdApply() *applyGate { return r.holdApplyAfter(0) }

func (r *crashRig) holdApplyAfter(n int32) *applyGate {
	g := &applyGate{arrived: make(chan struct{}), release: make(chan struct{})}
	g.after.Store(n)
	r.gate.Store(g)
	return g
}

// applyCut is a machine that ends around a write of the catalogue.
type applyCut struct {
	left  atomic.Int32 // half steps to go: each Apply that has changes is one before and one after
	crash func()
}

func (c *applyCut) step() {
	if c != nil && c.left.Add(-1) == -1 {
		c.crash()
	}
}

// cutAfter lets the machine end after so many half steps: the disks keep what a kill or a power failure leaves, and what
// the process still does reaches none of them.
func (r *crashRig) cutAfter(halfSteps int32, how int) {
	c := &applyCut{crash: func() {
		r.power.off.Store(true)
		if how == crashPower {
			r.fs.Crash(nil)
			r.disk.Crash(0)
		} else {
			r.disk.Kill()
		}
	}}
	c.left.Store(halfSteps)
	r.cut.Store(c)
}

// end is the end of a process that cutAfter may have ended before, and of the shared memory unless it is a kill.
func (r *crashRig) end(how int) {
	r.cut.Store(nil)
	if how == crashPower {
		r.powerFails(nil)
		return
	}
	r.kill()
	if how == crashReboot {
		r.loseMemory()
	}
}

type gatedCatalog struct {
	catalog.Catalog
	r *crashRig
}

func (c gatedCatalog) Apply(b *catalog.Batch, sync bool) error {
	if b.Len() > 0 {
		if g := c.r.gate.Load(); g != nil && g.after.Add(-1) < 0 && c.r.gate.CompareAndSwap(g, nil) {
			close(g.arrived)
			<-g.release
		}
		cut := c.r.cut.Load()
		cut.step()
		defer cut.step()
	}
	return c.Catalog.Apply(b, sync)
}

// wantWhole checks that a key has these bytes.
func wantWhole(t testing.TB, s *Store, key string, want []byte) {
	t.Helper()
	got, err := s.Get(context.Background(), key, &ReadOptions{Verify: VerifyAlways})
	require.NoError(t, err, "Get(%q)", key)
	require.True(t, string(got) == string(want), "Get(%q): %d bytes, not the %d that were put", key, len(got), len(want))
}

// wantAbsent checks that a key is not there.
func wantAbsent(t testing.TB, s *Store, key string) {
	t.Helper()
	got, err := s.Get(context.Background(), key, nil)
	require.ErrorIs(t, err, ErrNotFound, "Get(%q): %d bytes", key, len(got))
}

// wantAbsentOrWhole checks a key that was not promised to be there.
func wantAbsentOrWhole(t testing.TB, s *Store, key string, want []byte) {
	t.Helper()
	if _, err := s.Stat(key); err != nil {
		wantAbsent(t, s, key)
		return
	}
	wantWhole(t, s, key, want)
}

// needRocksDB skips a test of real directories in a build without it.
func needRocksDB(t testing.TB) {
	t.Helper()
	if err := lacksRocksDB(); err != nil {
		t.Skip(err)
	}
}

// lacksRocksDB is the error of a build that has no catalogue on disk.
var lacksRocksDB = sync.OnceValue(func() error {
	dir, err := os.MkdirTemp("", "rocksdb-")
	if err != nil {
		return nil // which the test will stumble over, and say so
	}
	defer func() { _ = os.RemoveAll(dir) }()
	c, err := catalog.Open(dir)
	if errors.Is(err, catalog.ErrUnavailable) {
		return err
	}
	if err == nil {
		_ = c.Close()
	}
	return nil
})
