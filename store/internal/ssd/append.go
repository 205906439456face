package ssd

import (
	"context"
	"os"
	"sync"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

// minPiece is the least that is worth a write of its own while the next is being copied.
const minPiece = 1 << 20

// Append writes items one behind the other and returns where each is: all of them or an error, after which nothing of
// them is kept. They may be read at once and are durable after a Sync. Calls are serialized; ctx is honoured while
// waiting and between the pieces written. A failing write closes the container, and the next Append begins a new one.
func (t *Tier) Append(ctx context.Context, items []Item) ([]Loc, error) {
	return t.appendRecords(ctx, items, 0)
}

// AppendHead writes the head of the object whose data are in the own file, which is finished. The record is durable
// after a Sync, and then the name of the own file is, too.
func (t *Tier) AppendHead(ctx context.Context, h Head, own uint32) (Loc, error) {
	if own == 0 {
		return Loc{}, errors.Wrap(ErrInvalid, "append head: no own file")
	}
	locs, err := t.appendRecords(ctx, []Item{{Head: h}}, own)
	if err != nil {
		return Loc{}, err
	}
	return locs[0], nil
}

func (t *Tier) appendRecords(ctx context.Context, items []Item, own uint32) ([]Loc, error) {
	if err := t.enter(); err != nil {
		return nil, errors.Wrap(err, "append")
	}
	defer t.running.Done()
	for i := range items {
		if err := items[i].check(own != 0); err != nil {
			return nil, errors.WithMessagef(err, "append item %d", i)
		}
	}
	if len(items) == 0 {
		return nil, nil
	}
	select {
	case t.appending <- struct{}{}:
		defer func() { <-t.appending }()
	case <-ctx.Done():
		return nil, errors.Wrap(ctx.Err(), "append")
	}
	a := appender{t: t, ctx: ctx, own: own}
	locs, err := a.run(items)
	if a.buf != nil {
		t.write.put(a.buf)
	}
	a.writes.Wait()
	if err == nil {
		err = a.failure()
	}
	if err == nil {
		err = a.commit()
	}
	if err != nil {
		a.rollBack(err)
	}
	for _, p := range a.parts {
		t.containers.release(p.h)
	}
	if err != nil {
		return nil, errors.WithMessage(err, "append")
	}
	return locs, nil
}

// check says whether the item agrees with itself.
func (it *Item) check(own bool) error {
	h := &it.Head
	if err := checkSizes(len(h.Key), h.Size); err != nil {
		return err
	}
	var n int64
	for _, p := range it.Data {
		n += int64(len(p))
	}
	if want := h.Size; !own && n != want {
		return errors.Wrapf(ErrInvalid, "data have %d bytes, head says %d", n, want)
	}
	if len(h.Table) != chunks(h.Size) {
		return errors.Wrapf(ErrInvalid, "table has %d chunks, %d bytes have %d", len(h.Table), h.Size, chunks(h.Size))
	}
	return nil
}

// part is what an append has written, unacknowledged, to one container.
type part struct {
	c    *container
	h    *handle // our own reference: a failing sync may close the container under us
	end  int64   // of the last record, then of its block
	pad  int64   // end of the last record
	live int64
}

// appender streams one Append through the staging buffers: while one is written, the next is filled.
type appender struct {
	t    *Tier
	ctx  context.Context
	own  uint32
	head []byte // scratch

	parts    []part
	reserved int64 // bytes counted as on disk in advance

	piece int64 // write after this many bytes
	buf   []byte
	base  int64 // where in the container buf begins
	n     int64 // bytes in buf

	writes sync.WaitGroup
	mu     struct {
		sync.Mutex
		err error
	}
}

func (a *appender) run(items []Item) ([]Loc, error) {
	if err := a.begin(items); err != nil {
		return nil, err
	}
	var err error
	locs := make([]Loc, len(items))
	for i := range items {
		if locs[i], err = a.record(&items[i]); err != nil {
			return nil, err
		}
	}
	return locs, a.flush(true)
}

// begin takes the space and continues the active container, or begins one.
func (a *appender) begin(items []Item) error {
	t := a.t
	t.mu.Lock()
	c, pos := t.mu.active, int64(0)
	if c != nil {
		pos = c.pos
		t.containers.ref(c.h)
		a.parts = append(a.parts, part{c: c, h: c.h})
	}
	need := a.need(items, pos)
	err := t.checkQuotaLocked(need)
	if err == nil {
		a.reserved = need
		t.mu.disk += need
	}
	t.mu.Unlock()
	if err != nil {
		return err
	}
	a.base = pos
	// A quarter, so that copying and writing overlap even in one batch that fits the buffers.
	a.piece = min(t.opts.BatchBytes, max(minPiece, alignUp(need/4, BlockBytes)))
	if c == nil {
		return a.beginContainer()
	}
	return nil
}

// need is what the items take on disk if the next byte goes to pos, 0 being a new container.
func (a *appender) need(items []Item, pos int64) (n int64) {
	start := pos
	pos = max(pos, BlockBytes)
	for i := range items {
		h := &items[i].Head
		s := place(pos, len(h.Key), h.Size, a.own != 0)
		if a.full(s) {
			n += alignUp(pos, BlockBytes) - start
			start = 0
			s = place(BlockBytes, len(h.Key), h.Size, a.own != 0)
		}
		pos = s.end
	}
	return n + alignUp(pos, BlockBytes) - start
}

// full says whether the record must go to the next container. One that is larger than a container has one to itself.
func (a *appender) full(s span) bool { return s.end > a.t.opts.ContainerBytes && s.off > BlockBytes }

func (a *appender) cur() *part { return &a.parts[len(a.parts)-1] }

// pos is where the next byte goes.
func (a *appender) pos() int64 { return a.base + a.n }

func (a *appender) beginContainer() error {
	c, err := a.t.createContainer()
	if err != nil {
		return err
	}
	a.t.containers.ref(c.h)
	a.parts = append(a.parts, part{c: c, h: c.h})
	a.base = 0
	header := make([]byte, BlockBytes)
	encodeBlock(header, block{magic: magicContainer, storeID: a.t.opts.StoreID, id: c.id})
	return a.put(header)
}

// record stages one item.
func (a *appender) record(it *Item) (Loc, error) {
	h := &it.Head
	s := place(a.pos(), len(h.Key), h.Size, a.own != 0)
	if a.full(s) {
		if err := a.flush(false); err != nil {
			return Loc{}, err
		}
		if err := a.beginContainer(); err != nil {
			return Loc{}, err
		}
		s = place(a.pos(), len(h.Key), h.Size, a.own != 0)
	}
	p := a.cur()
	loc := Loc{File: p.c.id, Off: uint32(s.off / granule), Own: a.own}
	a.head = encodeHead(a.head[:0], h, loc)
	if tableDigest(a.head[headFixed+len(h.Key):]) != h.Digest {
		return Loc{}, errors.Wrapf(ErrInvalid, "digest of %d chunks is not that of their table", len(h.Table))
	}
	if err := a.put(a.head); err != nil {
		return Loc{}, err
	}
	if err := a.pad(s.data); err != nil {
		return Loc{}, err
	}
	if a.own == 0 {
		for _, d := range it.Data {
			if err := a.put(d); err != nil {
				return Loc{}, err
			}
		}
	}
	if err := a.pad(s.end); err != nil {
		return Loc{}, err
	}
	p.live += s.len()
	p.pad, p.end = s.end, alignUp(s.end, BlockBytes)
	return loc, nil
}

// put stages b.
func (a *appender) put(b []byte) error {
	for len(b) > 0 {
		if err := a.room(); err != nil {
			return err
		}
		n := copyBytes(a.buf[a.n:a.piece], b)
		a.n += int64(n)
		b = b[n:]
	}
	return nil
}

// pad stages zeros up to offset to.
func (a *appender) pad(to int64) error {
	for a.pos() < to {
		if err := a.room(); err != nil {
			return err
		}
		n := min(to-a.pos(), a.piece-a.n)
		clear(a.buf[a.n : a.n+n])
		a.n += n
	}
	return nil
}

// room makes sure that there is a buffer with room.
func (a *appender) room() (err error) {
	if a.n == a.piece {
		if err := a.flush(false); err != nil {
			return err
		}
	}
	if a.buf == nil {
		a.buf, err = a.t.write.get(a.ctx)
	}
	return errors.Wrap(err, "wait for a staging buffer")
}

// flush writes what is staged, padded to a block: here if it is the last, else beside the caller.
func (a *appender) flush(last bool) error {
	if err := a.failure(); err != nil {
		return err
	}
	if err := a.ctx.Err(); err != nil {
		return errors.Wrap(err, "between pieces")
	}
	if a.n == 0 {
		return nil
	}
	buf, off, p := a.buf, a.base, *a.cur()
	end := alignUp(a.n, BlockBytes)
	clear(buf[a.n:end])
	a.buf, a.base, a.n = nil, a.base+end, 0
	write := func() {
		if err := writePiece(p.h, buf[:end], off); err != nil {
			a.fail(errors.WithMessagef(err, "write %s", containerName(p.c.id)))
		}
		a.t.write.put(buf)
	}
	if last {
		write()
		return a.failure()
	}
	a.writes.Go(write)
	return nil
}

// writePiece writes beside the caller, so a panic is an error.
func writePiece(f File, b []byte, off int64) (err error) {
	defer status.Recover(&err)
	n, err := f.WriteAt(b, off)
	return ioError(err, "at offset %d, %d of %d bytes", off, n, len(b))
}

func (a *appender) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.err == nil {
		a.mu.err = err
	}
}

func (a *appender) failure() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.err
}

// commit acknowledges all parts; the last one's container stays active.
func (a *appender) commit() error {
	t := a.t
	var gone []*container
	t.mu.Lock()
	for _, p := range a.parts {
		if p.c.failed != nil {
			t.mu.Unlock()
			return p.c.failed
		}
	}
	t.mu.disk -= a.reserved
	for i, p := range a.parts {
		if p.live > 0 {
			t.mu.disk += p.end - p.c.pos
			t.mu.live += p.live
			p.c.commit(p.end, p.live, p.pad)
			t.mu.dirty[p.c] = struct{}{}
			t.mu.files[p.c.id] = p.c
		}
		if i < len(a.parts)-1 && t.sealLocked(p.c) {
			gone = append(gone, p.c)
		}
	}
	t.mu.active = a.cur().c
	t.mu.Unlock()
	// Blocks allocated ahead but not used go back.
	for _, p := range a.parts[:len(a.parts)-1] {
		_ = p.h.Truncate(p.c.pos)
		t.settle(p.c)
	}
	t.dropContainers(gone)
	return nil
}

// rollBack forgets what was written. A container that was begun here goes; one that was continued ends where it was
// before, closed unless the failure says nothing about it.
func (a *appender) rollBack(cause error) {
	t := a.t
	t.mu.Lock()
	t.mu.disk -= a.reserved
	t.mu.Unlock()
	for _, p := range a.parts {
		c := p.c
		if c.pos == 0 {
			t.containers.drop(c.id)
			t.containers.release(c.h)
			_ = t.removeFile(t.path(containerName(c.id))) // else an orphan for Recover
			continue
		}
		harmless := a.ctx.Err() != nil || errors.Is(cause, ErrNoSpace) || errors.Is(cause, ErrInvalid)
		if err := p.h.Truncate(c.pos); err == nil && harmless {
			continue
		}
		t.mu.Lock()
		drop := t.sealLocked(c)
		t.mu.Unlock()
		t.settle(c)
		if drop {
			t.dropContainers([]*container{c})
		}
	}
}

// sealLocked ends appends to c and says whether nothing is left in it; then the caller drops it.
func (t *Tier) sealLocked(c *container) (drop bool) {
	c.sealed = true
	if t.mu.active == c {
		t.mu.active = nil
	}
	return t.unlistLocked(c)
}

// unlistLocked forgets c if it is sealed and empty.
func (t *Tier) unlistLocked(c *container) bool {
	if !c.sealed || c.live > 0 || t.mu.files[c.id] != c {
		return false
	}
	delete(t.mu.files, c.id)
	delete(t.mu.dirty, c)
	t.mu.disk -= c.disk
	return true
}

// settle lets go of the descriptor of a container that is neither written to nor dirty.
func (t *Tier) settle(c *container) {
	t.mu.Lock()
	h := c.h
	if _, dirty := t.mu.dirty[c]; !c.sealed || dirty {
		h = nil
	}
	if h != nil {
		c.h = nil
	}
	t.mu.Unlock()
	if h != nil {
		t.containers.release(h)
	}
}

// dropContainers removes the files of containers that were unlisted. A file that stays is an orphan for Recover.
func (t *Tier) dropContainers(cs []*container) {
	for _, c := range cs {
		t.settle(c)
		t.containers.drop(c.id)
		_ = t.removeFile(t.path(containerName(c.id)))
	}
}

// createContainer makes the file of a new container, with blocks allocated ahead where there is plenty.
func (t *Tier) createContainer() (*container, error) {
	id, err := t.newID()
	if err != nil {
		return nil, err
	}
	name := containerName(id)
	f, err := t.fs.OpenFile(t.path(name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, ioError(err, "create %s", name)
	}
	ahead := t.opts.ContainerBytes
	if free, err := t.fs.FreeBytes(t.dir); err == nil && free >= 0 {
		ahead = min(ahead, free/4)
	}
	t.mu.Lock()
	t.mu.dirDirty = true
	if q := t.opts.QuotaBytes; q > 0 {
		ahead = min(ahead, q-t.mu.disk)
	}
	t.mu.Unlock()
	if ahead &^= BlockBytes - 1; ahead > 0 {
		if f.Allocate(0, ahead) != nil { // only an optimization: writes go side by side, and find their blocks
			_ = f.Truncate(0)
		}
	}
	return newContainer(id, t.containers.add(id, f)), nil
}
