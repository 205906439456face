package source

import (
	"context"
	stderrors "errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/pkg/errors"
)

// Local opens paths (absolute or relative to the working directory) and file:// URLs. A location is a directory or
// one regular file. The location itself may be reached through symbolic links; below it nothing leads out:
//
//   - a link to a file inside the root is followed; a link to a directory is not listed;
//   - a link out of the root is refused, except into the blobs folder of the Hugging Face cache folder that the root is a
//     snapshot of (see cacheBlobs), or after FollowLinks, which also lists the directories that links lead to;
//   - devices, FIFOs and sockets are refused, and never opened in a way that blocks.
//
// A repository folder of the Hugging Face cache (models--org--name) stands for its only snapshot.
//
// ETag is made of the times of the last modification and status change, and the size; FileID of device and inode. A
// file is another one when its size or modification time differs, or when both its inode and its change time do: an
// inode alone proves nothing on file systems that number a file anew at every look-up. Two changes within one tick of
// the file system's clock (up to 10 ms on Linux) that keep the size look like none, and a change through a shared
// mapping shows only when the kernel writes it back: a caller that must be sure compares a digest.
type Local struct{}

// Open opens a directory or a file. Errors: ErrBadLocation, ErrNotFound, ErrRefused.
func (Local) Open(ctx context.Context, location string) (Source, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p, err := localPath(location)
	if err != nil {
		return nil, err
	}
	abs, err := filepath.Abs(p)
	if err != nil {
		return nil, errors.Wrapf(err, "open %q", p)
	}
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return nil, errors.Wrapf(named(err), "open %q", p)
	}
	fi, err := os.Lstat(real)
	if err != nil {
		return nil, errors.Wrapf(named(err), "open %q", p)
	}
	switch {
	case fi.IsDir():
		snapshot, err := onlySnapshot(real)
		if err != nil {
			return nil, errors.Wrapf(err, "open %q", p)
		}
		if snapshot != "" {
			return newLocal(filepath.Join(abs, snapshotsFolder, snapshot), filepath.Join(real, snapshotsFolder, snapshot), "", "")
		}
		return newLocal(abs, real, "", "")
	case fi.Mode().IsRegular():
		return newLocal(abs, filepath.Dir(real), filepath.Base(abs), filepath.Base(real))
	}
	return nil, errors.Wrapf(ErrRefused, "open %q: it is a %s", p, kindOf(fi.Mode()))
}

// localSource reads below one directory.
type localSource struct {
	location string
	dir      string // the root's real path
	root     *os.Root

	// For a single file: the name it is listed under, and its name in the root.
	single, singleReal string

	// The Hugging Face cache's blobs, when the root is a snapshot; else nil.
	blobs    *os.Root
	blobsDir string

	follow     bool // links out of the root too
	mu         sync.Mutex
	everywhere *os.Root // the file system's root, once a link has left the source; guarded by mu
	ended      bool     // by Close; guarded by mu

	closed sync.Once
}

func newLocal(location, dir, single, singleReal string) (*localSource, error) {
	s := &localSource{location: location, dir: dir, single: single, singleReal: singleReal}
	if single != "" {
		if err := CheckName(single); err != nil {
			return nil, errors.Wrapf(err, "open %q", location)
		}
	}
	var err error
	if s.root, err = os.OpenRoot(dir); err != nil {
		return nil, errors.Wrapf(named(err), "open %q", location)
	}
	if s.blobsDir = cacheBlobs(dir); s.blobsDir == "" {
		return s, nil
	}
	switch s.blobs, err = os.OpenRoot(s.blobsDir); {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		s.blobs, s.blobsDir = nil, "" // a snapshot of plain files, as on systems without links
	case err != nil:
		s.root.Close()
		return nil, errors.Wrapf(err, "open %q", s.blobsDir)
	}
	return s, nil
}

func (s *localSource) String() string { return s.location }

// Close closes the roots. Files stay open.
func (s *localSource) Close() error {
	var err error
	s.closed.Do(func() {
		err = s.root.Close()
		if s.blobs != nil {
			err = stderrors.Join(err, s.blobs.Close())
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ended = true
		if s.everywhere != nil {
			err = stderrors.Join(err, s.everywhere.Close())
		}
	})
	return err
}

// Stat describes one file.
func (s *localSource) Stat(ctx context.Context, name string) (Info, error) {
	if err := ctx.Err(); err != nil {
		return Info{}, err
	}
	at, err := s.locate(name)
	if err != nil {
		return Info{}, errors.Wrapf(err, "stat %q", name)
	}
	return at.stat()
}

// Open opens the file and makes sure that it is the one info describes.
func (s *localSource) Open(ctx context.Context, info Info) (File, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	at, err := s.locate(info.Name)
	if err != nil {
		return nil, errors.Wrapf(err, "open %q", info.Name)
	}
	if _, err := at.stat(); err != nil { // before open: opening a device may do something
		return nil, err
	}
	f, err := at.root.OpenFile(at.real, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, errors.Wrapf(named(err), "open %q", info.Name)
	}
	file := &localFile{s: s, at: at, f: f, info: info}
	if err := file.identify(); err != nil {
		f.Close()
		return nil, err
	}
	return file, nil
}

// place is where a name leads: a name in the root or in the blobs folder, none of them followed yet.
type place struct {
	root   *os.Root
	name   string // as listed
	real   string // in root
	digest Digest
}

// locate applies the rule for links. It opens no file: whatever happens to the links afterwards, os.Root confines the
// open to one of the two folders, or to a path without links for a source that follows links.
func (s *localSource) locate(name string) (place, error) {
	if err := CheckName(name); err != nil {
		return place{}, err
	}
	at := place{root: s.root, name: name, real: name}
	if s.single != "" {
		if name != s.single {
			return place{}, errors.Wrapf(ErrNotFound, "the source is the file %q", s.single)
		}
		at.real, at.digest = s.singleReal, blobDigest(filepath.Join(s.dir, s.singleReal))
		return at, nil
	}
	if s.follow {
		if out, ok, err := s.outside(name); ok || err != nil {
			return out, err
		}
	}
	if s.blobs == nil {
		return at, nil
	}
	target, err := s.root.Readlink(name)
	if err != nil {
		if errors.Is(err, fs.ErrClosed) {
			return place{}, named(err)
		}
		return at, nil // no link, or absent: Stat tells
	}
	if blob := s.blobOf(name, target); blob != "" {
		at.root, at.real, at.digest = s.blobs, blob, blobDigest(filepath.Join(s.blobsDir, blob))
	}
	return at, nil
}

// stat follows links inside the root only and refuses what is not a regular file.
func (at place) stat() (Info, error) {
	fi, err := at.root.Stat(at.real)
	if err != nil {
		return Info{}, errors.Wrapf(named(err), "stat %q", at.name)
	}
	if !fi.Mode().IsRegular() {
		return Info{}, errors.Wrapf(ErrRefused, "%q is a %s", at.name, kindOf(fi.Mode()))
	}
	return at.info(fi), nil
}

// localPath takes a path, or a file:// URL apart: percent-decoded, host empty or localhost.
func localPath(location string) (string, error) {
	if location == "" || strings.IndexByte(location, 0) >= 0 {
		return "", errors.Wrapf(ErrBadLocation, "%q", location)
	}
	switch Scheme(location) {
	case "":
		return location, nil
	case LocalScheme:
	default:
		return "", errors.Wrapf(ErrBadLocation, "%.40q: not a path or file URL", location)
	}
	rest := location[len(LocalScheme)+len("://"):]
	slash := strings.IndexByte(rest, '/')
	if slash < 0 {
		return "", errors.Wrapf(ErrBadLocation, "%q: a file URL needs an absolute path, as in file:///path", location)
	}
	if host := rest[:slash]; host != "" && !strings.EqualFold(host, "localhost") {
		return "", errors.Wrapf(ErrBadLocation, "%q: host %q, only localhost can be read", location, host)
	}
	p, err := decodePath(rest[slash:])
	if err != nil {
		return "", errors.Wrapf(err, "%q", location)
	}
	return path.Clean(p), nil
}

// kindOf names what is not a regular file.
func kindOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "directory"
	case m&fs.ModeSymlink != 0:
		return "symbolic link"
	case m&fs.ModeNamedPipe != 0:
		return "FIFO"
	case m&fs.ModeSocket != 0:
		return "socket"
	case m&fs.ModeDevice != 0:
		return "device"
	}
	return "special file"
}
