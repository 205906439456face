package ssd

import (
	"context"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/sum"
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

// SmallBytes is the size up to which ReadSmall reads an object and its head in one piece.
const SmallBytes = 256 << 10

// ReadSmall reads a whole object of at most SmallBytes from a container, verified, together with its head: one read of
// the device instead of two. dst has the object's size. ErrCorrupt also means that the record is not the object with
// this digest.
func (t *Tier) ReadSmall(ctx context.Context, loc Loc, keyLen int, digest uint64, dst []byte) error {
	if err := t.enter(); err != nil {
		return errors.Wrap(err, "read")
	}
	defer t.running.Done()
	size := int64(len(dst))
	if err := checkSizes(keyLen, size); err != nil || size > SmallBytes || loc.Own != 0 {
		return recordError(errors.Wrapf(ErrInvalid, "key of %d bytes, object of %d", keyLen, size), "read", loc)
	}
	return recordError(t.readSmall(ctx, loc, loc.place(keyLen, size), digest, dst), "read", loc)
}

func (t *Tier) readSmall(ctx context.Context, loc Loc, at span, digest uint64, dst []byte) error {
	f, err := t.containers.get(loc.File)
	if err != nil {
		return ioError(err, "open")
	}
	defer t.containers.release(f)
	buf, err := t.read.get(ctx)
	if err != nil {
		return err
	}
	defer t.read.put(buf)
	from := at.off &^ (BlockBytes - 1)
	end := at.data + int64(len(dst))
	if err := readFull(f, buf[:alignUp(end, BlockBytes)-from], from, end-from); err != nil {
		return ioError(err, "read")
	}
	h, err := parseHead(buf[at.off-from:at.data-from], loc)
	if err != nil {
		return err
	}
	if h.Size != int64(len(dst)) || h.Digest != digest {
		return errors.Wrapf(ErrCorrupt, "it is another object: size %d digest %#x, want %d %#x", h.Size, h.Digest, len(dst), digest)
	}
	if bad := sum.CopyVerify(dst, buf[at.data-from:end-from], h.Table); bad >= 0 {
		return errors.Wrapf(ErrCorrupt, "chunk %d of the object", bad)
	}
	return nil
}
