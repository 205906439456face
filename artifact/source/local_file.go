package source

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/pkg/errors"
)

// maxReadBytes is the most that one system call reads, so that a cancelled context is noticed in time.
const maxReadBytes = 4 << 20

// copyBytes is the buffer of an io.Copy from a local file.
const copyBytes = 1 << 20

// localFile is an open regular file.
type localFile struct {
	s    *localSource
	at   place
	f    *os.File
	info Info
}

func (l *localFile) Info() Info   { return l.info }
func (l *localFile) Close() error { return l.f.Close() }

// identify compares the file that was just opened with the one that was asked for, and completes the identity.
func (l *localFile) identify() error {
	fi, err := l.f.Stat()
	if err != nil {
		return errors.Wrapf(named(err), "open %q", l.info.Name)
	}
	if !fi.Mode().IsRegular() { // swapped between stat and open
		return errors.Wrapf(ErrRefused, "%q is a %s", l.info.Name, kindOf(fi.Mode()))
	}
	now := l.at.info(fi)
	if err := l.same("open", now); err != nil {
		return err
	}
	l.info = now
	return nil
}

// check compares the open file with its identity.
func (l *localFile) check() error {
	fi, err := l.f.Stat()
	if err != nil {
		return errors.Wrapf(named(err), "read %q", l.info.Name)
	}
	return l.same("read", l.at.info(fi))
}

// checkName makes sure that the name still leads to the open file: one that was replaced by a rename keeps its bytes
// under the descriptor, but is no longer what the source holds.
func (l *localFile) checkName() error {
	now, err := l.s.Stat(context.Background(), l.info.Name) // through the links as they are now
	switch {
	case errors.Is(err, ErrNotFound):
		return errors.Wrapf(ErrChanged, "read %q: it is gone", l.info.Name)
	case errors.Is(err, ErrClosed):
		return nil // the source was closed, which a File survives
	case err != nil:
		return err
	}
	return l.same("read", now)
}

func (l *localFile) same(verb string, now Info) error {
	if l.info.Same(now) {
		return nil
	}
	return errors.Wrapf(ErrChanged, "%s %q: was %d bytes of %s (%s), is %d bytes of %s (%s)", verb, l.info.Name,
		l.info.Size, l.info.ModTime.UTC(), l.info.ETag, now.Size, now.ModTime.UTC(), now.ETag)
}

// ReadAt reads a range.
func (l *localFile) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errors.Wrapf(ErrShort, "read %q: negative offset %d", l.info.Name, off)
	}
	n, err := 0, error(nil)
	for n < len(p) && err == nil {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		var m int
		m, err = l.f.ReadAt(p[n:min(len(p), n+maxReadBytes)], off+int64(n))
		n += m
	}
	if err == io.EOF && n == len(p) {
		err = nil
	}
	if err != nil && err != io.EOF {
		return n, errors.Wrapf(named(err), "read %q at %d", l.info.Name, off)
	}
	if changed := l.check(); changed != nil {
		return n, changed
	}
	return n, err
}

// NewReader reads a range in sequence.
func (l *localFile) NewReader(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	fi, err := l.f.Stat()
	if err != nil {
		return nil, errors.Wrapf(named(err), "read %q", l.info.Name)
	}
	size := fi.Size()
	if off < 0 || off > size || n > size-off {
		return nil, l.outside(off, n, size)
	}
	if n < 0 {
		n = size - off
	}
	return &localReader{ctx: ctx, l: l, off: off, end: off + n}, nil
}

func (l *localFile) outside(off, n, size int64) error {
	if err := l.check(); err != nil {
		return err
	}
	return errors.Wrapf(ErrShort, "read %q: %d bytes from %d, the file has %d", l.info.Name, n, off, size)
}

// localReader reads with pread, so that several readers share a file.
type localReader struct {
	ctx      context.Context
	l        *localFile
	off, end int64
	err      error // sticky
}

func (r *localReader) Read(p []byte) (int, error) {
	if r.err != nil || len(p) == 0 {
		return 0, r.err
	}
	if r.err = r.ctx.Err(); r.err != nil {
		return 0, r.err
	}
	if r.off == r.end {
		r.err = r.finish()
		return 0, r.err
	}
	n, err := r.l.f.ReadAt(p[:min(int64(len(p)), r.end-r.off, maxReadBytes)], r.off)
	r.off += int64(n)
	if n == 0 {
		r.err = r.failed(err)
	}
	return n, r.err
}

// WriteTo copies the rest in large pieces; io.Copy uses it.
func (r *localReader) WriteTo(w io.Writer) (int64, error) {
	// Not io.CopyBuffer: an *os.File as w would take over, with small buffers.
	buf := make([]byte, min(copyBytes, r.end-r.off+1))
	for written := int64(0); ; {
		n, err := r.Read(buf)
		if n > 0 {
			m, werr := w.Write(buf[:n])
			written += int64(m)
			if werr == nil && m < n {
				werr = io.ErrShortWrite
			}
			if werr != nil {
				return written, werr
			}
		}
		if err == io.EOF {
			return written, nil
		}
		if err != nil {
			return written, err
		}
	}
}

func (r *localReader) finish() error {
	if err := r.l.check(); err != nil {
		return err
	}
	if err := r.l.checkName(); err != nil {
		return err
	}
	return io.EOF
}

// failed explains a read that got nothing before the end.
func (r *localReader) failed(err error) error {
	if err != nil && err != io.EOF {
		return errors.Wrapf(named(err), "read %q at %d", r.l.info.Name, r.off)
	}
	if err := r.l.check(); err != nil {
		return err
	}
	return errors.Wrapf(ErrShort, "read %q: ends at %d, want %d", r.l.info.Name, r.off, r.end)
}

// Close stops the reader; the file stays open.
func (r *localReader) Close() error {
	if r.err == nil || r.err == io.EOF {
		r.err = errors.Wrapf(ErrClosed, "read %q", r.l.info.Name)
	}
	return nil
}

// info makes an Info of a regular file.
func (at place) info(fi fs.FileInfo) Info {
	info := Info{Name: at.name, Size: fi.Size(), ModTime: fi.ModTime(), Digest: at.digest}
	changed := int64(0)
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		changed = time.Unix(st.Ctim.Unix()).UnixNano()
		info.FileID = fmt.Sprintf("%x-%x", st.Dev, st.Ino)
	}
	info.ETag = fmt.Sprintf("%x-%x-%x", changed, fi.ModTime().UnixNano(), fi.Size())
	return info
}

// named puts our sentinel into the system's error. os.Root has no sentinel for a path that leads out: it says so in
// words, in a *fs.PathError without a number.
func named(err error) error {
	var number syscall.Errno
	var pathError *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return errors.Wrap(ErrNotFound, err.Error())
	case errors.Is(err, fs.ErrClosed):
		return errors.Wrap(ErrClosed, err.Error())
	case errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.EISDIR):
		return errors.Wrap(ErrRefused, err.Error())
	case errors.As(err, &pathError) && !errors.As(err, &number):
		return errors.Wrap(ErrRefused, err.Error())
	}
	return err
}

// decodePath percent-decodes the path of a file URL.
func decodePath(raw string) (string, error) {
	if strings.ContainsAny(raw, "?#") {
		return "", errors.Wrap(ErrBadLocation, "a file URL has no query and no fragment; write %3F and %23")
	}
	if strings.Contains(strings.ToLower(raw), "%2f") {
		return "", errors.Wrap(ErrBadLocation, "an escaped slash can't be part of a name")
	}
	p, err := url.PathUnescape(raw)
	if err != nil {
		return "", errors.Wrap(ErrBadLocation, err.Error())
	}
	for _, e := range strings.Split(p, "/") {
		if e == ".." || strings.IndexByte(e, 0) >= 0 {
			return "", errors.Wrapf(ErrBadLocation, "element %q", e)
		}
	}
	return p, nil
}
