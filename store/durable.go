package store

import (
	"context"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/dirlock"
	"github.com/kvcache-ai/mooncake-go/store/internal/master"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
	"github.com/kvcache-ai/mooncake-go/store/internal/sum"
)

// commitDurable makes staged objects durable, then visible, with one sync for all of them. It returns an error per
// object.
func (s *Store) commitDurable(ctx context.Context, puts []*staged) []error {
	locs, err := s.appendAll(ctx, puts)
	if half := len(puts) / 2; half > 0 && errors.Is(named(err), ErrNoSpace) {
		// Perhaps some fit. Nothing of them was written: a record must not be written twice, see retryDeletes.
		return append(s.commitDurable(ctx, puts[:half]), s.commitDurable(ctx, puts[half:])...)
	}
	if err != nil {
		return s.notCommitted(puts, err)
	}
	return s.commitAppended(ctx, puts, locs)
}

// notCommitted gives puts up.
func (s *Store) notCommitted(puts []*staged, why error) []error {
	errs := make([]error, len(puts))
	for i, p := range puts {
		s.abort(p)
		errs[i] = notDurable(why, p.key)
	}
	return errs
}

// commitAppended is commitDurable once the bytes are written.
func (s *Store) commitAppended(ctx context.Context, puts []*staged, locs []ssd.Loc) []error {
	if err := s.tier.Sync(ctx); err != nil {
		s.undo(uncommittedAll(puts, locs))
		return s.notCommitted(puts, err)
	}
	olds, errs, err := s.publishDurable(puts, locs)
	if err != nil {
		return s.notCommitted(puts, err)
	}
	var lost []deletion
	for i, p := range puts {
		if errs[i] != nil {
			lost = append(lost, uncommitted(p, locs[i]))
			continue
		}
		_ = s.committed(p, olds[i]) // a durable put does not depend on what it replaced
	}
	s.undo(lost)
	return errs
}

// publishDurable writes the records of objects whose bytes are on stable storage, then makes the objects visible. A
// change of the pins of an object that one of them replaces is acknowledged only after that: it waits for records, and
// then finds the new object. An error is that of the records: nothing became visible. errs is what went wrong with
// single objects.
func (s *Store) publishDurable(puts []*staged, locs []ssd.Loc) (olds []master.Replaced, errs []error, err error) {
	s.records.RLock()
	if err = s.recordDurable(puts, locs); err != nil {
		s.records.RUnlock()
		_ = s.freeForgotten() // what can't be forgotten now stays on the list
		return nil, nil, err
	}
	defer s.records.RUnlock()
	olds, errs = make([]master.Replaced, len(puts)), make([]error, len(puts))
	for i, p := range puts {
		olds[i], errs[i] = s.publishRecorded(p, locs[i])
	}
	return olds, errs, nil
}

// maxRecordTries bounds how often a record is written again because the old object got other pins meanwhile.
const maxRecordTries = 16

// publishRecorded makes an object visible exactly as its record says. The caller holds records for reading.
func (s *Store) publishRecorded(p *staged, loc ssd.Loc) (old master.Replaced, err error) {
	for range maxRecordTries {
		old, err = s.m.CommitAs(s.now(), p.o.Ref, p.o.Gen, p.o.Digest, masterLoc(loc), p.as)
		if !errors.Is(err, ErrBusy) {
			p.release()
			return old, err
		}
		var b changes
		if err = s.recordStaged(&b, p, loc); err == nil {
			err = b.apply(s.catalog, true)
		}
		if err != nil {
			s.abort(p)
			return old, notDurable(err, p.key)
		}
	}
	s.abort(p)
	return old, errors.WithMessagef(ErrBusy, "put %.64q: the pins of the object that it replaces keep changing", p.key.Name)
}

func notDurable(err error, k master.Key) error {
	return errors.WithMessagef(failedDurable(err), "put %.64q", k.Name)
}

// failedDurable makes what kept an object from becoming durable ErrNotDurable, but for the end of the caller's context.
func failedDurable(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return durabilityError{named(err)}
}

// durabilityError is ErrNotDurable with the reason, both found by errors.Is.
type durabilityError struct{ cause error }

func (e durabilityError) Error() string   { return ErrNotDurable.Error() + ": " + e.cause.Error() }
func (e durabilityError) Unwrap() []error { return []error{ErrNotDurable, e.cause} }

// recordDurable writes the records of puts. The caller holds records for reading. What fails is on the list of what the
// catalogue has to forget when it returns.
func (s *Store) recordDurable(puts []*staged, locs []ssd.Loc) error {
	var b changes
	for i, p := range puts {
		p.o.Digest = sum.TableDigest(p.table)
		if err := s.recordStaged(&b, p, locs[i]); err != nil {
			s.frees.addFailed(uncommittedAll(puts, locs))
			return err
		}
	}
	err := b.apply(s.catalog, true)
	if err != nil {
		s.frees.addFailed(uncommittedAll(puts, locs))
	}
	return err
}

// recordStaged records an object as its commit would make it now: with its own options and what it inherits.
func (s *Store) recordStaged(b *changes, p *staged, loc ssd.Loc) error {
	if as, err := s.m.Inherited(p.o.Ref, p.o.Gen); err == nil { // otherwise it was taken over, and is not published
		p.as = as
	}
	o := p.o
	o.SoftUntil = p.as.SoftUntil
	if p.as.HardPin {
		o.Flags |= master.FlagHardPin
	}
	r := catalogueRecord(p.key, &o, p.as.Group, true, loc)
	if loc.Own != 0 {
		var err error
		if _, r.OwnMtime, err = s.tier.OwnStamp(loc.Own); err != nil {
			return err
		}
		s.stamps.put(ssdStamp(loc.Own), fileID{p.o.Size, r.OwnMtime})
	}
	b.Put(&r)
	return nil
}

func uncommittedAll(puts []*staged, locs []ssd.Loc) []deletion {
	lost := make([]deletion, len(puts))
	for i, p := range puts {
		lost[i] = uncommitted(p, locs[i])
	}
	return lost
}

// uncommitted is what undo is to take back of a put.
func uncommitted(p *staged, loc ssd.Loc) deletion {
	return undone(p.key, p.o.Gen, loc, p.o.Size)
}

func undone(k master.Key, gen uint64, loc ssd.Loc, size int64) deletion {
	return deletion{key: k, gen: gen, owed: true, space: forgotten{masterLoc(loc), len(k.Tenant) + 1 + len(k.Name), size}}
}

// appendAll writes the objects to the SSD tier, making room there once if it is full.
func (s *Store) appendAll(ctx context.Context, puts []*staged) ([]ssd.Loc, error) {
	items := make([]ssd.Item, len(puts))
	var size int64
	for i, p := range puts {
		items[i] = ssd.Item{Head: p.head(), Data: p.data}
		size += p.o.Size
	}
	if err := s.roomOnSSD(ctx, size); err != nil {
		return nil, err
	}
	return s.tier.Append(ctx, items)
}

func (p *staged) head() ssd.Head {
	return ssd.Head{Key: scopedKey(p.key), Size: p.o.Size, Gen: p.o.Gen, Type: p.o.Kind,
		Digest: sum.TableDigest(p.table), Table: p.table}
}

// Sync returns when every object that was committed before the call is on stable storage, with its metadata: what is
// only in memory is written to the SSD tier first. Without a directory there is nothing it could do: ErrUnavailable.
func (s *Store) Sync(ctx context.Context) error {
	stripe, err := s.gate.enter()
	if err != nil {
		return err
	}
	defer s.gate.leave(stripe)
	if s.tier == nil {
		return errors.WithMessage(ErrUnavailable, "sync: the store has no Options.Dir")
	}
	err = s.offloadAll(ctx)
	if err == nil {
		err = s.rewriteLate()
	}
	if err == nil {
		err = s.retryDeletes() // else a put that failed could come back in the place of what is there
	}
	if err == nil {
		err = s.tier.Sync(ctx)
	}
	if err == nil {
		var empty catalog.Batch
		err = s.catalog.Apply(&empty, true)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return errors.WithMessage(err, "sync")
	}
	return errors.WithMessage(durabilityError{named(err)}, "sync")
}

// namedError is an error of a package below with the store's name for it, both found by errors.Is.
type namedError struct{ name, cause error }

func (e namedError) Error() string   { return e.cause.Error() }
func (e namedError) Unwrap() []error { return []error{e.name, e.cause} }

// named gives an error of the packages below the store's name where there is one.
func named(err error) error {
	for _, n := range [...]struct{ below, name error }{
		{dirlock.ErrHeld, ErrLocked}, {catalog.ErrLocked, ErrLocked},
		{catalog.ErrNewerFormat, ErrNewerFormat}, {ssd.ErrNewerFormat, ErrNewerFormat}, {arena.ErrNewerFormat, ErrNewerFormat},
		{catalog.ErrCorrupt, ErrCorrupt}, {ssd.ErrCorrupt, ErrCorrupt}, {ssd.ErrForeign, ErrCorrupt}, {ssd.ErrTruncated, ErrCorrupt},
		{catalog.ErrNoSpace, ErrNoSpace}, {ssd.ErrNoSpace, ErrNoSpace}, {catalog.ErrUnavailable, ErrUnavailable},
		{ssd.ErrTooManyWriters, ErrBusy},
	} {
		if errors.Is(err, n.below) {
			return namedError{n.name, err}
		}
	}
	return err
}
