package store

import (
	"cmp"
	"context"
	"io/fs"
	"slices"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/master"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
)

// Get returns a copy of an object's bytes. A miss is ErrNotFound and costs a look-up. opts may be nil.
func (s *Store) Get(ctx context.Context, key string, opts *ReadOptions) ([]byte, error) {
	r, err := s.acquire(key, opts)
	if err != nil {
		return nil, err
	}
	defer r.release()
	dst := make([]byte, r.o.Size)
	if err := r.read(ctx, dst, 0); err != nil {
		return nil, err
	}
	return dst, nil
}

// GetInto copies an object into dst, which may be larger, and returns its size. A dst that is too small is
// ErrBufferTooSmall and stays as it is. After any other error the content of dst is undefined. opts may be nil.
func (s *Store) GetInto(ctx context.Context, key string, dst []byte, opts *ReadOptions) (int, error) {
	r, err := s.acquire(key, opts)
	if err != nil {
		return 0, err
	}
	defer r.release()
	if int64(len(dst)) < r.o.Size {
		return 0, tooSmall(key, len(dst), r.o.Size)
	}
	if err := r.read(ctx, dst[:r.o.Size], 0); err != nil {
		return 0, err
	}
	return int(r.o.Size), nil
}

func tooSmall(key string, have int, size int64) error {
	return errors.WithMessagef(ErrBufferTooSmall, "get %.64q: buffer of %d bytes, object of %d", key, have, size)
}

// Fragment is a piece of an object that a ranged read copies to Dst.
type Fragment struct {
	Off int64
	Dst []byte
}

// RangeRead is the fragments that are wanted of one object.
type RangeRead struct {
	Key       string
	Fragments []Fragment
	Err       error // set by GetRanges
}

// GetRanges reads pieces of many objects in one call and sets Err of each. Reads whose destinations overlap, with each
// other or within one, are refused; what fails does not keep the others from being read. It returns an error only when
// the call as a whole could not be done. opts may be nil.
func (s *Store) GetRanges(ctx context.Context, reads []RangeRead, opts *ReadOptions) error {
	if len(reads) > MaxBatch {
		return tooMany("get ranges", len(reads))
	}
	refuseOverlap(reads)
	stripe, err := s.gate.enter()
	if err != nil {
		for i := range reads {
			reads[i].Err = err
		}
		return nil
	}
	defer s.gate.leave(stripe)
	now := s.now()
	for i := range reads {
		if reads[i].Err == nil {
			reads[i].Err = s.getRanges(ctx, stripe, now, &reads[i], opts)
		}
	}
	return nil
}

func (s *Store) getRanges(ctx context.Context, stripe uint32, now int64, read *RangeRead, opts *ReadOptions) error {
	r, err := s.acquireAt(stripe, now, read.Key, opts)
	if err != nil {
		return err
	}
	defer r.unpin()
	for _, f := range read.Fragments {
		if n := int64(len(f.Dst)); f.Off < 0 || n > r.o.Size-f.Off {
			return errors.WithMessagef(ErrInvalidParams, "get %.64q: %d bytes from byte %d of %d", read.Key, n, f.Off, r.o.Size)
		}
	}
	for _, f := range read.Fragments {
		if len(f.Dst) == 0 {
			continue
		}
		if err := r.read(ctx, f.Dst, f.Off); err != nil {
			return err
		}
	}
	return nil
}

// refuseOverlap sets Err of the reads, and of no others, whose destinations share a byte: the result would depend on the
// order of copies.
func refuseOverlap(reads []RangeRead) {
	n := 0
	for i := range reads {
		reads[i].Err = nil
		n += len(reads[i].Fragments)
	}
	if n < 2 {
		return
	}
	type dest struct {
		from, to uintptr
		read     *RangeRead
	}
	dests := make([]dest, 0, n)
	for i := range reads {
		for _, f := range reads[i].Fragments {
			if len(f.Dst) > 0 {
				from := address(f.Dst)
				dests = append(dests, dest{from, from + uintptr(len(f.Dst)), &reads[i]})
			}
		}
	}
	slices.SortFunc(dests, func(a, b dest) int { return cmp.Compare(a.from, b.from) })
	for i := 1; i < len(dests); i++ {
		last, next := &dests[i-1], &dests[i]
		if next.from >= last.to {
			continue
		}
		err := errors.WithMessagef(ErrInvalidParams, "get ranges: the destinations of %.64q and %.64q overlap", last.read.Key, next.read.Key)
		last.read.Err, next.read.Err = err, err
		if next.to < last.to { // what follows may overlap with the one that reaches further
			*next = *last
		}
	}
}

// reading is an object that is pinned for a read.
type reading struct {
	s      *Store
	key    string
	o      master.Object
	verify Verify
	stripe uint32
	hits   [2]bool // by tier: counted already
}

// acquire finds an object and pins it; release must follow.
func (s *Store) acquire(key string, opts *ReadOptions) (r reading, err error) {
	stripe, err := s.gate.enter()
	if err != nil {
		return r, err
	}
	if r, err = s.acquireAt(stripe, s.now(), key, opts); err != nil {
		s.gate.leave(stripe)
	}
	return r, err
}

// acquireAt is acquire for who is inside the gate already and leaves it by itself: unpin must follow.
func (s *Store) acquireAt(stripe uint32, now int64, key string, opts *ReadOptions) (r reading, err error) {
	r.s, r.key, r.stripe = s, key, stripe
	if opts != nil {
		r.verify = opts.Verify
	}
	if r.o, err = s.m.Acquire(now, s.key(key), int64(s.opts.LeaseTTL)); err != nil {
		return r, s.missed(key, err)
	}
	return r, nil
}

// missed counts a miss.
func (s *Store) missed(key string, err error) error {
	s.counters.misses.add(lane(), 0)
	return s.badKey(key, err)
}

// badKey says what is wrong with a key that was not found, if it could never be found.
func (s *Store) badKey(key string, err error) error {
	if err == ErrNotFound && (key == "" || len(key) > MaxKeyBytes) {
		return master.CheckKey(s.key(key))
	}
	return err
}

func (r *reading) release() {
	r.unpin()
	r.s.gate.leave(r.stripe)
}

func (r *reading) unpin() { r.s.m.Release(r.o.Holder()) }

// read copies [off, off+len(dst)) from the best replica that is right. A replica that is not is quarantined and the
// next one tried.
func (r *reading) read(ctx context.Context, dst []byte, off int64) error {
	if r.o.InMemory() {
		err := r.readMemory(ctx, dst, off)
		if err == nil {
			r.hit(TierMemory, int64(len(dst)))
			return nil
		}
		if !isLost(err) || !r.s.quarantine(r, TierMemory, err) {
			return r.failed(err)
		}
		r.o.Flags |= master.FlagMemoryBad
	}
	if !r.o.OnSSD() {
		return r.failed(ErrNoReplica)
	}
	err := r.readSSD(ctx, dst, off)
	if err == nil {
		if r.hit(TierSSD, int64(len(dst))) {
			r.s.considerPromotion(&r.o, r.key)
		}
		return nil
	}
	if isLost(err) {
		r.s.quarantine(r, TierSSD, err)
	}
	return r.failed(err)
}

// isLost reports whether an error says that a replica will never be read again, unlike one of I/O.
func isLost(err error) bool {
	return errors.Is(err, ErrChecksum) || errors.Is(err, ErrTampered) || errors.Is(err, ErrNewerFormat) || errors.Is(err, fs.ErrNotExist)
}

// hit counts one hit for all the pieces of an object that a call reads, and reports whether this is the first.
func (r *reading) hit(t Tier, n int64) (first bool) {
	count := int64(1)
	if r.hits[t] {
		count = 0
	}
	r.hits[t] = true
	r.s.counters.hits[t].addCount(r.stripe, count, n)
	return count == 1
}

func (r *reading) failed(err error) error { return errors.WithMessagef(err, "get %.64q", r.key) }

func (r *reading) readMemory(ctx context.Context, dst []byte, off int64) error {
	var buf [4][]byte
	if r.o.Flags&master.FlagOwnMemory == 0 {
		return r.readPieces(ctx, r.s.pieces(&r.o, buf[:0]), dst, off)
	}
	if err := r.s.untouched(&r.o); err != nil {
		return err
	}
	file, err := r.s.pin(&r.o)
	if err != nil {
		return err
	}
	defer unpinFile(file)
	pieces := r.s.pieces(&r.o, buf[:0])
	return guarded(&r.o, pieces, func() error { return r.readPieces(ctx, pieces, dst, off) })
}

func (r *reading) readPieces(ctx context.Context, pieces [][]byte, dst []byte, off int64) error {
	unverified := r.o.Flags&master.FlagUnverified != 0
	if r.verify == VerifyNever || r.verify == VerifyAuto && !unverified {
		return copyRange(ctx, dst, pieces, off)
	}
	pooled := tables.Get().(*[]uint64)
	defer tables.Put(pooled)
	table, err := r.s.loadTable(&r.o, (*pooled)[:0])
	*pooled = table[:0]
	if err != nil {
		return err
	}
	if err := verifyRange(ctx, dst, pieces, off, int64(len(dst)), r.o.Size, table); err != nil {
		return err
	}
	if unverified && int64(len(dst)) == r.o.Size {
		r.s.m.Verified(&r.o)
	}
	return nil
}

// readSSD reads from the SSD tier, and verifies unless the caller said never; a small object is read with its head in
// one piece and verified in any case.
func (r *reading) readSSD(ctx context.Context, dst []byte, off int64) error {
	loc := ssdLoc(r.o.SSD)
	if loc.Own == 0 && r.o.Size <= ssd.SmallBytes && int64(len(dst)) == r.o.Size {
		return readError(r.s.tier.ReadSmall(ctx, loc, r.o.SSDKeyLen, r.o.Digest, dst))
	}
	h, err := r.s.tier.HeadAt(ctx, loc, r.o.SSDKeyLen, r.o.Size)
	if err != nil {
		return readError(err)
	}
	if h.Digest != r.o.Digest {
		return errors.WithMessage(ErrChecksum, "the SSD tier has another object")
	}
	if r.verify == VerifyNever {
		return readError(r.s.tier.Read(ctx, loc, nil, off, dst))
	}
	return readError(r.s.tier.Read(ctx, loc, &h, off, dst))
}

// quarantine takes a bad replica out of service and reports whether another is left.
func (c *core) quarantine(r *reading, t Tier, why error) bool {
	left := c.m.Quarantine(&r.o, master.Tier(t))
	tenant := r.s.tenant
	c.counters.quarantined.add(1)
	c.log.add(Decision{Time: c.clock(), Tenant: tenant, Key: r.key, What: Quarantined, Tier: t, Reason: why.Error()})
	c.feed.send(Event{Kind: EventQuarantined, Tenant: tenant, Key: r.key, Tier: t, Size: r.o.Size, Type: ObjectType(r.o.Kind)})
	return left
}

// Exists reports whether a readable object has this key, and protects it for Options.LeaseTTL. Probe does the same
// without the lease.
func (s *Store) Exists(key string) (bool, error) {
	stripe, err := s.gate.enter()
	if err != nil {
		return false, err
	}
	ok := s.m.Exists(s.now(), s.key(key), int64(s.opts.LeaseTTL))
	s.gate.leave(stripe)
	if !ok && (key == "" || len(key) > MaxKeyBytes) {
		return false, master.CheckKey(s.key(key))
	}
	return ok, nil
}

// Probe is Exists without a lease and without counting as a use.
func (s *Store) Probe(key string) (bool, error) {
	stripe, err := s.gate.enter()
	if err != nil {
		return false, err
	}
	defer s.gate.leave(stripe)
	o, err := s.m.Stat(s.key(key))
	err = s.badKey(key, err)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrNotReady) {
		return false, nil
	}
	return err == nil && o.Readable(), err
}

// Stat describes an object. It grants no lease.
func (s *Store) Stat(key string) (Info, error) {
	stripe, err := s.gate.enter()
	if err != nil {
		return Info{}, err
	}
	defer s.gate.leave(stripe)
	return s.stat(s.now(), key)
}

func (s *Store) stat(now int64, key string) (Info, error) {
	o, err := s.m.Stat(s.key(key))
	if err != nil {
		return Info{}, s.badKey(key, err)
	}
	i := info(key, &o)
	i.Group = s.m.GroupOf(s.key(key))
	i.Readers = o.Readers
	if o.Lease > now {
		i.Lease = unixTime(o.Lease)
	}
	return i, nil
}

func info(key string, o *master.Object) Info {
	i := Info{Key: key, Size: o.Size, Type: ObjectType(o.Kind), Generation: o.Gen, Digest: o.Digest,
		HardPin: o.Flags&master.FlagHardPin != 0, Durable: o.Flags&master.FlagDurable != 0,
		Link: o.Flags&master.FlagLink != 0, InMemory: o.InMemory(), OnSSD: o.OnSSD()}
	if o.SoftUntil != 0 {
		i.SoftPin = unixTime(o.SoftUntil)
	}
	return i
}
