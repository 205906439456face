package store

import (
	"context"
	"iter"

	"github.com/kvcache-ai/mooncake-go/store/internal/master"
)

// Remove ends an object. A live lease or a reader is ErrHasLease unless force; an unfinished put of the key is
// ErrNotReady always. Readers that have it open keep its bytes until they close. A hard pin does not keep an object
// from being removed.
func (s *Store) Remove(key string, force bool) error {
	stripe, err := s.gate.enter()
	if err != nil {
		return err
	}
	defer s.gate.leave(stripe)
	return s.remove(key, force)
}

func (s *Store) remove(key string, force bool) error {
	gone, err := s.m.Remove(s.now(), s.key(key), force)
	if err != nil {
		return s.badKey(key, err)
	}
	s.noteRemoved(key, gone.Size)
	err = s.forgetOne(s.tenant, key, gone)
	s.awaitDepartures(s.tenant, key)
	return err
}

func (s *Store) noteRemoved(key string, size int64) {
	s.counters.removed.add(1)
	if s.feed.active() {
		s.feed.send(Event{Kind: EventRemoved, Tenant: s.tenant, Key: key, Size: size})
	}
}

// RemoveAll removes all objects of the tenant that can be removed, and returns how many were.
func (s *Store) RemoveAll(ctx context.Context, force bool) (int, error) {
	return s.removeIf(ctx, force, func(string) bool { return true })
}

// RemoveRegex removes the objects whose key has a match of pattern, anywhere in it unless the pattern is anchored.
// The syntax is Go's (RE2), which has no look-around and no back references. What can't be removed is skipped. A pattern
// longer than MaxPatternBytes, or whose program would be longer than MaxPatternProgram, is ErrInvalidParams.
func (s *Store) RemoveRegex(ctx context.Context, pattern string, force bool) (int, error) {
	match, err := compilePattern(ctx, pattern)
	if err != nil {
		return 0, err
	}
	return s.removeIf(ctx, force, match)
}

// removeIf removes what match says, with one write of the catalogue for each page of objects. Close waits for what is
// done to one page at most, and not for match.
func (s *Store) removeIf(ctx context.Context, force bool, match func(key string) bool) (removed int, err error) {
	var found []master.Found
	for n, more := uint32(1), true; more; n++ {
		if err := ctx.Err(); err != nil {
			return removed, err
		}
		if found, more, err = s.objectsOf(n, "", found[:0]); err != nil {
			return removed, err
		}
		chosen := found[:0]
		for _, f := range found {
			if match(f.Name) {
				chosen = append(chosen, f)
			}
			if err := ctx.Err(); err != nil {
				return removed, err
			}
		}
		count, err := s.removePage(ctx, force, chosen)
		if removed += count; err != nil {
			return removed, err
		}
	}
	return removed, nil
}

func (s *Store) removePage(ctx context.Context, force bool, chosen []master.Found) (removed int, err error) {
	stripe, err := s.gate.enter()
	if err != nil {
		return 0, err
	}
	defer s.gate.leave(stripe)
	var names []string
	var gone []master.Replaced
	for _, f := range chosen {
		if ctx.Err() != nil {
			break
		}
		g, err := s.m.Remove(s.now(), f.Key, force)
		if err != nil {
			continue // leased, or gone already
		}
		s.noteRemoved(f.Name, g.Size)
		names, gone = append(names, f.Name), append(gone, g)
	}
	err = s.forget(s.tenant, names, gone)
	s.awaitDepartures(s.tenant, names...)
	return len(names), err
}

// Objects are the objects of the tenant whose key starts with prefix, in no order. An object that is there from start
// to end is seen once. It grants no leases. The loop may do anything with the store; one that closes it goes on
// for a while at most, then it ends with ErrClosed.
func (s *Store) Objects(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		var found []master.Found
		for n, more := uint32(1), true; more; n++ {
			err := ctx.Err()
			if err == nil {
				found, more, err = s.objectsOf(n, prefix, found[:0])
			}
			if err != nil {
				yield(Info{}, err)
				return
			}
			for i := range found {
				if !yield(info(found[i].Name, &found[i].Object), nil) {
					return
				}
			}
		}
	}
}

// objectsOf is the objects of one page, and whether there is another.
func (s *Store) objectsOf(n uint32, prefix string, dst []master.Found) (found []master.Found, more bool, err error) {
	stripe, err := s.gate.enter()
	if err != nil {
		return nil, false, err
	}
	defer s.gate.leave(stripe)
	if n < s.m.Pages() {
		dst = s.m.ScanPage(n, s.key(prefix), dst)
	}
	return dst, n+1 < s.m.Pages(), nil
}
