package store

import (
	"context"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/master"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
	"github.com/kvcache-ai/mooncake-go/store/internal/sum"
)

// Writer is a put whose bytes come in pieces. Nothing of it is visible before Commit; Abort, or a Writer that is
// dropped, leaves nothing. Safe for concurrent use; writes of overlapping ranges have no order. Copies of a Writer are the
// same writer: Commit or Abort of one ends all.
type Writer struct{ *writing }

// writing is what all copies of a Writer share.
type writing struct {
	s       *Store
	key     master.Key
	size    int64
	durable bool

	stream sync.Mutex // orders Write and ReadFrom; taken first of all, and held while a reader waits

	mu      sync.Mutex
	p       staged
	pieces  [][]byte       // of the memory replica
	own     *ssd.OwnWriter // instead of pieces: a durable object in a file of its own on SSD
	next    int64          // where Write goes on
	hasher  sum.Hasher     // of the first hashed bytes
	hashed  int64          // -1: bytes changed after they were hashed, Commit hashes the whole object
	written spans
	renewed int64
	ended   bool
	cleanup runtime.Cleanup
}

// Create begins a put of size bytes. It reserves the room and the key: until Commit, Abort or a pause longer than
// Options.PutTimeout other puts of the key are ErrExists. A durable object with a file of its own needs one of the few
// writers of the SSD tier: Create waits for it up to Options.PutTimeout, then it is ErrBusy.
func (s *Store) Create(ctx context.Context, key string, size int64, opts *PutOptions) (*Writer, error) {
	return s.begin(ctx, key, size, opts)
}

func (s *Store) begin(ctx context.Context, key string, size int64, opts *PutOptions) (*Writer, error) {
	stripe, err := s.gate.enter()
	if err != nil {
		return nil, err
	}
	defer s.gate.leave(stripe)
	q, err := s.request(key, size, opts)
	if err != nil {
		return nil, err
	}
	q.Name, q.Group = strings.Clone(q.Name), strings.Clone(q.Group) // they may outlive the call
	return s.create(ctx, q)
}

// create makes a Writer that refers to the strings of the request.
func (s *Store) create(ctx context.Context, q master.ReserveRequest) (w *Writer, err error) {
	w = &Writer{&writing{s: s, key: q.Key, size: q.Size, durable: q.Durable, renewed: s.now()}}
	w.p.key = q.Key
	if w.p.o, w.p.file, err = s.reserve(ctx, q); err != nil {
		return nil, err
	}
	if q.Placement == master.OnSSD {
		if w.own, err = s.createOwn(ctx, q.Size); err != nil {
			s.abort(&w.p)
			return nil, errors.WithMessagef(err, "create %.64q", q.Name)
		}
	} else {
		w.pieces = s.pieces(&w.p.o, nil)
	}
	left := dropped{s.core, master.Key{Tenant: q.Tenant, Name: strings.Clone(q.Name)}, w.p.o.Ref, w.p.o.Gen, w.own}
	s.unfinished.add(left)
	w.cleanup = runtime.AddCleanup(w.writing, dropped.abort, left)
	return w, nil
}

// dropped is what is left of a Writer that nobody has any more.
type dropped struct {
	c   *core
	key master.Key
	ref master.Ref
	gen uint64
	own *ssd.OwnWriter
}

func (d dropped) abort() {
	defer d.c.failOnPanic()
	stripe, err := d.c.gate.enterBegun()
	if err != nil {
		return
	}
	defer d.c.gate.leave(stripe)
	d.c.unfinished.remove(d.ref, d.gen)
	d.end()
}

func (d dropped) end() {
	if d.own != nil {
		d.own.Abort()
	}
	_ = d.c.m.Abort(d.ref, d.gen) // fails only if the put was taken over, which frees it as well
}

// createOwn begins a file of its own on the SSD tier.
func (s *Store) createOwn(ctx context.Context, size int64) (*ssd.OwnWriter, error) {
	if err := s.roomOnSSD(ctx, size); err != nil {
		return nil, ownError(err)
	}
	// The tier has a few writers. One that gives no sign of life for so long is dead, so a longer wait is no use.
	end := time.NewTimer(s.opts.PutTimeout)
	defer end.Stop()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		w, err := s.tier.CreateOwn(size)
		if !errors.Is(err, ssd.ErrTooManyWriters) {
			return w, ownError(err)
		}
		if err := s.gate.refused(); err != nil {
			return nil, err // Close waits for us
		}
		select {
		case <-ctx.Done():
			return nil, errors.WithMessage(ctx.Err(), err.Error())
		case <-end.C:
			return nil, ownError(err)
		case <-time.After(wait):
		}
	}
}

// ownError is an error of the tier to write a file of its own, which only durable puts do.
func ownError(err error) error {
	if errors.Is(err, ssd.ErrTooManyWriters) {
		return errors.WithMessage(ErrBusy, err.Error())
	}
	return failedDurable(err)
}

// Size is the size that the object will have.
func (w *Writer) Size() int64 { return w.size }

// Write writes the next bytes after the last Write or ReadFrom, for which it waits.
func (w *Writer) Write(p []byte) (int, error) {
	w.stream.Lock()
	defer w.stream.Unlock()
	return w.writeNext(p)
}

func (w *Writer) writeNext(p []byte) (int, error) {
	stripe, err := w.s.gate.enterBegun()
	if err != nil {
		return 0, err
	}
	defer w.s.gate.leave(stripe)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.appendLocked(p)
}

func (w *Writer) appendLocked(p []byte) (int, error) {
	n, err := w.writeLocked(p, w.next)
	w.next += int64(n)
	return n, err
}

// appendParts writes all parts for a caller that has entered the gate and that nobody shares the Writer with.
func (w *Writer) appendParts(ctx context.Context, parts [][]byte) error {
	for _, p := range parts {
		for len(p) > 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := min(len(p), copyStep)
			if _, err := w.appendLocked(p[:n]); err != nil {
				return err
			}
			p = p[n:]
		}
	}
	return nil
}

// WriteAt writes p at off, in any order. An object that goes straight to SSD (Durable, in a file of its own) can only
// be written in order: elsewhere than at the end it is ErrNotSupported.
func (w *Writer) WriteAt(p []byte, off int64) (int, error) {
	stripe, err := w.s.gate.enterBegun()
	if err != nil {
		return 0, err
	}
	defer w.s.gate.leave(stripe)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writeLocked(p, off)
}

func (w *Writer) writeLocked(p []byte, off int64) (int, error) {
	if err := w.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if w.own != nil {
		if off != w.hashed {
			return 0, errors.WithMessagef(ErrNotSupported, "write %.64q at %d: it goes to SSD in order, next is %d",
				w.key.Name, off, w.hashed)
		}
		n, err := w.own.Write(p)
		_, _ = w.hasher.Write(p[:n])
		w.hashed += int64(n)
		return n, ownError(err)
	}
	pieces, at := seek(w.pieces, off)
	inOrder := off == w.hashed
	for rest := p; len(rest) > 0; pieces, at = pieces[1:], 0 {
		n := min(len(rest), len(pieces[0])-int(at))
		if n == 0 {
			continue
		}
		dst := pieces[0][at:][:n]
		if inOrder {
			w.hasher.CopyTo(dst, rest[:n])
			w.hashed += int64(n)
		} else {
			sum.Copy(dst, rest[:n])
		}
		rest = rest[n:]
	}
	if !inOrder && off < w.hashed {
		w.hashed = -1
	}
	w.written.add(off, off+int64(len(p)))
	return len(p), nil
}

// check refuses what would not fit, and shows that the writer is alive.
func (w *Writer) check(off, n int64) error {
	switch {
	case w.ended:
		return errors.WithMessagef(ErrNotWriter, "write %.64q: committed or aborted already", w.key.Name)
	case off < 0 || n > w.size-off:
		return errors.WithMessagef(ErrInvalidParams, "write %.64q: %d bytes from byte %d of %d", w.key.Name, n, off, w.size)
	}
	if now := w.s.now(); now-w.renewed > int64(w.s.opts.PutTimeout)/4 {
		if err := w.s.m.Renew(now, w.p.o.Ref, w.p.o.Gen); err != nil {
			return errors.WithMessagef(err, "write %.64q", w.key.Name)
		}
		w.renewed = now
	}
	return nil
}

// ReadFrom reads the rest of the object from r. While it waits for r it holds up no one but Write: Abort, Commit and Close
// of the store end the put at once, and what r gives after that goes nowhere.
func (w *Writer) ReadFrom(r io.Reader) (n int64, err error) {
	w.stream.Lock()
	defer w.stream.Unlock()
	buf := sources.Get().(*[sourceBytes]byte)
	defer sources.Put(buf)
	for {
		left, err := w.left()
		if err != nil || left == 0 {
			return n, err
		}
		k, rerr := io.ReadFull(r, buf[:min(left, sourceBytes)])
		m, err := w.writeNext(buf[:k])
		n += int64(m)
		if err != nil {
			return n, err
		}
		if rerr != nil {
			return n, unexpectedEOF(rerr)
		}
	}
}

// sources are buffers between readers of callers and the store's memory. A reader may be in its Read for ever: what it
// writes to must not be the store's, which could be unmapped or another object's by then. They are small enough that the
// second copy finds the bytes in the cache.
var sources = sync.Pool{New: func() any { return new([sourceBytes]byte) }}

const sourceBytes = 4 * sum.ChunkBytes

// left is how many bytes Write may still write.
func (w *Writer) left() (int64, error) {
	stripe, err := w.s.gate.enterBegun()
	if err != nil {
		return 0, err
	}
	defer w.s.gate.leave(stripe)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.size - w.next, w.check(w.next, 0)
}

func unexpectedEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Commit makes the object visible, after it is durable if it is to be. Bytes that were never written make it
// ErrIncomplete and end the put, as every error does.
func (w *Writer) Commit(ctx context.Context) error {
	stripe, err := w.s.gate.enterBegun()
	if err != nil {
		return err
	}
	defer w.s.gate.leave(stripe)
	return w.commit(ctx)
}

func (w *Writer) commit(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return errors.WithMessagef(ErrNotWriter, "commit %.64q: committed or aborted already", w.key.Name)
	}
	w.end()
	if err := w.finish(ctx); err != nil {
		if w.own != nil {
			w.own.Abort()
		}
		w.s.abort(&w.p)
		return errors.WithMessagef(err, "commit %.64q", w.key.Name)
	}
	switch {
	case w.own != nil:
		return w.commitOwn(ctx)
	case w.durable:
		w.p.data = w.s.pieces(&w.p.o, nil)
		return w.s.commitDurable(ctx, []*staged{&w.p})[0]
	}
	return w.s.commit(&w.p, ssdNowhere)
}

// finish completes the chunk table and the file of an object whose bytes are all there.
func (w *Writer) finish(ctx context.Context) error {
	if w.hashed != w.size && !w.written.cover(w.size) {
		return errors.WithMessagef(ErrIncomplete, "%d bytes, missing from %d", w.size, w.written.gap())
	}
	w.p.table = w.hasher.Table()
	if w.own != nil {
		return ownError(w.own.Finish(ctx))
	}
	if w.hashed != w.size {
		table, err := hashParts(ctx, slices.Clone(w.pieces), nil)
		if err != nil {
			return err
		}
		w.p.table = table
	}
	w.s.storeTable(&w.p.o, w.p.table)
	return w.s.seal(w.p.file)
}

// commitOwn makes an object durable whose bytes are in a file of its own on SSD: the head that describes it, then the
// catalogue's record.
func (w *Writer) commitOwn(ctx context.Context) error {
	puts := []*staged{&w.p}
	loc, err := w.s.tier.AppendHead(ctx, w.p.head(), w.own.ID())
	if err != nil {
		w.s.tier.Free(ssd.Loc{Own: w.own.ID()}, 0, 0)
		return w.s.notCommitted(puts, err)[0]
	}
	return w.s.commitAppended(ctx, puts, []ssd.Loc{loc})[0]
}

// Abort ends the put and frees its room. After Commit or Abort it does nothing.
func (w *Writer) Abort() {
	stripe, err := w.s.gate.enterBegun()
	if err != nil {
		return
	}
	defer w.s.gate.leave(stripe)
	w.abort()
}

func (w *Writer) abort() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	w.end()
	if w.own != nil {
		w.own.Abort()
	}
	w.s.abort(&w.p)
}

func (w *Writer) end() {
	w.ended = true
	w.cleanup.Stop()
	w.s.unfinished.remove(w.p.o.Ref, w.p.o.Gen)
}

// spans are the ranges of an object that were written, sorted and apart from each other.
type spans []span

type span struct{ from, to int64 }

func (s *spans) add(from, to int64) {
	i, _ := slices.BinarySearchFunc(*s, from, func(a span, from int64) int { return int(min(max(a.to-from, -1), 1)) })
	j := i
	for j < len(*s) && (*s)[j].from <= to {
		from, to = min(from, (*s)[j].from), max(to, (*s)[j].to)
		j++
	}
	*s = slices.Replace(*s, i, j, span{from, to})
}

func (s spans) cover(size int64) bool { return len(s) == 1 && s[0] == span{0, size} }

// gap is the first byte that was not written.
func (s spans) gap() int64 {
	if len(s) == 0 || s[0].from > 0 {
		return 0
	}
	return s[0].to
}
