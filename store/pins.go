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
	if err != nil || !changed {
		return err
	}
	return s.rewrite([]string{key})
}

// SetGroupPins changes the pins of all members of a group in one step.
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

// rewrite brings the catalogue's records of objects on the SSD tier up to date, on stable storage if one is durable.
func (s *Store) rewrite(names []string) error {
	if s.catalog == nil {
		return nil
	}
	var b catalog.Batch
	sync := false
	for _, name := range names {
		k := s.key(name)
		o, err := s.m.Stat(k)
		if err != nil || o.Flags&master.FlagSSD == 0 {
			continue
		}
		r, err := s.recordOf(k, &o)
		if err != nil {
			return err
		}
		b.Put(&r)
		sync = sync || o.Flags&master.FlagDurable != 0
	}
	if b.Len() == 0 {
		return nil
	}
	return errors.WithMessage(s.catalog.Apply(&b, sync), "catalogue")
}

// recordOf is the catalogue's record of an object that is on the SSD tier.
func (s *Store) recordOf(k master.Key, o *master.Object) (catalog.Record, error) {
	r := catalogueRecord(k, o, s.m.GroupOf(k), o.Flags&master.FlagDurable != 0, ssdLoc(o.SSD))
	if o.Flags&master.FlagLink != 0 {
		r.Target = s.m.OwnerName(k)
	}
	if o.SSD.Own != 0 {
		if id, ok := s.stamps.get(ssdStamp(o.SSD.Own)); ok {
			r.OwnMtime = id.mtimeNs
		}
	}
	return r, nil
}

// Link makes target's bytes readable under a second key, at no cost in bytes. Either key can be removed without the
// other; the bytes go with the last. Only opts' pins, group and Durable count; its type is the target's. A durable
// link makes the target's bytes durable first. opts may be nil.
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
		o, err = s.m.Link(s.now(), q)
		return err
	})
	if err != nil || o.Flags&master.FlagSSD == 0 {
		return err
	}
	if err := s.rewrite([]string{key}); err != nil {
		_, _ = s.m.Remove(s.now(), q.Key, true)
		return errors.WithMessagef(durabilityError{err}, "link %.64q", key)
	}
	return nil
}

// makeDurable puts an object on stable storage that may be only in memory.
func (s *Store) makeDurable(ctx context.Context, key string) error {
	o, err := s.m.Stat(s.key(key))
	if err != nil {
		return err
	}
	if !o.OnSSD() {
		var out offload
		_ = out.add(s.core, o.Holder(), s.m.GenOf(o.Holder())) // what is wrong shows below
		if err := out.write(ctx, s.core); err != nil {
			return durabilityError{err}
		}
		if o, err = s.m.Stat(s.key(key)); err != nil || !o.OnSSD() {
			return errors.WithMessage(ErrBusy, "it is being copied or removed")
		}
	}
	if err := s.tier.Sync(ctx); err != nil {
		return durabilityError{err}
	}
	s.m.SetDurable(&o)
	return s.rewrite([]string{key})
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

// RemoveGroup removes all members of a group in one step, or none: a member that is leased, read or still being
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
	return removed, s.forget(s.tenant, slices.Clone(removed), replaced)
}
