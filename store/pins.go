package store

import (
	"context"
	"slices"
	"time"

	"github.com/pkg/errors"

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
		o, err = s.m.Link(s.now(), q)
		return err
	})
	if err != nil {
		return err
	}
	if o.Flags&master.FlagSSD == 0 {
		if opts.Durable {
			_ = s.unlink(q.Key)
			return errors.WithMessagef(ErrBusy, "link %.64q: %.64q was replaced meanwhile", key, target)
		}
		err = s.settle(s.tenant, key)
	} else {
		err = s.rewrite([]string{key})
	}
	if err != nil {
		_ = s.unlink(q.Key)
		return errors.WithMessagef(err, "link %.64q", key)
	}
	return nil
}

// unlink takes a link back that could not be recorded.
func (s *Store) unlink(k master.Key) error {
	gone, err := s.m.Remove(s.now(), k, true)
	if err != nil {
		return err
	}
	return s.forgetOne(k.Tenant, k.Name, gone)
}

// makeDurable puts an object on stable storage that may be only in memory.
func (s *Store) makeDurable(ctx context.Context, key string) error {
	o, err := s.m.Stat(s.key(key))
	if err != nil {
		return err
	}
	if !o.OnSSD() {
		if err := s.offloadOne(ctx, o.Holder()); err != nil {
			return durabilityError{named(err)}
		}
	}
	if err := s.tier.Sync(ctx); err != nil {
		return durabilityError{named(err)}
	}
	s.m.SetDurable(&o)
	// From here on it does not leave the SSD tier; before it may have, or may not have got there.
	now, err := s.m.Stat(s.key(key))
	if err != nil || now.Gen != o.Gen || !now.OnSSD() {
		return errors.WithMessage(ErrBusy, "it is being copied, removed or replaced")
	}
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
	return removed, s.forget(s.tenant, slices.Clone(removed), replaced)
}
