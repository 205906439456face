package ssd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

// readFull reads at least need bytes into p.
func readFull(f File, p []byte, off, need int64) error {
	n, err := f.ReadAt(p, off)
	if int64(n) >= need {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return errors.Wrapf(ErrTruncated, "at offset %d", off+int64(n))
	}
	return errors.Wrapf(err, "at offset %d", off+int64(n))
}

// ReadHead reads the head of the record at loc, which must be that of an object with this key and size, and verifies
// it by its own checksum. The result is the caller's.
func (t *Tier) ReadHead(ctx context.Context, loc Loc, key []byte, size int64) (Head, error) {
	if err := t.enter(); err != nil {
		return Head{}, errors.Wrap(err, "read head")
	}
	defer t.running.Done()
	if err := checkSizes(len(key), size); err != nil {
		return Head{}, errors.WithMessage(err, "read head")
	}
	h, err := t.readHead(ctx, loc, headLen(len(key), size))
	if err == nil && (h.Size != size || !bytes.Equal(h.Key, key)) {
		err = errors.Wrapf(ErrCorrupt, "the record has another key or size %d, want %d", h.Size, size)
	}
	return h, recordError(err, "read head", loc)
}

func recordError(err error, verb string, loc Loc) error {
	if err == nil {
		return nil
	}
	return errors.WithMessagef(err, "%s: record in %s at offset %d", verb, containerName(loc.File), loc.offset())
}

// readHead reads and verifies a head of n bytes.
func (t *Tier) readHead(ctx context.Context, loc Loc, n int64) (Head, error) {
	h, err := t.containers.get(loc.File)
	if err != nil {
		return Head{}, err
	}
	defer t.containers.release(h)
	buf, err := t.read.get(ctx)
	if err != nil {
		return Head{}, err
	}
	defer t.read.put(buf)
	b, err := readSpan(ctx, h, buf, loc.offset(), n)
	if err != nil {
		return Head{}, err
	}
	return parseHead(b, loc)
}

// readSpan returns the n bytes at off: in buf if they fit, else copied together through it.
func readSpan(ctx context.Context, f File, buf []byte, off, n int64) ([]byte, error) {
	var whole []byte
	for {
		from := off &^ (BlockBytes - 1)
		end := min(alignUp(off+n, BlockBytes), from+int64(len(buf))&^(BlockBytes-1))
		take := min(n, end-off)
		if err := readFull(f, buf[:end-from], from, off+take-from); err != nil {
			return nil, err
		}
		part := buf[off-from : off-from+take]
		if whole == nil && take == n {
			return part, nil
		}
		whole = append(whole, part...)
		off, n = off+take, n-take
		if n == 0 {
			return whole, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// peekHead reads and verifies the head at loc whose sizes are not known.
func (t *Tier) peekHead(ctx context.Context, loc Loc) (Head, error) {
	h, err := t.containers.get(loc.File)
	if err != nil {
		return Head{}, err
	}
	defer t.containers.release(h)
	n, err := t.peekLen(ctx, h, loc)
	if err != nil {
		return Head{}, err
	}
	return t.readHead(ctx, loc, n)
}

// peekLen is the length of the head at loc.
func (t *Tier) peekLen(ctx context.Context, f File, loc Loc) (int64, error) {
	buf, err := t.read.get(ctx)
	if err != nil {
		return 0, err
	}
	defer t.read.put(buf)
	b, err := readSpan(ctx, f, buf, loc.offset(), headFixed)
	if err != nil {
		return 0, err
	}
	keyLen, size, err := headSizes(b)
	return headLen(keyLen, size), err
}

// Read reads the bytes [off, off+len(dst)) of the object at loc. With h, the head that ReadHead returned for loc, every
// chunk that is touched is read whole and verified. A nil h asks for no verification of the data, and an h without
// Table neither; the first costs a read of the head. Large reads go in pieces of 1 MiB, up to four at a time, straight
// into dst where it is aligned to 4096; ctx is honoured between them. After an error dst holds anything.
func (t *Tier) Read(ctx context.Context, loc Loc, h *Head, off int64, dst []byte) error {
	if err := t.enter(); err != nil {
		return errors.Wrap(err, "read")
	}
	defer t.running.Done()
	r := reader{t: t, ctx: ctx, off: off, dst: dst, size: math.MaxInt64}
	if h == nil && loc.Own == 0 {
		head, err := t.peekHead(ctx, loc)
		if err != nil {
			return recordError(err, "read", loc)
		}
		head.Table = nil
		h = &head
	}
	if h != nil {
		if err := checkSizes(len(h.Key), h.Size); err != nil {
			return recordError(err, "read", loc)
		}
		r.size, r.table = h.Size, h.Table
		if len(r.table) != 0 && len(r.table) != chunks(r.size) {
			return recordError(errors.Wrapf(ErrInvalid, "%d chunks in the table of %d bytes", len(r.table), r.size), "read", loc)
		}
	}
	if off < 0 || int64(len(dst)) > r.size-off {
		return recordError(errors.Wrapf(ErrInvalid, "bytes [%d, %d) of %d", off, off+int64(len(dst)), r.size), "read", loc)
	}
	if len(dst) == 0 {
		return nil
	}
	return r.open(loc, h)
}

// reader is one Read.
type reader struct {
	t     *Tier
	ctx   context.Context
	f     File
	name  string
	data  int64 // where in the file the object begins
	size  int64
	table []uint64 // nil: not verified
	off   int64
	dst   []byte
}

func (r *reader) open(loc Loc, h *Head) error {
	hs, id := &r.t.containers, loc.File
	if loc.Own != 0 {
		hs, id = &r.t.owns, loc.Own
		r.name = fmt.Sprintf("%08x%s", id, ownSuffix)
	} else {
		r.data = loc.place(len(h.Key), h.Size).data
		r.name = containerName(id)
	}
	f, err := hs.get(id)
	if err != nil {
		return ioError(err, "read %s", r.name)
	}
	defer hs.release(f)
	r.f = f
	return errors.WithMessagef(r.all(), "read %s", r.name)
}

// all reads the pieces that the grid of readBytes cuts the range into, several at a time.
func (r *reader) all() error {
	first := r.off / readBytes
	count := (r.off+int64(len(r.dst))-1)/readBytes - first + 1
	if count == 1 {
		return r.piece(first)
	}
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var workers sync.WaitGroup
	work := func() {
		for failed.Load() == nil {
			i := next.Add(1) - 1
			if i >= count {
				return
			}
			if err := r.piece(first + i); err != nil {
				failed.CompareAndSwap(nil, &err)
			}
		}
	}
	for range min(count, readBuffers) - 1 {
		workers.Go(work)
	}
	work()
	workers.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// piece reads what of the range lies in cell i of the grid. It may run beside the caller, so a panic is an error.
func (r *reader) piece(i int64) (err error) {
	defer status.Recover(&err)
	if err := r.ctx.Err(); err != nil {
		return err
	}
	from, to := max(r.off, i*readBytes), min(r.off+int64(len(r.dst)), (i+1)*readBytes)
	dst := r.dst[from-r.off : to-r.off]
	lo, hi := from, to
	if r.table != nil {
		lo, hi = from&^(chunkBytes-1), min(alignUp(to, chunkBytes), r.size)
	}
	if lo == from && hi == to && (r.data+lo)%BlockBytes == 0 && to-from >= BlockBytes && aligned(dst) {
		return r.direct(lo, dst)
	}
	return r.staged(lo, hi, from, dst)
}

// direct reads whole chunks into dst, but for a part of the last block.
func (r *reader) direct(lo int64, dst []byte) error {
	body := int64(len(dst)) &^ (BlockBytes - 1)
	if err := readFull(r.f, dst[:body], r.data+lo, body); err != nil {
		return err
	}
	if tail := dst[body:]; len(tail) > 0 {
		if err := r.tail(r.data+lo+body, tail); err != nil {
			return err
		}
	}
	for n := int64(0); r.table != nil && n < int64(len(dst)); n += chunkBytes {
		if err := r.verify(lo+n, hash(dst[n:min(n+chunkBytes, int64(len(dst)))])); err != nil {
			return err
		}
	}
	return nil
}

// tail reads a part of a block.
func (r *reader) tail(off int64, dst []byte) error {
	buf, err := r.t.read.get(r.ctx)
	if err != nil {
		return err
	}
	defer r.t.read.put(buf)
	err = readFull(r.f, buf[:BlockBytes], off, int64(len(dst)))
	copy(dst, buf)
	return err
}

// staged reads [lo, hi), verifies its chunks and copies the part of it that begins at from to dst.
func (r *reader) staged(lo, hi, from int64, dst []byte) error {
	buf, err := r.t.read.get(r.ctx)
	if err != nil {
		return err
	}
	defer r.t.read.put(buf)
	start := (r.data + lo) &^ (BlockBytes - 1)
	end := alignUp(r.data+hi, BlockBytes)
	if err := readFull(r.f, buf[:end-start], start, r.data+hi-start); err != nil {
		return err
	}
	src := buf[r.data+lo-start : r.data+hi-start]
	if r.table == nil {
		copy(dst, src)
		return nil
	}
	to := from + int64(len(dst))
	for at := lo; at < hi; at += chunkBytes {
		next := min(at+chunkBytes, hi)
		chunk := src[at-lo : next-lo]
		var sum uint64
		if at >= from && next <= to {
			sum = copyHash(dst[at-from:next-from], chunk)
		} else {
			sum = hash(chunk)
			a, b := max(at, from), min(next, to)
			copy(dst[a-from:b-from], chunk[a-at:])
		}
		if err := r.verify(at, sum); err != nil {
			return err
		}
	}
	return nil
}

// verify compares the hash of the chunk that begins at.
func (r *reader) verify(at int64, sum uint64) error {
	if want := r.table[at/chunkBytes]; sum != want {
		return errors.Wrapf(ErrCorrupt, "chunk at offset %d (%d of the object): %#x, want %#x", r.data+at, at, sum, want)
	}
	return nil
}
