package master

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

func TestRequestsThatAreRefused(t *testing.T) {
	f := newFixture(t)
	long := strings.Repeat("x", MaxKeyBytes+1)
	for name, c := range map[string]struct {
		change func(*ReserveRequest)
		want   error
	}{
		"empty key":    {func(q *ReserveRequest) { q.Name = "" }, status.InvalidKey},
		"long key":     {func(q *ReserveRequest) { q.Name = long }, status.InvalidKey},
		"long tenant":  {func(q *ReserveRequest) { q.Tenant = long[:MaxTenantBytes+1] }, status.InvalidKey},
		"no size":      {func(q *ReserveRequest) { q.Size = 0 }, status.InvalidParams},
		"too large":    {func(q *ReserveRequest) { q.Size = MaxObjectBytes + 1 }, status.TooLarge},
		"no such type": {func(q *ReserveRequest) { q.Kind = Kinds }, status.InvalidParams},
		"long group":   {func(q *ReserveRequest) { q.Group = long }, status.InvalidParams},
		"no space":     {func(q *ReserveRequest) { q.Size = f.empty.Capacity + 1 }, status.NoSpace},
	} {
		q := request("k", 100)
		c.change(&q)
		_, err := f.Reserve(f.now, q)
		require.ErrorIs(t, err, c.want, name)
	}
	require.EqualValues(t, 1, f.AllocFailures())
	f.requireEmpty()
	q := request(long[1:], f.empty.Capacity/2)
	q.Tenant, q.Group = long[:MaxTenantBytes], long[1:]
	o := f.reserve(q)
	require.NoError(t, f.Abort(o.Ref, o.Gen), "the limits themselves are allowed")
	f.requireEmpty()
}

// Each row puts the key "k" into a state and says what every command answers.
func TestAnswersByState(t *testing.T) {
	states := map[string]func(f *fixture){
		"absent":    func(*fixture) {},
		"reserved":  func(f *fixture) { f.reserve(request("k", 100)) },
		"committed": func(f *fixture) { f.put(request("k", 100), Loc{}) },
		"leased":    func(f *fixture) { f.put(request("k", 100), Loc{}); f.Exists(f.now, key("k"), second) },
		"read":      func(f *fixture) { f.put(request("k", 100), Loc{}); _, _ = f.Acquire(f.now, key("k"), 0) },
		"link":      func(f *fixture) { f.put(request("o", 100), Loc{}); f.link("k", "o", "") },
		"leased link": func(f *fixture) {
			f.put(request("o", 100), Loc{})
			f.link("k", "o", "g")
			f.Exists(f.now, key("k"), second)
		},
		"removed": func(f *fixture) { f.put(request("k", 100), Loc{}); f.remove("k") },
		"unreadable": func(f *fixture) {
			o := f.put(request("k", 100), Loc{})
			f.Quarantine(&o, TierMemory)
		},
		"replaced": func(f *fixture) {
			f.put(request("k", 100), Loc{})
			q := request("k", 50)
			q.Replace = true
			f.reserve(q)
		},
		"unreadable link": func(f *fixture) {
			o := f.put(request("o", 100), Loc{})
			f.link("k", "o", "")
			f.Quarantine(&o, TierMemory)
		},
	}
	const none = ""
	for state, want := range map[string]struct{ put, acquire, stat, remove, force, link string }{
		"absent":          {none, "NotFound", "NotFound", "NotFound", "NotFound", none},
		"reserved":        {"Exists", "NotReady", "NotReady", "NotReady", "NotReady", "Exists"},
		"committed":       {"Exists", none, none, none, none, "Exists"},
		"leased":          {"Exists", none, none, "HasLease", none, "Exists"},
		"read":            {"Exists", none, none, "HasLease", none, "Exists"},
		"link":            {"Exists", none, none, none, none, "Exists"},
		"leased link":     {"Exists", none, none, "HasLease", none, "Exists"},
		"removed":         {none, "NotFound", "NotFound", "NotFound", "NotFound", none},
		"unreadable":      {none, "NoReplica", none, none, none, "Exists"},
		"replaced":        {"Exists", none, none, none, none, "Exists"},
		"unreadable link": {"Exists", "NoReplica", none, none, none, "Exists"},
	} {
		errs := map[string]error{"NotFound": status.NotFound, "NotReady": status.NotReady, "Exists": status.Exists,
			"HasLease": status.HasLease, "NoReplica": status.NoReplica}
		k := key("k")
		for command, c := range map[string]struct {
			run  func(f *fixture) error
			want string
		}{
			"put":     {func(f *fixture) error { _, err := f.Reserve(f.now, request("k", 10)); return err }, want.put},
			"acquire": {func(f *fixture) error { _, err := f.Acquire(f.now, k, 0); return err }, want.acquire},
			"guard":   {func(f *fixture) error { _, err := f.Guard(f.now, k, second); return err }, want.acquire},
			"stat":    {func(f *fixture) error { _, err := f.Stat(k); return err }, want.stat},
			"pin":     {func(f *fixture) error { _, err := f.Pin(k, PinRequest{}); return err }, want.stat},
			"remove":  {func(f *fixture) error { _, err := f.Remove(f.now, k, false); return err }, want.remove},
			"force":   {func(f *fixture) error { _, err := f.Remove(f.now, k, true); return err }, want.force},
			"link": {func(f *fixture) error {
				f.put(request("other", 10), Loc{})
				_, err := f.Link(f.now, LinkRequest{Key: k, Target: "other"})
				return err
			}, want.link},
			"upsert": {func(f *fixture) error {
				q := request("k", 10)
				q.Replace = true
				o, err := f.Reserve(f.now, q)
				if err == nil {
					_, err = f.Commit(f.now, o.Ref, o.Gen, 0, Loc{})
				}
				return err
			}, none},
		} {
			t.Run(state+"/"+command, func(t *testing.T) {
				f := newFixture(t)
				states[state](f)
				require.Equal(t, want.acquire == none, f.Exists(f.now, k, 0))
				err := c.run(f)
				if c.want == none {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, errs[c.want])
				}
			})
		}
	}
}

func TestOtherTenantsAreOthers(t *testing.T) {
	f := newFixture(t)
	f.put(request("k", 100), Loc{})
	_, err := f.Stat(Key{"t", "k"})
	require.ErrorIs(t, err, status.NotFound)
	q := request("k", 100)
	q.Tenant = "t"
	f.put(q, Loc{})
	f.remove("k")
	_, err = f.Stat(Key{"t", "k"})
	require.NoError(t, err)
}

func TestReservationsAreTheirWriters(t *testing.T) {
	f := newFixture(t)
	o := f.reserve(request("k", 100))
	for _, gen := range []uint64{0, o.Gen + 1} {
		require.ErrorIs(t, f.Renew(f.now, o.Ref, gen), status.IllegalWriter)
		require.ErrorIs(t, f.Abort(o.Ref, gen), status.IllegalWriter)
		_, err := f.Commit(f.now, o.Ref, gen, 0, Loc{})
		require.ErrorIs(t, err, status.IllegalWriter)
	}
	for _, r := range []Ref{0, 1, 1 << 31, 0xffffffff} {
		require.ErrorIs(t, f.Abort(r, o.Gen), status.IllegalWriter)
	}
	require.NoError(t, f.Abort(o.Ref, o.Gen))
	require.ErrorIs(t, f.Abort(o.Ref, o.Gen), status.IllegalWriter, "twice")
	o = f.put(request("k", 100), Loc{})
	_, err := f.Commit(f.now, o.Ref, o.Gen, 0, Loc{})
	require.ErrorIs(t, err, status.IllegalWriter, "twice")
	f.remove("k")
	f.requireEmpty()
}

func TestCommitNeedsBytesSomewhere(t *testing.T) {
	f := newFixture(t)
	q := request("k", 100)
	q.Placement = OnSSD
	o := f.reserve(q)
	_, err := f.Commit(f.now, o.Ref, o.Gen, 0, Loc{})
	require.ErrorIs(t, err, status.InvalidWrite)
	require.NoError(t, f.Abort(o.Ref, o.Gen), "the reservation is still the writer's")
	f.requireEmpty()
}

// A writer that shows no sign of life loses the key after the discard timeout, and the space later: by the release
// timeout if it lives elsewhere, when it lets go if it lives here.
func TestTakeOver(t *testing.T) {
	for _, group := range []string{"", "g"} {
		for _, here := range []bool{false, true} {
			f := newFixture(t)
			q := request("k", 100)
			q.WriterPin, q.Group = here, group
			old := f.reserve(q)
			taken := f.alloc.Stats().Free

			f.now += int64(testDiscard) - 1
			_, err := f.Reserve(f.now, q)
			require.ErrorIs(t, err, status.Exists)
			require.NoError(t, f.Renew(f.now, old.Ref, old.Gen))
			f.now += int64(testDiscard) - 1
			_, err = f.Reserve(f.now, q)
			require.ErrorIs(t, err, status.Exists, "renewed")
			f.now++
			start := f.now - int64(testDiscard)
			o := f.reserve(q)
			require.NotEqual(t, old.Extents(), o.Extents())
			require.NoError(t, f.Abort(o.Ref, o.Gen))
			require.Equal(t, taken, f.alloc.Stats().Free, "the late writer may still write")

			f.Tick(start + int64(testRelease) - 1)
			require.Equal(t, taken, f.alloc.Stats().Free)
			f.Tick(start + int64(testRelease))
			if here {
				require.Equal(t, taken, f.alloc.Stats().Free, "it lives here and has not let go")
			} else {
				require.Equal(t, f.empty.Free, f.alloc.Stats().Free)
			}
			require.ErrorIs(t, f.Renew(f.now, old.Ref, old.Gen), status.IllegalWriter)
			_, err = f.Commit(f.now, old.Ref, old.Gen, 0, Loc{})
			require.ErrorIs(t, err, status.IllegalWriter)
			require.ErrorIs(t, f.Abort(old.Ref, old.Gen), status.IllegalWriter, "lets go once only")
			f.requireEmpty()
		}
	}
}

func TestTakeOverByLink(t *testing.T) {
	f := newFixture(t)
	f.put(request("o", 100), Loc{})
	old := f.reserve(request("k", 100))
	f.now += int64(testDiscard)
	f.link("k", "o", "")
	require.ErrorIs(t, f.Abort(old.Ref, old.Gen), status.IllegalWriter)
	f.remove("k", "o")
	f.requireEmpty()
}

func TestCommitsInTheWrongOrder(t *testing.T) {
	f := newFixture(t)
	f.put(request("k", 10), Loc{})
	q := request("k", 100)
	q.Replace = true
	first, second := f.reserve(q), f.reserve(q)
	gone, err := f.Commit(f.now, second.Ref, second.Gen, 2, Loc{})
	require.NoError(t, err)
	require.EqualValues(t, 10, gone.Size)
	gone, err = f.Commit(f.now, first.Ref, first.Gen, 1, Loc{5, 6, 0})
	require.NoError(t, err, "it happened before")
	require.Equal(t, first.Gen, gone.Gen)
	require.NotZero(t, gone.Pinned, "its SSD space waits for the catalogue")
	require.Empty(t, f.TakeEffects())
	f.Release(gone.Pinned)
	require.Len(t, f.TakeEffects(), 1)
	o, err := f.Stat(key("k"))
	require.NoError(t, err)
	require.Equal(t, second.Gen, o.Gen)
	f.remove("k")
	f.requireEmpty()
}

func TestTwoPutsOneWins(t *testing.T) {
	f := newFixture(t)
	q := request("k", 100)
	q.Replace = true
	upsert := f.reserve(q)
	_, err := f.Reserve(f.now, request("k", 100))
	require.ErrorIs(t, err, status.Exists)
	f.now += int64(testDiscard)
	put := f.reserve(request("k", 100))
	q2 := f.reserve(q)
	_, err = f.Commit(f.now, q2.Ref, q2.Gen, 0, Loc{})
	require.NoError(t, err)
	_, err = f.Commit(f.now, put.Ref, put.Gen, 0, Loc{})
	require.ErrorIs(t, err, status.Exists)
	_, err = f.Commit(f.now, upsert.Ref, upsert.Gen, 0, Loc{})
	require.ErrorIs(t, err, status.IllegalWriter)
	f.remove("k")
	f.requireEmpty()
}

func TestUpsertInherits(t *testing.T) {
	f := newFixture(t)
	q := request("k", 100)
	q.Group, q.HardPin, q.SoftUntil = "g", true, f.now+second
	f.put(q, Loc{})
	up := ReserveRequest{Key: key("k"), Size: 10, Replace: true}
	f.put(up, Loc{})
	o, err := f.Stat(key("k"))
	require.NoError(t, err)
	require.NotZero(t, o.Flags&FlagHardPin)
	require.Equal(t, f.now+second, o.SoftUntil)
	require.Equal(t, "g", f.GroupOf(key("k")))
	require.EqualValues(t, 1, f.Usage().HardPins)
	up.Group = "other"
	_, err = f.Reserve(f.now, up)
	require.ErrorIs(t, err, status.InvalidParams)
	f.remove("k")
	f.requireEmpty()
}

// A replaced object and its replacement may be in groups of any shards.
func TestReplaceAcrossShards(t *testing.T) {
	f := newFixture(t)
	for i := range 200 {
		name := string(rune('a'+i%5)) + "k"
		up := ReserveRequest{Key: key(name), Size: 10, Replace: true, WriterPin: true}
		o := f.reserve(up)
		if _, err := f.Stat(key(name)); err != nil { // joins a group, or becomes a link, after the reservation
			if i%2 == 0 {
				q := request(name, 10)
				q.Group, q.Replace = "g"+name, true
				f.put(q, Loc{})
			}
		}
		_, err := f.Commit(f.now, o.Ref, o.Gen, 0, Loc{})
		require.NoError(t, err)
		if i%3 == 0 {
			f.remove(name)
		}
	}
	for _, name := range []string{"ak", "bk", "ck", "dk", "ek"} {
		_, _ = f.Remove(f.now, key(name), true)
	}
	f.requireEmpty()
}

func TestMetaShortage(t *testing.T) {
	f := newFixtureOf(t, sizes{8, 1 << 20, 4 << 20})
	var err error
	n := 0
	for ; err == nil; n++ {
		q := request(strings.Repeat("x", 1000)+string(rune('a'+n)), 64)
		q.Group = strings.Repeat("g", 1000) + string(rune('a'+n))
		_, err = f.Reserve(f.now, q)
	}
	require.ErrorIs(t, err, status.MetaShortage)
	require.Greater(t, n, 100)
	free, usable := f.RecordRoom()
	require.Zero(t, free)
	require.EqualValues(t, 1<<20-(slackPages+1)*pageBytes, usable)
	before := f.alloc.Stats().Extents
	for range 100 {
		_, err = f.Reserve(f.now, request(strings.Repeat("y", 3000), 64))
		require.ErrorIs(t, err, status.MetaShortage)
		_, err = f.Link(f.now, LinkRequest{Key: key(strings.Repeat("y", 3000)), Target: "x"})
		require.ErrorIs(t, err, status.MetaShortage)
	}
	require.Equal(t, before, f.alloc.Stats().Extents, "a refused put keeps no space")
}

func TestGroupLeaseIsShared(t *testing.T) {
	f := newFixture(t)
	for _, name := range []string{"a", "b"} {
		q := request(name, 10)
		q.Group = "g"
		f.put(q, Loc{})
	}
	lease := func() int64 { o, _ := f.Stat(key("b")); return o.Lease }
	start := f.now
	require.True(t, f.Exists(f.now, key("a"), 10*second))
	require.Equal(t, start+10*second, lease())
	f.now += 5*second - 1
	f.Exists(f.now, key("a"), 10*second)
	require.Equal(t, start+10*second, lease(), "half of it is left")
	f.now++
	f.Exists(f.now, key("a"), 10*second)
	require.Equal(t, f.now+10*second, lease())
	_, err := f.Remove(f.now, key("b"), false)
	require.ErrorIs(t, err, status.HasLease)
	_, refused, err := f.RemoveGroup(f.now, key("g"), false)
	require.ErrorIs(t, err, status.HasLease)
	require.Equal(t, "b", refused)
	gone, _, err := f.RemoveGroup(f.now, key("g"), true)
	require.NoError(t, err)
	require.Len(t, gone, 2)
	_, err = f.Group(key("g"))
	require.ErrorIs(t, err, status.NotGroup)
	f.requireEmpty()
}

func TestGroups(t *testing.T) {
	f := newFixture(t)
	for _, name := range []string{"a", "b"} {
		q := request(name, 10)
		q.Group = "g"
		f.put(q, Loc{})
	}
	q := request("c", 10)
	q.Group = "g"
	o := f.reserve(q)
	names, err := f.Group(key("g"))
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, names, "without what is still written")
	_, refused, err := f.RemoveGroup(f.now, key("g"), true)
	require.ErrorIs(t, err, status.NotReady)
	require.Equal(t, "c", refused)
	on := true
	changed, err := f.PinGroup(key("g"), PinRequest{HardPin: &on})
	require.NoError(t, err)
	require.Len(t, changed, 2)
	changed, err = f.PinGroup(key("g"), PinRequest{HardPin: &on})
	require.NoError(t, err)
	require.Empty(t, changed)
	for _, k := range []Key{key("a"), {"t", "g"}} {
		_, err = f.Group(k)
		require.ErrorIs(t, err, status.NotGroup)
		_, err = f.PinGroup(k, PinRequest{})
		require.ErrorIs(t, err, status.NotGroup)
		_, _, err = f.RemoveGroup(f.now, k, true)
		require.ErrorIs(t, err, status.NotGroup)
	}
	require.NoError(t, f.Abort(o.Ref, o.Gen))
	f.remove("a", "b")
	f.requireEmpty()
}

// A writer elsewhere that died leaves nothing behind, though nobody ever asks for its key again.
func TestAbandonedPutsEnd(t *testing.T) {
	f := newFixture(t)
	q := ReserveRequest{Key: key("k"), Size: 100, Group: "g", Replace: true}
	old := f.reserve(q)
	q.WriterPin, q.Name = true, "here"
	here := f.reserve(q)
	f.Tick(f.now + int64(testRelease) - 1)
	require.NoError(t, f.Renew(f.now+second, old.Ref, old.Gen))
	f.Tick(f.now + int64(testRelease))
	require.EqualValues(t, 200, f.Usage().Reserved, "it was alive")
	f.Tick(f.now + second + int64(testRelease))
	require.EqualValues(t, 100, f.Usage().Reserved)
	require.ErrorIs(t, f.Abort(old.Ref, old.Gen), status.IllegalWriter)
	require.NoError(t, f.Abort(here.Ref, here.Gen), "a writer of this process is its owner's affair")
	f.requireEmpty()
}
