package store

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog/catalogtest"
)

// lender is a caller whose strings and bytes are good for one call only, like those of a C program.
type lender struct{ lent [][]byte }

func (l *lender) bytes(p []byte) []byte {
	cp := append([]byte(nil), p...)
	l.lent = append(l.lent, cp)
	return cp
}

func (l *lender) text(s string) string {
	p := l.bytes([]byte(s))
	return unsafe.String(unsafe.SliceData(p), len(p)) // it does change, which is the test
}

// spoil reuses all that was lent since the last time.
func (l *lender) spoil() {
	for _, p := range l.lent {
		for i := range p {
			p[i] = '#'
		}
	}
	l.lent = nil
}

// lendingStory is calls with lent keys. What it has of the store afterwards must name the right ones.
type lendingStory struct {
	*lender
	t      *testing.T
	r      *crashRig
	s      *Store // of a tenant
	ctx    context.Context
	events <-chan Event
	seen   map[EventKind]map[string]bool
}

// do makes a call that must succeed.
func (l *lendingStory) do(err error) {
	l.t.Helper()
	require.NoError(l.t, err)
	l.spoil()
}

func (l *lendingStory) put(key string, n int, o PutOptions) {
	l.t.Helper()
	o.Group = l.text(o.Group)
	l.do(l.s.Put(l.ctx, l.text(key), l.bytes(random(n)), &o))
}

func (l *lendingStory) whole(key string, n int) {
	l.t.Helper()
	got, err := l.s.Get(l.ctx, l.text(key), &ReadOptions{Verify: VerifyAlways})
	l.do(err)
	require.Equal(l.t, random(n), got, key)
}

// drain takes in the events that have come.
func (l *lendingStory) drain() {
	for {
		select {
		case e := <-l.events:
			require.Equal(l.t, "tenant", e.Tenant)
			if l.seen[e.Kind] == nil {
				l.seen[e.Kind] = make(map[string]bool)
			}
			l.seen[e.Kind][e.Key] = true
		default:
			return
		}
	}
}

// explained is what Explain says of a key, which may be lent, too.
func (l *lendingStory) explained(key string) (whats []What) {
	for _, d := range l.s.Explain(l.text(key)) {
		require.Equal(l.t, key, d.Key)
		require.Equal(l.t, "tenant", d.Tenant)
		require.NotContains(l.t, d.Reason, "#")
		whats = append(whats, d.What)
	}
	l.spoil()
	return whats
}

func (l *lendingStory) puts() {
	s, t, ctx := l.s, l.t, l.ctx
	l.put("plain", 5000, PutOptions{Group: "group"})
	l.put("durable", 70_000, PutOptions{Durable: true, Group: "group"})
	l.put("own", 300_000, PutOptions{Type: Weight})
	l.put("ownssd", 300_000, PutOptions{Type: Weight, Durable: true})
	l.do(s.PutParts(ctx, l.text("parts"), [][]byte{l.bytes(random(7000)[:3]), l.bytes(random(7000)[3:])}, nil))
	l.do(s.Upsert(ctx, l.text("parts"), l.bytes(random(8000)), &PutOptions{Durable: true}))
	for _, err := range s.PutBatch(ctx, []PutItem{{Key: l.text("batch1"), Parts: [][]byte{l.bytes(random(100))}},
		{Key: l.text("batch2"), Parts: [][]byte{l.bytes(random(200))}, Opts: durably()}}) {
		require.NoError(t, err)
	}
	l.spoil()
	for _, o := range []PutOptions{{Group: "group"}, {Durable: true}, {Durable: true, Type: Weight}} {
		key := "created" + o.Type.String() + o.Group
		o.Group = l.text(o.Group)
		w, err := s.Create(ctx, l.text(key), 150_000, &o)
		l.do(err)
		for part := random(150_000); len(part) > 0; part = part[50_000:] {
			_, err = w.Write(l.bytes(part[:50_000]))
			l.do(err)
		}
		_, err = w.Write([]byte{1})
		require.ErrorContains(t, err, key)
		l.do(w.Commit(ctx))
		require.ErrorContains(t, w.Commit(ctx), key)
	}
	w, err := s.Create(ctx, l.text("dropped"), 10, nil)
	l.do(err)
	err = s.Put(ctx, l.text("dropped"), []byte{1}, nil)
	l.spoil()
	require.ErrorIs(t, err, ErrExists)
	require.ErrorContains(t, err, "dropped")
	w.Abort()
	l.do(s.Link(ctx, l.text("link"), l.text("durable"), &PutOptions{Durable: true, Group: l.text("links")}))
	yes, ttl := true, time.Hour
	l.do(s.SetPins(l.text("batch2"), PinChange{HardPin: &yes, SoftPin: &ttl}))
	l.do(s.SetGroupPins(l.text("links"), PinChange{SoftPin: &ttl}))
}

func (l *lendingStory) reads() {
	s, t, ctx := l.s, l.t, l.ctx
	for key, n := range map[string]int{"plain": 5000, "durable": 70_000, "own": 300_000, "ownssd": 300_000, "parts": 8000, "batch1": 100,
		"batch2": 200, "createdUNKNOWNgroup": 150_000, "createdUNKNOWN": 150_000, "createdWEIGHT": 150_000, "link": 70_000} {
		l.whole(key, n)
		ok, err := s.Exists(l.text(key))
		l.do(err)
		require.True(t, ok, key)
		v, err := s.View(ctx, l.text(key), nil)
		l.do(err)
		require.NoError(t, v.Close())
	}
	items := []GetItem{{Key: l.text("plain"), Dst: [][]byte{make([]byte, 5000)}}, {Key: l.text("none")}}
	s.GetBatch(ctx, items, nil)
	require.NoError(t, items[0].Err)
	l.spoil()
	require.ErrorIs(t, items[1].Err, ErrNotFound)
	members, err := s.Group(l.text("group"))
	l.do(err)
	require.Equal(t, []string{"plain", "durable", "createdUNKNOWNgroup"}, members)
}

// quarantines damages replicas and lets reads and the end of a File find it.
func (l *lendingStory) quarantines() {
	s, t, ctx := l.s, l.t, l.ctx
	v, err := s.View(ctx, "parts", nil)
	require.NoError(t, err)
	v.Bytes()[0] ^= 1
	require.NoError(t, v.Close())
	l.whole("parts", 8000) // from SSD
	require.Equal(t, []What{Quarantined}, l.explained("parts"))
	f, err := s.File(ctx, l.text("own"), nil)
	l.do(err)
	require.NoError(t, os.Chmod(f.Path(), 0o600))
	require.NoError(t, os.Chtimes(f.Path(), fakeTime, fakeTime))
	require.ErrorIs(t, f.Close(), ErrTampered)
	require.Contains(t, l.explained("own"), Quarantined)
}

// failures are calls that the catalogue refuses, whose changes are made later by somebody else.
func (l *lendingStory) failures() {
	s, t := l.s, l.t
	refused := errors.New("refused")
	fail := func(call func() error) {
		t.Helper()
		for range 50 { // each hits once, and background work may be hit as well
			l.r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, Err: refused})
		}
		err := call()
		l.spoil()
		require.ErrorIs(t, err, refused)
		require.NotContains(t, err.Error(), "#")
		l.r.disk.Heal()
	}
	no := false
	fail(func() error { return s.SetPins(l.text("batch2"), PinChange{HardPin: &no}) })
	fail(func() error { return s.Remove(l.text("createdUNKNOWN"), true) })
	fail(func() error { return s.RemoveBatch([]string{l.text("createdWEIGHT")}, true)[0] })
	fail(func() error { return s.Put(l.ctx, l.text("never"), l.bytes(random(100)), durably()) })
	l.do(s.Sync(l.ctx))
}

// Keys, groups and bytes are the caller's: what the store tells and does after a call has its own.
func TestNothingOfTheCallerIsKept(t *testing.T) {
	r := newCrashRig(t, Options{FileBytes: 25 * 4096, PromoteAfter: 1, LeaseTTL: time.Nanosecond})
	r.boot()
	l := &lendingStory{lender: &lender{}, t: t, r: r, ctx: context.Background(), seen: make(map[EventKind]map[string]bool)}
	var err error
	l.s, err = r.s.Tenant(l.text("tenant"))
	l.do(err)
	var cancel func()
	l.events, cancel = l.s.Events(1 << 16)
	defer cancel()

	l.puts()
	l.reads()
	l.quarantines()
	r.s.evict(l.ctx, 32<<20, 0)
	require.Contains(t, l.explained("batch1"), Demoted)
	eventually(t, "promotion", func() bool {
		l.whole("createdWEIGHT", 150_000)
		return r.s.Counters().Promotions > 0
	})
	l.failures()
	l.do(l.s.Remove(l.text("batch1"), true))
	l.do(l.s.RemoveBatch([]string{l.text("parts")}, true)[0])
	l.drain()
	require.True(t, l.seen[EventRemoved]["batch1"] && l.seen[EventRemoved]["parts"] && l.seen[EventPut]["plain"] &&
		l.seen[EventDemoted]["batch1"] && l.seen[EventQuarantined]["own"] && l.seen[EventQuarantined]["parts"], "%v", l.seen)
	for kind, keys := range l.seen {
		for key := range keys {
			require.False(t, strings.Contains(key, "#"), "%v %q", kind, key)
		}
	}

	r.reboot()
	l.s, err = r.s.Tenant("tenant")
	require.NoError(t, err)
	for _, key := range []string{"createdUNKNOWN", "createdWEIGHT", "never", "batch1", "parts"} {
		require.False(t, probe(t, l.s, key), key)
	}
	for key, n := range map[string]int{"plain": 5000, "durable": 70_000, "ownssd": 300_000, "batch2": 200, "createdUNKNOWNgroup": 150_000,
		"link": 70_000} {
		l.whole(key, n)
	}
	info, err := l.s.Stat("batch2")
	require.NoError(t, err)
	require.False(t, info.HardPin)
	members, err := l.s.Group("group")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"plain", "durable", "createdUNKNOWNgroup"}, members)
	members, err = l.s.Group("links")
	require.NoError(t, err)
	require.Equal(t, []string{"link"}, members)
}

// A call that its context ends waits for the reads that write into the caller's buffer.
func TestNothingWritesAfterACall(t *testing.T) {
	fs := &hookFS{}
	s, err := openWith(context.Background(), testOptions(t, Options{Dir: t.TempDir(), PromoteAfter: -1}), seams{fs: fs})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	const n = 8 << 20
	require.NoError(t, s.Put(context.Background(), "k", random(n), &PutOptions{Type: Weight, Durable: true}))
	ctx, cancel := context.WithCancel(context.Background())
	var reads, late atomic.Int32
	var returned atomic.Bool
	release := make(chan struct{})
	fs.read = func() {
		switch reads.Add(1) {
		case 1:
			return // the head
		case 5: // all that go at a time are under way
			cancel()
			time.AfterFunc(20*time.Millisecond, func() { close(release) })
		}
		<-release
		if returned.Load() {
			late.Add(1)
		}
	}
	_, err = s.GetInto(ctx, "k", make([]byte, n), nil)
	returned.Store(true)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, late.Load())
	require.Equal(t, int32(5), reads.Load())
	fs.read = nil
}
