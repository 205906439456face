package store

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/master"
)

// closing is how far Close has come.
type closing struct {
	sync.Mutex
	done     chan struct{} // closed at the end; nil: nobody has called Close
	idle     chan struct{} // closed when no operation is in progress any more
	graceful bool          // CloseContext was called before Close
	grace    context.Context
	hurry    context.CancelCauseFunc // ends grace
	err      error
}

// Close ends the store. Operations in progress finish first; background work stops. A put that waits for its caller is not
// waited for: PutFrom and ReadFrom while their reader waits, and a Writer without Commit, are ErrClosed from then on, and
// leave nothing. What is in memory stays in shared memory when the store has a directory, for the next Open on this boot;
// objects that are only in memory don't survive a reboot unless Sync wrote them. The memory of views and files that are
// still open stays mapped, and the directory locked, until they are closed. A store that has failed is left as a crash
// would leave it, and what is stuck in it for longer than a few seconds is not waited for: then Close says so. It is an
// error, too, if the shared memory was deleted meanwhile: what is in memory alone does not come back. A second Close
// returns the result of the first.
func (s *Store) Close() error {
	ended, end := context.WithCancel(context.Background())
	end()
	return s.close(ended, context.Background(), false)
}

// CloseContext is Close, but until ctx ends it lets the puts go on that have begun, with all that is left of them: the
// reader of a PutFrom, the writes and the Commit of a Writer. What has not ended then is aborted, which an AbortedError
// says. Other operations can't be aborted; they finish. Should they need more than a few seconds after the end of ctx,
// CloseContext returns its error, and the store closes when they have finished.
func (s *Store) CloseContext(ctx context.Context) error { return s.close(ctx, ctx, true) }

func (s *Store) close(grace, wait context.Context, graceful bool) error {
	c := s.core
	c.beginClose(graceful)
	done := c.closing.done
	select {
	case <-done:
		return c.closing.err
	case <-grace.Done():
		c.closing.hurry(grace.Err())
	}
	select {
	case <-done:
		return c.closing.err
	case <-wait.Done():
	}
	select {
	case <-c.closing.idle:
		<-done
		return c.closing.err
	case <-done:
		return c.closing.err
	case <-c.failure.after(c.failure.wait):
		return errors.WithMessage(wait.Err(),
			"close: operations are still in progress; until they end the memory stays mapped and the directory locked")
	}
}

// beginClose lets a goroutine of its own close the store, so that nobody has to wait for it.
func (c *core) beginClose(graceful bool) {
	x := &c.closing
	x.Lock()
	defer x.Unlock()
	if x.done != nil {
		return
	}
	x.graceful = graceful
	x.done, x.idle = make(chan struct{}), make(chan struct{})
	x.grace, x.hurry = context.WithCancelCause(context.Background())
	go func() {
		defer close(x.done)
		x.err = c.shut()
		x.hurry(nil)
	}()
}

func (x *closing) noteIdle() {
	if x.idle != nil {
		close(x.idle)
	}
}

// awaitPuts refuses new operations and gives the puts that have begun their grace.
func (c *core) awaitPuts() {
	if !c.closing.graceful || c.failure.get() != nil {
		return
	}
	c.gate.refuse(true)
	if c.failure.get() != nil { // just now
		c.gate.grace.Store(false)
	}
	for wait := 10 * time.Microsecond; !c.gate.idle() && c.closing.grace.Err() == nil; wait = min(2*wait, time.Millisecond) {
		time.Sleep(wait) // for a Create, whose Writer is not known yet
	}
	c.unfinished.wait(c.closing.grace, c.failure.happened)
}

// unfinished are the puts that have begun and wait for their caller now and then, which no gate shows: those of Writers
// and of PutFrom.
type unfinished struct {
	sync.Mutex
	puts map[putID]dropped
	none chan struct{} // if not nil, closed when there are none
}

type putID struct {
	ref master.Ref
	gen uint64
}

func (u *unfinished) add(d dropped) {
	u.Lock()
	defer u.Unlock()
	if u.puts == nil {
		u.puts = make(map[putID]dropped)
	}
	u.puts[putID{d.ref, d.gen}] = d
}

func (u *unfinished) remove(ref master.Ref, gen uint64) {
	u.Lock()
	defer u.Unlock()
	delete(u.puts, putID{ref, gen})
	if len(u.puts) == 0 && u.none != nil {
		close(u.none)
		u.none = nil
	}
}

// wait returns when there are none, when grace ends or when the store fails.
func (u *unfinished) wait(grace context.Context, failed <-chan struct{}) {
	u.Lock()
	if len(u.puts) == 0 {
		u.Unlock()
		return
	}
	none := make(chan struct{})
	u.none = none
	u.Unlock()
	select {
	case <-none:
	case <-grace.Done():
	case <-failed:
	}
}

// abortUnfinished ends the puts that still wait for their caller. No operation is in progress any more, so none of them
// uses the store's memory, nor will it again. A failed store is left as a crash would leave it.
func (c *core) abortUnfinished() *AbortedError {
	c.unfinished.Lock()
	puts := c.unfinished.puts
	c.unfinished.puts = nil
	c.unfinished.Unlock()
	aborted := &AbortedError{Puts: len(puts), cause: context.Canceled}
	if c.closing.graceful {
		aborted.cause = context.Cause(c.closing.grace)
	}
	for _, d := range puts {
		if len(aborted.Keys) < maxAbortedKeys {
			aborted.Keys = append(aborted.Keys, d.shownKey())
		}
		if c.failure.get() == nil {
			d.end()
		}
	}
	return aborted
}

// shownKey is the key with its tenant, as AbortedError has it.
func (d dropped) shownKey() string {
	if d.key.Tenant == "" {
		return d.key.Name
	}
	return d.key.Tenant + "/" + d.key.Name
}

// maxAbortedKeys bounds AbortedError.Keys.
const maxAbortedKeys = 16

// AbortedError is the result of CloseContext when it had to abort puts. The store is closed all the same.
type AbortedError struct {
	Puts  int      // how many
	Keys  []string // of 16 of them at most; keys of another tenant than the default start with its name and a slash
	cause error
}

func (e *AbortedError) Error() string {
	quoted := make([]string, len(e.Keys))
	for i, k := range e.Keys {
		quoted[i] = fmt.Sprintf("%.64q", k)
	}
	if e.Puts > len(e.Keys) {
		quoted = append(quoted, "...")
	}
	return fmt.Sprintf("close: aborted %d unfinished puts: %s", e.Puts, strings.Join(quoted, ", "))
}

// Unwrap is the reason: context.DeadlineExceeded or context.Canceled.
func (e *AbortedError) Unwrap() error { return e.cause }

func (e *AbortedError) orNil() error {
	if e.Puts == 0 {
		return nil
	}
	return e
}
