package weight

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store"
)

// A load directory is <root>/<model id>/<revision>, with <revision>.lock beside it. Whoever uses the directory holds a
// shared flock on the lock file, by a descriptor that children inherit. Only the process that has the store's
// directory makes and removes load directories, so an exclusive flock that can be had at once means that nobody uses
// one. The directory is built under another name and renamed, so that it is whole whenever it is there; the lock file
// holds the digest of the manifest it was made from.

// directory is a load directory that this process has a part in.
type directory struct {
	ref   Ref
	man   *Manifest
	path  string
	lock  *os.File
	files []*store.File // handed out, kept while the directory is
	users int           // guarded by Manager.mu
	gone  chan struct{} // guarded by Manager.mu: made when the last user left, closed when the directory is given up
	ready chan struct{} // closed when made, or failed with err
	err   error
}

const maxElement = 200 // bytes of a path element; longer names are cut and told apart by their digest

// element is a name as one element of a path.
func element(name string) string {
	e := strings.NewReplacer("%", "%25", "/", "%2F").Replace(name)
	if len(e) <= maxElement {
		return e
	}
	sum := sha256.Sum256([]byte(name))
	return strings.ToValidUTF8(e[:maxElement-33], "") + "~" + hex.EncodeToString(sum[:16])
}

func (m *Manager) directoryPath(ref Ref) string {
	return filepath.Join(m.loadRoot, element(ref.ModelID), element(ref.Revision))
}

const lockSuffix, buildSuffix = ".lock", ".build"

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
		}
		<-d.ready
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
	if err := os.MkdirAll(filepath.Dir(d.path), 0o755); err != nil {
		return err
	}
	if d.lock, err = os.OpenFile(d.path+lockSuffix, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return err
	}
	alone := unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	digest, err := d.man.digest()
	if err != nil {
		return err
	}
	if alone {
		if err := m.build(ctx, d); err != nil {
			return err
		}
		if err := d.writeDigest(digest); err != nil {
			return err
		}
	} else if got, _ := os.ReadFile(d.path + lockSuffix); string(got) != digest {
		return errors.WithMessagef(ErrInUse, "another revision of that name is loaded: %s", holderText(m.lockHolders(d.path+lockSuffix)))
	} else if err := m.takeFiles(ctx, d, nil); err != nil {
		return err
	}
	return unix.Flock(int(d.lock.Fd()), unix.LOCK_SH|unix.LOCK_NB)
}

func (m *Manifest) digest() (string, error) {
	p, err := m.Encode()
	sum := sha256.Sum256(p)
	return hex.EncodeToString(sum[:]), err
}

func (d *directory) writeDigest(digest string) error {
	if err := d.lock.Truncate(0); err != nil {
		return err
	}
	_, err := d.lock.WriteAt([]byte(digest), 0)
	return err
}

// build makes the directory under another name, then renames it.
func (m *Manager) build(ctx context.Context, d *directory) error {
	tmp := d.path + buildSuffix
	for _, p := range []string{tmp, d.path} {
		if err := os.RemoveAll(p); err != nil {
			return err
		}
	}
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return err
	}
	err := m.takeFiles(ctx, d, func(f File, file *store.File) error {
		return m.place(ctx, filepath.Join(tmp, filepath.FromSlash(f.Name)), f, file)
	})
	if err == nil {
		err = os.Rename(tmp, d.path)
	}
	if err != nil {
		_ = os.RemoveAll(tmp)
	}
	return err
}

// takeFiles takes the store's file of each object that has one, which keeps it from being freed, and hands it to fn.
func (m *Manager) takeFiles(ctx context.Context, d *directory, fn func(File, *store.File) error) error {
	for _, f := range d.man.Files {
		if err := ctx.Err(); err != nil {
			return err
		}
		var file *store.File
		if f.Size > 0 {
			var err error
			file, err = m.s.File(ctx, f.Key, &store.ReadOptions{})
			switch {
			case err == nil:
				d.files = append(d.files, file)
			case !errors.Is(err, store.ErrNotSupported): // too small for a file
				return errors.WithMessagef(err, "file %q", f.Name)
			}
		}
		if fn == nil {
			continue
		}
		if err := fn(f, file); err != nil {
			return errors.WithMessagef(err, "file %q", f.Name)
		}
	}
	return nil
}

// place makes a file of the directory: a link to the store's, by symbolic link where a hard link can't be, or a copy.
func (m *Manager) place(ctx context.Context, path string, f File, file *store.File) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if file == nil {
		return m.copyOut(ctx, path, f)
	}
	err := os.Link(file.Path(), path)
	if err == nil || !errors.Is(err, unix.EXDEV) && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	if file.Temporary() { // a symbolic link would lead nowhere once this process is gone
		return m.copyOut(ctx, path, f)
	}
	return os.Symlink(file.Path(), path)
}

// copyOut writes a small file from a verified read.
func (m *Manager) copyOut(ctx context.Context, path string, f File) (err error) {
	var p []byte
	if f.Size > 0 {
		if p, err = m.s.Get(ctx, f.Key, &store.ReadOptions{Verify: store.VerifyAlways}); err != nil {
			return err
		}
	}
	if int64(len(p)) != f.Size {
		return errors.WithMessagef(ErrDamaged, "%d bytes, the manifest says %d", len(p), f.Size)
	}
	if err := os.WriteFile(path, p, 0o444); err != nil {
		return err
	}
	return os.Chmod(path, 0o444)
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
	err := d.closeFiles()
	_ = d.lock.Close()
	m.removeUnused(d.path)
	m.mu.Lock()
	delete(m.mu.loads, d.ref)
	m.mu.Unlock()
	close(d.gone)
	return err
}

func (d *directory) closeFiles() (first error) {
	for _, f := range d.files {
		if err := f.Close(); err != nil && first == nil {
			first = err
		}
	}
	d.files = nil
	return first
}

// removeUnused removes a directory whose lock nobody holds. It reports whether it is gone.
func (m *Manager) removeUnused(path string) bool {
	lock, err := os.OpenFile(path+lockSuffix, os.O_RDWR, 0)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer func() { _ = lock.Close() }()
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	if os.RemoveAll(path) != nil || os.RemoveAll(path+buildSuffix) != nil {
		return false
	}
	_ = os.Remove(path + lockSuffix)
	_ = os.Remove(filepath.Dir(path)) // the model's, if that was its last
	return true
}

// sweepLoads removes what an earlier process left, but not under a living engine.
func (m *Manager) sweepLoads() error {
	locks, err := filepath.Glob(filepath.Join(globQuote(m.loadRoot), "*", "*"+lockSuffix))
	if err != nil {
		return err
	}
	for _, lock := range locks {
		m.removeUnused(strings.TrimSuffix(lock, lockSuffix))
	}
	return nil
}

func globQuote(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

// inUse is ErrInUse, with who it is, when a revision is loaded here or by an engine.
func (m *Manager) inUse(ref Ref) error {
	if holders := m.holders(ref); len(holders) > 0 {
		return errors.WithMessage(ErrInUse, holderText(holders))
	}
	return nil
}

// holders are the processes that have a revision loaded.
func (m *Manager) holders(ref Ref) []Holder {
	m.mu.Lock()
	d := m.mu.loads[ref]
	m.mu.Unlock()
	path := m.directoryPath(ref)
	if d == nil && m.removeUnused(path) {
		return nil
	}
	return m.lockHolders(path + lockSuffix)
}
