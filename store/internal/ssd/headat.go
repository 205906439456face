package ssd

import (
	"context"

	"github.com/pkg/errors"
)

// HeadAt is ReadHead for a caller that knows how long the key is, but not which: it tells by Digest that the record is
// the one it wants.
func (t *Tier) HeadAt(ctx context.Context, loc Loc, keyLen int, size int64) (Head, error) {
	if err := t.enter(); err != nil {
		return Head{}, errors.Wrap(err, "read head")
	}
	defer t.running.Done()
	if err := checkSizes(keyLen, size); err != nil {
		return Head{}, errors.WithMessage(err, "read head")
	}
	h, err := t.readHead(ctx, loc, headLen(keyLen, size))
	if err == nil && h.Size != size {
		err = errors.Wrapf(ErrCorrupt, "the record has size %d, want %d", h.Size, size)
	}
	return h, recordError(err, "read head", loc)
}
