package store

import (
	"context"
	"sync"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/master"
)

// View is a borrowed, read-only look at an object's bytes in the store's memory. While it is open the object is
// neither evicted nor moved, even if its key is removed or replaced. Close exactly once, after the last use of the
// bytes; writing to them corrupts the store. A View never closed keeps its memory, also after the store is closed.
// Who is able to cut a file short that File has handed out, root above all, takes the memory from under its views.
type View struct {
	s      *Store
	o      master.Object
	pieces [][]byte
	one    [1][]byte
	closed bool
	mu     sync.Mutex
}

// View borrows an object's bytes. One that is only on SSD is brought to memory first. Bytes of objects up to
// SlabBytes, and of those in files of their own, are one piece. opts may be nil.
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
	v := &View{s: s, o: r.o}
	v.pieces = s.pieces(&r.o, v.one[:0])
	if r.verify == VerifyAlways || r.verify == VerifyAuto && r.o.Flags&master.FlagUnverified != 0 {
		if err := r.verifyMemory(ctx, v.pieces); err != nil {
			return s.viewAfterBadMemory(ctx, &r, err)
		}
	}
	s.mapping.hold()
	s.counters.hits[TierMemory].add(r.stripe, r.o.Size)
	s.gate.leave(r.stripe)
	return v, nil
}

// verifyMemory compares the whole memory replica with its checksums.
func (r *reading) verifyMemory(ctx context.Context, pieces [][]byte) error {
	table, err := r.s.loadTable(&r.o, nil)
	if err == nil {
		err = guarded(&r.o, pieces, func() error {
			return verifyRange(ctx, nil, append([][]byte(nil), pieces...), 0, r.o.Size, r.o.Size, table)
		})
	}
	if err == nil {
		r.s.m.Verified(&r.o)
	}
	return err
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
			v := &View{s: s, o: o}
			v.pieces = s.pieces(&o, v.one[:0])
			s.counters.hits[TierSSD].add(r.stripe, r.o.Size)
			s.mapping.hold()
			s.gate.leave(r.stripe)
			return v, nil
		}
		if err == nil {
			s.m.Release(o.Holder())
		}
	}
	p := make([]byte, r.o.Size)
	if err := r.read(ctx, p, 0); err != nil {
		r.release()
		return nil, err
	}
	v := &View{s: s, o: r.o}
	v.one[0] = p
	v.pieces = v.one[:]
	s.mapping.hold()
	s.gate.leave(r.stripe)
	return v, nil
}

// Size is the object's size in bytes.
func (v *View) Size() int64 { return v.o.Size }

// Bytes is the object if it is one piece; see Segments for those that are not: for them it is nil.
func (v *View) Bytes() []byte {
	if len(v.pieces) != 1 {
		return nil
	}
	return v.pieces[0]
}

// Segments is the object's bytes as the pieces that they lie in, in order.
func (v *View) Segments() [][]byte { return v.pieces }

// Close gives the bytes back. A second Close is ErrClosed and does nothing.
func (v *View) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return errors.WithMessage(ErrClosed, "close view: closed already")
	}
	v.closed = true
	v.pieces, v.one[0] = nil, nil
	v.s.m.Release(v.o.Holder())
	v.s.mapping.drop()
	return nil
}

// SlabBytes is the largest size that a view is sure to have in one piece.
func (s *Store) SlabBytes() int64 { return s.seg.SlabBytes() }
