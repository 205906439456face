package store

import (
	"context"
	"errors"
	"io/fs"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
)

// panicIn panics if the named function is among its callers.
func panicIn(function string) {
	if strings.Contains(string(debug.Stack()), ")."+function+"(") {
		panic("injected")
	}
}

// panicFS calls before an operation.
type panicFS struct {
	ssd.FS
	before func(op string)
}

func (p *panicFS) OpenFile(name string, flag int, perm fs.FileMode) (ssd.File, error) {
	f, err := p.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return panicFile{f, p}, nil
}

func (p *panicFS) SyncDir(dir string) error {
	p.before("SyncDir")
	return p.FS.SyncDir(dir)
}

type panicFile struct {
	ssd.File
	fs *panicFS
}

func (f panicFile) ReadAt(p []byte, off int64) (int, error) {
	f.fs.before("ReadAt")
	return f.File.ReadAt(p, off)
}

func (f panicFile) WriteAt(p []byte, off int64) (int, error) {
	f.fs.before("WriteAt")
	return f.File.WriteAt(p, off)
}

func (f panicFile) Sync() error {
	f.fs.before("Sync")
	return f.File.Sync()
}

// requireFailed checks that a store fails everything by name and closes.
func requireFailed(t *testing.T, s *Store, text string) {
	t.Helper()
	ctx := context.Background()
	require.ErrorIs(t, s.Err(), ErrInternal)
	require.ErrorContains(t, s.Err(), text)
	require.Equal(t, -1, Code(s.Err()))
	errs := map[string]error{"put": s.Put(ctx, "k", []byte{1}, nil), "remove": s.Remove("k", true), "sync": s.Sync(ctx),
		"link": s.Link(ctx, "l", "k", nil), "pins": s.SetPins("k", PinChange{}), "ready": s.WaitReady(ctx),
		"batch": s.PutBatch(ctx, []PutItem{{Key: "k"}})[0]}
	_, errs["get"] = s.Get(ctx, "k", nil)
	_, errs["exists"] = s.Exists("k")
	_, errs["stat"] = s.Stat("k")
	_, errs["view"] = s.View(ctx, "k", nil)
	_, errs["range"] = s.ViewRange(ctx, "k", 0, 1, nil)
	_, errs["file"] = s.File(ctx, "k", nil)
	_, errs["create"] = s.Create(ctx, "k", 1, nil)
	_, errs["usage"] = s.Usage()
	for name, err := range errs {
		require.Equal(t, s.Err(), err, name)
	}
	first := s.Err()
	s.Fail(errors.New("later"))
	require.Equal(t, first, s.Err())
	start := time.Now()
	require.NoError(t, s.Close())
	require.Less(t, time.Since(start), 3*time.Second)
	require.NoError(t, s.Close())
	require.Equal(t, first, s.Err())
	require.ErrorIs(t, s.Put(ctx, "k", []byte{1}, nil), ErrClosed)
}

// A panic in any of the store's own goroutines fails the store, and the next Open finds what a crash leaves.
func TestBackgroundPanics(t *testing.T) {
	ctx := context.Background()
	for _, function := range []string{"janitor", "evictLoop", "promoteLoop", "grow"} {
		t.Run(function, func(t *testing.T) {
			r := newCrashRig(t, Options{LeaseTTL: time.Nanosecond, PromoteAfter: -1})
			sm, opts := r.seams(), r.opts
			var armed atomic.Bool
			sm.fs = &panicFS{sm.fs, func(string) { panicIn("promoteLoop") }}
			sm.limits = arena.MemLimits{FileSystemFree: func(int) (int64, bool, error) {
				if function == "grow" {
					panicIn(function)
				}
				return 0, false, nil
			}}
			opts.Clock = func() time.Time {
				if armed.Load() {
					panicIn(function)
				}
				return time.Now()
			}
			s, err := openWith(ctx, opts, sm)
			require.NoError(t, err)
			if function != "grow" {
				require.NoError(t, s.WaitReady(ctx))
				require.NoError(t, s.Put(ctx, "durable", random(5000), durably()))
				require.NoError(t, s.Put(ctx, "ssd", random(5000), &PutOptions{Type: Weight, Durable: true}))
				v, err := s.View(ctx, "durable", nil)
				require.NoError(t, err)
				defer func() { require.NoError(t, v.Close()) }() // after the store
				armed.Store(true)
			}
			switch function {
			case "evictLoop":
				for i := 0; s.Err() == nil && i < 100; i++ {
					_ = s.Put(ctx, string(rune('a'+i)), random(1<<20), nil)
				}
			case "promoteLoop":
				o, err := s.m.Stat(s.key("ssd"))
				require.NoError(t, err)
				s.promo.queue <- promotion{o.Holder(), o.Gen}
			}
			eventually(t, "failure", func() bool { return s.Err() != nil })
			require.ErrorContains(t, s.Err(), "panic: injected")
			requireFailed(t, s, ")."+function+"(")
		})
	}
}

// What Fail is told is an ErrInternal, the first wins, and what is open stays readable.
func TestFail(t *testing.T) {
	ctx := context.Background()
	for _, cause := range []error{nil, errors.New("host"), Recovered("host")} {
		s, err := Open(ctx, testOptions(t, Options{}))
		require.NoError(t, err)
		require.NoError(t, s.Err())
		require.NoError(t, s.Put(ctx, "k", random(2<<20), &PutOptions{OwnFile: true}))
		v, err := s.View(ctx, "k", nil)
		require.NoError(t, err)
		f, err := s.File(ctx, "k", nil)
		require.NoError(t, err)
		w, err := s.Create(ctx, "w", 10, nil)
		require.NoError(t, err)
		s.Fail(cause)
		if cause != nil {
			require.ErrorContains(t, s.Err(), "host")
		}
		_, err = w.Write([]byte{1})
		require.ErrorIs(t, err, ErrInternal)
		w.Abort()
		requireFailed(t, s, "internal error")
		require.Equal(t, random(2<<20), v.Bytes())
		require.NoError(t, v.Close())
		require.ErrorIs(t, f.Close(), ErrInternal)
	}
}

// Close does not wait for ever for what a failure has left: it says so, and leaves the memory to it.
func TestCloseOfStuckStore(t *testing.T) {
	ctx := context.Background()
	for _, before := range []bool{true, false} {
		passed := make(chan time.Time) // the time that Close waits
		s, err := openWith(ctx, testOptions(t, Options{}), seams{after: func(time.Duration) <-chan time.Time { return passed }})
		require.NoError(t, err)
		stripe, err := s.gate.enter() // who has panicked and never left
		require.NoError(t, err)
		if before {
			s.Fail(Recovered("first"))
			close(passed)
		} else {
			go func() {
				for s.gate.refused() == nil { // until Close has begun
					runtime.Gosched()
				}
				s.Fail(Recovered("first"))
				close(passed)
			}()
		}
		err = s.Close()
		require.ErrorIs(t, err, ErrInternal)
		require.ErrorContains(t, err, "stuck")
		require.Equal(t, err, s.Close())
		s.data[0]++ // still mapped
		s.gate.leave(stripe)
		s.done.Wait() // and what Close would have done, for the sake of the next tests
		require.NoError(t, s.closeDir())
		s.mapping.drop()
	}
}

// A panic in a goroutine that works for one operation is the error of that, and leaves the store as it was.
func TestPanicOfOneOperation(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{PromoteAfter: -1})
	sm := r.seams()
	var at atomic.Int32
	var op atomic.Value
	op.Store("")
	sm.fs = &panicFS{sm.fs, func(name string) {
		if name == op.Load() && at.Add(-1) < 0 {
			panic("injected")
		}
	}}
	s, err := openWith(ctx, r.opts, sm)
	require.NoError(t, err)
	r.s = s
	arm := func(name string, after int32) { at.Store(after); op.Store(name) }
	require.NoError(t, s.Put(ctx, "k", random(5<<20), &PutOptions{Type: Weight, Durable: true}))
	for n := range int32(6) {
		arm("ReadAt", 1+n) // behind the head
		_, err := s.Get(ctx, "k", nil)
		if n < 5 {
			require.ErrorIs(t, err, ErrInternal, "%d", n)
			require.ErrorIs(t, err, ErrRead)
			require.ErrorContains(t, err, "injected")
		}
		arm("", 0)
		got, err := s.Get(ctx, "k", nil)
		require.NoError(t, err)
		require.Equal(t, random(5<<20), got)
	}
	for _, x := range []struct {
		op string
		o  PutOptions
	}{{"WriteAt", PutOptions{Durable: true}}, {"Sync", PutOptions{Durable: true}}, {"WriteAt", PutOptions{Type: Weight, Durable: true}}} {
		arm(x.op, 0)
		err := s.Put(ctx, "new", random(5<<20), &x.o)
		require.ErrorIs(t, err, ErrInternal, "%+v", x)
		require.ErrorIs(t, err, ErrNotDurable)
		arm("", 0)
		require.NoError(t, s.Put(ctx, "new", random(5<<20), &x.o), "%+v", x)
		require.NoError(t, s.Remove("new", true))
	}
	err = s.scanBatches(ctx, func(*catalog.Record) error { panic("injected") })
	require.ErrorIs(t, err, ErrInternal)
	require.NoError(t, s.Err())
}

// A round of syncs that a panic ended has left nobody knows what: nothing is durable from then on, and all reads.
func TestPanicOfSyncRound(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	sm := r.seams()
	var once atomic.Bool
	sm.fs = &panicFS{sm.fs, func(op string) {
		if op == "SyncDir" && once.CompareAndSwap(true, false) {
			panic("injected")
		}
	}}
	s, err := openWith(ctx, r.opts, sm)
	require.NoError(t, err)
	r.s = s
	require.NoError(t, s.Put(ctx, "old", random(5000), durably()))
	once.Store(true)
	for range 3 {
		err := s.Put(ctx, "new", random(2<<20), &PutOptions{Type: Weight, Durable: true})
		require.ErrorIs(t, err, ErrNotDurable)
		require.ErrorIs(t, err, ErrInternal)
		require.ErrorIs(t, s.Sync(ctx), ErrInternal)
	}
	require.NoError(t, s.Put(ctx, "memory", random(5000), nil))
	wantWhole(t, s, "old", random(5000))
	wantWhole(t, s, "memory", random(5000))
	require.NoError(t, s.Err())
	s = r.reboot()
	wantWhole(t, s, "old", random(5000))
	wantAbsent(t, s, "new")
	require.NoError(t, s.Sync(ctx))
}
