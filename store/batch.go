package store

import (
	"context"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/master"
)

// Batch forms give a result per item, in order; a failed item does not touch the others. They cost one pass through the
// gate, those that only read one clock read too, and where something is made durable one sync. Leases of a batch start
// with the call. A batch has at most MaxBatch items.

func tooMany(what string, n int) error {
	return errors.WithMessagef(ErrInvalidParams, "%s: batch of %d, limit %d", what, n, MaxBatch)
}

// fillErrors is the same error for each item of a batch.
func fillErrors(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// PutItem is an object of a PutBatch: the concatenation of Parts.
type PutItem struct {
	Key   string
	Parts [][]byte
	Opts  *PutOptions
}

// PutBatch stores many objects. All that are durable become so with one sync, but for those that go straight to files
// of their own on SSD.
func (s *Store) PutBatch(ctx context.Context, items []PutItem) []error {
	if len(items) > MaxBatch {
		return fillErrors(len(items), tooMany("put", len(items)))
	}
	stripe, err := s.gate.enter()
	if err != nil {
		return fillErrors(len(items), err)
	}
	defer s.gate.leave(stripe)
	errs := make([]error, len(items))
	var durable []*staged
	var index []int
	for i := range items {
		q, err := s.requestItem(&items[i])
		if err == nil && s.inOwnSSDFile(&q) {
			errs[i] = s.putOnSSD(ctx, q, items[i].Parts)
			continue
		}
		var p staged
		if err == nil {
			p, err = s.stage(ctx, q, items[i].Parts)
		}
		switch {
		case err != nil:
			errs[i] = err
		case q.Durable:
			durable, index = append(durable, &p), append(index, i)
		default:
			errs[i] = s.commit(&p, ssdNowhere)
		}
	}
	if len(durable) > 0 {
		for j, err := range s.commitDurable(ctx, durable) {
			errs[index[j]] = err
		}
	}
	return errs
}

func (s *Store) requestItem(item *PutItem) (master.ReserveRequest, error) {
	var size int64
	for _, p := range item.Parts {
		size += int64(len(p))
	}
	return s.request(item.Key, size, item.Opts)
}

// GetItem is a read of a GetBatch: the whole object into the concatenation of Dst, which may be larger.
type GetItem struct {
	Key string
	Dst [][]byte
	N   int64 // set to the object's size
	Err error // set to what went wrong
}

// GetBatch reads many objects into buffers of the caller. It sets N and Err of each item. opts may be nil.
func (s *Store) GetBatch(ctx context.Context, items []GetItem, opts *ReadOptions) {
	if len(items) > MaxBatch {
		for i := range items {
			items[i].N, items[i].Err = 0, tooMany("get", len(items))
		}
		return
	}
	stripe, err := s.gate.enter()
	if err != nil {
		for i := range items {
			items[i].N, items[i].Err = 0, err
		}
		return
	}
	defer s.gate.leave(stripe)
	now := s.now()
	for i := range items {
		it := &items[i]
		it.N, it.Err = s.getParts(ctx, stripe, now, it, opts)
	}
}

func (s *Store) getParts(ctx context.Context, stripe uint32, now int64, it *GetItem, opts *ReadOptions) (int64, error) {
	key, dst := it.Key, it.Dst
	r, err := s.acquireAt(stripe, now, key, opts)
	if err != nil {
		return 0, err
	}
	defer r.unpin()
	room := int64(0)
	for _, d := range dst {
		room += int64(len(d))
	}
	if room < r.o.Size {
		return 0, tooSmall(key, int(room), r.o.Size)
	}
	off := int64(0)
	for _, d := range dst {
		d = d[:min(int64(len(d)), r.o.Size-off)]
		if len(d) == 0 {
			continue
		}
		if err := r.read(ctx, d, off); err != nil {
			return 0, err
		}
		off += int64(len(d))
	}
	return r.o.Size, nil
}

// ExistsBatch fills found, as long as keys, and protects what is there for Options.LeaseTTL.
func (s *Store) ExistsBatch(keys []string, found []bool) error {
	if len(keys) > MaxBatch {
		return tooMany("exists", len(keys))
	}
	if len(found) != len(keys) {
		return errors.WithMessagef(ErrInvalidParams, "exists: %d keys, %d results", len(keys), len(found))
	}
	stripe, err := s.gate.enter()
	if err != nil {
		return err
	}
	s.m.ExistsBatch(s.now(), s.tenant, keys, int64(s.opts.LeaseTTL), found)
	s.gate.leave(stripe)
	return nil
}

// RemoveBatch removes many objects, like Remove, with one write of the catalogue.
func (s *Store) RemoveBatch(keys []string, force bool) []error {
	if len(keys) > MaxBatch {
		return fillErrors(len(keys), tooMany("remove", len(keys)))
	}
	stripe, err := s.gate.enter()
	if err != nil {
		return fillErrors(len(keys), err)
	}
	defer s.gate.leave(stripe)
	errs := make([]error, len(keys))
	gone := make([]master.Replaced, len(keys))
	now := s.now()
	for i, key := range keys {
		gone[i], errs[i] = s.m.Remove(now, s.key(key), force)
		if errs[i] = s.badKey(key, errs[i]); errs[i] == nil {
			s.noteRemoved(key, gone[i].Size)
		}
	}
	err = s.forget(s.tenant, keys, gone)
	s.awaitDepartures(s.tenant, keys...)
	if err != nil {
		for i := range errs {
			if errs[i] == nil && (gone[i].Pinned != 0 || s.frees.owesAny(s.tenant, keys[i:i+1])) {
				errs[i] = err
			}
		}
	}
	return errs
}

// StatBatch describes many objects; infos and errs are as long as keys.
func (s *Store) StatBatch(keys []string) (infos []Info, errs []error) {
	if len(keys) > MaxBatch {
		return make([]Info, len(keys)), fillErrors(len(keys), tooMany("stat", len(keys)))
	}
	stripe, err := s.gate.enter()
	if err != nil {
		return make([]Info, len(keys)), fillErrors(len(keys), err)
	}
	defer s.gate.leave(stripe)
	infos, errs = make([]Info, len(keys)), make([]error, len(keys))
	now := s.now()
	for i, key := range keys {
		infos[i], errs[i] = s.stat(now, key)
	}
	return infos, errs
}
