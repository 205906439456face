package master

import (
	"fmt"
	"slices"
	"sort"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/sum"
)

// check compares everything that is not tied to one key.
func (d *driver) check() {
	var want Usage
	space := int64(0)
	for _, r := range d.recs {
		if r.mem && r.file == 0 {
			space += roundUp(r.size)
		}
		if r.mem && sum.Chunks(r.size) > 1 {
			space += roundUp(int64(sum.Chunks(r.size)) * 8)
		}
		switch r.state {
		case Reserved:
			want.Reserved += r.size
		case Retired:
			want.Reading++
		case Committed:
			want.Objects[r.kind]++
			if r.hard {
				want.HardPins++
			}
		}
		for tier := range Tiers {
			if (r.state == Committed || r.state == Held) && r.has(tier) {
				want.Count[r.kind][tier]++
				want.Bytes[r.kind][tier] += r.size
			}
		}
	}
	for _, c := range d.copies {
		for _, e := range c.extents {
			space += roundUp(e.Len)
		}
	}
	want.Groups = int64(len(d.groups))
	got := d.Usage()
	got.RecordMem, got.IndexMem = 0, 0
	d.equal(want, got, "Usage")
	d.equal(d.empty.Free-space, d.alloc.Stats().Free, "free space")
	d.equal(len(d.recs)+len(d.groups), d.liveRecords(), "records")
	d.noOverlap()
	d.effectsOnce()
	d.scan()
}

// scan checks that a walk of the pages sees every object once.
func (d *driver) scan() {
	want := map[Key]uint64{}
	memoryOnly := 0
	for _, r := range d.recs {
		if r.state == Committed {
			want[r.key] = r.gen
		}
		if (r.state == Committed || r.state == Held) && r.owner == nil && r.mem && !r.bad[TierMemory] &&
			(!r.ssd || r.bad[TierSSD]) {
			memoryOnly++
		}
	}
	for n := uint32(1); n < d.Pages(); n++ {
		memoryOnly -= len(d.MemoryOnly(n))
		for _, tenant := range []string{"", "tenant"} {
			for _, o := range d.ScanPage(n, Key{tenant, "key-"}, nil) {
				d.equal(want[o.Key], o.Gen, "scanned generation of "+o.Name)
				delete(want, o.Key)
			}
		}
	}
	d.equal(0, len(want), "objects that the scan did not see")
	d.equal(0, memoryOnly, "objects only in memory that the scan did not see")
}

func roundUp(n int64) int64 { return (n + arena.Granule - 1) / arena.Granule * arena.Granule }

// noOverlap checks that no two records have an extent in common.
func (f *fixture) noOverlap() {
	f.t.Helper()
	type piece struct{ off, end int64 }
	var all []piece
	for n := uint32(1); n < f.pool.limit(); n++ {
		f.pool.each(n, func(r Ref, rec *record) {
			if st := stateOf(loadWord(rec)); st == Free || st == groupState {
				return
			}
			for i := range int(rec.nExt) {
				if e := unpack(*f.Master.mem.extent(r, rec, i)); e.Segment != OwnFile {
					all = append(all, piece{e.Off, e.Off + roundUp(e.Len)})
				}
			}
		})
	}
	sort.Slice(all, func(i, j int) bool { return all[i].off < all[j].off })
	for i := 1; i < len(all); i++ {
		require.GreaterOrEqual(f.t, all[i].off, all[i-1].end, "two records share space")
	}
}

// effectsOnce checks that what was asked for is what the model expected, each once.
func (d *driver) effectsOnce() {
	for _, e := range d.TakeEffects() {
		if e.Kind == FreeOwnFile {
			d.dropped[e.OwnFile]--
		} else {
			d.freed[e.SSD]--
			d.returned[e.SSD]++
		}
	}
	for loc, n := range d.freed {
		d.equal(0, n, fmt.Sprint("effects owed for ", loc))
		delete(d.freed, loc)
	}
	for id, n := range d.dropped {
		d.equal(0, n, fmt.Sprint("effects owed for file ", id))
		delete(d.dropped, id)
		delete(d.files, id)
	}
}

// finish lets go of everything and looks for what is left.
func (d *driver) finish() {
	d.last = "finish"
	for len(d.writers) > 0 {
		d.abort()
	}
	for len(d.copies) > 0 {
		d.endCopy()
	}
	for _, r := range slices.Clone(d.recs) {
		if r.state == Committed {
			gone, err := d.Remove(d.model.now, r.key, true)
			d.same(nil, err, "Remove(%v)", r.key)
			d.wasReplaced(r, d.drop(r), gone)
		}
	}
	for len(d.readers) > 0 {
		d.releaseOne()
	}
	d.model.now += 10000 * second
	d.Tick(d.model.now)
	d.tick()
	d.check()
	d.requireEmpty()
	d.equal(d.given, len(d.returned), "SSD locations returned")
	for loc, n := range d.returned {
		d.equal(1, n, fmt.Sprint("times that space was freed: ", loc))
	}
	d.equal(0, len(d.files), "memory files left")
}

// compare checks what the master says of an object.
func (d *driver) compare(r *mrec, o *Object) {
	b := r.body()
	type facts struct {
		ref, holder      Ref
		gen              uint64
		size, soft       int64
		lease            int64
		kind             uint8
		hard, mem, ssd   bool
		memOK, ssdOK     bool
		loc              Loc
		readers, extents int
	}
	want := facts{r.ref, b.ref, r.gen, r.size, r.soft, b.leaseEnd(), r.kind, r.hard, b.mem, b.ssd,
		b.mem && !b.bad[TierMemory], b.ssd && !b.bad[TierSSD], b.loc, b.pins, 0}
	if b.mem {
		want.extents = 1
	}
	got := facts{o.Ref, o.Holder(), o.Gen, o.Size, o.SoftUntil, o.Lease, o.Kind, o.Flags&FlagHardPin != 0,
		o.Flags&FlagMemory != 0, o.Flags&FlagSSD != 0, o.InMemory(), o.OnSSD(), o.SSD, o.Readers, min(len(o.Extents()), 1)}
	d.equal(want, got, "object "+r.key.Name)
	_, table := o.Table()
	d.equal(b.mem && sum.Chunks(b.size) > 1, table, "chunk table")
}
