package main

// #include "guard.h"
import "C"

import (
	"strings"
	"sync"
	"unsafe"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store"
)

// sessions are the objects that a client reads or writes in pieces, by key.
type sessions struct {
	mu   sync.Mutex
	gets map[string]*getSession
	puts map[string]*putSession
	over bool // the client was closed
}

// getSession holds an object for its reads. The view is closed under the lock, which reads share.
type getSession struct {
	mu   sync.RWMutex
	view *store.View // nil when the session has ended
}

// putSession holds the writer of an object that is being written.
type putSession struct{ w *store.Writer }

var errNoSession = errors.WithMessage(store.ErrInvalidParams, "the client has no session for the key")

// end ends all sessions, for good.
func (s *sessions) end() {
	s.mu.Lock()
	gets, puts := s.gets, s.puts
	s.gets, s.puts, s.over = nil, nil, true
	s.mu.Unlock()
	for _, g := range gets {
		g.end()
	}
	for _, p := range puts {
		p.w.Abort()
	}
}

func (g *getSession) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.view != nil {
		_ = g.view.Close() // the only error is a second close
		g.view = nil
	}
}

// startGet begins a session, in the place of one that the key has.
func (s *sessions) startGet(key string, v *store.View) error {
	g := &getSession{view: v}
	s.mu.Lock()
	old := s.gets[key]
	var err error
	switch {
	case s.over:
		err = store.ErrClosed
	case old == nil && len(s.gets) >= store.MaxBatch:
		err = errors.WithMessagef(store.ErrInvalidParams, "there are %d get sessions already", store.MaxBatch)
	default:
		if s.gets == nil {
			s.gets = make(map[string]*getSession)
		}
		s.gets[strings.Clone(key)] = g
	}
	s.mu.Unlock()
	if err != nil {
		old = g
	}
	if old != nil {
		old.end()
	}
	return err
}

func (s *sessions) get(key string) *getSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gets[key]
}

func (s *sessions) takeGet(key string) *getSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gets[key]
	delete(s.gets, key)
	return g
}

// startPut keeps a writer as a session. make is called without the lock: two starts of one key can meet in the store, where
// one of them loses.
func (s *sessions) startPut(key string, create func() (*store.Writer, error)) error {
	if s.put(key) != nil {
		return errors.WithMessagef(store.ErrInvalidParams, "put %.64q: the client has a session for it", key)
	}
	w, err := create()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
		err = store.ErrClosed
	case s.puts[key] != nil:
		err = errors.WithMessagef(store.ErrInvalidParams, "put %.64q: the client has a session for it", key)
	case len(s.puts) >= store.MaxBatch:
		err = errors.WithMessagef(store.ErrInvalidParams, "there are %d put sessions already", store.MaxBatch)
	}
	if err != nil {
		w.Abort()
		return err
	}
	if s.puts == nil {
		s.puts = make(map[string]*putSession)
	}
	s.puts[strings.Clone(key)] = &putSession{w}
	return nil
}

func (s *sessions) put(key string) *putSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.puts[key]
}

func (s *sessions) takePut(key string) *putSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.puts[key]
	delete(s.puts, key)
	return p
}

// read copies fragments of the object and returns their bytes.
func (g *getSession) read(fragments []store.Fragment) (n int64, err error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.view == nil {
		return 0, errNoSession
	}
	size := g.view.Size()
	for _, f := range fragments {
		if f.Off < 0 || int64(len(f.Dst)) > size-f.Off {
			return 0, errors.WithMessagef(store.ErrInvalidParams, "%d bytes from byte %d of %d", len(f.Dst), f.Off, size)
		}
	}
	for _, f := range fragments {
		copyOut(f.Dst, g.view.Segments(), f.Off)
		n += int64(len(f.Dst))
	}
	return n, nil
}

// copyOut copies len(dst) bytes from off of what the pieces are together.
func copyOut(dst []byte, pieces [][]byte, off int64) {
	for _, p := range pieces {
		if off >= int64(len(p)) {
			off -= int64(len(p))
			continue
		}
		dst = dst[copy(dst, p[off:]):]
		off = 0
	}
}

//export mc_get_session_start
func mc_get_session_start(e *C.mc_error, h C.uintptr_t, keys *C.char, keysSize C.size_t, keySizes *C.uint32_t, count C.size_t,
	out *C.int) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	return eachKey(e, h, packed{keys, keysSize, keySizes, count}, out, func(s *seat, _ int, key string) error {
		v, err := s.View(always, key, nil)
		if err != nil {
			return err
		}
		return s.sessions.startGet(key, v)
	})
}

// eachKey does something with each key of a batch. out may be NULL.
func eachKey(e *C.mc_error, h C.uintptr_t, p packed, out *C.int, do func(s *seat, i int, key string) error) C.int {
	s, b, err := unpacked(h, p)
	if err != nil {
		return fail(e, err)
	}
	defer b.done()
	res := results{e: e}
	for i, key := range b.keys {
		err := do(s, i, key)
		if out != nil {
			unsafe.Slice(out, len(b.keys))[i] = res.code(err)
		}
	}
	return 0
}

//export mc_get_session_read
func mc_get_session_read(e *C.mc_error, h C.uintptr_t, keys *C.char, keysSize C.size_t, keySizes *C.uint32_t, count C.size_t,
	addresses *unsafe.Pointer, sizes *C.size_t, counts *C.uint32_t, total C.int64_t, offsets *C.uint64_t, out *C.int64_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, b, err := unpacked(h, packed{keys, keysSize, keySizes, count})
	if err != nil {
		return fail(e, err)
	}
	defer b.done()
	b.fragments(buffers{addresses, sizes, counts, total}, offsets)
	res := results{e: e}
	bytes := unsafe.Slice(out, len(b.keys))
	for i := range b.ranges {
		q := &b.ranges[i]
		n, err := int64(0), errNoSession
		if g := s.sessions.get(q.Key); g != nil {
			n, err = g.read(q.Fragments)
		}
		bytes[i] = C.int64_t(n)
		if err != nil {
			bytes[i] = C.int64_t(res.code(errors.WithMessagef(err, "get %.64q", q.Key)))
		}
	}
	return 0
}

//export mc_get_session_end
func mc_get_session_end(e *C.mc_error, h C.uintptr_t, keys *C.char, keysSize C.size_t, keySizes *C.uint32_t, count C.size_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	return eachKey(e, h, packed{keys, keysSize, keySizes, count}, nil, func(s *seat, _ int, key string) error {
		if g := s.sessions.takeGet(key); g != nil {
			g.end()
		}
		return nil
	})
}

//export mc_put_session_start
func mc_put_session_start(e *C.mc_error, h C.uintptr_t, keys *C.char, keysSize C.size_t, keySizes *C.uint32_t, count C.size_t,
	sizes *C.uint64_t, o *C.mooncake_put_options_t, out *C.int) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	b := newBatch()
	defer b.done()
	b.keys = resized(b.keys, int(count)) // for the groups
	opts, err := b.putOptions(o)
	if err != nil {
		return fail(e, err)
	}
	return eachKey(e, h, packed{keys, keysSize, keySizes, count}, out, func(s *seat, i int, key string) error {
		size, err := size64("size", unsafe.Slice(sizes, int(count))[i])
		if err != nil {
			return errors.WithMessagef(err, "put %.64q", key)
		}
		return s.sessions.startPut(key, func() (*store.Writer, error) { return s.Create(always, key, size, opts(i)) })
	})
}

//export mc_put_session_write
func mc_put_session_write(e *C.mc_error, h C.uintptr_t, keys *C.char, keysSize C.size_t, keySizes *C.uint32_t, count C.size_t,
	addresses *unsafe.Pointer, sizes *C.size_t, counts *C.uint32_t, total C.int64_t, offsets *C.uint64_t, out *C.int) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, b, err := unpacked(h, packed{keys, keysSize, keySizes, count})
	if err != nil {
		return fail(e, err)
	}
	defer b.done()
	b.fragments(buffers{addresses, sizes, counts, total}, offsets)
	res := results{e: e}
	codes := unsafe.Slice(out, len(b.keys))
	for i := range b.ranges {
		q := &b.ranges[i]
		err := errNoSession
		if p := s.sessions.put(q.Key); p != nil {
			err = p.write(q.Fragments)
		}
		if err != nil {
			err = errors.WithMessagef(err, "put %.64q", q.Key)
		}
		codes[i] = res.code(err)
	}
	return 0
}

func (p *putSession) write(fragments []store.Fragment) error {
	for _, f := range fragments {
		if _, err := p.w.WriteAt(f.Dst, f.Off); err != nil {
			return err
		}
	}
	return nil
}

//export mc_put_session_end
func mc_put_session_end(e *C.mc_error, h C.uintptr_t, keys *C.char, keysSize C.size_t, keySizes *C.uint32_t, count C.size_t,
	revoke C.int, out *C.int) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	return eachKey(e, h, packed{keys, keysSize, keySizes, count}, out, func(s *seat, _ int, key string) error {
		p := s.sessions.takePut(key)
		switch {
		case p == nil:
			return errors.WithMessagef(errNoSession, "put %.64q", key)
		case revoke != 0:
			p.w.Abort()
			return nil
		}
		return p.w.Commit(always)
	})
}
