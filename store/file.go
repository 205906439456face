package store

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/master"
)

// File is a path at which an object's bytes can be opened, mapped or hard-linked by any process while it is open. The
// file is the store's own: open it read-only. A hard link shares it, so that writing through a link corrupts the
// object; Close notices a change and quarantines the replica. Files and the directories that they lie in belong to the
// store's user, and no other can read them (root excepted): package weight says how a revision is handed to another user.
// Close exactly once: copies of a File are the same file.
type File struct{ *filing }

// filing is what all copies of a File share.
type filing struct {
	s      *Store
	r      reading
	path   string
	tier   Tier
	handed fileID
	copied *arena.File // made for this File alone

	mu     sync.Mutex
	closed bool
}

// fileID tells whether a file was changed.
type fileID struct{ size, mtimeNs int64 }

// File hands an object out as a file. Objects that live in a file of their own (type Weight, or OwnFile) cost nothing;
// one that does not is copied into a memory file that goes with Close. Objects below Options.FileBytes are
// ErrNotSupported: read them. opts may be nil.
//
// In a store without a directory the path is under /proc and only good for processes of the same user.
func (s *Store) File(ctx context.Context, key string, opts *ReadOptions) (*File, error) {
	r, err := s.acquire(key, opts)
	if err != nil {
		return nil, err
	}
	f := &File{&filing{s: s, r: r}}
	f.r.key = strings.Clone(key) // it outlives the call
	if err := f.open(ctx); err != nil {
		r.release()
		return nil, errors.WithMessagef(err, "file of %.64q", key)
	}
	s.mapping.hold()
	s.gate.leave(r.stripe)
	return f, nil
}

func (f *File) open(ctx context.Context) error {
	o := &f.r.o
	if o.Size < f.s.opts.FileBytes {
		return errors.WithMessagef(ErrNotSupported, "%d bytes, files are for objects of %d and more", o.Size, f.s.opts.FileBytes)
	}
	if o.InMemory() && o.Flags&master.FlagOwnMemory != 0 {
		err := f.openMemory(ctx)
		if err == nil || !isLost(err) {
			return err
		}
		if errors.Is(err, fs.ErrNotExist) && f.materialise(ctx) == nil {
			return nil // the file lost its name before anybody was given it, and its bytes are still mapped
		}
		if !f.s.quarantine(&f.r, TierMemory, err) {
			return err
		}
		o.Flags |= master.FlagMemoryBad
	}
	if o.OnSSD() && o.SSD.Own != 0 {
		err := f.openSSD(ctx)
		if err == nil || !isLost(err) {
			return err
		}
		if !f.s.quarantine(&f.r, TierSSD, err) {
			return err
		}
		o.Flags |= master.FlagSSDBad
	}
	return f.materialise(ctx)
}

// openMemory hands out the memory file that the object lives in, unchanged since it was sealed.
func (f *File) openMemory(ctx context.Context) error {
	file := f.s.own.get(uint64(f.r.o.Extents()[0].Off))
	f.tier, f.path = TierMemory, filePath(file)
	stamp, err := f.s.stampOf(file)
	if err != nil {
		return err
	}
	file.HandOut()
	f.handed = stamp
	known, ok := f.s.stamps.get(memoryStamp(file.ID()))
	verify := f.r.verify == VerifyAlways || f.r.verify == VerifyAuto && f.r.o.Flags&master.FlagUnverified != 0
	if ok && known != stamp {
		return changed(f.path, known, stamp)
	}
	if verify || !ok {
		if err := f.r.verifyOwnFile(ctx); err != nil {
			return err
		}
		f.s.stamps.put(memoryStamp(file.ID()), stamp)
	}
	return nil
}

// verifyOwnFile compares a memory file with the object's checksums.
func (r *reading) verifyOwnFile(ctx context.Context) error {
	file, err := r.s.pin(&r.o)
	if err != nil {
		return err
	}
	defer unpinFile(file)
	var buf [1][]byte
	return r.verifyMemory(ctx, r.s.pieces(&r.o, buf[:0]))
}

// openSSD hands out the SSD tier's file, unchanged since it was written.
func (f *File) openSSD(ctx context.Context) error {
	own := f.r.o.SSD.Own
	f.tier, f.path = TierSSD, f.s.tier.OwnPath(own)
	size, mtime, err := f.s.tier.OwnStamp(own)
	if err != nil {
		return errors.WithMessage(ErrTampered, err.Error())
	}
	f.handed = fileID{size, mtime}
	known, ok := f.s.stamps.get(ssdStamp(own))
	if ok && known != f.handed || size != f.r.o.Size {
		return changed(f.path, known, f.handed)
	}
	if f.r.verify == VerifyAlways || !ok {
		if err := f.verifySSD(ctx); err != nil {
			return err
		}
		f.s.stamps.put(ssdStamp(own), f.handed)
	}
	return nil
}

// verifySSD reads the whole object from the SSD tier and compares it with its checksums.
func (f *File) verifySSD(ctx context.Context) error {
	buf := make([]byte, copyStep)
	for off := int64(0); off < f.r.o.Size; off += copyStep {
		n := min(copyStep, f.r.o.Size-off)
		r := f.r
		r.verify = VerifyAlways
		if err := r.readSSD(ctx, buf[:n], off); err != nil {
			return err
		}
	}
	return nil
}

func changed(path string, was, is fileID) error {
	return errors.WithMessagef(ErrTampered, "%s: %d bytes of time %d, now %d bytes of time %d", path, was.size, was.mtimeNs, is.size, is.mtimeNs)
}

// materialise copies the object into a memory file.
func (f *File) materialise(ctx context.Context) error {
	file, err := f.s.newOwnFile(ctx, f.r.o.Size)
	if err != nil {
		return err
	}
	f.copied, f.tier, f.path = file, TierMemory, filePath(file)
	if err = f.r.read(ctx, file.Bytes(), 0); err == nil {
		err = file.Seal()
	}
	file.Unpin()
	if err == nil {
		f.handed, err = f.s.stampOf(file)
	}
	if err != nil {
		f.s.dropOwnFile(file.ID())
	}
	return err
}

func filePath(file *arena.File) string {
	if p := file.Path(); p != "" {
		return p
	}
	return strings.Replace(file.ProcPath(), "/self/", fmt.Sprintf("/%d/", os.Getpid()), 1)
}

func (c *core) stampOf(file *arena.File) (fileID, error) {
	st, err := file.Stamp()
	return fileID{st.Size, st.MtimeNs}, err
}

// Path is the file's name. It stays valid while the File is open, also if the key is removed or replaced.
func (f *File) Path() string {
	if f.filing == nil { // the zero File
		return ""
	}
	return f.path
}

// Size is the file's size, which is the object's.
func (f *File) Size() int64 { return f.r.o.Size }

// Tier says where the file is.
func (f *File) Tier() Tier { return f.tier }

// Temporary reports whether the file was made for this File and goes with its Close.
func (f *File) Temporary() bool { return f.copied != nil }

// Close gives the file back. If it was changed from outside, which a hard link makes possible, the replica is
// quarantined and Close returns ErrTampered. In a store that has failed nobody looks: it returns Store.Err. A second Close
// is ErrClosed and does nothing.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return errors.WithMessage(ErrClosed, "close file: closed already")
	}
	f.closed = true
	if err := f.s.failure.get(); err != nil {
		f.s.mapping.drop()
		return err
	}
	err := f.unchanged()
	if f.copied != nil {
		f.s.dropOwnFile(f.copied.ID())
	} else if err != nil {
		f.s.quarantine(&f.r, f.tier, err)
	}
	f.s.unpin(f.r.o.Holder())
	return err
}

func (f *File) unchanged() error {
	var now fileID
	var err error
	switch {
	case f.copied != nil:
		now, err = f.s.stampOf(f.copied)
	case f.tier == TierMemory:
		now, err = f.s.stampOf(f.s.own.get(uint64(f.r.o.Extents()[0].Off)))
	default:
		now.size, now.mtimeNs, err = f.s.tier.OwnStamp(f.r.o.SSD.Own)
	}
	if err != nil {
		return errors.WithMessage(ErrTampered, err.Error())
	}
	if now != f.handed {
		return changed(f.path, f.handed, now)
	}
	return nil
}

// seal ends the writing of a memory file, if there is one: from here on a change is tampering.
func (c *core) seal(file *arena.File) error {
	if file == nil {
		return nil
	}
	if err := file.Seal(); err != nil {
		return err
	}
	file.Unpin() // the put has written its bytes
	id, err := c.stampOf(file)
	if err == nil {
		c.stamps.put(memoryStamp(file.ID()), id)
	}
	return err
}

// hasLinks reports whether a file has another name than the store's.
func hasLinks(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && st.Nlink > 1
}

// stamps is what the store knows of files that may be handed out, from when their bytes were known to be right.
type stamps struct {
	sync.Mutex
	byFile map[stampKey]fileID
}

type stampKey struct {
	tier Tier
	id   uint64
}

func memoryStamp(id uint64) stampKey { return stampKey{TierMemory, id} }
func ssdStamp(own uint32) stampKey   { return stampKey{TierSSD, uint64(own)} }

func (s *stamps) get(k stampKey) (fileID, bool) {
	s.Lock()
	defer s.Unlock()
	id, ok := s.byFile[k]
	return id, ok
}

func (s *stamps) put(k stampKey, id fileID) {
	s.Lock()
	if s.byFile == nil {
		s.byFile = make(map[stampKey]fileID)
	}
	s.byFile[k] = id
	s.Unlock()
}

func (s *stamps) drop(k stampKey) {
	s.Lock()
	delete(s.byFile, k)
	s.Unlock()
}
