package master

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

// TestRestartAgainstModel stops after random commands, starts anew with the record memory and a catalogue, checks
// that exactly what was committed is back, and goes on.
func TestRestartAgainstModel(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 4
	}
	r := seeded(t)
	for range rounds {
		d := newDriver(newFixtureOf(t, sizes{1 << r.IntN(7), 1 << 20, 16 << 20}), r)
		for range 3 {
			d.run(200 + r.IntN(800))
			d.restartAll()
			d.check()
		}
		d.run(500)
		d.finish()
	}
}

// restartAll does what a restart of the store does, to the master and to the model.
func (d *driver) restartAll() {
	before := d.recs
	var found Restored
	d.fixture, found = d.restart()
	d.last = "restart"
	d.forget()
	d.equal(int64(len(d.committedNames())), found.Kept, "objects kept")
	d.check()
	for _, r := range d.recs {
		if r.state == Committed {
			o, err := d.Stat(r.key)
			d.same(nil, err, "Stat(%v)", r.key)
			d.compare(r, &o)
			d.equal(r.groupName, d.GroupOf(r.key), "GroupOf")
			d.equal(true, o.Flags&FlagUnverified != 0 || r.owner != nil, "unverified")
		}
	}
	d.restoreCatalogue(before)
}

func (d *driver) committedNames() (names []Key) {
	for _, r := range d.recs {
		if r.state == Committed {
			names = append(names, r.key)
		}
	}
	return names
}

// forget takes out of the model what does not survive in memory.
func (d *driver) forget() {
	d.writers, d.readers, d.copies = nil, nil, nil
	d.groups = map[string]*mgroup{}
	d.freed, d.dropped, d.returned, d.given, d.files = map[Loc]int{}, map[uint64]int{}, map[Loc]int{}, 0, map[uint64]int{}
	var kept []*mrec
	for _, old := range d.recs {
		if old.body().mem && (old.state == Committed || old.state == Held) {
			kept = append(kept, old)
		}
	}
	d.recs = nil
	again := map[*mrec]*mrec{}
	for _, old := range kept { // copies: the catalogue still knows the others
		r := *old
		r.group, r.links, r.pins, r.lease, r.guarded, r.copying = nil, nil, 0, 0, false, false
		r.ssd, r.durable, r.loc, r.bad[TierSSD] = false, false, Loc{}, false
		again[old] = &r
		d.join(&r, old.groupName)
		d.recs = append(d.recs, &r)
		if r.file != 0 {
			d.files[r.file] = 1
		}
	}
	for _, r := range d.recs {
		if r.owner != nil {
			r.owner = again[r.owner]
			r.owner.links = append(r.owner.links, r)
		}
	}
}

// restoreCatalogue tells the new master what the catalogue has, as the store does, in any order of the objects.
func (d *driver) restoreCatalogue(before []*mrec) {
	d.r.Shuffle(len(before), func(i, j int) { before[i], before[j] = before[j], before[i] })
	for _, old := range before {
		if old.ssd && old.state == Committed {
			d.restoreObjectOf(old)
		}
	}
	held := map[*mrec]*mrec{}
	for _, old := range before {
		if old.owner != nil && old.owner.ssd && old.state == Committed {
			d.restoreLinkOf(old, held)
		}
	}
	for _, old := range before { // a catalogue that is read twice changes nothing
		if old.ssd && old.state == Committed {
			kept, gone, err := d.RestoreSSD(fromCatalogue(old))
			d.equal(true, kept && gone == nil && err == nil, "read twice")
		}
	}
}

func fromCatalogue(old *mrec) FromCatalogue {
	return FromCatalogue{Key: old.key, Gen: old.gen, Size: old.size, Digest: old.gen * 3, Kind: old.kind,
		Group: old.groupName, SoftUntil: old.soft, HardPin: old.hard, Durable: old.durable, SSD: old.loc}
}

func (d *driver) restoreObjectOf(old *mrec) {
	c := fromCatalogue(old)
	if d.r.IntN(4) == 0 && c.Gen > 1 { // an older generation first
		o := c
		o.Gen, o.SSD = c.Gen-1, Loc{9, uint32(c.Gen), 0}
		d.given++
		kept, gone, err := d.RestoreSSD(o)
		d.same(nil, err, "RestoreSSD(%+v)", o)
		d.equal(d.find(old.key, Committed) == nil, kept, "older generation kept")
		d.equal(0, len(gone), "older than that")
		if kept {
			kept, gone, err = d.RestoreSSD(c)
			d.same(nil, err, "RestoreSSD(%+v)", c)
			d.equal(true, kept && gone[0].Gen == o.Gen && gone[0].Pinned != 0, "older generation made way")
			d.freed[o.SSD]++
			d.Release(gone[0].Pinned)
		} else {
			d.returned[o.SSD]++
		}
	}
	kept, _, err := d.RestoreSSD(c)
	d.same(nil, err, "RestoreSSD(%+v)", c)
	d.equal(true, kept, "kept")
	d.given++
	r := d.find(old.key, Committed)
	if r == nil {
		o, _ := d.Stat(old.key)
		r = &mrec{key: old.key, ref: o.Ref, gen: old.gen, size: old.size, kind: old.kind, state: Committed, soft: old.soft}
		d.join(r, old.groupName)
		d.recs = append(d.recs, r)
	}
	r.ssd, r.loc, r.durable, r.hard = true, old.loc, old.durable, old.hard
}

func (d *driver) restoreLinkOf(old *mrec, held map[*mrec]*mrec) {
	if r := d.find(old.key, Committed); r != nil { // it survived in memory
		d.equal(!r.owner.ssd, d.AttachHolder(old.key, old.owner.loc, old.durable), "AttachHolder")
		r.durable, r.owner.durable = old.durable, r.owner.durable || old.durable
		if !r.owner.ssd {
			d.given++
			r.owner.ssd, r.owner.loc = true, old.owner.loc
		}
		return
	}
	q := LinkRequest{Key: old.key, Target: old.owner.key.Name, Gen: old.gen, Group: old.groupName, HardPin: old.hard, Durable: old.durable, SoftUntil: old.soft}
	owner := d.find(old.owner.key, Committed)
	if owner == nil || owner.gen != old.owner.gen {
		if owner = held[old.owner]; owner == nil {
			ref, err := d.RestoreHeld(fromCatalogue(old.owner))
			d.same(nil, err, "RestoreHeld")
			d.given++
			b := old.owner
			owner = &mrec{key: b.key, ref: ref, gen: d.GenOf(ref), size: b.size, kind: b.kind, state: Held, ssd: true,
				loc: b.loc, durable: b.durable}
			held[b] = owner
			d.recs = append(d.recs, owner)
		}
		q.Owner = owner.ref
	}
	o, err := d.Link(d.model.now, q)
	d.same(nil, err, "Link(%+v)", q)
	r := &mrec{key: old.key, ref: o.Ref, gen: old.gen, size: old.size, kind: old.kind, state: Committed, hard: old.hard,
		durable: old.durable, soft: old.soft, owner: owner}
	owner.links = append(owner.links, r)
	d.join(r, old.groupName)
	d.recs = append(d.recs, r)
}

// damaged restores a memory that may say anything, checks that what came back is sound, and takes it apart.
func damaged(t testing.TB, mem []byte, usable int64) {
	f := newFixtureOf(t, sizes{8, int64(len(mem)), 16 << 20})
	copy(f.mem, mem)
	f.Master = New(Options{Records: f.mem, Shards: 8, DiscardTimeout: testDiscard, ReleaseTimeout: testRelease})
	f.Mount(0, f.alloc)
	f.GrowRecords(usable)
	found := f.Restore(attachOnce(map[uint64]bool{}))
	f.noOverlap()
	u := f.Usage()
	require.Equal(t, found.Kept, sumOf(u.Objects[:]))
	keys := map[Key]bool{}
	for n := uint32(1); n < f.Pages(); n++ {
		for _, tenant := range []string{"", "tenant"} {
			for _, o := range f.ScanPage(n, Key{Tenant: tenant}, nil) {
				require.False(t, keys[o.Key], "%v is there twice", o.Key)
				keys[o.Key] = true
			}
		}
	}
	if o, err := f.Reserve(f.now, request("a new one", 200<<10)); err == nil {
		_, err = f.Commit(f.now, o.Ref, o.Gen, 0, Loc{})
		require.NoError(t, err)
		f.noOverlap()
		f.remove("a new one")
	} else {
		require.ErrorIs(t, err, status.MetaShortage)
	}
	for k := range keys {
		_, err := f.Stat(k)
		require.NoError(t, err)
		gone, err := f.Remove(f.now, k, true)
		require.NoError(t, err)
		require.Zero(t, gone.Pinned)
	}
	if int(found.Kept) == len(keys) { // else some have a tenant that nobody knows
		f.requireEmpty()
	}
}

func sumOf(counts []int64) (n int64) {
	for _, c := range counts {
		n += c
	}
	return n
}

// image is a record memory after random commands.
func image(t testing.TB, r *rand.Rand) []byte {
	d := newDriver(newFixtureOf(t, sizes{8, 2 << 20, 16 << 20}), r)
	d.run(300)
	return d.fixture.mem
}

func TestRestoreDamagedMemory(t *testing.T) {
	rounds := 100
	if testing.Short() {
		rounds = 40
	}
	r := seeded(t)
	for range rounds {
		mem := slices.Clone(image(t, r))
		used := pagesInUse(mem)
		for range r.IntN(40) {
			at := used[r.IntN(len(used))]
			n := 64
			if r.IntN(4) != 0 {
				n = 8192 // records lie at the front of their page
			}
			mem[at+r.IntN(n)] ^= byte(1 << r.IntN(8))
		}
		if r.IntN(2) == 0 {
			reseal(mem)
		}
		usable := int64(len(mem))
		if r.IntN(4) == 0 {
			usable = r.Int64N(usable)
		}
		damaged(t, mem, usable)
	}
}

func pagesInUse(mem []byte) (offsets []int) {
	p := newPool(mem)
	for n := 1; n < len(mem)/pageBytes; n++ {
		if p.page(uint32(n)).magic == pageMagic {
			offsets = append(offsets, n*pageBytes)
		}
	}
	return offsets
}

// reseal makes the checksums right, so that what they hide is tested too.
func reseal(mem []byte) {
	p := newPool(mem)
	for n := 1; n < len(mem)/pageBytes-slackPages; n++ {
		p.each(uint32(n), func(r Ref, rec *record) {
			class := classSizes[p.page(uint32(n)).class]
			if recordSize(int(rec.tenLen), int(rec.keyLen), int(rec.nExt)) <= class {
				p.mem.seal(r, rec)
			}
		})
	}
}

func FuzzRestore(f *testing.F) {
	base := image(f, rand.New(rand.NewPCG(1, 2)))
	used := pagesInUse(base)
	f.Add([]byte{}, uint32(0), true)
	f.Add([]byte{0, 0, 4, 1, 1, 0, 64, 0xff}, uint32(3), false)
	f.Fuzz(func(t *testing.T, patch []byte, cut uint32, seal bool) {
		mem := slices.Clone(base)
		for ; len(patch) >= 4; patch = patch[4:] { // page, offset, value
			at := used[int(patch[0])%len(used)] + (int(patch[1])<<8|int(patch[2]))%pageBytes
			mem[at] ^= patch[3]
		}
		if seal {
			reseal(mem)
		}
		damaged(t, mem, int64(len(mem))-int64(cut)%int64(len(mem)))
	})
}

// A link must not come back when its owner does not, wherever in the memory the two are.
func TestRestoreDropsLinksOfLostOwners(t *testing.T) {
	for _, linkFirst := range []bool{true, false} {
		f := newFixture(t)
		q := request("owner", 100)
		q.Group = "g"
		var filler Object
		if linkFirst { // keeps a place in front of the owner's
			filler = f.reserve(request("link", 1))
		}
		f.put(q, Loc{})
		if linkFirst {
			require.NoError(t, f.Abort(filler.Ref, filler.Gen))
		}
		f.link("link", "owner", "")
		f.put(request("other", 100), Loc{})
		g := f.walkGroup(key("g")).g
		f.Master.mem.at(g).check++ // the group's record is lost
		after, found := f.restart()
		require.Equal(t, Restored{Kept: 1, Dropped: 2, Bytes: 100}, found)
		_, err := after.Stat(key("link"))
		require.ErrorIs(t, err, status.NotFound)
		after.remove("other")
		after.requireEmpty()
	}
}

// A crash between the two steps of a replacing commit leaves both generations: the newer one counts.
func TestRestoreKeepsTheNewerGeneration(t *testing.T) {
	for _, links := range []int{0, 1} {
		for _, newerFirst := range []bool{false, true} {
			f := newFixture(t)
			first := f.put(request("k", 100), Loc{})
			for i := range links {
				f.link(fmt.Sprintf("l%d", i), "k", "")
			}
			q := request("k", 200)
			q.Replace, q.Group = true, "g"
			second := f.reserve(q)
			rec := f.Master.mem.at(second.Ref)
			f.publish(f.now, f.index.shardOf(rec.hash), second.Ref, rec)
			if newerFirst { // the walk meets the newer one first
				a, b := f.Master.mem.at(first.Ref), rec
				a.gen, b.gen = b.gen, a.gen
				f.Master.mem.seal(first.Ref, a)
				f.Master.mem.seal(second.Ref, b)
			}
			after, found := f.restart()
			require.EqualValues(t, 1+links, found.Kept)
			o, err := after.Stat(key("k"))
			require.NoError(t, err)
			require.Equal(t, second.Gen, o.Gen)
			for i := range links {
				l, err := after.Stat(key(fmt.Sprintf("l%d", i)))
				require.NoError(t, err)
				require.Equal(t, first.Extents(), l.Extents(), "the older generation lives on for its links")
				after.remove(fmt.Sprintf("l%d", i))
			}
			after.remove("k")
			after.requireEmpty()
			require.Greater(t, after.reserve(request("k", 1)).Gen, second.Gen)
		}
	}
}

func TestRestoreSSDAgainstMemory(t *testing.T) {
	f := newFixture(t)
	q := request("k", 100)
	q.HardPin = true
	o := f.put(q, Loc{})
	c := FromCatalogue{Key: key("k"), Gen: o.Gen, Size: 100, Digest: 7, SSD: Loc{1, 1, 0}}
	for name, row := range map[string]struct {
		change func(*FromCatalogue)
		kept   bool
		older  uint64
	}{
		"the same":      {func(*FromCatalogue) {}, true, 0},
		"an older one":  {func(c *FromCatalogue) { c.Gen-- }, false, 0},
		"a newer one":   {func(c *FromCatalogue) { c.Gen++ }, true, o.Gen},
		"another size":  {func(c *FromCatalogue) { c.Size++ }, true, o.Gen},
		"other content": {func(c *FromCatalogue) { c.Digest++ }, true, o.Gen},
	} {
		after, _ := f.restart()
		got := c
		row.change(&got)
		kept, older, err := after.RestoreSSD(got)
		require.NoError(t, err, name)
		require.Equal(t, row.kept, kept, name)
		require.Equal(t, row.older != 0, len(older) == 1, name)
		for _, gone := range older {
			require.Equal(t, Replaced{Gen: row.older, Size: 100}, gone, name)
		}
		now, err := after.Stat(key("k"))
		require.NoError(t, err)
		require.Equal(t, kept, now.OnSSD(), name)
		require.Equal(t, row.older == 0, now.InMemory(), name)
		require.Greater(t, after.reserve(request("new", 1)).Gen, max(o.Gen, got.Gen))
	}
	_, _, err := f.RestoreSSD(FromCatalogue{Key: key("")})
	require.ErrorIs(t, err, status.InvalidKey)
}

// A generation is newer than every one that came back, links' included.
func TestGenerationsGrowPastRestoredLinks(t *testing.T) {
	f := newFixture(t)
	owner, err := f.RestoreHeld(FromCatalogue{Key: key("o"), Gen: 5, Size: 10, SSD: Loc{1, 1, 0}})
	require.NoError(t, err)
	_, err = f.Link(f.now, LinkRequest{Key: key("l"), Target: "o", Owner: owner, Gen: 100})
	require.NoError(t, err)
	q := request("l", 20)
	q.Replace = true
	require.Greater(t, f.put(q, Loc{}).Gen, uint64(100))
	o, err := f.Stat(key("l"))
	require.NoError(t, err)
	require.EqualValues(t, 20, o.Size)
	for _, gen := range []uint64{0, maxGen + 1} {
		kept, _, err := f.RestoreSSD(FromCatalogue{Key: key("k"), Gen: gen, Size: 10, SSD: Loc{1, 1, 0}})
		require.NoError(t, err)
		require.False(t, kept, "no generation of ours")
	}
}

// The catalogue may be read on several goroutines, and hold generations of a key that a crash left.
func TestRestoreSSDConcurrently(t *testing.T) {
	f := newFixture(t)
	var wg sync.WaitGroup
	for g := range uint64(4) {
		wg.Go(func() {
			for i := range 500 {
				_, older, err := f.RestoreSSD(FromCatalogue{Key: key(fmt.Sprint("k", i)), Gen: 1 + g, Size: 10,
					Group: fmt.Sprint("g", i%7), SSD: Loc{uint32(g + 1), uint32(i), 0}})
				if err != nil {
					t.Error(err)
				}
				for _, gone := range older {
					f.Release(gone.Pinned)
				}
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 500, f.Usage().Objects[0])
	for i := range 500 {
		o, err := f.Stat(key(fmt.Sprint("k", i)))
		require.NoError(t, err)
		require.EqualValues(t, 4, o.Gen)
		f.remove(fmt.Sprint("k", i))
	}
	f.requireEmpty()
}

func TestRefsOutOfRangeAreRefused(t *testing.T) {
	f := newFixture(t)
	for _, r := range []Ref{0, 1, 7, 1 << 20, 1 << 31, 0xffffffff} {
		v := Victim{Gen: 1, Group: true}
		v.Ref = r
		_, err := f.Evict(f.now, v, TierMemory)
		require.ErrorIs(t, err, status.NotFound)
		require.Empty(t, f.GroupMembers(v))
		v.Group = false
		_, err = f.Evict(f.now, v, TierMemory)
		require.ErrorIs(t, err, status.NotFound)
		_, err = f.StartCopy(r, 1, TierSSD)
		require.ErrorIs(t, err, status.NotFound)
	}
}
