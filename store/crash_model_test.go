package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
)

// crashEffect is what one operation does to one key.
type crashEffect struct {
	Key     string
	Gone    bool   `json:",omitempty"`
	Ver     uint32 `json:",omitempty"`
	Size    int    `json:",omitempty"`
	Durable bool   `json:",omitempty"`
	Hard    bool   `json:",omitempty"`
	Type    ObjectType
	Group   string `json:",omitempty"`
	Of      string `json:",omitempty"` // the key whose value it is, of a link
}

func (e *crashEffect) value() []byte { return crashValue(e.Of, e.Ver, e.Size) }

// crashValue is the value that a version of a key has.
func crashValue(key string, ver uint32, size int) []byte {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, key, ver)
	x := h.Sum64() | 1
	p := make([]byte, size+8)
	for i := 0; i < size; i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(p[i:], x)
	}
	binary.LittleEndian.PutUint32(p, ver)
	return p[:size]
}

// crashEntry is a line of the journal: an operation begins, or it has returned.
type crashEntry struct {
	ID      int
	Begin   bool          `json:",omitempty"`
	Sync    bool          `json:",omitempty"`
	Effects []crashEffect `json:",omitempty"`
	Err     string        `json:",omitempty"`
}

// How a machine ends.
const (
	crashKill   = iota // the process: what the kernel had survives
	crashReboot        // also shared memory is gone
	crashPower         // also what was not synced is gone, or a part of it
)

// crashKey is what is known of one key.
type crashKey struct {
	cur    *crashEffect  // the last that was acknowledged
	synced bool          // cur was there when a Sync began that returned
	maybe  []crashEffect // of operations since that failed or did not return
	older  []crashEffect // what a power failure may bring back, because cur was not promised
}

// crashModel follows the journal.
type crashModel struct {
	keys    map[string]*crashKey
	pending map[int]crashEntry
	syncing map[int]map[string]*crashEffect
}

func newCrashModel() *crashModel {
	return &crashModel{map[string]*crashKey{}, map[int]crashEntry{}, map[int]map[string]*crashEffect{}}
}

func (m *crashModel) key(name string) *crashKey {
	k := m.keys[name]
	if k == nil {
		k = new(crashKey)
		m.keys[name] = k
	}
	return k
}

func (m *crashModel) add(e crashEntry) {
	switch {
	case e.Begin && e.Sync:
		at := map[string]*crashEffect{}
		for name, k := range m.keys {
			at[name] = k.cur
		}
		m.syncing[e.ID] = at
	case e.Sync:
		for name, cur := range m.syncing[e.ID] {
			if k := m.keys[name]; e.Err == "" && cur != nil && k.cur == cur {
				k.synced = true
			}
		}
	case e.Begin:
		m.pending[e.ID] = e
	default:
		begun := m.pending[e.ID]
		delete(m.pending, e.ID)
		for _, x := range begun.Effects {
			if k := m.key(x.Key); e.Err != "" {
				k.maybe = append(k.maybe, x)
			} else {
				k.done(x)
			}
		}
	}
}

func (k *crashKey) done(x crashEffect) {
	old := k.cur
	if !x.Gone {
		k.cur = &x
	} else {
		k.cur = nil
	}
	same := old != nil && k.cur != nil && old.Ver == x.Ver && old.Of == x.Of
	k.synced = k.synced && same
	if x.Durable || old != nil && old.Durable {
		// This is never undone. But what x really ended is perhaps not old but something that failed since and was
		// visible all the same, and the end of that is promised only if it was durable itself.
		k.older = slices.DeleteFunc(k.maybe, func(m crashEffect) bool { return x.Durable || m.Durable || m.Gone })
		k.maybe = nil
		return
	}
	k.older = append(k.older, k.maybe...)
	if old != nil {
		k.older = append(k.older, *old)
	}
	k.maybe = nil
}

// end makes what had not returned possible.
func (m *crashModel) end() {
	for _, e := range m.pending {
		for _, x := range e.Effects {
			k := m.key(x.Key)
			k.maybe = append(k.maybe, x)
		}
	}
	clear(m.pending)
	clear(m.syncing)
}

// check compares a key with the store after a crash of some kind and adopts what it finds.
func (k *crashKey) check(s *Store, name string, how int) error {
	found, err := k.find(s, name, how)
	if err != nil {
		return err
	}
	next := crashKey{cur: found}
	if how != crashPower && (found == nil || !found.Durable) { // a later power failure may still undo the end of these
		next.older = append(k.older, k.maybe...)
		if k.cur != nil {
			next.older = append(next.older, *k.cur)
		}
	}
	*k = next
	return nil
}

func (k *crashKey) find(s *Store, name string, how int) (*crashEffect, error) {
	i, err := s.Stat(name)
	if errors.Is(err, ErrNotFound) {
		// Sync made it durable as it was, but a group that is under pressure leaves whole, with members not yet on SSD.
		kept := k.synced && k.cur != nil && k.cur.Group == ""
		may := k.cur == nil || how != crashKill && !k.cur.Durable && !kept
		// What began to take the place of cur, and is only in memory, may have got as far as to end it.
		gone := func(x crashEffect) bool { return x.Gone || how != crashKill && !x.Durable }
		if may || slices.ContainsFunc(k.maybe, gone) {
			return nil, nil
		}
		return nil, fmt.Errorf("is gone: %+v synced %v, maybe %+v", *k.cur, k.synced, k.maybe)
	}
	if err != nil {
		return nil, err
	}
	p, err := s.Get(context.Background(), name, &ReadOptions{Verify: VerifyAlways})
	if err != nil {
		return nil, fmt.Errorf("does not read: %+v: %w", i, err)
	}
	all := slices.Clone(k.maybe)
	if k.cur != nil {
		all = append(all, *k.cur)
	}
	if how == crashPower {
		all = append(all, k.older...)
	}
	for _, x := range all {
		loose := how == crashPower && !x.Durable && !k.synced
		if !x.Gone && x.Size == len(p) && x.Type == i.Type && (loose || x.Group == i.Group && x.Hard == i.HardPin) &&
			string(p) == string(x.value()) {
			x.Group, x.Hard = i.Group, i.HardPin
			if k.cur == nil || !k.cur.Durable || k.cur.Ver != x.Ver {
				x.Durable = x.Durable && i.Durable // what began and was not acknowledged may not have got that far
			} else if !i.Durable {
				return nil, fmt.Errorf("is not durable any more: %+v", i)
			}
			return &x, nil
		}
	}
	cur := "absent"
	if k.cur != nil {
		cur = fmt.Sprintf("%+v", *k.cur)
	}
	return nil, fmt.Errorf("has %d bytes of version %d, %+v, want %s synced %v, maybe %+v, older %+v", len(p), binary.LittleEndian.Uint32(p), i,
		cur, k.synced, k.maybe, k.older)
}

// checkAll checks every key, that the counts agree with what is there, and that nobody else's space is given away.
func (m *crashModel) checkAll(t testing.TB, s *Store, how int) {
	t.Helper()
	ctx := context.Background()
	m.end()
	for name, k := range m.keys {
		if err := k.check(s, name, how); err != nil {
			t.Fatalf("after %s: key %q %v", [...]string{"kill", "reboot", "power failure"}[how], name, err)
		}
	}
	var n, sum int64
	for i, err := range s.Objects(ctx, "") {
		require.NoError(t, err)
		if k := m.keys[i.Key]; k == nil || k.cur == nil {
			t.Fatalf("key %q is there and nobody put it", i.Key)
		}
		n++
	}
	u, err := s.Usage()
	require.NoError(t, err)
	for _, c := range u.Objects {
		sum += c
	}
	require.Equal(t, n, sum, "objects counted")
	require.Zero(t, u.Reserved, "Usage.Reserved")
	require.Zero(t, u.InUse, "Usage.InUse")
}

// fill puts objects until memory has been full, and checks that those that came back are still what they were.
func (m *crashModel) fill(t testing.TB, s *Store) {
	t.Helper()
	ctx := context.Background()
	require.NoError(t, s.WaitReady(ctx))
	var names []string
	for i := range 160 {
		name := fmt.Sprintf("fill-%d", i)
		if err := s.Put(ctx, name, crashValue(name, 1, 100_000), nil); err != nil {
			require.ErrorIs(t, err, ErrNoSpace)
			break
		}
		names = append(names, name)
	}
	for name, k := range m.keys {
		if k.cur != nil {
			wantWhole(t, s, name, k.cur.value())
		}
	}
	for _, name := range names {
		wantAbsentOrWhole(t, s, name, crashValue(name, 1, 100_000))
		_ = s.Remove(name, true)
	}
	// A power failure could bring those back that had got to the SSD tier.
	require.NoError(t, s.catalog.Apply(new(catalog.Batch), true))
}

// empty removes everything and checks that nothing is left.
func (m *crashModel) empty(t testing.TB, s *Store) {
	t.Helper()
	_, err := s.RemoveAll(context.Background(), true)
	require.NoError(t, err)
	var u Usage
	deadline := time.Now().Add(10 * time.Second)
	for {
		require.NoError(t, s.freeForgotten())
		u, err = s.Usage()
		require.NoError(t, err)
		if u.SSDLive == 0 && u.DataFree == u.DataCapacity && u.OwnFiles == 0 && u.InUse == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("everything was removed, and this is left: %+v", u)
		}
		s.runEffects()
		time.Sleep(time.Millisecond)
	}
	require.Equal(t, [Types]int64{}, u.Objects)
	require.Equal(t, [2][Types]TierUsage{}, u.Tiers)
	require.Zero(t, u.HardPinned)
	require.Zero(t, u.Groups)
}

// crashJournal writes entries in the order in which things happen: a begin before, an end after.
type crashJournal struct {
	mu    sync.Mutex
	next  int
	over  bool
	write func(crashEntry)
}

func (j *crashJournal) do(effects []crashEffect, fn func() error) error {
	return j.entry(crashEntry{Effects: effects}, fn)
}

func (j *crashJournal) entry(e crashEntry, fn func() error) error {
	e.Begin = true
	e.ID = j.add(e)
	err := fn()
	e.Begin, e.Effects = false, nil
	if err != nil {
		e.Err = err.Error()
	}
	j.add(e)
	return err
}

// add writes an entry. After the end of the machine nothing begins: the goroutine ends.
func (j *crashJournal) add(e crashEntry) (id int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e.Begin && j.over {
		runtime.Goexit()
	}
	if e.Begin {
		j.next++
		e.ID = j.next
	}
	if !j.over {
		j.write(e)
	}
	return e.ID
}
