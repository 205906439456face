package store

import (
	"context"
	"sync"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/master"
)

// View is a borrowed, read-only look at bytes of an object. While it is open the object is neither evicted nor moved,
// even if its key is removed or replaced. Close exactly once, after the last use of the bytes; writing to them corrupts
// the store. Copies of a View are the same view: Close of one closes all. A View never closed keeps its memory, also
// after the store is closed. A process that can truncate a file returned by File (root, for instance) invalidates the
// views of its object: reading them raises SIGBUS.
//
// Bytes of a view are never on the Go heap, so that they can be handed to C. They are the store's own memory or, where
// the bytes are not there in the wanted form, a copy in memory of the view's own that goes with its Close. Such copies
// are beside Options.MemoryBytes; Usage.ViewCopies counts them.
type View struct{ *viewing }

// viewing is what all copies of a View share.
type viewing struct {
	s      *Store
	holder master.Ref // pinned
	size   int64
	pieces [][]byte
	one    [1][]byte
	file   *arena.File // pinned, nil unless the bytes are in one
	copied bool        // one is mapped for this view alone
	closed bool
	mu     sync.Mutex
}

// newView makes a View and what it shares in one allocation.
func newView(s *Store, holder master.Ref, size int64) *View {
	v := new(struct {
		View
		shared viewing
	})
	v.shared.s, v.shared.holder, v.shared.size = s, holder, size
	v.View.viewing = &v.shared
	return &v.View
}

// View borrows an object's bytes. One that is only on SSD is brought to memory first if there is room, else copied; a
// machine that has no memory for the copy is ErrMemoryLimit, and an object in a file of its own that can't be mapped because
// too many others are in use is ErrBusy, and so is one that eight million readers have open. Bytes of objects up to SlabBytes, and of those in files of
// their own, are one piece. opts may be nil.
func (s *Store) View(ctx context.Context, key string, opts *ReadOptions) (*View, error) {
	r, err := s.acquire(key, opts)
	if err != nil {
		return nil, err
	}
	if !r.o.InMemory() {
		return s.viewOfSSD(ctx, &r)
	}
	if err := s.untouched(&r.o); err != nil {
		return s.viewAfterBadMemory(ctx, &r, err)
	}
	v := newView(s, r.o.Holder(), r.o.Size)
	if v.file, err = s.pin(&r.o); err != nil {
		return s.viewAfterBadMemory(ctx, &r, err)
	}
	v.pieces = s.pieces(&r.o, v.one[:0])
	if r.mustVerify() {
		if err := r.verifyMemory(ctx, v.pieces); err != nil {
			unpinFile(v.file)
			return s.viewAfterBadMemory(ctx, &r, err)
		}
	}
	r.hit(TierMemory, v.size)
	return r.opened(v), nil
}

// ViewRange borrows n bytes of an object from byte off, always in one piece. They are copied if they are only on SSD,
// from where just they are read, or if the memory that they lie in is not one piece. A range without a byte, or that is
// not inside the object, is ErrInvalidParams. opts may be nil.
func (s *Store) ViewRange(ctx context.Context, key string, off, n int64, opts *ReadOptions) (*View, error) {
	r, err := s.acquire(key, opts)
	if err != nil {
		return nil, err
	}
	if off < 0 || n <= 0 || n > r.o.Size-off {
		r.release()
		return nil, errors.WithMessagef(ErrInvalidParams, "view %.64q: %d bytes from byte %d of %d", key, n, off, r.o.Size)
	}
	if v := s.borrowRange(ctx, &r, off, n); v != nil {
		r.hit(TierMemory, n)
		return r.opened(v), nil
	}
	return s.copied(ctx, &r, off, n)
}

// borrowRange is a view of the store's memory, nil if that has not got the range in one piece, or not right: then a copy
// finds out what is wrong.
func (s *Store) borrowRange(ctx context.Context, r *reading, off, n int64) *View {
	if !r.o.InMemory() || s.untouched(&r.o) != nil {
		return nil
	}
	v := newView(s, r.o.Holder(), n)
	file, err := s.pin(&r.o)
	if err != nil {
		return nil
	}
	all := s.pieces(&r.o, v.one[:0])
	pieces, at := seek(all, off)
	if n > int64(len(pieces[0]))-at || r.mustVerify() && r.verifyPieces(ctx, all, off, n) != nil {
		unpinFile(file)
		return nil
	}
	v.file = file
	v.one[0] = pieces[0][at : at+n : at+n]
	v.pieces = v.one[:]
	return v
}

// mustVerify says whether bytes in memory are to be compared with their checksums.
func (r *reading) mustVerify() bool {
	return r.verify == VerifyAlways || r.verify == VerifyAuto && r.o.Flags&master.FlagUnverified != 0
}

// opened is the end of the reading: from here on the view keeps the pin.
func (r *reading) opened(v *View) *View {
	r.s.mapping.hold()
	r.s.gate.leave(r.stripe)
	return v
}

// verifyMemory compares the whole memory replica with its checksums.
func (r *reading) verifyMemory(ctx context.Context, pieces [][]byte) error {
	err := r.verifyPieces(ctx, pieces, 0, r.o.Size)
	if err == nil {
		r.s.m.Verified(&r.o)
	}
	return err
}

// verifyPieces compares the chunks that n bytes from off touch.
func (r *reading) verifyPieces(ctx context.Context, pieces [][]byte, off, n int64) error {
	table, err := r.s.loadTable(&r.o, nil)
	if err != nil {
		return err
	}
	return guarded(&r.o, pieces, func() error {
		return verifyRange(ctx, nil, append([][]byte(nil), pieces...), off, n, r.o.Size, table)
	})
}

func (s *Store) viewAfterBadMemory(ctx context.Context, r *reading, why error) (*View, error) {
	if !isLost(why) || !s.quarantine(r, TierMemory, why) {
		r.release()
		return nil, r.failed(why)
	}
	r.o.Flags |= master.FlagMemoryBad
	return s.viewOfSSD(ctx, r)
}

// viewOfSSD makes a view of an object that memory does not have: brought there if there is room, else a copy of the
// view's own.
func (s *Store) viewOfSSD(ctx context.Context, r *reading) (*View, error) {
	if r.o.Flags&(master.FlagMemory|master.FlagLink) == 0 && s.promote(ctx, r.o.Holder(), r.o.Gen, true) == nil {
		o, err := s.m.Acquire(s.now(), s.key(r.key), int64(s.opts.LeaseTTL))
		if err == nil && o.Gen == r.o.Gen && o.InMemory() {
			s.m.Release(r.o.Holder())
			r.o = o
			v := newView(s, o.Holder(), o.Size)
			if v.file, err = s.pin(&o); err != nil {
				r.release()
				return nil, r.failed(err)
			}
			v.pieces = s.pieces(&o, v.one[:0])
			r.hit(TierSSD, v.size)
			return r.opened(v), nil
		}
		if err == nil {
			s.m.Release(o.Holder())
		}
	}
	return s.copied(ctx, r, 0, r.o.Size)
}

// copied is a view of a copy of its own, read from the best replica that is right.
func (s *Store) copied(ctx context.Context, r *reading, off, n int64) (*View, error) {
	own, err := arena.MapPrivate(n, s.limits)
	if err != nil {
		r.release()
		return nil, errors.WithMessagef(memoryError(err), "view %.64q", r.key)
	}
	if err := r.read(ctx, own, off); err != nil {
		_ = arena.UnmapPrivate(own)
		r.release()
		return nil, err
	}
	v := newView(s, r.o.Holder(), n)
	v.copied, v.one[0] = true, own
	v.pieces = v.one[:]
	s.mapping.copies.Add(n)
	return r.opened(v), nil
}

// Size is the number of bytes: the object's, or those of the range.
func (v *View) Size() int64 { return v.size }

// Bytes is what is viewed if that is one piece; see Segments for what is not: for that it is nil.
func (v *View) Bytes() []byte {
	if len(v.pieces) != 1 {
		return nil
	}
	return v.pieces[0]
}

// Segments is the bytes as the pieces that they lie in, in order.
func (v *View) Segments() [][]byte { return v.pieces }

// Close gives the bytes back. A second Close is ErrClosed and does nothing.
func (v *View) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return errors.WithMessage(ErrClosed, "close view: closed already")
	}
	v.closed = true
	var err error
	if v.copied {
		err = arena.UnmapPrivate(v.one[0])
		v.s.mapping.copies.Add(-v.size)
	}
	unpinFile(v.file)
	v.pieces, v.one[0], v.file = nil, nil, nil
	v.s.unpin(v.holder)
	return err
}

// unpin lets go of an object that a view or a file had open. The books of a failed store are left alone: who would wait
// for their locks might wait for ever.
func (c *core) unpin(holder master.Ref) {
	if c.failure.get() == nil {
		c.m.Release(holder)
	}
	c.mapping.drop()
}

// SlabBytes is the largest size that a view is sure to have in one piece.
func (s *Store) SlabBytes() int64 { return s.seg.SlabBytes() }
