package ssd

import (
	"context"
	"os"
	"sync"
	"syscall"

	"github.com/pkg/errors"
)

// OwnWriter writes an own data file in order. Write returns when its bytes are staged: while one piece of 4 MiB is
// written, the next is filled. Finish or Abort must follow. Not safe for concurrent use, Abort excepted.
type OwnWriter struct {
	t    *Tier
	id   uint32
	size int64

	mu     sync.Mutex // against Close, which aborts
	f      File       // nil: finished or aborted
	cur    []byte     // being filled
	n      int        // bytes in cur
	off    int64      // of cur in the file
	spare  chan []byte
	writes sync.WaitGroup

	failed struct {
		sync.Mutex
		err error
	}
}

// CreateOwn begins the data file of an object of size bytes, with its blocks allocated.
func (t *Tier) CreateOwn(size int64) (*OwnWriter, error) {
	if err := t.enter(); err != nil {
		return nil, errors.Wrap(err, "create own file")
	}
	defer t.running.Done()
	if err := checkSizes(0, size); err != nil {
		return nil, errors.WithMessage(err, "create own file")
	}
	w := &OwnWriter{t: t, size: size, spare: make(chan []byte, 2)}
	if err := w.takeBuffers(); err != nil {
		return nil, err
	}
	if err := w.create(); err != nil {
		w.giveBuffers()
		return nil, errors.WithMessage(err, "create own file")
	}
	return w, nil
}

func (w *OwnWriter) takeBuffers() error {
	for range 2 {
		b := w.t.own.tryGet()
		if b == nil {
			w.giveBuffers()
			return errors.Wrapf(ErrTooManyWriters, "create own file: all of %d", w.t.opts.OwnWriters)
		}
		w.spare <- b
	}
	return nil
}

// giveBuffers returns what takeBuffers took; no write may be running.
func (w *OwnWriter) giveBuffers() {
	if w.cur != nil {
		w.t.own.put(w.cur)
		w.cur = nil
	}
	for len(w.spare) > 0 {
		w.t.own.put(<-w.spare)
	}
}

func (w *OwnWriter) create() (err error) {
	t := w.t
	if w.id, err = t.newID(); err != nil {
		return err
	}
	disk := alignUp(w.size, BlockBytes)
	t.mu.Lock()
	if err = t.checkQuotaLocked(disk); err == nil {
		t.mu.owns[w.id] = w.size
		t.mu.live += w.size
		t.mu.disk += disk
	}
	t.mu.Unlock()
	if err != nil {
		return err
	}
	w.f, err = t.fs.OpenFile(t.OwnPath(w.id), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil && disk > 0 {
		if err = w.f.Allocate(0, disk); errors.Is(err, syscall.EOPNOTSUPP) {
			err = nil // then a full disk shows later
		}
	}
	if err != nil {
		if w.f != nil {
			_ = w.f.Close()
		}
		t.freeOwn(w.id)
		return ioError(err, "%s: %d bytes", t.OwnPath(w.id), w.size)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.writers[w] = struct{}{}
	t.mu.dirDirty = true // not before the name is there: a Sync in between would take it for done
	return nil
}

// ID is the file's id, for AppendHead.
func (w *OwnWriter) ID() uint32 { return w.id }

// Write adds p to the file. An error of an earlier piece is returned here or by Finish.
func (w *OwnWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f == nil {
		return 0, errors.Wrapf(ErrClosed, "write own file %08x", w.id)
	}
	if left := w.size - w.off - int64(w.n); int64(len(p)) > left {
		return 0, errors.Wrapf(ErrInvalid, "write own file %08x: %d bytes, %d are left of %d", w.id, len(p), left, w.size)
	}
	done := 0
	for done < len(p) {
		if w.cur == nil {
			w.cur = <-w.spare
		}
		n := copyBytes(w.cur[w.n:], p[done:])
		w.n += n
		done += n
		if w.n == len(w.cur) {
			w.flush()
			if err := w.err(); err != nil {
				return done, err
			}
		}
	}
	return done, nil
}

// flush writes the current piece beside the caller.
func (w *OwnWriter) flush() {
	buf, n, off := w.cur, int(alignUp(int64(w.n), BlockBytes)), w.off
	clear(buf[w.n:n])
	w.off += int64(w.n)
	w.cur, w.n = nil, 0
	w.writes.Go(func() {
		if err := writePiece(w.f, buf[:n], off); err != nil {
			w.fail(errors.WithMessagef(err, "write own file %08x", w.id))
		}
		w.spare <- buf
	})
}

func (w *OwnWriter) fail(err error) {
	w.failed.Lock()
	defer w.failed.Unlock()
	if w.failed.err == nil {
		w.failed.err = err
	}
}

func (w *OwnWriter) err() error {
	w.failed.Lock()
	defer w.failed.Unlock()
	return w.failed.err
}

// Finish makes the data durable, leaves the file with mode 0400 and asks for it to be read ahead. All bytes must have
// been written. After an error the file is still to be aborted. The file's name is durable after a Sync of the tier.
func (w *OwnWriter) Finish(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f == nil {
		return errors.Wrapf(ErrClosed, "finish own file %08x", w.id)
	}
	if got := w.off + int64(w.n); got != w.size {
		return errors.Wrapf(ErrInvalid, "finish own file %08x: %d bytes written of %d", w.id, got, w.size)
	}
	if w.n > 0 {
		w.flush()
	}
	w.writes.Wait()
	err := w.err()
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = w.f.Truncate(w.size) // the last block was padded
	}
	if err == nil {
		err = w.f.Chmod(0o400)
	}
	if err == nil {
		err = w.f.Sync()
	}
	if err != nil {
		w.fail(err) // a second Finish must not succeed
		return ioError(err, "finish own file %08x", w.id)
	}
	if n := min(w.size, w.t.opts.ReadaheadBytes); n > 0 {
		_ = w.f.Readahead(0, n) // a hint
	}
	w.end()
	return nil
}

// Abort removes the file. It does nothing after Finish.
func (w *OwnWriter) Abort() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f == nil {
		return
	}
	w.writes.Wait()
	w.end()
	w.t.freeOwn(w.id)
}

// end closes the file and returns the buffers.
func (w *OwnWriter) end() {
	_ = w.f.Close() // all was synced, or is being removed
	w.f = nil
	w.giveBuffers()
	w.t.mu.Lock()
	defer w.t.mu.Unlock()
	delete(w.t.mu.writers, w)
}
