package store

import (
	"bytes"
	"context"
	"io"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/master"
	"github.com/kvcache-ai/mooncake-go/store/internal/status"
	"github.com/kvcache-ai/mooncake-go/store/internal/sum"
)

// Put stores value under key, in one copy that also makes its checksums. A key that exists is ErrExists and keeps its
// bytes, unless opts.Replace. opts may be nil.
func (s *Store) Put(ctx context.Context, key string, value []byte, opts *PutOptions) error {
	parts := [1][]byte{value}
	return s.put(ctx, key, parts[:], opts)
}

// PutParts stores the concatenation of parts.
func (s *Store) PutParts(ctx context.Context, key string, parts [][]byte, opts *PutOptions) error {
	return s.put(ctx, key, parts, opts)
}

// Upsert is Put with Replace. One that is not durable and replaces an object that was may return ErrNotDurable although
// it is visible: then a crash can bring the old object back. So may every put of a key after an operation on it that
// was ErrNotDurable, as long as the catalogue can't be brought to forget what that one left.
func (s *Store) Upsert(ctx context.Context, key string, value []byte, opts *PutOptions) error {
	o := replacing(opts)
	return s.Put(ctx, key, value, &o)
}

// UpsertParts is PutParts with Replace.
func (s *Store) UpsertParts(ctx context.Context, key string, parts [][]byte, opts *PutOptions) error {
	o := replacing(opts)
	return s.put(ctx, key, parts, &o)
}

func replacing(opts *PutOptions) PutOptions {
	var o PutOptions
	if opts != nil {
		o = *opts
	}
	o.Replace = true
	return o
}

// PutFrom stores size bytes of r. A shorter r is io.ErrUnexpectedEOF and stores nothing; what r has beyond size is left in
// it, except by a *bytes.Reader, which is copied in one pass. It holds nothing up while it waits for r: it has ended with
// ErrClosed if the store is closed meanwhile, though it returns when r does.
func (s *Store) PutFrom(ctx context.Context, key string, r io.Reader, size int64, opts *PutOptions) error {
	if b, ok := r.(*bytes.Reader); ok && int64(b.Len()) == size {
		return s.putBytesReader(ctx, key, b, opts)
	}
	w, err := s.begin(ctx, key, size, opts)
	if err != nil {
		return err
	}
	if _, err := w.ReadFrom(untilDone{ctx, r}); err != nil {
		w.Abort()
		return errors.WithMessagef(err, "put %.64q", key)
	}
	return w.Commit(ctx)
}

// untilDone is a reader that ends with a context.
type untilDone struct {
	ctx context.Context
	r   io.Reader
}

func (u untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}

// inOwnSSDFile says whether an object goes past memory straight into a file of its own on SSD. Smaller ones that go past
// memory go into the tier's containers.
func (s *Store) inOwnSSDFile(q *master.ReserveRequest) bool {
	return q.Placement == master.OnSSD && q.Size >= s.opts.FileBytes
}

// putOnSSD puts an object into a file of its own on SSD.
func (s *Store) putOnSSD(ctx context.Context, q master.ReserveRequest, parts [][]byte) error {
	w, err := s.create(ctx, q)
	if err != nil {
		return err
	}
	if err := w.appendParts(ctx, parts); err != nil {
		w.abort()
		return errors.WithMessagef(err, "put %.64q", q.Name)
	}
	return w.commit(ctx)
}

// putBytesReader hands the reader's slice to put as it is.
func (s *Store) putBytesReader(ctx context.Context, key string, b *bytes.Reader, opts *PutOptions) error {
	var take sliceTaker
	_, err := b.WriteTo(&take)
	if err == nil {
		err = s.Put(ctx, key, take.p, opts)
	}
	return err
}

type sliceTaker struct{ p []byte }

func (t *sliceTaker) Write(p []byte) (int, error) { t.p = p; return len(p), nil }

// request checks options and turns them into the master's terms.
func (s *Store) request(key string, size int64, opts *PutOptions) (master.ReserveRequest, error) {
	q := master.ReserveRequest{Key: s.key(key), Size: size, WriterPin: true}
	if opts == nil {
		opts = &PutOptions{}
	}
	if err := opts.check(key); err != nil {
		return q, err
	}
	if opts.Durable && s.tier == nil {
		return q, errors.WithMessagef(ErrInvalidParams, "put %.64q: Durable needs Options.Dir", key)
	}
	q.Kind, q.Group, q.HardPin, q.Durable, q.Replace = uint8(opts.Type), opts.Group, opts.HardPin, opts.Durable, opts.Replace
	if opts.SoftPin > 0 {
		q.SoftUntil = s.now() + int64(opts.SoftPin)
	}
	own := size >= s.opts.FileBytes && (opts.OwnFile || opts.Type == Weight)
	limit := s.largest()
	if size > limit && size <= limit+s.budget.Used(arena.Metadata) && s.squeezeMeta() > 0 {
		limit = s.largest()
	}
	switch {
	case opts.Durable && size > s.opts.SSDBytes:
		return q, errors.WithMessagef(ErrTooLarge, "put %.64q: %d bytes, the SSD tier's limit is %d", key, size, s.opts.SSDBytes)
	case opts.Durable && (own || opts.Type == Weight || size > s.opts.MemoryBytes/2):
		q.Placement = master.OnSSD
	case size > limit:
		return q, errors.WithMessagef(ErrTooLarge, "put %.64q: %d bytes, the memory budget of %d has room for %d; only a durable put may be larger",
			key, size, s.opts.MemoryBytes, limit)
	case own:
		q.Placement = master.InOwnFile
	}
	return q, nil
}

// largest is the size of the largest object that would fit if there were no other: what would not fit even then must
// not drive everything else out.
func (c *core) largest() int64 {
	n := c.opts.MemoryBytes - c.headroom() - c.budget.Used(arena.Metadata)
	return n - n/sum.ChunkBytes*8 - 4096 // less the chunk table
}

func (o *PutOptions) check(key string) error {
	switch {
	case o.Type >= Types:
		return errors.WithMessagef(ErrInvalidParams, "put %.64q: unknown type %d, the highest is %d", key, o.Type, Types-1)
	case o.SoftPin < 0:
		return errors.WithMessagef(ErrInvalidParams, "put %.64q: soft pin %v is negative", key, o.SoftPin)
	case o.SoftPin > MaxSoftPin:
		return errors.WithMessagef(ErrInvalidParams, "put %.64q: soft pin %v, limit %v", key, o.SoftPin, MaxSoftPin)
	case o.Replicas < 0:
		return errors.WithMessagef(ErrInvalidParams, "put %.64q: %d replicas", key, o.Replicas)
	}
	return nil
}

// put is all puts whose bytes are in memory.
func (s *Store) put(ctx context.Context, key string, parts [][]byte, opts *PutOptions) error {
	stripe, err := s.gate.enter()
	if err != nil {
		return err
	}
	defer s.gate.leave(stripe)
	var size int64
	for _, p := range parts {
		size += int64(len(p))
	}
	q, err := s.request(key, size, opts)
	if err != nil {
		return err
	}
	if s.inOwnSSDFile(&q) {
		return s.putOnSSD(ctx, q, parts)
	}
	p, err := s.stage(ctx, q, parts)
	if err != nil {
		return err
	}
	if !q.Durable {
		return s.commit(&p, ssdNowhere)
	}
	return s.commitDurable(ctx, []*staged{&p})[0]
}

// staged is a reservation whose bytes are in place.
type staged struct {
	key    master.Key
	group  string // of an object that is copied
	o      master.Object
	as     master.Inherited // of a durable put: what its record says
	table  []uint64
	pooled *[]uint64
	data   [][]byte // what the SSD tier is to write, for a durable put
	file   *arena.File
}

// stage reserves room and copies the parts into it. An object that memory is not to have is only hashed: its parts are
// what the SSD tier will write.
func (s *Store) stage(ctx context.Context, q master.ReserveRequest, parts [][]byte) (p staged, err error) {
	p.key = q.Key
	p.pooled = tables.Get().(*[]uint64)
	if p.o, p.file, err = s.reserve(ctx, q); err != nil {
		tables.Put(p.pooled)
		return p, err
	}
	if q.Placement == master.OnSSD {
		p.data = parts
		p.table, err = hashParts(ctx, parts, (*p.pooled)[:0])
	} else {
		err = s.stageInMemory(ctx, &p, parts)
	}
	if err != nil {
		s.abort(&p)
		return p, errors.WithMessagef(err, "put %.64q", q.Name)
	}
	return p, nil
}

func (s *Store) stageInMemory(ctx context.Context, p *staged, parts [][]byte) (err error) {
	var buf [4][]byte
	p.table, err = fill(ctx, s.pieces(&p.o, buf[:0]), parts, (*p.pooled)[:0])
	if err != nil {
		return err
	}
	s.storeTable(&p.o, p.table)
	if p.o.Flags&master.FlagDurable != 0 {
		p.data = s.pieces(&p.o, nil)
	}
	return s.seal(p.file)
}

func hashParts(ctx context.Context, parts [][]byte, table []uint64) ([]uint64, error) {
	var h sum.Hasher
	h.Reset(table)
	for _, p := range parts {
		for len(p) > 0 {
			if err := ctx.Err(); err != nil {
				return table, err
			}
			n := min(len(p), copyStep)
			_, _ = h.Write(p[:n])
			p = p[n:]
		}
	}
	return h.Table(), nil
}

func (s *Store) abort(p *staged) {
	_ = s.m.Abort(p.o.Ref, p.o.Gen) // fails only if the put was taken over, which frees it as well
	p.release()
}

func (p *staged) release() {
	if p.pooled != nil {
		if cap(p.table) <= 1<<14 { // don't keep the tables of giants
			*p.pooled = p.table[:0]
		}
		tables.Put(p.pooled)
		p.pooled, p.table = nil, nil
	}
}

var ssdNowhere master.Loc

// commit makes a staged object visible.
func (s *Store) commit(p *staged, loc master.Loc) error {
	old, err := s.publish(p, loc)
	if err != nil {
		return err
	}
	return s.committed(p, old)
}

// publish is the master's part of commit.
func (s *Store) publish(p *staged, loc master.Loc) (master.Replaced, error) {
	digest := sum.TableDigest(p.table)
	p.release()
	return s.m.Commit(s.now(), p.o.Ref, p.o.Gen, digest, loc)
}

// committed is what is left of commit once the object is visible: to tell of it, and to forget what it replaced.
func (s *Store) committed(p *staged, old master.Replaced) error {
	s.counters.put(p.o.Size)
	s.noticeUse(p.o.Size)
	if s.feed.active() {
		s.feed.send(Event{Kind: EventPut, Tenant: p.key.Tenant, Key: p.key.Name, Size: p.o.Size, Type: ObjectType(p.o.Kind)})
	}
	err := s.forgetOne(p.key.Tenant, p.key.Name, old)
	s.awaitDepartures(p.key.Tenant, p.key.Name)
	switch {
	case p.o.Flags&master.FlagDurable != 0:
		return nil // the forgetting is tried again; if a crash comes first, the newer generation wins
	case old.Pinned != 0 && !old.Durable:
		return s.settle(p.key.Tenant, p.key.Name) // what was replaced was a cache; what was there before may have been more
	}
	return err
}

// maxReserveTries bounds the evictions that one put may ask for.
const maxReserveTries = 16

// reserve takes room for an object, from what the machine has not given yet first, then by eviction.
func (s *Store) reserve(ctx context.Context, q master.ReserveRequest) (o master.Object, file *arena.File, err error) {
	if q.Placement == master.InOwnFile {
		if err := s.refuseEarly(q); err != nil {
			return o, nil, err
		}
		switch file, err = s.newOwnFile(ctx, q.Size); {
		case errors.Is(err, ErrBusy): // as many files are in use as may be: the segment takes the object
			q.Placement = master.InArena
		case err != nil:
			return o, nil, errors.WithMessagef(err, "put %.64q", q.Name)
		default:
			q.OwnFile = file.ID()
		}
	}
	capacity := int64(-1)
	for try := 0; ; {
		if o, err = s.m.Reserve(s.now(), q); err == nil {
			return o, file, nil
		}
		if ctx.Err() != nil {
			err = errors.WithMessagef(ctx.Err(), "put %.64q", q.Name)
			break
		}
		if errors.Is(err, status.NoSpace) {
			grown := s.growData(max(growStep, roundUp(q.Size, arena.StepBytes))) == nil
			if now := s.alloc.Stats().Capacity; grown || now > capacity { // or somebody else was faster
				capacity = now
				continue // ends with the memory budget
			}
		}
		if try++; try > maxReserveTries || !s.makeRoom(ctx, err, q.Size) {
			break
		}
	}
	if file != nil {
		s.dropOwnFile(file.ID())
	}
	if errors.Is(err, status.NoSpace) || errors.Is(err, status.MetaShortage) {
		err = s.whyFull(err)
	}
	return o, nil, err
}

// refuseEarly finds the refusals that need no file to be made first.
func (s *Store) refuseEarly(q master.ReserveRequest) error {
	if err := master.CheckKey(q.Key); err != nil || q.Replace {
		return err
	}
	if o, err := s.m.Stat(q.Key); err == nil && o.Readable() {
		return ErrExists
	}
	return nil
}

// makeRoom does what may let a refused reservation succeed, and reports whether it is worth another try.
func (s *Store) makeRoom(ctx context.Context, why error, size int64) bool {
	switch {
	case errors.Is(why, status.MetaShortage):
		return s.growMeta(max(metaStep, roundUp(s.budget.Used(arena.Metadata)/8, arena.StepBytes))) == nil ||
			s.evict(ctx, s.seg.SlabBytes(), 0) > 0
	case errors.Is(why, status.NoSpace):
		return s.evict(ctx, size+size/8, size) > 0 || s.askAgain()
	}
	return false
}
