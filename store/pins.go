package store

import (
	"context"
	"slices"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/master"
)

// PinChange changes an object's pins. What is nil stays.
type PinChange struct {
	HardPin *bool
	SoftPin *time.Duration // from now, at most MaxSoftPin; 0 ends it
}

// SetPins changes the pins of one object.
func (s *Store) SetPins(key string, change PinChange) error {
	stripe, err := s.gate.enter()
	if err != nil {
		return err
	}
	defer s.gate.leave(stripe)
	p, err := s.pinRequest(change)
	if err != nil {
		return errors.WithMessagef(err, "pin %.64q", key)
	}
	changed, err := s.m.Pin(s.key(key), p)
	switch {
	case err != nil:
		return s.badKey(key, err)
	case !changed && !s.records.late.ever.Load():
		return s.settle(s.tenant, key)
	}
	return s.rewrite([]string{key})
}

// SetGroupPins changes the pins of all members of a group with one command.
func (s *Store) SetGroupPins(group string, change PinChange) error {
	stripe, err := s.gate.enter()
	if err != nil {
		return err
	}
	defer s.gate.leave(stripe)
	p, err := s.pinRequest(change)
	if err != nil {
		return errors.WithMessagef(err, "pin group %.64q", group)
	}
	changed, err := s.m.PinGroup(s.key(group), p)
	if err == nil && (s.records.late.ever.Load() || s.frees.owing.Load()) {
		changed, err = s.m.Group(s.key(group)) // what did not change now may have changed before, and not be written
	}
	if err != nil || len(changed) == 0 {
		return err
	}
	return s.rewrite(changed)
}

func (s *Store) pinRequest(change PinChange) (p master.PinRequest, err error) {
	p.HardPin = change.HardPin
	if change.SoftPin == nil {
		return p, nil
	}
	ttl := *change.SoftPin
	if ttl < 0 || ttl > MaxSoftPin {
		return p, errors.WithMessagef(ErrInvalidParams, "soft pin %v, 0 to %v", ttl, MaxSoftPin)
	}
	until := int64(0)
	if ttl > 0 {
		until = s.now() + int64(ttl)
	}
	p.SoftUntil = &until
	return p, nil
}

// Link makes target's bytes readable under a second key, at no cost in bytes. Either key can be removed without the
// other; the bytes go with the last. Only opts' pins, group and Durable count; its type is the target's. A durable
// link makes the target's bytes durable first, and is visible once it is durable itself. opts may be nil.
func (s *Store) Link(ctx context.Context, key, target string, opts *PutOptions) error {
	stripe, err := s.gate.enter()
	if err != nil {
		return err
	}
	defer s.gate.leave(stripe)
	if opts == nil {
		opts = &PutOptions{}
	}
	if err := opts.check(key); err != nil {
		return err
	}
	if err := master.CheckKey(s.key(target)); err != nil {
		return errors.WithMessagef(err, "link %.64q: target", key)
	}
	if opts.Durable && s.tier == nil {
		return errors.WithMessagef(ErrInvalidParams, "link %.64q: Durable needs Options.Dir", key)
	}
	if opts.Durable {
		if err := s.makeDurable(ctx, target); err != nil {
			return errors.WithMessagef(err, "link %.64q to %.64q", key, target)
		}
	}
	q := master.LinkRequest{Key: s.key(key), Target: target, Group: opts.Group, HardPin: opts.HardPin, Durable: opts.Durable}
	if opts.SoftPin > 0 {
		q.SoftUntil = s.now() + int64(opts.SoftPin)
	}
	var o master.Object
	err = s.growing(func() (err error) {
		o, err = s.m.ReserveLink(s.now(), q)
		return err
	})
	if err != nil {
		return err
	}
	if err = s.settle(s.tenant, key); err == nil {
		err = s.publishLink(&q, &o)
	}
	s.awaitDepartures(s.tenant, key)
	if err != nil {
		s.abortLink(&q, &o)
		return errors.WithMessagef(err, "link %.64q", key)
	}
	return nil
}

// publishLink records a reserved link, on stable storage if it is durable, then makes it visible. Until it is, its
// bytes get no other place on the SSD tier, and none if they have none: who records that waits for records.
func (s *Store) publishLink(q *master.LinkRequest, link *master.Object) error {
	s.records.RLock()
	defer s.records.RUnlock()
	o, err := s.m.StatReserved(link.Ref, link.Gen)
	if err != nil {
		return err
	}
	if q.Durable && !o.OnSSD() {
		return errors.WithMessagef(ErrBusy, "%.64q was replaced meanwhile", q.Target)
	}
	if o.Flags&master.FlagSSD != 0 {
		r := catalogueRecord(q.Key, &o, q.Group, q.Durable, ssdLoc(o.SSD))
		r.Target = s.m.NameOf(o.Holder())
		s.stampRecord(&r, &o)
		var b changes
		b.Put(&r)
		if err := b.apply(s.catalog, q.Durable); err != nil {
			return errors.WithMessage(durabilityError{named(err)}, "catalogue")
		}
	}
	return s.m.CommitLink(o.Ref, o.Gen)
}

// abortLink takes a reserved link back whose record may have been written.
func (s *Store) abortLink(q *master.LinkRequest, o *master.Object) {
	if gone, err := s.m.AbortLink(s.now(), o.Ref, o.Gen); err == nil {
		_ = s.forgetOne(q.Tenant, q.Name, gone) // what can't be forgotten now stays on the list
	}
}

// makeDurable puts an object on stable storage that may be only in memory. It shows as durable once its record is.
func (s *Store) makeDurable(ctx context.Context, key string) error {
	o, err := s.m.Stat(s.key(key))
	if err != nil {
		return err
	}
	if err := s.settle(s.tenant, key); err != nil {
		return err
	}
	if o.OnSSD() && o.Flags&master.FlagDurable != 0 {
		return nil
	}
	if !o.OnSSD() {
		if err := s.offloadOne(ctx, o.Holder()); err != nil {
			return durabilityError{named(err)}
		}
	}
	if err := s.tier.Sync(ctx); err != nil {
		return durabilityError{named(err)}
	}
	return s.recordAsDurable(s.key(key), o.Gen)
}

// recordAsDurable promises an object whose bytes are on stable storage: first in its record, and that of the object whose
// bytes it shares, then to the master. Nothing leaves the SSD tier meanwhile: that waits for records.
func (s *Store) recordAsDurable(k master.Key, gen uint64) error {
	s.records.Lock()
	defer s.records.Unlock()
	o, err := s.m.Stat(k)
	if err != nil || o.Gen != gen || !o.OnSSD() {
		return errors.WithMessage(ErrBusy, "it is being copied, removed or replaced")
	}
	var b changes
	keys := []master.Key{k}
	if o.Flags&master.FlagLink != 0 {
		owner := master.Key{Tenant: k.Tenant, Name: s.m.OwnerName(k)}
		if has, err := s.m.Stat(owner); err == nil && has.Ref == o.Holder() {
			keys = append(keys, owner)
		}
	}
	for _, k := range keys {
		if o, err := s.m.Stat(k); err == nil {
			r := s.recordOf(k, &o)
			r.Flags |= catalog.FlagDurable
			b.Put(&r)
		}
	}
	if err := b.apply(s.catalog, true); err != nil {
		s.records.late.add(keys)
		return errors.WithMessage(durabilityError{named(err)}, "catalogue")
	}
	s.m.SetDurable(&o)
	return nil
}

// Group lists the members of a group, oldest first.
func (s *Store) Group(group string) ([]string, error) {
	stripe, err := s.gate.enter()
	if err != nil {
		return nil, err
	}
	defer s.gate.leave(stripe)
	return s.m.Group(s.key(group))
}

// RemoveGroup removes all members of a group in one instant, or none: a member that is leased, read or still being
// written is named in the error. force overrides leases and readers.
func (s *Store) RemoveGroup(group string, force bool) (removed []string, err error) {
	stripe, err := s.gate.enter()
	if err != nil {
		return nil, err
	}
	defer s.gate.leave(stripe)
	gone, refused, err := s.m.RemoveGroup(s.now(), s.key(group), force)
	if err != nil {
		if refused != "" {
			err = errors.WithMessagef(err, "remove group %.64q: member %.64q", group, refused)
		}
		return nil, err
	}
	replaced := make([]master.Replaced, len(gone))
	for i, g := range gone {
		removed, replaced[i] = append(removed, g.Name), g.Replaced
		s.noteRemoved(g.Name, g.Size)
	}
	err = s.forget(s.tenant, slices.Clone(removed), replaced)
	s.awaitDepartures(s.tenant, removed...)
	return removed, err
}
