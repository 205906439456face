package store

import (
	"context"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/master"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
	"github.com/kvcache-ai/mooncake-go/store/internal/sum"
)

// commitDurable makes staged objects durable, then visible, with one sync for all of them. It returns an error per
// object.
func (s *Store) commitDurable(ctx context.Context, puts []*staged) []error {
	errs := make([]error, len(puts))
	locs, err := s.writeDurable(ctx, puts)
	if err != nil {
		for i, p := range puts {
			s.abort(p)
			errs[i] = notDurable(err, p.key)
		}
		return errs
	}
	for i, p := range puts {
		gen := p.o.Gen
		if errs[i] = s.commit(p, masterLoc(locs[i])); errs[i] != nil && !s.isCommitted(p.key, gen) {
			s.forgetUncommitted(p.key, gen, locs[i], p.o.Size)
		}
	}
	return errs
}

func (s *Store) isCommitted(k master.Key, gen uint64) bool {
	o, err := s.m.Stat(k)
	return err == nil && o.Gen == gen
}

func notDurable(err error, k master.Key) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return errors.WithMessagef(err, "put %.64q", k.Name)
	}
	return errors.WithMessagef(durabilityError{err}, "put %.64q", k.Name)
}

// durabilityError is ErrNotDurable with the reason, both found by errors.Is.
type durabilityError struct{ cause error }

func (e durabilityError) Error() string   { return ErrNotDurable.Error() + ": " + e.cause.Error() }
func (e durabilityError) Unwrap() []error { return []error{ErrNotDurable, e.cause} }

// writeDurable puts bytes, then metadata, on stable storage.
func (s *Store) writeDurable(ctx context.Context, puts []*staged) ([]ssd.Loc, error) {
	locs, err := s.appendAll(ctx, puts)
	if err != nil {
		return nil, err
	}
	var b catalog.Batch
	for i, p := range puts {
		p.o.Digest = sum.TableDigest(p.table)
		r := catalogueRecord(p.key, &p.o, p.group, true, locs[i])
		b.Put(&r)
	}
	if err = s.tier.Sync(ctx); err == nil {
		err = s.catalog.Apply(&b, true)
	}
	if err != nil {
		for i, p := range puts {
			s.forgetUncommitted(p.key, p.o.Gen, locs[i], p.o.Size)
		}
		return nil, err
	}
	return locs, nil
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

// forgetUncommitted undoes what writeDurable may have written for an object that did not become visible.
func (c *core) forgetUncommitted(k master.Key, gen uint64, loc ssd.Loc, size int64) {
	var b catalog.Batch
	b.Delete(k.Tenant, k.Name, gen)
	if err := c.catalog.Apply(&b, false); err != nil {
		return // the space stays taken until the next Open finds out whether the record is there
	}
	c.frees.add(forgotten{masterLoc(loc), len(k.Tenant) + 1 + len(k.Name), size})
	signal(c.wake.janitor)
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
	if err := s.offloadAll(ctx); err != nil {
		return errors.WithMessage(err, "sync")
	}
	if err := s.tier.Sync(ctx); err != nil {
		return errors.WithMessage(err, "sync")
	}
	var empty catalog.Batch
	return errors.WithMessage(s.catalog.Apply(&empty, true), "sync")
}
