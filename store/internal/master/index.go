package master

import (
	"bytes"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// index maps keys to records: per shard an open-addressing table of 8-byte slots, hash bits above and Ref below. A
// slot holds all hash bits that placement needs, so that growing a shard never touches a record. A key may have
// several slots: one committed record, and any number of reservations and held owners.
type index struct {
	mem    memory
	seed   maphash.Seed // fresh per process, so that nobody can choose keys that collide
	shards []shard
	shift  uint // of a hash, gives the shard
}

type shard struct {
	mu    sync.Mutex
	used  int
	tab   atomic.Pointer[table] // slots are written under mu, and read without it only to warm the cache
	usage usage
	walks []*walk   // of groups whose record is here
	_     [104]byte // an odd number of cache lines in all: else the first ones of all shards share an eighth of the cache
}

type table struct{ slots []uint64 }

func (s *shard) slots() []uint64 { return s.tab.Load().slots }

const minSlots = 16

func newIndex(mem memory, shards int) *index {
	x := &index{mem: mem, seed: maphash.MakeSeed(), shards: make([]shard, shards), shift: 64}
	for n := shards; n > 1; n >>= 1 {
		x.shift--
	}
	empty := new(table)
	for i := range x.shards {
		x.shards[i].tab.Store(empty)
	}
	return x
}

// hash is the hash of an object's identity. Group records hash with another salt, so they never meet objects often.
func (x *index) hash(tenant, name string) uint64 {
	h := maphash.String(x.seed, name)
	if tenant != "" {
		h = (h ^ maphash.String(x.seed, tenant)) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return h
}

// rehash is the hash of a record that another process made: its key was hashed with another seed.
func (x *index) rehash(r Ref, rec *record) uint64 {
	h := maphash.Bytes(x.seed, x.mem.name(r, rec))
	if rec.tenLen != 0 {
		h = (h ^ maphash.Bytes(x.seed, x.mem.tenant(r, rec))) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	if stateOf(loadWord(rec)) == groupState {
		h = groupHash(h)
	}
	return h
}

func groupHash(h uint64) uint64 { h *= 0xd6e8feb86659fd93; return h ^ h>>29 }

func (x *index) shardIndex(h uint64) uint32 { return uint32(h >> x.shift) }

func (x *index) shardOf(h uint64) *shard { return &x.shards[h>>x.shift] }

func slotOf(h uint64, r Ref) uint64 { return h<<32 | uint64(r) }

// insert adds a slot. The caller holds the shard's lock.
func (s *shard) insert(h uint64, r Ref) {
	if n := len(s.slots()); (s.used+1)*4 > n*3 {
		s.resize(max(minSlots, 2*n))
	}
	slots := s.slots()
	i := freeSlot(slots, slotOf(h, r))
	atomic.StoreUint64(&slots[i], slotOf(h, r))
	s.used++
}

func freeSlot(slots []uint64, slot uint64) uint32 {
	mask := uint32(len(slots) - 1)
	i := uint32(slot>>32) & mask
	for slots[i] != 0 {
		i = (i + 1) & mask
	}
	return i
}

func (s *shard) resize(n int) {
	t := &table{make([]uint64, n)}
	for _, slot := range s.slots() {
		if slot != 0 {
			t.slots[freeSlot(t.slots, slot)] = slot
		}
	}
	s.tab.Store(t)
}

// remove takes the slot of r out and closes the gap, so that no tombstones are left.
func (s *shard) remove(h uint64, r Ref) {
	want := slotOf(h, r)
	slots := s.slots()
	mask := uint32(len(slots) - 1)
	i := uint32(h) & mask
	for slots[i] != want {
		if slots[i] == 0 {
			panic("master: BUG: removing a record that is not in the index")
		}
		i = (i + 1) & mask
	}
	for j := (i + 1) & mask; slots[j] != 0; j = (j + 1) & mask {
		home := uint32(slots[j]>>32) & mask
		if (j-home)&mask >= (j-i)&mask { // its home is at or before the gap
			atomic.StoreUint64(&slots[i], slots[j])
			i = j
		}
	}
	atomic.StoreUint64(&slots[i], 0)
	s.used--
	if len(slots) > minSlots && s.used*8 < len(slots) {
		s.resize(len(slots) / 2)
	}
}

// holds reports whether r is in the index under h: the proof that a ref found without a lock is a record. The caller
// holds the shard's lock.
func (s *shard) holds(h uint64, r Ref) bool {
	slots := s.slots()
	if len(slots) == 0 {
		return false
	}
	mask := uint32(len(slots) - 1)
	for i := uint32(h) & mask; slots[i] != 0; i = (i + 1) & mask {
		if slots[i] == slotOf(h, r) {
			return true
		}
	}
	return false
}

// find calls fn for the records of a key until it returns true. The caller holds the shard's lock.
func (x *index) find(s *shard, h uint64, tenant, name string, fn func(Ref, *record, uint64) bool) {
	x.each(s, h, tenant, name, func(r Ref, rec *record) bool { return !x.wentWithGroup(rec) && fn(r, rec, loadWord(rec)) })
}

// each is find that also sees what was removed with its group.
func (x *index) each(s *shard, h uint64, tenant, name string, fn func(Ref, *record) bool) {
	slots := s.slots()
	if len(slots) == 0 {
		return
	}
	mask := uint32(len(slots) - 1)
	for i := uint32(h) & mask; slots[i] != 0; i = (i + 1) & mask {
		slot := slots[i]
		if uint32(slot>>32) != uint32(h) {
			continue
		}
		r := Ref(slot)
		rec := x.mem.at(r)
		if x.same(r, rec, tenant, name) && fn(r, rec) {
			return
		}
	}
}

// wentWithGroup reports whether an object was removed with its group, which may not have come to its record yet.
func (x *index) wentWithGroup(rec *record) bool {
	return rec.group != 0 && stateOf(loadWord(x.mem.at(rec.group))) == goneGroup
}

func (x *index) same(r Ref, rec *record, tenant, name string) bool {
	return int(rec.keyLen) == len(name) && int(rec.tenLen) == len(tenant) &&
		string(x.mem.name(r, rec)) == name && (tenant == "" || string(x.mem.tenant(r, rec)) == tenant)
}

// committed is the visible record of a key. It is find without the closure, for the paths that count.
func (x *index) committed(s *shard, h uint64, tenant, name string) (Ref, *record) {
	slots := s.slots()
	if len(slots) == 0 {
		return 0, nil
	}
	mask := uint32(len(slots) - 1)
	for i := uint32(h) & mask; slots[i] != 0; i = (i + 1) & mask {
		slot := slots[i]
		if uint32(slot>>32) != uint32(h) {
			continue
		}
		r := Ref(slot)
		rec := x.mem.at(r)
		if stateOf(loadWord(rec)) == Committed && x.same(r, rec, tenant, name) && !x.wentWithGroup(rec) {
			return r, rec
		}
	}
	return 0, nil
}

// sibling is the visible record of the key that rec, another record, has.
func (x *index) sibling(s *shard, h uint64, rec Ref) (Ref, *record) {
	mine := x.mem.at(rec)
	name, tenant := x.mem.name(rec, mine), x.mem.tenant(rec, mine)
	slots := s.slots()
	mask := uint32(len(slots) - 1)
	for i := uint32(h) & mask; slots[i] != 0; i = (i + 1) & mask {
		r := Ref(slots[i])
		if uint32(slots[i]>>32) != uint32(h) || r == rec {
			continue
		}
		other := x.mem.at(r)
		if stateOf(loadWord(other)) == Committed && bytes.Equal(x.mem.name(r, other), name) &&
			bytes.Equal(x.mem.tenant(r, other), tenant) && !x.wentWithGroup(other) {
			return r, other
		}
	}
	return 0, nil
}

// groupOf is the record of a group.
func (x *index) groupOf(s *shard, h uint64, tenant, name string) (Ref, *record) {
	var ref Ref
	var found *record
	x.find(s, h, tenant, name, func(r Ref, rec *record, w uint64) bool {
		if stateOf(w) != groupState {
			return false
		}
		ref, found = r, rec
		return true
	})
	return ref, found
}

// probe is a key of a batch on its way to its record.
type probe struct {
	hash uint64
	slot uint64 // what was found for it, 0 for nothing
	at   uint32 // and where in its shard's table
}

// A batch of look-ups goes through warmSlots and warmRecords first, a few keys at a time: each asks for the cache lines
// that the next step will touch, so that the misses overlap each other and the work on other keys. They take no locks:
// what they find must be checked again under the shard's, and the race detector need not look at them.

// warmSlots takes in the names, all of one tenant, and asks for their slots.
func (x *index) warmSlots(batch []probe, tenant string, names []string) {
	var at [warmBatch]uintptr
	for i, name := range names {
		h := x.hash(tenant, name)
		batch[i].hash = h
		if slots := x.shardOf(h).slots(); len(slots) != 0 {
			at[i] = address(&slots[uint32(h)&uint32(len(slots)-1)])
		}
	}
	prefetch(&at[0], len(names))
}

// warmRecords finds what may be the names' records and asks for them.
//
//go:norace
func (x *index) warmRecords(batch []probe, tenant string, names []string) {
	var at [recordLines * warmBatch]uintptr
	n := 0
	for i := range names {
		p := &batch[i]
		p.slot = 0
		slots := x.shardOf(p.hash).slots()
		if len(slots) == 0 {
			continue
		}
		mask := uint32(len(slots) - 1)
		for j := uint32(p.hash) & mask; ; j = (j + 1) & mask {
			slot := atomic.LoadUint64(&slots[j])
			if slot == 0 {
				break
			}
			if uint32(slot>>32) == uint32(p.hash) {
				p.slot, p.at = slot, j
				rec := address(&x.mem[int64(Ref(slot))*refUnit])
				at[n], at[n+1], at[n+2] = rec, rec+64, rec+recordBytes+uintptr(len(tenant)+len(names[i])-1)
				n += recordLines
				break
			}
		}
	}
	prefetch(&at[0], n)
}

// recordLines is how many cache lines a record with a short key usually lies on.
const recordLines = 3

func address[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// again is committed for what warmRecords found. nil says that it has to be looked for from the start. The caller holds the
// shard's lock.
func (x *index) again(s *shard, p *probe, tenant, name string) *record {
	slots := s.slots()
	if p.slot == 0 || int(p.at) >= len(slots) || slots[p.at] != p.slot {
		return nil
	}
	r := Ref(p.slot)
	rec := x.mem.at(r)
	if stateOf(loadWord(rec)) != Committed || !x.same(r, rec, tenant, name) || x.wentWithGroup(rec) {
		return nil
	}
	return rec
}

// locks is the shards that one command holds: each once, taken in ascending order. It is a value: with leaves the set
// it is called on as it is, so that that one can still be unlocked.
type locks struct {
	x    *index
	n    int
	few  [4]uint32
	many []uint32 // all of them, once they don't fit few; never changed in place
}

// only is the set of h's shard.
func (x *index) only(h uint64) (l locks) {
	l.x, l.n, l.few[0] = x, 1, x.shardIndex(h)
	return l
}

func (l *locks) ids() []uint32 {
	if l.many != nil {
		return l.many
	}
	return l.few[:l.n]
}

// with is the set and the shard of h.
func (l locks) with(h uint64) locks {
	id := l.x.shardIndex(h)
	at, found := slices.BinarySearch(l.ids(), id)
	switch {
	case found:
		return l
	case l.n < len(l.few):
		copy(l.few[at+1:], l.few[at:l.n])
		l.few[at] = id
	default:
		l.many = slices.Insert(slices.Clone(l.ids()), at, id)
	}
	l.n++
	return l
}

func (l *locks) lock() {
	for _, id := range l.ids() {
		l.x.shards[id].mu.Lock()
	}
}

func (l *locks) unlock() {
	for _, id := range l.ids() {
		l.x.shards[id].mu.Unlock()
	}
}
