package weight

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	stderrors "errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store"
)

// A load directory is <root>/<model id>--<revision>, with <name>%lock beside it (see loadname.go). Whoever uses the
// directory holds a shared flock on the lock file, by a descriptor that children inherit; lockfile.go says who else
// counts as a user. Only the process that has the store's directory makes and removes load directories, so an exclusive
// flock that can be had at once means that nobody holds one. The directory is built under another name and renamed, so
// that it is whole whenever it is there.
//
// Manager.lockFiles makes taking a lock, with making the file and the directory it is in, one step, and so removing a
// directory that nobody uses, and handing one out. It is taken after Manager.mu or without it, and held for I/O: all are rare.

// directory is a load directory that this process has a part in.
type directory struct {
	ref    Ref
	man    *Manifest
	path   string
	lock   *os.File
	files  []*store.File // handed out, kept while the directory is; by manifest, nil for what has none
	inProc string        // a file that is only a link to this process's memory
	users  int           // guarded by Manager.mu
	gone   chan struct{} // guarded by Manager.mu: made when the last user left, closed when the directory is given up
	ready  chan struct{} // closed when made, or failed with err
	err    error
}

// takeDirectory makes the directory of a revision, or joins those who have it.
func (m *Manager) takeDirectory(ctx context.Context, ref Ref) (*directory, error) {
	for {
		d, mine, err := m.joinDirectory(ref)
		if err != nil {
			return nil, err
		}
		if d == nil {
			continue // one that was being given up is gone now
		}
		if mine {
			m.makeDirectory(ctx, d)
			return d, d.err
		}
		select {
		case <-d.ready:
		case <-ctx.Done():
			return nil, stderrors.Join(ctx.Err(), m.releaseDirectory(d))
		}
		if errors.Is(d.err, context.Canceled) || errors.Is(d.err, context.DeadlineExceeded) {
			continue // who made it gave up
		}
		return d, d.err
	}
}

// joinDirectory finds the directory that others have, or begins one that the caller must make.
func (m *Manager) joinDirectory(ref Ref) (d *directory, mine bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, d := m.mu.imports[ref], m.mu.loads[ref]
	switch {
	case m.mu.closed:
		return nil, false, ErrClosed
	case i != nil && i.deleting:
		return nil, false, errors.WithMessage(ErrNotFound, "it is being deleted")
	case d == nil:
		d = &directory{ref: ref, path: m.directoryPath(ref), users: 1, ready: make(chan struct{})}
		m.mu.loads[ref] = d
		return d, true, nil
	case d.gone != nil:
		gone := d.gone
		m.mu.Unlock()
		<-gone
		m.mu.Lock()
		return nil, false, nil
	}
	d.users++
	return d, false, nil
}

func (m *Manager) makeDirectory(ctx context.Context, d *directory) {
	if d.err = m.make(ctx, d); d.err != nil {
		_ = d.closeFiles()
		if d.lock != nil {
			_ = d.lock.Close()
			m.removeUnused(d.path)
		}
		m.mu.Lock()
		delete(m.mu.loads, d.ref)
		m.mu.Unlock()
	}
	close(d.ready)
}

// make takes the lock and builds the directory, unless an engine of an earlier process still has it as it should be.
func (m *Manager) make(ctx context.Context, d *directory) (err error) {
	if d.man, err = m.Manifest(ctx, d.ref); err != nil {
		return err
	}
	if err := m.takeFiles(ctx, d); err != nil {
		return err
	}
	digest, err := d.man.digest()
	if err != nil {
		return err
	}
	alone, err := m.takeLock(d)
	if err != nil {
		return err
	}
	if !alone {
		d.inProc = m.lingerName(d.ref)
		if got := readLock(d.lock).Digest; got != digest {
			return errors.WithMessagef(ErrInUse, "another revision of that name is loaded: %s", holderText(holdersAt(d.path)))
		}
		return nil
	}
	if err := m.endLinger(d.ref); err != nil {
		return err
	}
	if err := m.build(ctx, d); err != nil {
		return err
	}
	if err := writeLock(d.lock, lockRecord{Digest: digest}); err != nil {
		return err
	}
	m.lockFiles.Lock() // the change of a lock is not one step for others
	defer m.lockFiles.Unlock()
	return unix.Flock(int(d.lock.Fd()), unix.LOCK_SH|unix.LOCK_NB)
}

// takeLock opens the lock file and takes the exclusive lock if nobody uses the directory, else a shared one.
func (m *Manager) takeLock(d *directory) (alone bool, err error) {
	m.lockFiles.Lock()
	defer m.lockFiles.Unlock()
	if err := os.MkdirAll(m.loadRoot, 0o700); err != nil {
		return false, err
	}
	lock, made, err := openLock(d.path)
	if err != nil {
		return false, err
	}
	if made && oldModelAt(d.path) { // not ours to remove
		_ = lock.Close()
		_ = os.Remove(d.path + lockSuffix)
		return false, errors.WithMessagef(ErrInUse, "%s holds what an engine of an earlier version has loaded", d.path)
	}
	d.lock = lock
	if unused(d.lock, d.path) {
		return true, nil
	}
	return false, unix.Flock(int(d.lock.Fd()), unix.LOCK_SH|unix.LOCK_NB)
}

func (m *Manifest) digest() (string, error) {
	p, err := m.Encode()
	sum := sha256.Sum256(p)
	return hex.EncodeToString(sum[:]), err
}

// takeFiles takes the store's file of each object that has one, which makes sure that nobody changed it and keeps it
// from being freed.
func (m *Manager) takeFiles(ctx context.Context, d *directory) error {
	d.files = make([]*store.File, len(d.man.Files))
	for i, f := range d.man.Files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if f.Size == 0 {
			continue
		}
		file, err := m.s.File(ctx, f.Key, nil)
		switch {
		case err == nil:
			d.files[i] = file
		case errors.Is(err, store.ErrTampered), errors.Is(err, store.ErrChecksum), errors.Is(err, store.ErrNoReplica),
			errors.Is(err, store.ErrNotFound):
			return errors.WithMessagef(damaged{err}, "file %q", f.Name)
		case !errors.Is(err, store.ErrNotSupported): // too small for a file
			return errors.WithMessagef(err, "file %q", f.Name)
		}
	}
	return nil
}

// build makes the directory under another name, then renames it.
func (m *Manager) build(ctx context.Context, d *directory) error {
	if err := m.clear(d.path, readLock(d.lock)); err != nil {
		return err
	}
	tmp := d.path + buildSuffix
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	err := m.placeAll(ctx, d, tmp)
	if err == nil {
		err = os.Rename(tmp, d.path)
	}
	if err != nil {
		_ = os.RemoveAll(tmp)
	}
	return err
}

// placers is how many files of a directory are made at a time: small ones wait for the disk.
const placers = 8

func (m *Manager) placeAll(ctx context.Context, d *directory, root string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(placers, len(d.man.Files)) {
		workers.Go(func() {
			buf := make([]byte, copyBytes)
			for i := next.Add(1) - 1; i < int64(len(d.man.Files)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				f := d.man.Files[i]
				if err := m.place(ctx, filepath.Join(root, filepath.FromSlash(f.Name)), f, d.files[i], buf); err != nil {
					cancel(errors.WithMessagef(err, "file %q", f.Name))
				}
			}
		})
	}
	workers.Wait()
	for i, file := range d.files {
		if file != nil && strings.HasPrefix(file.Path(), "/proc/") && !file.Temporary() {
			d.inProc = d.man.Files[i].Name
		}
	}
	return context.Cause(ctx)
}

// place makes a file of the directory: a link to the store's, by symbolic link where a hard link can't be, or a copy. It
// runs beside the caller, so a panic is an error.
func (m *Manager) place(ctx context.Context, path string, f File, file *store.File, buf []byte) (err error) {
	defer recovered(&err)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if file == nil {
		return m.copyOut(ctx, path, f, buf)
	}
	err = m.link(file.Path(), path)
	if err == nil || !cannotLink(err) {
		return err
	}
	if file.Temporary() { // a symbolic link would lead nowhere once this process is gone
		return m.copyOut(ctx, path, f, buf)
	}
	target, err := filepath.Abs(file.Path())
	if err != nil {
		return err
	}
	return os.Symlink(target, path)
}

// cannotLink reports whether the file system, or the limit of links, refuses what another way can do.
func cannotLink(err error) bool {
	return errors.Is(err, unix.EXDEV) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EMLINK) ||
		errors.Is(err, stderrors.ErrUnsupported) // ENOSYS, EOPNOTSUPP
}

const copyBytes = 256 << 10

// copyOut writes a file from verified reads.
func (m *Manager) copyOut(ctx context.Context, path string, f File, buf []byte) (err error) {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return err
	}
	defer func() {
		if e := out.Close(); err == nil {
			err = e
		}
	}()
	if err := out.Chmod(0o400); err != nil { // whatever the umask is
		return err
	}
	if f.Size == 0 {
		return nil
	}
	if f.Size > int64(len(buf)) {
		buf = make([]byte, min(f.Size, 1<<20))
	}
	for off := int64(0); off < f.Size; off += int64(len(buf)) {
		p := buf[:min(int64(len(buf)), f.Size-off)]
		if err := m.readRange(ctx, f.Key, p, off, store.VerifyAlways); err != nil {
			return err
		}
		if _, err := out.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// releaseDirectory is the end of one Loaded. The last one takes the directory away.
func (m *Manager) releaseDirectory(d *directory) error {
	m.mu.Lock()
	d.users--
	last := d.users == 0 && d.gone == nil
	if last {
		d.gone = make(chan struct{})
	}
	m.mu.Unlock()
	if !last {
		return nil
	}
	return m.dropDirectory(d)
}

// dropDirectory gives up this process's part in a directory and removes it if nobody else has one. The revision stays
// taken until that is done.
func (m *Manager) dropDirectory(d *directory) error {
	var err error
	if d.inProc == "" {
		err = d.closeFiles()
	}
	_ = d.lock.Close()
	gone := m.removeUnused(d.path)
	if d.inProc != "" {
		err = m.linger(d, gone)
	}
	m.mu.Lock()
	delete(m.mu.loads, d.ref)
	m.mu.Unlock()
	close(d.gone)
	return err
}

func (d *directory) closeFiles() (first error) {
	for _, f := range d.files {
		if f == nil {
			continue
		}
		if err := f.Close(); err != nil && first == nil {
			first = err
		}
	}
	d.files = nil
	return first
}

// removeUnused removes a directory that nobody uses. It reports whether it is gone.
func (m *Manager) removeUnused(path string) bool {
	m.lockFiles.Lock()
	defer m.lockFiles.Unlock()
	lock, err := os.OpenFile(path+lockSuffix, os.O_RDWR, 0)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer func() { _ = lock.Close() }()
	if !unused(lock, path) || m.clear(path, readLock(lock)) != nil {
		return false
	}
	_ = os.Remove(path + lockSuffix) // after the directory: one without a lock file is not ours
	return true
}

// clear removes a directory, and what it gave other users.
func (m *Manager) clear(path string, r lockRecord) error {
	if err := m.takeBack(path, r); err != nil {
		return err
	}
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	return os.RemoveAll(path + buildSuffix)
}

// sweepLoads removes what an earlier process left, but not under a living engine.
func (m *Manager) sweepLoads(root string) error {
	paths, err := locked(root)
	if err != nil {
		return err
	}
	for _, path := range paths {
		m.removeUnused(path)
	}
	entries, err := os.ReadDir(root)
	for _, e := range entries {
		path := filepath.Join(root, e.Name())
		if _, none := os.Lstat(path + lockSuffix); e.IsDir() && errors.Is(none, fs.ErrNotExist) {
			m.sweepOldModel(path)
		}
	}
	return err
}

// sweepOldModel removes what an earlier version left: a directory of a model, with a lock file beside each revision.
func (m *Manager) sweepOldModel(dir string) {
	paths, _ := locked(dir) // it may not be one of ours
	for _, path := range paths {
		m.removeUnused(path)
	}
	_ = os.Remove(dir) // if that was the last
}

// oldModelAt reports whether an earlier version's directory of a model, with engines that use it, is where a new load
// directory belongs.
func oldModelAt(path string) bool {
	paths, _ := locked(path)
	return len(paths) > 0
}
