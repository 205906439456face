package sourcetest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/artifact/source"
)

// Mem is a source in memory that misbehaves on request. It counts what is read. The zero value is empty and usable.
// Set the options before the first use; the methods may be called at any time, from any goroutine.
type Mem struct {
	ShortReads bool // Read returns at most a few bytes at a time
	HideSizes  bool // sizes are -1, as from a server that does not tell them

	mu struct {
		sync.Mutex
		files   map[string]memFile
		faults  map[string][]fault
		version int
		closed  bool
		read    map[string]int64
	}
}

type memFile struct {
	data []byte
	etag string
}

// fault happens once, when a read reaches byte at of its file.
type fault struct {
	at int64
	do func() error
}

// Put creates or replaces a file.
func (m *Mem) Put(name string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.files == nil {
		m.mu.files = make(map[string]memFile)
	}
	m.mu.version++
	m.mu.files[name] = memFile{slices.Clone(data), fmt.Sprint("v", m.mu.version)}
}

// Remove deletes a file; it may be absent.
func (m *Mem) Remove(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mu.files, name)
}

// FailAt makes the first read that reaches byte n of the file fail with err.
func (m *Mem) FailAt(name string, n int64, err error) { m.At(name, n, func() error { return err }) }

// At calls do once, when a read reaches byte n of the file: to change files, cancel a context, or return an error for
// the read. Byte n itself is delivered only afterwards.
func (m *Mem) At(name string, n int64, do func() error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.faults == nil {
		m.mu.faults = make(map[string][]fault)
	}
	m.mu.faults[name] = append(m.mu.faults[name], fault{n, do})
}

// BytesRead returns how many bytes of the file were read, by all its readers.
func (m *Mem) BytesRead(name string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.read[name]
}

// Open makes Mem an opener of every location.
func (m *Mem) Open(ctx context.Context, location string) (source.Source, error) {
	return memSource{m, location}, ctx.Err()
}

// Source returns the source itself.
func (m *Mem) Source() source.Source { return memSource{m, "mem://"} }

type memSource struct {
	m        *Mem
	location string
}

func (s memSource) String() string { return s.location }

func (s memSource) Close() error {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.m.mu.closed = true
	return nil
}

func (s memSource) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.m.mu.closed {
		return errors.Wrap(source.ErrClosed, s.location)
	}
	return nil
}

// List lists the files.
func (s memSource) List(ctx context.Context) (*source.Listing, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	s.m.mu.Lock()
	names := slices.Sorted(maps.Keys(s.m.mu.files))
	s.m.mu.Unlock()
	l := &source.Listing{}
	for _, name := range names {
		info, err := s.Stat(ctx, name)
		switch {
		case errors.Is(err, source.ErrBadName):
			l.Refused = append(l.Refused, source.Refusal{Name: name, Err: err})
		case errors.Is(err, source.ErrNotFound):
		case err != nil:
			return nil, err
		default:
			l.Files = append(l.Files, info)
		}
	}
	return l, nil
}

// Stat describes a file.
func (s memSource) Stat(ctx context.Context, name string) (source.Info, error) {
	if err := s.usable(ctx); err != nil {
		return source.Info{}, err
	}
	if err := source.CheckName(name); err != nil {
		return source.Info{}, errors.Wrap(err, "stat")
	}
	_, info, err := s.m.now(name)
	return info, err
}

// now returns the current file.
func (m *Mem) now(name string) ([]byte, source.Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.mu.files[name]
	if !ok {
		return nil, source.Info{}, errors.Wrapf(source.ErrNotFound, "%q", name)
	}
	info := source.Info{Name: name, Size: int64(len(f.data)), ETag: f.etag}
	if m.HideSizes {
		info.Size = -1
	}
	return f.data, info, nil
}

// Open opens a file.
func (s memSource) Open(ctx context.Context, info source.Info) (source.File, error) {
	now, err := s.Stat(ctx, info.Name)
	if err != nil {
		return nil, err
	}
	if !info.Same(now) {
		return nil, errors.Wrapf(source.ErrChanged, "open %q", info.Name)
	}
	return &memOpen{s.m, now}, nil
}

type memOpen struct {
	m    *Mem
	info source.Info
}

func (f *memOpen) Info() source.Info { return f.info }
func (f *memOpen) Close() error      { return nil }

// current returns the bytes, as long as the file is the same.
func (f *memOpen) current() ([]byte, error) {
	data, now, err := f.m.now(f.info.Name)
	if err != nil || !f.info.Same(now) {
		return nil, errors.Wrapf(source.ErrChanged, "read %q", f.info.Name)
	}
	return data, nil
}

// ReadAt reads a range.
func (f *memOpen) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	data, err := f.current()
	if err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, errors.Wrapf(source.ErrShort, "offset %d", off)
	}
	n := copy(p, data[min(off, int64(len(data))):])
	upTo, err := f.m.reach(f.info.Name, off, off+int64(n))
	if err != nil {
		return int(upTo - off), err
	}
	if _, err := f.current(); err != nil {
		return 0, err
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// reach runs the faults of [off, end) and counts what is read: up to the fault that fails, else up to end.
func (m *Mem) reach(name string, off, end int64) (int64, error) {
	for {
		m.mu.Lock()
		faults := m.mu.faults[name]
		i := slices.IndexFunc(faults, func(f fault) bool { return off <= f.at && f.at < end })
		var hit fault
		if i >= 0 {
			hit = faults[i]
			m.mu.faults[name] = slices.Delete(faults, i, i+1)
		}
		m.mu.Unlock()
		if i < 0 {
			m.count(name, end-off)
			return end, nil
		}
		if err := hit.do(); err != nil {
			m.count(name, hit.at-off)
			return hit.at, errors.Wrapf(err, "read %q at %d", name, hit.at)
		}
	}
}

func (m *Mem) count(name string, n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.read == nil {
		m.mu.read = make(map[string]int64)
	}
	m.mu.read[name] += n
}

// NewReader reads a range in sequence.
func (f *memOpen) NewReader(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	data, err := f.current()
	if err != nil {
		return nil, err
	}
	size := int64(len(data))
	if off < 0 || off > size || n > size-off {
		return nil, errors.Wrapf(source.ErrShort, "read %q: %d bytes from %d, the file has %d", f.info.Name, n, off, size)
	}
	if n < 0 {
		n = size - off
	}
	return &memReader{ctx: ctx, f: f, off: off, end: off + n}, nil
}

type memReader struct {
	ctx      context.Context
	f        *memOpen
	off, end int64
	err      error
}

func (r *memReader) Read(p []byte) (int, error) {
	if r.err != nil || len(p) == 0 {
		return 0, r.err
	}
	if r.off == r.end {
		if _, r.err = r.f.current(); r.err == nil {
			r.err = io.EOF
		}
		return 0, r.err
	}
	p = p[:min(int64(len(p)), r.end-r.off)]
	if r.f.m.ShortReads {
		p = p[:min(len(p), 1+int(r.off%4093))]
	}
	n, err := r.f.ReadAt(r.ctx, p, r.off)
	r.off += int64(n)
	r.err = err
	return n, err
}

func (r *memReader) Close() error {
	r.err = errors.Wrapf(source.ErrClosed, "read %q", r.f.info.Name)
	return nil
}
