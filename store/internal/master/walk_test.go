package master

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

// putGroup puts n members "m-0".. into group "g".
func (f *fixture) putGroup(n int, loc Loc) (objects []Object) {
	for i := range n {
		q := request(member(i), 8)
		q.Group = "g"
		objects = append(objects, f.put(q, loc))
	}
	return objects
}

func member(i int) string { return fmt.Sprintf("m-%d", i) }

// found is how many of the first n members can be seen, in every way there is to look.
func (f *fixture) found(n int) int {
	f.t.Helper()
	names, exist := make([]string, n), make([]bool, n)
	got, count := 0, 0
	for i := range names {
		names[i] = member(i)
		if f.Exists(f.now, key(names[i]), 0) {
			got++
		}
		if o, err := f.Acquire(f.now, key(names[i]), 0); err == nil {
			f.Release(o.Holder())
			count++
		}
	}
	require.Equal(f.t, got, count)
	f.ExistsBatch(f.now, "", names, 0, exist)
	for _, there := range exist {
		if there {
			count--
		}
	}
	require.Zero(f.t, count)
	for page := uint32(1); page < f.Pages(); page++ {
		count += len(f.ScanPage(page, key("m-"), nil))
	}
	require.Equal(f.t, got, count)
	return got
}

// No command holds locks for more than a few members, however many the group has.
func TestGroupCommandsHoldLocksForAFewMembers(t *testing.T) {
	const n = 1000
	on := true
	evict := func(tier Tier) func(*fixture) {
		return func(f *fixture) {
			v := f.victims(tier)
			require.Len(t, v, 1)
			gone, err := f.Evict(f.now, v[0], tier)
			require.NoError(t, err)
			require.Len(t, gone, n)
		}
	}
	for name, c := range map[string]struct {
		loc Loc
		do  func(*fixture)
	}{
		"RemoveGroup": {Loc{}, func(f *fixture) {
			gone, _, err := f.RemoveGroup(f.now, key("g"), false)
			require.NoError(t, err)
			require.Len(t, gone, n)
		}},
		"RemoveGroup, forced": {Loc{}, func(f *fixture) {
			gone, _, err := f.RemoveGroup(f.now, key("g"), true)
			require.NoError(t, err)
			require.Len(t, gone, n)
		}},
		"PinGroup": {Loc{}, func(f *fixture) {
			names, err := f.PinGroup(key("g"), PinRequest{HardPin: &on})
			require.NoError(t, err)
			require.Len(t, names, n)
			require.EqualValues(t, n, f.Usage().HardPins)
		}},
		"Group": {Loc{}, func(f *fixture) {
			names, err := f.Group(key("g"))
			require.NoError(t, err)
			require.Len(t, names, n)
		}},
		"GroupMembers":           {Loc{}, func(f *fixture) { require.Len(t, f.GroupMembers(f.victims(TierMemory)[0]), n) }},
		"Evict":                  {Loc{}, evict(TierMemory)},
		"Evict one of two tiers": {Loc{1, 1, 0}, evict(TierMemory)},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.putGroup(n, c.loc)
			most, total := 0, 0
			f.opts.Stepped = func(n int) { most, total = max(most, n), total+n }
			c.do(f)
			require.LessOrEqual(t, most, groupStep)
			require.GreaterOrEqual(t, total, n)
			if c.loc == (Loc{}) {
				f.opts.Stepped = nil
				_, _, _ = f.RemoveGroup(f.now, key("g"), true)
				f.requireEmpty()
			}
		})
	}
}

// A removed group is gone at once for all who look, though its members are taken away bit by bit: keys and group can be
// put again, and what is put then stays.
func TestRemovedGroupIsGoneAtOnce(t *testing.T) {
	const n = 5 * groupStep
	f := newFixture(t)
	f.putGroup(n, Loc{})
	w := f.walkGroup(key("g"))
	_, err := f.condemn(f.now, w)
	require.NoError(t, err)
	require.Zero(t, f.found(n))
	_, err = f.Group(key("g"))
	require.ErrorIs(t, err, status.NotGroup)
	_, _, err = f.RemoveGroup(f.now, key("g"), true)
	require.ErrorIs(t, err, status.NotGroup)
	_, err = f.Remove(f.now, key(member(0)), true)
	require.ErrorIs(t, err, status.NotFound)
	_, err = f.Link(f.now, LinkRequest{Key: key("l"), Target: member(0)})
	require.ErrorIs(t, err, status.NotFound)
	require.Empty(t, f.victims(TierMemory))

	q := request(member(0), 8)
	q.Group = "g"
	again := f.put(q, Loc{})
	f.reclaim(f.now, w, func(Key, uint64, Replaced) {})
	require.True(t, f.endWalk(w))
	require.Equal(t, 1, f.found(n))
	names, err := f.Group(key("g"))
	require.NoError(t, err)
	require.Equal(t, []string{member(0)}, names)
	o, err := f.Stat(key(member(0)))
	require.NoError(t, err)
	require.Equal(t, again.Gen, o.Gen)
	f.remove(member(0))
	f.requireEmpty()
}

// A crash in the middle of a group's removal leaves nothing of it.
func TestCrashInAGroupsRemovalLeavesNone(t *testing.T) {
	const n = 5 * groupStep
	f := newFixture(t)
	f.putGroup(n, Loc{})
	w := f.walkGroup(key("g"))
	_, err := f.condemn(f.now, w)
	require.NoError(t, err)
	steps := 0
	require.True(t, f.step(w, func(r Ref, rec *record) bool {
		steps++
		f.removeLocked(f.now, f.index.shardOf(rec.hash), rec.hash, r, rec)
		return true
	}))
	after, found := f.restart()
	require.Equal(t, Restored{Dropped: int64(n - steps)}, found)
	require.Zero(t, after.found(n))
	after.requireEmpty()
}

// Without force a group is removed only if no member is in use when it goes, also one that was looked at before.
func TestUseDuringAGroupsRemovalCounts(t *testing.T) {
	for name, use := range map[string]func(f *fixture, k Key){
		"reader": func(f *fixture, k Key) {
			_, err := f.Acquire(f.now, k, 0)
			require.NoError(f.t, err)
		},
		"lease": func(f *fixture, k Key) { require.True(f.t, f.Exists(f.now, k, 10*second)) },
		"guard": func(f *fixture, k Key) { _, err := f.Guard(f.now, k, 10*second); require.NoError(f.t, err) },
		"pinning": func(f *fixture, k Key) {
			on := true
			_, err := f.Pin(k, PinRequest{HardPin: &on})
			require.NoError(f.t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.putGroup(3, Loc{})
			w := f.walkGroup(key("g"))
			w.strict = name == "pinning" // an eviction's
			f.watch(w)
			_, err := f.refusal(w, func(rec *record) error { return f.mayRemove(f.now, rec) })
			require.NoError(t, err)
			use(f, key(member(1)))
			again, err := f.condemn(f.now, w)
			require.Error(t, err)
			require.True(t, again)
			require.Equal(t, 3, f.found(3))
			f.endWalk(w)
			_, refused, err := f.RemoveGroup(f.now, key("g"), false)
			switch name {
			case "pinning":
				require.NoError(t, err, "a pin keeps no object from being removed")
			case "reader":
				require.Equal(t, member(1), refused)
				fallthrough
			default:
				require.ErrorIs(t, err, status.HasLease)
			}
		})
	}
}

// Readers see a group whole or not at all while it is removed or evicted.
func TestReadersSeeAGroupWholeOrNot(t *testing.T) {
	const n = 20 * groupStep
	for round := range 10 {
		f := newFixture(t)
		f.putGroup(n, Loc{})
		var readers sync.WaitGroup
		begun := make(chan struct{}, 4)
		for i := range 4 {
			readers.Go(func() {
				for at, tell := i, true; ; at = (at + 7) % n {
					there := f.Exists(f.now, key(member(at)), 0)
					if tell {
						begun <- struct{}{}
						tell = false
					}
					if !there {
						break
					}
				}
				for at := range n {
					if f.Exists(f.now, key(member(at)), 0) {
						t.Errorf("%s is there after another member was not", member(at))
					}
				}
			})
		}
		for range 4 {
			<-begun
		}
		if round%2 == 0 {
			_, _, err := f.RemoveGroup(f.now, key("g"), true)
			require.NoError(t, err)
		} else {
			_, err := f.Evict(f.now, f.victims(TierMemory)[0], TierMemory)
			require.NoError(t, err)
		}
		readers.Wait()
		f.requireEmpty()
	}
}
