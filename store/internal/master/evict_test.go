package master

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/policy"
	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

func TestGuardEndsWithItsLease(t *testing.T) {
	f := newFixture(t)
	f.put(request("k", 100), Loc{})
	_, err := f.Guard(f.now, key("k"), 5*second)
	require.NoError(t, err)
	require.Empty(t, f.victims(TierMemory))
	f.now += 5 * second
	require.Len(t, f.victims(TierMemory), 1, "the lease is over")
	gone, err := f.Evict(f.now, f.victims(TierMemory)[0], TierMemory)
	require.NoError(t, err)
	require.True(t, gone[0].Removed)
	require.Equal(t, f.empty.Free, f.alloc.Stats().Free, "space that nobody can read is free at once")
	f.requireEmpty()
}

func TestGuardKeepsBytesOfRemovedObjects(t *testing.T) {
	f := newFixture(t)
	for _, group := range []string{"", "g"} {
		q := request("k", 100)
		q.Group = group
		f.put(q, Loc{})
		o, err := f.Guard(f.now, key("k"), 5*second)
		require.NoError(t, err)
		require.Equal(t, f.now+5*second, o.Lease)
		f.remove("k")
		pin := f.put(request("k2", 100), Loc{})
		require.NotEqual(t, o.Extents(), pin.Extents())
		f.Tick(f.now + 5*second - 1)
		require.Less(t, f.alloc.Stats().Free, f.empty.Free-128)
		f.Tick(f.now + 5*second)
		f.remove("k2")
		require.Equal(t, f.empty.Free, f.alloc.Stats().Free)
	}
	f.requireEmpty()
}

func TestGuardBesideForcedRemoval(t *testing.T) {
	f := newFixture(t)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 20000 {
				_, _ = f.Guard(f.now, key("k"), second)
			}
		})
	}
	for range 5000 {
		f.put(request("k", 100), Loc{})
		f.remove("k")
	}
	wg.Wait()
	f.requireEmpty()
}

// An owner whose other replica is bad must not lose its last good one while links need it, held or not.
func TestLinksKeepTheLastGoodReplica(t *testing.T) {
	for _, held := range []bool{false, true} {
		t.Run(fmt.Sprintf("held=%v", held), func(t *testing.T) {
			f := newFixture(t)
			o := f.put(request("owner", 100), Loc{1, 1, 0})
			f.link("link", "owner", "")
			f.Quarantine(&o, TierSSD)
			if held {
				f.remove("owner")
			}
			require.Empty(t, f.victims(TierMemory))
			_, err := f.Evict(f.now, f.victim(o), TierMemory)
			require.ErrorIs(t, err, status.Busy)
			_, err = f.Acquire(f.now, key("link"), 0)
			require.NoError(t, err)
			f.Release(o.Ref)
			f.remove("link")
			if !held {
				f.remove("owner")
			}
			f.requireEmpty()
			require.Len(t, f.TakeEffects(), 1)
		})
	}
}

// A hard-pinned or leased link keeps its owner in memory, and does not keep others from being chosen instead.
func TestVictimsPassOverOwnersOfPinnedLinks(t *testing.T) {
	f := newFixture(t)
	f.put(request("owner", 100), Loc{1, 1, 0})
	_, err := f.Link(f.now, LinkRequest{Key: key("link"), Target: "owner", HardPin: true})
	require.NoError(t, err)
	f.now += second
	other := f.put(request("other", 100), Loc{})
	got, _ := f.Victims(f.now, TierMemory, policy.Need{Bytes: 1}, policy.Config{})
	require.Len(t, got, 1)
	require.Equal(t, other.Ref, got[0].Ref)
}

func TestSoftLinkMakesItsOwnerSoft(t *testing.T) {
	f := newFixture(t)
	f.put(request("owner", 100), Loc{1, 1, 0})
	_, err := f.Link(f.now, LinkRequest{Key: key("link"), Target: "owner", SoftUntil: f.now + 100*second})
	require.NoError(t, err)
	require.True(t, f.victims(TierMemory)[0].Soft)
}

// What was promised to be durable is not removed because memory is short, whatever shape its SSD replica is in.
func TestDurableObjectsAreNotRemoved(t *testing.T) {
	f := newFixture(t)
	q := request("k", 100)
	q.Durable = true
	o := f.put(q, Loc{1, 1, 0})
	require.Len(t, f.victims(TierMemory), 1)
	require.Empty(t, f.victims(TierSSD))
	f.Quarantine(&o, TierSSD)
	require.Empty(t, f.victims(TierMemory), "its last good replica")
}

func TestDurableMemberKeepsItsGroup(t *testing.T) {
	f := newFixture(t)
	durable := request("durable", 100)
	durable.Durable, durable.Group = true, "g"
	f.put(durable, Loc{1, 1, 0})
	plain := request("plain", 100)
	plain.Group = "g"
	o := f.put(plain, Loc{})
	require.Empty(t, f.victims(TierMemory), "the group would go whole")
	c, err := f.StartCopy(o.Ref, o.Gen, TierSSD)
	require.NoError(t, err)
	require.Equal(t, "g", c.Group)
	require.NoError(t, f.Attach(c.Ref, Loc{1, 2, 0}, false))
	require.Len(t, f.victims(TierMemory), 1)
	gone, err := f.Evict(f.now, f.victims(TierMemory)[0], TierMemory)
	require.NoError(t, err)
	require.Len(t, gone, 2)
	require.False(t, gone[0].Removed || gone[1].Removed)
}

func TestGroupLeavesWholeOrNotAtAll(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(f *fixture, members []Object)
		busy  bool
		gone  int
	}{
		{"free", func(*fixture, []Object) {}, false, 3},
		{"a lease", func(f *fixture, _ []Object) { require.True(f.t, f.Exists(f.now, key("m1"), second)) }, true, 0},
		{"a reader", func(f *fixture, _ []Object) { _, _ = f.Acquire(f.now, key("m1"), 0) }, true, 0},
		{"a hard pin", func(f *fixture, _ []Object) { on := true; _, _ = f.Pin(key("m1"), PinRequest{HardPin: &on}) }, true, 0},
		{"a put in flight", func(f *fixture, _ []Object) {
			q := request("m3", 10)
			q.Group = "g"
			f.reserve(q)
		}, true, 0},
		{"a link", func(f *fixture, _ []Object) { f.put(request("o", 1), Loc{}); f.link("m3", "o", "g") }, true, 0},
		{"a link to a member", func(f *fixture, _ []Object) { f.link("o", "m1", "") }, true, 0},
		{"a guard", func(f *fixture, _ []Object) { _, _ = f.Guard(f.now, key("m1"), second) }, true, 0},
		{"a copy under way", func(f *fixture, m []Object) { _, _ = f.StartCopy(m[1].Ref, m[1].Gen, TierSSD) }, true, 0},
		{"one elsewhere too", func(f *fixture, m []Object) {
			_, _ = f.StartCopy(m[1].Ref, m[1].Gen, TierSSD)
			_ = f.Attach(m[1].Ref, Loc{1, 1, 0}, false)
		}, false, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			var members []Object
			for i := range 3 {
				q := request(fmt.Sprintf("m%d", i), 100)
				q.Group = "g"
				members = append(members, f.put(q, Loc{}))
			}
			v := f.victims(TierMemory)
			require.Len(t, v, 1)
			require.True(t, v[0].Group)
			require.EqualValues(t, 300, v[0].Size)
			require.Len(t, f.GroupMembers(v[0]), 3)
			c.spoil(f, members)
			gone, err := f.Evict(f.now, v[0], TierMemory)
			if c.busy {
				require.ErrorIs(t, err, status.Busy)
				for _, w := range f.victims(TierMemory) {
					require.False(t, w.Group)
				}
				require.EqualValues(t, 1, f.Usage().Groups)
				return
			}
			require.NoError(t, err)
			require.Len(t, gone, c.gone)
			for _, e := range gone {
				require.True(t, e.Removed)
				if e.Gone.Pinned != 0 {
					f.Release(e.Gone.Pinned)
				}
			}
			f.requireEmpty()
		})
	}
}

func TestSoftPinsLeaveLastHardPinsNever(t *testing.T) {
	f := newFixture(t)
	for i, name := range []string{"soft", "hard", "old", "new"} {
		q := request(name, 100)
		q.HardPin = name == "hard"
		if name == "soft" {
			q.SoftUntil = f.now + 3600*second
		}
		f.put(q, Loc{})
		f.now += int64(i+1) * second
	}
	var names []string
	for _, v := range f.victims(TierMemory) {
		gone, err := f.Evict(f.now, v, TierMemory)
		require.NoError(t, err)
		names = append(names, gone[0].Name)
	}
	require.Equal(t, []string{"old", "new", "soft"}, names)
	require.EqualValues(t, 1, f.Usage().HardPins)
}

func TestSameStateSameVictims(t *testing.T) {
	pick := func() (out []string) {
		f := newFixture(t)
		for i := range 500 {
			q := request(fmt.Sprintf("k%d", i), int64(i%7+1)*100)
			if i%10 == 0 {
				q.Group = fmt.Sprintf("g%d", i%50)
			}
			f.put(q, Loc{})
			if i%3 == 0 {
				f.now += second
			}
		}
		v, _ := f.Victims(f.now, TierMemory, policy.Need{Bytes: 40000}, policy.Config{})
		for _, v := range v {
			out = append(out, fmt.Sprint(v.Gen, v.Group, v.Size))
		}
		return out
	}
	first := pick()
	require.NotEmpty(t, first)
	require.Equal(t, first, pick(), "hash seeds, and so the order of records, differ")
}

func TestLeasedBytesAreReported(t *testing.T) {
	f := newFixture(t)
	f.put(request("k", 100), Loc{})
	q := request("m", 50)
	q.Group = "g"
	f.put(q, Loc{})
	f.Exists(f.now, key("k"), second)
	f.Exists(f.now, key("m"), second)
	got, leased := f.Victims(f.now, TierMemory, policy.Need{Bytes: 1}, policy.Config{})
	require.Empty(t, got)
	require.EqualValues(t, 150, leased)
}

func TestEvictChecksAgain(t *testing.T) {
	f := newFixture(t)
	o := f.put(request("k", 100), Loc{})
	v := f.victims(TierMemory)[0]
	_, err := f.Acquire(f.now, key("k"), 0)
	require.NoError(t, err)
	_, err = f.Evict(f.now, v, TierMemory)
	require.ErrorIs(t, err, status.Busy)
	f.Release(o.Ref)
	f.remove("k")
	_, err = f.Evict(f.now, v, TierMemory)
	require.ErrorIs(t, err, status.NotFound)
	f.put(request("k", 100), Loc{}) // most likely in the same record
	_, err = f.Evict(f.now, v, TierMemory)
	require.ErrorIs(t, err, status.NotFound)
}

func TestTiersComeAndGo(t *testing.T) {
	f := newFixture(t)
	o := f.put(request("k", 200<<10), Loc{}) // with a chunk table
	c, err := f.StartCopy(o.Ref, o.Gen, TierSSD)
	require.NoError(t, err)
	_, err = f.StartCopy(o.Ref, o.Gen, TierSSD)
	require.ErrorIs(t, err, status.Busy)
	_, err = f.StartCopy(o.Ref, o.Gen+1, TierSSD)
	require.ErrorIs(t, err, status.NotFound)
	require.NoError(t, f.Attach(c.Ref, Loc{3, 4, 0}, false))
	gone, err := f.Evict(f.now, f.victims(TierMemory)[0], TierMemory)
	require.NoError(t, err)
	require.False(t, gone[0].Removed)
	require.Equal(t, f.empty.Free, f.alloc.Stats().Free)

	c, err = f.StartCopy(o.Ref, o.Gen, TierMemory)
	require.NoError(t, err)
	ext, err := f.PlaceCopy(&c)
	require.NoError(t, err)
	require.Len(t, ext, 2)
	require.NoError(t, f.Promoted(c.Ref, ext))
	got, err := f.Stat(key("k"))
	require.NoError(t, err)
	require.True(t, got.InMemory() && got.OnSSD())
	require.Equal(t, ext[:1], got.Extents())

	gone, err = f.Evict(f.now, f.victims(TierSSD)[0], TierSSD)
	require.NoError(t, err)
	require.Equal(t, Loc{3, 4, 0}, gone[0].SSD)
	require.Empty(t, f.TakeEffects(), "the evictor frees it, once the catalogue has forgotten it")
	f.remove("k")
	f.requireEmpty()
}

// Copies that end after the object did leave nothing behind.
func TestCopyOfRemovedObject(t *testing.T) {
	f := newFixture(t)
	o := f.put(request("a", 100), Loc{})
	_, err := f.StartCopy(o.Ref, o.Gen, TierSSD)
	require.NoError(t, err)
	f.remove("a")
	require.EqualValues(t, 1, f.Usage().Reading)
	require.ErrorIs(t, f.Attach(o.Ref, Loc{1, 1, 0}, false), status.NotFound)

	q := request("b", 100)
	q.Placement = OnSSD
	o = f.put(q, Loc{1, 2, 0})
	c, err := f.StartCopy(o.Ref, o.Gen, TierMemory)
	require.NoError(t, err)
	ext, err := f.PlaceCopy(&c)
	require.NoError(t, err)
	f.remove("b")
	require.ErrorIs(t, f.Promoted(o.Ref, ext), status.NotFound)
	f.requireEmpty()
	require.Equal(t, []Effect{{Kind: FreeSSD, SSD: Loc{1, 2, 0}, KeyLen: 2, Size: 100, Gen: o.Gen}}, f.TakeEffects())
}

// A group that would lose a member which another tier could still take stays when the caller says so.
func TestSpareKeepsAGroupForItsCopies(t *testing.T) {
	f := newFixture(t)
	for name, loc := range map[string]Loc{"copied": {1, 1, 0}, "late": {}} {
		q := request(name, 100)
		q.Group = "g"
		f.put(q, loc)
	}
	v := f.victims(TierMemory)
	require.Len(t, v, 1)
	v[0].Spare = true
	_, err := f.Evict(f.now, v[0], TierMemory)
	require.ErrorIs(t, err, status.Busy)
	require.True(t, f.Exists(f.now, key("late"), 0))
	v[0].Spare = false
	gone, err := f.Evict(f.now, v[0], TierMemory)
	require.NoError(t, err)
	require.Len(t, gone, 2)
	for _, e := range gone {
		require.True(t, e.Removed, e.Name)
		if e.Gone.Pinned != 0 {
			f.Release(e.Gone.Pinned)
		}
	}
	f.requireEmpty()
}
