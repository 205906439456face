package store

import (
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

// failure is why a store does not work any more: a bug, after which its locks and its books may be in any state.
type failure struct {
	err      atomic.Pointer[error] // the first one
	happened chan struct{}         // closed with it
	wait     time.Duration         // how long Close waits for what may be stuck
	after    func(time.Duration) <-chan time.Time
	end      atomic.Int32 // of Close: which of the two came first
}

// The values of failure.end.
const (
	endOpen   = iota
	endGaveUp // Close has returned: what was stuck may go on, and finds all as it was
	endGoesOn // nothing is in progress any more, and what the store has is taken down
)

// stuckWait is failure.wait: long for what still runs, short for who waits for it.
const stuckWait = 5 * time.Second

// Err is nil, or why the store has failed: a panic in its background work, or what Fail was told. It wraps ErrInternal.
// All operations return it from then on, until Close.
func (s *Store) Err() error { return s.failure.get() }

// Fail makes the store a failed one, with err, to which it adds ErrInternal. It is for hosts that recover a panic which
// came out of a method of the store, since nobody knows which locks that has left taken and what it had half done: no
// later operation gets to them. A store that has failed before keeps its first error; one that is closed stays so.
// Close is due all the same.
func (s *Store) Fail(err error) {
	switch {
	case err == nil:
		err = ErrInternal
	case !errors.Is(err, ErrInternal):
		err = errors.WithMessage(ErrInternal, err.Error())
	}
	s.fail(err)
}

func (f *failure) get() error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

// fail may be called by who holds any locks: it takes none.
func (c *core) fail(err error) {
	if !c.failure.err.CompareAndSwap(nil, &err) {
		return
	}
	c.gate.grace.Store(false)
	c.gate.refusal.CompareAndSwap(nil, &err)
	close(c.failure.happened)
	c.quit()
}

// background runs one of the store's own goroutines. A panic in it, or a fault in memory that was taken from under it,
// would end the process, which may be a host's: it is the store that fails.
func (c *core) background(work func()) {
	debug.SetPanicOnFault(true) // of this goroutine
	defer c.failOnPanic()
	work()
}

// failOnPanic is deferred where a panic would have no caller.
func (c *core) failOnPanic() {
	if p := recover(); p != nil {
		c.fail(status.Recovered(p))
	}
}

// shut closes the core, but not for longer than it takes when a failure has left something stuck. What is stuck may
// still use the memory, which then stays mapped and the directory locked until the process ends.
func (c *core) shut() error {
	done := make(chan error, 1)
	go func() { done <- c.shutNow() }()
	select {
	case err := <-done:
		return err
	case <-c.failure.happened:
	}
	select {
	case err := <-done:
		return err
	case <-c.failure.after(c.failure.wait):
		c.failure.end.CompareAndSwap(endOpen, endGaveUp)
		return errors.WithMessage(c.failure.get(), "close: something is stuck, so its memory stays mapped and its directory locked")
	}
}

func (c *core) shutNow() (err error) {
	defer status.Recover(&err)
	c.awaitPuts()
	gaveUp := func() bool { return c.failure.end.Load() == endGaveUp }
	if c.gate.close(gaveUp); gaveUp() {
		return nil // nobody waits for it
	}
	c.closing.noteIdle()
	c.quit()
	c.done.Wait()
	if !c.failure.end.CompareAndSwap(endOpen, endGoesOn) {
		return nil
	}
	aborted := c.abortUnfinished()
	c.feed.close()
	if err = c.closeDir(); err == nil && c.closing.graceful {
		err = aborted.orNil()
	}
	c.mapping.drop()
	return err
}
