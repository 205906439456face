// Package ssdtest has a file layer that fails on request and forgets what was not synced, and the conformance suite of
// file layers.
package ssdtest

import (
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"syscall"

	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
)

const (
	page   = ssd.BlockBytes
	sector = 512
)

// Fault is what happens to an operation. Names of operations are those of the methods of ssd.FS and ssd.File.
type Fault struct {
	At    int    // the how many-th matching operation from now, from 1; 0: none
	Op    string // only operations of this name; "" all
	Err   error
	Short bool // WriteAt writes the first half of the blocks before it fails
	Stay  bool // all later matching operations fail, too
}

// FaultFS is a file layer in memory. It insists on direct I/O's alignment. Safe for concurrent use; the zero value is
// ready.
type FaultFS struct {
	mu       sync.Mutex
	names    map[string]*inode // as seen
	durable  map[string]*inode // as after a crash
	dirs     map[string]bool   // directories survive
	crashes  int
	fault    Fault
	seen     int
	fired    bool
	ops      int
	capacity int64 // 0: unbounded
	sizeless bool  // FreeBytes does not say
	clock    int64
	inos     uint64
}

// inode is a file. Pages are replaced, never changed, so that both maps may share them.
type inode struct {
	ino           uint64
	now, synced   map[int64][]byte
	size, dsize   int64
	mode          fs.FileMode
	mtime         int64
	dirty         map[int64]bool
	reservedPages map[int64]bool
}

// Inject arms f and forgets an earlier one.
func (x *FaultFS) Inject(f Fault) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.fault, x.seen, x.fired = f, 0, false
}

// Fired says whether the fault has happened.
func (x *FaultFS) Fired() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.fired
}

// Ops counts operations.
func (x *FaultFS) Ops() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.ops
}

// HideFree makes FreeBytes say nothing, as file systems do whose statfs(2) is all zero.
func (x *FaultFS) HideFree() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sizeless = true
}

// SetCapacity bounds the bytes that files take; 0 unbounds.
func (x *FaultFS) SetCapacity(n int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.capacity = n
}

// Crash drops what was not synced: names, sizes and data. With a generator, each sector that was not synced and each
// name survives or not at random instead. Open files fail from then on.
func (x *FaultFS) Crash(rng *rand.Rand) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.crashes++
	x.fault = Fault{}
	survives := func() bool { return rng != nil && rng.IntN(2) == 0 }
	names := make(map[string]*inode)
	for name, n := range x.durable {
		if x.names[name] == n || !survives() { // an unlink that was not synced may be undone
			names[name] = n
		}
	}
	for name, n := range x.names {
		if x.durable[name] == nil && survives() {
			names[name] = n
		}
	}
	x.names, x.durable = names, make(map[string]*inode)
	for name, n := range names {
		n.crash(survives)
		x.durable[name] = n
	}
}

func (n *inode) crash(survives func() bool) {
	if survives() {
		n.dsize = n.size
	}
	for p := range n.dirty {
		torn := make([]byte, page)
		copy(torn, n.synced[p])
		for s := 0; s < page; s += sector {
			if survives() {
				clear(torn[s : s+sector])
				if now := n.now[p]; now != nil {
					copy(torn[s:s+sector], now[s:])
				}
			}
		}
		n.synced[p] = torn
	}
	n.dirty, n.reservedPages = make(map[int64]bool), make(map[int64]bool)
	n.size = n.dsize
	n.now = make(map[int64][]byte)
	for p, b := range n.synced {
		if p*page >= n.size {
			delete(n.synced, p)
			continue
		}
		n.now[p] = b
	}
}

// op counts an operation and returns its fault. Called with the lock held, as all below.
func (x *FaultFS) op(name string) (Fault, error) {
	x.ops++
	if x.names == nil {
		x.names, x.durable, x.dirs = make(map[string]*inode), make(map[string]*inode), make(map[string]bool)
	}
	f := x.fault
	if f.At == 0 || f.Op != "" && f.Op != name {
		return Fault{}, nil
	}
	x.seen++
	if x.seen == f.At || f.Stay && x.seen > f.At {
		x.fired = true
		return f, f.Err
	}
	return Fault{}, nil
}

func (x *FaultFS) used() (n int64) {
	for _, f := range x.names {
		n += f.blocks() * sector
	}
	return n
}

func (n *inode) blocks() int64 {
	pages := int64(len(n.now))
	for p := range n.reservedPages {
		if n.now[p] == nil {
			pages++
		}
	}
	return pages * page / sector
}

func pathError(op, name string, err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }

// OpenFile implements ssd.FS.
func (x *FaultFS) OpenFile(name string, flag int, perm fs.FileMode) (ssd.File, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, err := x.op("OpenFile"); err != nil {
		return nil, pathError("open", name, err)
	}
	n := x.names[name]
	switch {
	case n == nil && flag&os.O_CREATE == 0:
		return nil, pathError("open", name, syscall.ENOENT)
	case n != nil && flag&os.O_EXCL != 0:
		return nil, pathError("open", name, syscall.EEXIST)
	case n == nil && !x.dirs[filepath.Dir(name)]:
		return nil, pathError("open", name, syscall.ENOENT)
	case n == nil:
		x.inos++
		n = &inode{
			ino: x.inos, now: make(map[int64][]byte), synced: make(map[int64][]byte), mode: perm,
			dirty: make(map[int64]bool), reservedPages: make(map[int64]bool),
		}
		x.names[name] = n
	case flag&os.O_TRUNC != 0:
		n.truncate(0)
	}
	return &file{x: x, n: n, crashes: x.crashes, readOnly: flag&(os.O_RDWR|os.O_WRONLY) == 0}, nil
}

// ReadDir implements ssd.FS.
func (x *FaultFS) ReadDir(dir string) ([]string, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, err := x.op("ReadDir"); err != nil {
		return nil, pathError("readdir", dir, err)
	}
	if !x.dirs[dir] {
		return nil, pathError("readdir", dir, syscall.ENOENT)
	}
	var names []string
	for name := range x.names {
		if filepath.Dir(name) == dir {
			names = append(names, filepath.Base(name))
		}
	}
	return names, nil
}

// Stat implements ssd.FS.
func (x *FaultFS) Stat(name string) (ssd.Info, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, err := x.op("Stat"); err != nil {
		return ssd.Info{}, pathError("stat", name, err)
	}
	n := x.names[name]
	if n == nil {
		return ssd.Info{}, pathError("stat", name, syscall.ENOENT)
	}
	return ssd.Info{Size: n.size, Blocks: n.blocks(), MtimeNs: n.mtime, Ino: n.ino, Mode: n.mode}, nil
}

// Remove implements ssd.FS.
func (x *FaultFS) Remove(name string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, err := x.op("Remove"); err != nil {
		return pathError("remove", name, err)
	}
	if x.names[name] == nil {
		return pathError("remove", name, syscall.ENOENT)
	}
	delete(x.names, name)
	return nil
}

// Rename implements ssd.FS.
func (x *FaultFS) Rename(from, to string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, err := x.op("Rename"); err != nil {
		return pathError("rename", from, err)
	}
	n := x.names[from]
	if n == nil {
		return pathError("rename", from, syscall.ENOENT)
	}
	delete(x.names, from)
	x.names[to] = n
	return nil
}

// MkdirAll implements ssd.FS.
func (x *FaultFS) MkdirAll(dir string, _ fs.FileMode) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, err := x.op("MkdirAll"); err != nil {
		return pathError("mkdir", dir, err)
	}
	x.dirs[dir] = true
	return nil
}

// SyncDir implements ssd.FS.
func (x *FaultFS) SyncDir(dir string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, err := x.op("SyncDir"); err != nil {
		return pathError("sync", dir, err)
	}
	for name := range x.durable {
		if filepath.Dir(name) == dir && x.names[name] == nil {
			delete(x.durable, name)
		}
	}
	for name, n := range x.names {
		if filepath.Dir(name) == dir {
			x.durable[name] = n
		}
	}
	return nil
}

// FreeBytes implements ssd.FS.
func (x *FaultFS) FreeBytes(dir string) (int64, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, err := x.op("FreeBytes"); err != nil {
		return 0, pathError("statfs", dir, err)
	}
	if x.sizeless {
		return -1, nil
	}
	if x.capacity == 0 {
		return 1 << 40, nil
	}
	return max(0, x.capacity-x.used()), nil
}

// file is an open inode.
type file struct {
	x        *FaultFS
	n        *inode
	crashes  int
	readOnly bool
}

func (f *file) op(name string) (Fault, error) {
	if f.crashes != f.x.crashes {
		return Fault{}, syscall.EBADF
	}
	return f.x.op(name)
}

func direct(p []byte, off int64) bool {
	return off%page == 0 && len(p)%page == 0 && (len(p) == 0 || reflect.ValueOf(&p[0]).Pointer()%page == 0)
}

// ReadAt implements ssd.File.
func (f *file) ReadAt(p []byte, off int64) (int, error) {
	f.x.mu.Lock()
	defer f.x.mu.Unlock()
	if _, err := f.op("ReadAt"); err != nil {
		return 0, err
	}
	if !direct(p, off) {
		return 0, syscall.EINVAL
	}
	n := int(min(int64(len(p)), max(0, f.n.size-off)))
	for at := 0; at < n; at += page {
		b := f.n.now[(off+int64(at))/page]
		if b == nil {
			clear(p[at : at+page])
		}
		copy(p[at:n], b)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements ssd.File.
func (f *file) WriteAt(p []byte, off int64) (int, error) {
	f.x.mu.Lock()
	defer f.x.mu.Unlock()
	fault, err := f.op("WriteAt")
	if err == nil && !direct(p, off) {
		err = syscall.EINVAL
	}
	if err == nil && f.readOnly {
		err = syscall.EBADF
	}
	if err != nil {
		if !fault.Short {
			return 0, err
		}
		p = p[:len(p)/2/page*page]
	}
	used := int64(0)
	if f.x.capacity > 0 {
		used = f.x.used()
	}
	for at := 0; at < len(p); at += page {
		i := (off + int64(at)) / page
		if f.x.capacity > 0 && f.n.now[i] == nil && !f.n.reservedPages[i] {
			if used += page; used > f.x.capacity {
				return at, syscall.ENOSPC
			}
		}
		f.n.now[i] = append([]byte(nil), p[at:at+page]...)
		f.n.dirty[i] = true
		f.n.size = max(f.n.size, (i+1)*page)
	}
	f.x.clock++
	f.n.mtime = f.x.clock
	return len(p), err
}

// Sync implements ssd.File. A failed sync forgets that the pages are dirty, as kernels do: the next succeeds.
func (f *file) Sync() error {
	f.x.mu.Lock()
	defer f.x.mu.Unlock()
	if _, err := f.op("Sync"); err != nil {
		if f.crashes == f.x.crashes {
			f.n.dirty = make(map[int64]bool)
		}
		return err
	}
	for p := range f.n.dirty {
		if b := f.n.now[p]; b != nil {
			f.n.synced[p] = b
		} else {
			delete(f.n.synced, p)
		}
	}
	f.n.dirty = make(map[int64]bool)
	f.n.dsize = f.n.size
	return nil
}

// Truncate implements ssd.File.
func (f *file) Truncate(size int64) error {
	f.x.mu.Lock()
	defer f.x.mu.Unlock()
	if _, err := f.op("Truncate"); err != nil {
		return err
	}
	f.n.truncate(size)
	return nil
}

func (n *inode) truncate(size int64) {
	n.size = size
	for p, b := range n.now {
		if p*page >= size {
			delete(n.now, p)
			n.dirty[p] = true
		} else if end := size - p*page; end < page {
			n.now[p] = append(append([]byte(nil), b[:end]...), make([]byte, page-end)...)
			n.dirty[p] = true
		}
	}
	for p := range n.reservedPages {
		if p*page >= size {
			delete(n.reservedPages, p)
		}
	}
}

// Allocate implements ssd.File.
func (f *file) Allocate(off, n int64) error {
	f.x.mu.Lock()
	defer f.x.mu.Unlock()
	if _, err := f.op("Allocate"); err != nil {
		return err
	}
	if f.x.capacity > 0 && f.x.used()+n > f.x.capacity {
		return syscall.ENOSPC
	}
	f.n.size = max(f.n.size, off+n)
	if f.x.capacity == 0 && n > 1<<24 {
		return nil // nobody would notice
	}
	for p := off / page; p*page < off+n; p++ {
		f.n.reservedPages[p] = true
	}
	return nil
}

// PunchHole implements ssd.File.
func (f *file) PunchHole(off, n int64) error {
	f.x.mu.Lock()
	defer f.x.mu.Unlock()
	if _, err := f.op("PunchHole"); err != nil {
		return err
	}
	for p := off / page; p*page < off+n; p++ {
		delete(f.n.now, p)
		delete(f.n.reservedPages, p)
		f.n.dirty[p] = true
	}
	return nil
}

// Chmod implements ssd.File.
func (f *file) Chmod(perm fs.FileMode) error {
	f.x.mu.Lock()
	defer f.x.mu.Unlock()
	if _, err := f.op("Chmod"); err != nil {
		return err
	}
	f.n.mode = perm
	return nil
}

// Readahead implements ssd.File.
func (f *file) Readahead(int64, int64) error {
	f.x.mu.Lock()
	defer f.x.mu.Unlock()
	_, err := f.op("Readahead")
	return err
}

// Close implements ssd.File.
func (f *file) Close() error { return nil }

// Corrupt changes the bytes of name at off through change, durably: rot on the disk.
func (x *FaultFS) Corrupt(name string, off int64, change func(byte) byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.names[name]
	b := append(make([]byte, 0, page), n.now[off/page]...)
	b = b[:page]
	b[off%page] = change(b[off%page])
	n.now[off/page], n.synced[off/page] = b, b
}

// Resize cuts or extends name durably behind everybody's back.
func (x *FaultFS) Resize(name string, size int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.names[name]
	n.truncate(size)
	n.dsize = size
}
