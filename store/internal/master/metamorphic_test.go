package master

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sort"
	"testing"

	"github.com/kvcache-ai/mooncake-go/store/internal/status"
	"github.com/kvcache-ai/mooncake-go/store/internal/sum"
)

var steps = flag.Int("master.steps", 300_000, "operations of TestAgainstModel")

// TestAgainstModel runs random commands on a master and on the model, and compares what they say and what is left.
func TestAgainstModel(t *testing.T) {
	n := *steps
	if testing.Short() || raceEnabled { // of which there are none with one goroutine
		n /= 10
	}
	const rounds = 6
	r := seeded(t)
	for round := range rounds {
		d := newDriver(newFixtureOf(t, sizes{1 << (2 * round), 4 << 20, 32 << 20}), r)
		d.run(n / rounds)
		d.finish()
	}
}

// driver keeps a master and the model in step.
type driver struct {
	*fixture
	model
	r        *rand.Rand
	writers  []*mrec
	readers  []*mrec // pins of Acquire and of Replaced
	copies   []*copying
	nextLoc  uint32
	given    int // SSD locations handed to the master
	returned map[Loc]int
	files    map[uint64]int
	step     int
	last     string
}

type copying struct {
	rec     *mrec
	tier    Tier
	extents []Extent
}

func newDriver(f *fixture, r *rand.Rand) *driver {
	d := &driver{fixture: f, r: r, returned: map[Loc]int{}, files: map[uint64]int{}}
	d.model = model{now: f.now, groups: map[string]*mgroup{}, freed: map[Loc]int{}, dropped: map[uint64]int{}}
	return d
}

func (d *driver) run(steps int) {
	ops := []struct {
		weight int
		name   string
		run    func()
	}{
		{12, "reserve", d.reserve}, {14, "commit", d.commit}, {2, "abort", d.abort}, {2, "renew", d.renew},
		{8, "remove", d.removeKey}, {8, "acquire", d.acquire}, {10, "release", d.releaseOne}, {4, "exists", d.exists},
		{3, "stat", d.stat}, {3, "pin", d.pin}, {2, "group", d.group}, {5, "link", d.link}, {2, "guard", d.guard},
		{4, "evict", d.evict}, {4, "copy", d.startCopy}, {5, "endCopy", d.endCopy}, {1, "quarantine", d.quarantine},
		{4, "tick", d.tickOn}, {1, "durable", d.durable},
	}
	var deck []int
	for i, op := range ops {
		for range op.weight {
			deck = append(deck, i)
		}
	}
	for range steps {
		d.step++
		op := ops[deck[d.r.IntN(len(deck))]]
		d.last = op.name
		op.run()
		if d.step%97 == 0 {
			d.check()
		}
		if d.t.Failed() {
			d.t.FailNow()
		}
	}
}

func (d *driver) same(want, got error, format string, args ...any) bool {
	if want == nil && got == nil {
		return true
	}
	if want == nil || got == nil || !errors.Is(got, want) {
		d.t.Fatalf("step %d: %s = %v, want %v", d.step, fmt.Sprintf(format, args...), got, want)
	}
	return false
}

func (d *driver) equal(want, got any, what string) {
	d.t.Helper()
	if want != got {
		d.t.Fatalf("step %d, after %s: %s = %v, want %v", d.step, d.last, what, got, want)
	}
}

func (d *driver) key() Key {
	k := Key{"", fmt.Sprintf("key-%d", d.r.IntN(20))}
	if d.r.IntN(4) == 0 {
		k.Tenant = "tenant"
	}
	return k
}

func (d *driver) someGroup() string {
	if d.r.IntN(3) != 0 {
		return ""
	}
	return fmt.Sprintf("key-%d", d.r.IntN(3)) // groups have names that keys have too
}

func (d *driver) loc() Loc {
	d.nextLoc++
	d.given++
	return Loc{1, d.nextLoc, 0}
}

// pop takes a random element out of a list.
func pop[T any](r *rand.Rand, list *[]T) (one T, ok bool) {
	n := len(*list)
	if n == 0 {
		return one, false
	}
	i := r.IntN(n)
	one = (*list)[i]
	(*list)[i] = (*list)[n-1]
	*list = (*list)[:n-1]
	return one, true
}

// miss is the error for a key without a committed object.
func (d *driver) miss(k Key) error {
	if d.find(k, Reserved) != nil {
		return status.NotReady
	}
	return status.NotFound
}

// prepare is the part that Reserve and Link share: it refuses the key or takes over what is stale.
func (d *driver) prepare(k Key, link bool) error {
	old := d.find(k, Committed)
	if old != nil && (old.owner != nil || old.readable()) {
		return status.Exists
	}
	var stale []*mrec
	for _, r := range d.recs {
		if r.key != k || r.state != Reserved {
			continue
		}
		if d.model.now-r.wait < int64(testDiscard) {
			return status.Exists
		}
		stale = append(stale, r)
	}
	for _, r := range stale {
		d.takeOver(r)
	}
	if old != nil && link {
		return status.Exists
	}
	return nil
}

func (d *driver) reserve() {
	q := ReserveRequest{Key: d.key(), Size: 1 + d.r.Int64N(2000), Kind: uint8(d.r.IntN(Kinds)), Group: d.someGroup(),
		HardPin: d.r.IntN(10) == 0, Durable: d.r.IntN(8) == 0, Replace: d.r.IntN(3) == 0, WriterPin: d.r.IntN(2) == 0}
	if d.r.IntN(20) == 0 {
		q.Size += sum.ChunkBytes * d.r.Int64N(6)
	}
	if d.r.IntN(8) == 0 {
		q.SoftUntil = d.model.now + d.r.Int64N(60*second)
	}
	switch d.r.IntN(6) {
	case 0:
		q.Placement = OnSSD
	case 1:
		q.Placement, q.OwnFile = InOwnFile, uint64(d.step)
	}
	if len(d.writers) > 12 {
		d.abort()
	}
	group := q.Group
	var want error
	if old := d.find(q.Key, Committed); !q.Replace {
		want = d.prepare(q.Key, false)
	} else if old != nil && old.group != nil {
		if group != "" && group != old.groupName {
			want = status.InvalidParams
		}
		group = old.groupName
	}
	o, err := d.Reserve(d.model.now, q)
	if !d.same(want, err, "Reserve(%+v)", q) {
		return
	}
	r := &mrec{key: q.Key, ref: o.Ref, gen: o.Gen, size: q.Size, kind: q.Kind, state: Reserved, hard: q.HardPin,
		durable: q.Durable, soft: q.SoftUntil, mem: q.Placement != OnSSD, file: q.OwnFile, replace: q.Replace,
		here: q.WriterPin, wait: d.model.now}
	if r.here {
		r.pins = 1
	}
	if r.file != 0 {
		d.files[r.file] = 1
	}
	d.join(r, group)
	d.recs = append(d.recs, r)
	d.writers = append(d.writers, r)
}

func (d *driver) commit() {
	r, ok := pop(d.r, &d.writers)
	if !ok {
		return
	}
	var loc Loc
	if !r.mem || d.r.IntN(3) == 0 {
		loc = d.loc()
	}
	if !r.mem && d.r.IntN(20) == 0 {
		d.given--
		loc = Loc{}
	}
	old := d.find(r.key, Committed)
	var want error
	switch {
	case r.taken:
		want = status.IllegalWriter
		if r.here {
			d.release(r, 1)
		}
	case !r.mem && loc == Loc{}:
		want = status.InvalidWrite
		d.writers = append(d.writers, r)
	case old != nil && !r.replace && (old.owner != nil || old.readable()):
		want = status.Exists
		d.endReservation(r)
	}
	gone, err := d.Commit(d.model.now, r.ref, r.gen, r.gen*3, loc)
	if !d.same(want, err, "Commit(%v)", r.key) {
		if loc != (Loc{}) {
			d.returned[loc]++
		}
		return
	}
	was, pinned := d.committed(r, old, loc)
	d.wasReplaced(was, pinned, gone)
}

// committed does to the model what a successful commit does. It returns the record that made way and the pinned one.
func (d *driver) committed(r, old *mrec, loc Loc) (was, pinned *mrec) {
	if loc != (Loc{}) {
		r.ssd, r.loc = true, loc
	}
	if old != nil && old.gen > r.gen {
		if r.ssd {
			r.pins++
			pinned = r
		}
		d.endReservation(r)
		return r, pinned
	}
	if old != nil && r.replace {
		r.hard = r.hard || old.hard
		if r.soft == 0 {
			r.soft = old.soft
		}
	}
	if r.here {
		r.pins--
	}
	r.state, r.lease, r.wait = Committed, 0, 0
	if old == nil {
		return nil, nil
	}
	return old, d.drop(old)
}

func (d *driver) wasReplaced(was, pinned *mrec, gone Replaced) {
	var want Replaced
	if was != nil {
		want = Replaced{Gen: was.gen, Size: was.size, Durable: was.durable}
	}
	if pinned != nil {
		want.Pinned = pinned.ref
		d.readers = append(d.readers, pinned)
	}
	d.equal(want, gone, "Replaced")
}

func (d *driver) abort() {
	r, ok := pop(d.r, &d.writers)
	if !ok {
		return
	}
	var want error
	if r.taken {
		want = status.IllegalWriter
		if r.here {
			d.release(r, 1)
		}
	} else {
		d.endReservation(r)
	}
	d.same(want, d.Abort(r.ref, r.gen), "Abort(%v)", r.key)
}

func (d *driver) renew() {
	if len(d.writers) == 0 {
		return
	}
	r := d.writers[d.r.IntN(len(d.writers))]
	var want error
	if r.taken {
		want = status.IllegalWriter
	} else {
		r.wait = d.model.now
	}
	d.same(want, d.Renew(d.model.now, r.ref, r.gen), "Renew(%v)", r.key)
}

func (d *driver) removeKey() {
	if d.r.IntN(10) == 0 {
		d.removeGroup()
		return
	}
	k, force := d.key(), d.r.IntN(2) == 0
	r := d.find(k, Committed)
	var want error
	switch {
	case r == nil:
		want = d.miss(k)
	case !force && (r.leaseEnd() > d.model.now || r.body().pins > 0):
		want = status.HasLease
	}
	gone, err := d.Remove(d.model.now, k, force)
	if d.same(want, err, "Remove(%v, %v)", k, force) {
		d.wasReplaced(r, d.drop(r), gone)
	}
}

func (d *driver) removeGroup() {
	k := Key{d.key().Tenant, d.someGroup()}
	g := d.groups[k.Tenant+"/"+k.Name]
	var want error
	if g == nil {
		want = status.NotGroup
	}
	members := map[string]*mrec{}
	for _, r := range d.recs {
		if g == nil || r.group != g {
			continue
		}
		if r.state == Reserved {
			want = status.NotReady
		}
		members[r.key.Name] = r
	}
	gone, _, err := d.RemoveGroup(d.model.now, k, true)
	if !d.same(want, err, "RemoveGroup(%v)", k) {
		return
	}
	d.equal(len(members), len(gone), "members removed")
	for _, one := range gone {
		r := members[one.Name]
		d.wasReplaced(r, d.drop(r), one.Replaced)
	}
}

func (d *driver) readError(k Key, r *mrec) error {
	switch {
	case r == nil:
		return d.miss(k)
	case !r.body().readable():
		return status.NoReplica
	}
	return nil
}

func (d *driver) ttl() int64 { return []int64{0, second, 20 * second}[d.r.IntN(3)] }

func (d *driver) acquire() {
	if len(d.readers) > 12 {
		d.releaseOne()
	}
	k, ttl := d.key(), d.ttl()
	r := d.find(k, Committed)
	o, err := d.Acquire(d.model.now, k, ttl)
	if !d.same(d.readError(k, r), err, "Acquire(%v)", k) {
		return
	}
	d.touch(r.body(), ttl)
	d.touch(r, ttl)
	r.body().pins++
	d.readers = append(d.readers, r.body())
	d.compare(r, &o)
}

func (d *driver) releaseOne() {
	if r, ok := pop(d.r, &d.readers); ok {
		d.Release(r.ref)
		d.release(r, 1)
	}
}

func (d *driver) exists() {
	k, ttl := d.key(), d.ttl()
	r := d.find(k, Committed)
	want := d.readError(k, r) == nil
	var found [2]bool
	if d.r.IntN(2) == 0 {
		found[0] = d.Exists(d.model.now, k, ttl)
	} else {
		d.ExistsBatch(d.model.now, k.Tenant, []string{k.Name, "none"}, ttl, found[:])
	}
	d.equal([2]bool{want, false}, found, "Exists "+k.Name)
	if want {
		d.touch(r.body(), ttl)
		d.touch(r, ttl)
	}
}

func (d *driver) stat() {
	k := d.key()
	r := d.find(k, Committed)
	o, err := d.Stat(k)
	want := error(nil)
	if r == nil {
		want = d.miss(k)
	}
	if d.same(want, err, "Stat(%v)", k) {
		d.compare(r, &o)
		d.equal(r.groupName, d.GroupOf(k), "GroupOf")
		name := ""
		if r.owner != nil {
			name = r.owner.key.Name
		}
		d.equal(name, d.OwnerName(k), "OwnerName")
	}
}

func (d *driver) pin() {
	k := d.key()
	on, until := d.r.IntN(3) == 0, d.r.Int64N(2)*(d.model.now+30*second)
	p := PinRequest{HardPin: &on}
	if d.r.IntN(2) == 0 {
		p.SoftUntil = &until
	}
	apply := func(r *mrec) bool {
		changed := r.hard != on || p.SoftUntil != nil && r.soft != until
		r.hard = on
		if p.SoftUntil != nil {
			r.soft = until
		}
		return changed
	}
	if d.r.IntN(4) == 0 {
		d.pinGroup(p, apply)
		return
	}
	r := d.find(k, Committed)
	want := error(nil)
	if r == nil {
		want = d.miss(k)
	}
	changed, err := d.Pin(k, p)
	if d.same(want, err, "Pin(%v)", k) {
		d.equal(apply(r), changed, "changed")
	}
}

func (d *driver) pinGroup(p PinRequest, apply func(*mrec) bool) {
	k := Key{d.key().Tenant, d.someGroup()}
	g := d.groups[k.Tenant+"/"+k.Name]
	var want error
	if g == nil {
		want = status.NotGroup
	}
	names, err := d.PinGroup(k, p)
	if !d.same(want, err, "PinGroup(%v)", k) {
		return
	}
	n := 0
	for _, r := range d.recs {
		if r.group == g && r.state == Committed && apply(r) {
			n++
		}
	}
	d.equal(n, len(names), "members changed")
}

func (d *driver) group() {
	k := Key{d.key().Tenant, d.someGroup()}
	g := d.groups[k.Tenant+"/"+k.Name]
	var want error
	if g == nil {
		want = status.NotGroup
	}
	names, err := d.Group(k)
	if !d.same(want, err, "Group(%v)", k) {
		return
	}
	var members []string
	for _, r := range d.recs {
		if r.group == g && r.state == Committed {
			members = append(members, r.key.Name)
		}
	}
	sort.Strings(members)
	sort.Strings(names)
	d.equal(fmt.Sprint(members), fmt.Sprint(names), "members")
}

func (d *driver) link() {
	q := LinkRequest{Key: d.key(), Group: d.someGroup(), HardPin: d.r.IntN(10) == 0}
	q.Target = d.key().Name
	want := d.prepare(q.Key, false)
	target := d.find(Key{q.Tenant, q.Target}, Committed)
	switch {
	case want != nil:
	case target == nil:
		want = status.NotFound
	case d.find(q.Key, Committed) != nil:
		want = status.Exists
	case !target.body().readable():
		want = status.NoReplica
	}
	o, err := d.Link(d.model.now, q)
	if !d.same(want, err, "Link(%+v)", q) {
		return
	}
	b := target.body()
	r := &mrec{key: q.Key, ref: o.Ref, gen: o.Gen, size: b.size, kind: b.kind, state: Committed, hard: q.HardPin, owner: b}
	b.links = append(b.links, r)
	d.join(r, q.Group)
	d.recs = append(d.recs, r)
	d.compare(r, &o)
}

func (d *driver) guard() {
	k, ttl := d.key(), d.ttl()
	r := d.find(k, Committed)
	_, err := d.Guard(d.model.now, k, ttl)
	if !d.same(d.readError(k, r), err, "Guard(%v)", k) {
		return
	}
	b := r.body()
	d.touch(r, ttl)
	d.touch(b, ttl)
	b.lease, b.guarded = max(b.lease, d.model.now+ttl), true
}

func (d *driver) durable() {
	k := d.key()
	r := d.find(k, Committed)
	o, err := d.Stat(k)
	if r != nil && err == nil && r.body().ssd {
		d.SetDurable(&o)
		r.durable, r.body().durable = true, true
	}
}

func (d *driver) tickOn() {
	d.model.now += d.r.Int64N(8 * second)
	if d.r.IntN(30) == 0 {
		d.model.now += d.r.Int64N(700 * second)
	}
	d.fixture.now = d.model.now
	d.Tick(d.model.now)
	d.tick()
}
