package weight

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/artifact/source"
	"github.com/kvcache-ai/mooncake-go/store"
)

// checkRoom refuses before anything is written, with the number that is missing. What an earlier import has stored
// counts as there, and so do files that the store has already: where that decides, they are read to find out.
func (i *Import) checkRoom(ctx context.Context, src source.Source, c *choice) error {
	tier := store.TierMemory
	if i.durable() {
		tier = store.TierSSD
	}
	free, evictable, err := i.m.s.Room(tier)
	if err != nil {
		return err
	}
	fresh, need, err := i.notStored(ctx, c)
	if err == nil && need > free+evictable {
		need, err = i.findEqual(ctx, src, fresh, need, free+evictable)
	}
	if err != nil {
		return err
	}
	if missing := need - free - evictable; missing > 0 {
		return errors.WithMessagef(roomError{}, "%d bytes to store, %d free and %d evictable in %v: %d are missing",
			need, free, evictable, tier, missing)
	}
	return nil
}

// notStored are the files that no earlier import of the revision has stored, and their bytes.
func (i *Import) notStored(ctx context.Context, c *choice) (fresh []source.Info, need int64, err error) {
	for _, f := range c.files {
		r, err := i.m.receipt(ctx, i.q.Ref, f.Name)
		if err != nil {
			return nil, 0, err
		}
		if r == nil || r.Identity != identity(f) {
			fresh = append(fresh, f)
			need += f.Size
		}
	}
	return fresh, need, nil
}

// findEqual hashes files that have the size of one in the store, until what is left fits. It reads nothing if that
// can't come out.
func (i *Import) findEqual(ctx context.Context, src source.Source, fresh []source.Info, need, room int64) (int64, error) {
	sizes := i.m.known.sizes()
	least := need
	for _, f := range fresh {
		if f.Size >= smallFile && sizes[f.Size] {
			least -= f.Size
		}
	}
	for _, f := range fresh {
		if least > room || need <= room {
			break
		}
		if f.Size < smallFile || !sizes[f.Size] {
			continue
		}
		sum, err := i.hashFile(ctx, src, f)
		if err == nil {
			err = checkDigest(f, sum)
		}
		if err != nil {
			return 0, errors.WithMessagef(err, "file %q", f.Name)
		}
		if i.m.known.find(content{sum, f.Size}) == "" {
			least += f.Size
			continue
		}
		need -= f.Size
		if i.equal == nil {
			i.equal = make(map[string]string)
		}
		i.equal[f.Name] = sum
	}
	return need, nil
}

// hashFile reads a file of the source to its end.
func (i *Import) hashFile(ctx context.Context, src source.Source, f source.Info) (string, error) {
	in, err := src.Open(ctx, f)
	if err != nil {
		return "", err
	}
	defer func() { _ = in.Close() }()
	r, err := in.NewReader(ctx, 0, -1)
	if err != nil {
		return "", err
	}
	defer func() { _ = r.Close() }()
	h := sha256.New()
	tee := &hashingReader{ctx: ctx, r: r, h: h, count: i.read.Add}
	if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, tee, make([]byte, 1<<20)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
