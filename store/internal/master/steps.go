package master

import (
	"iter"
	"math/bits"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
)

// The owner gives the pool memory, and takes it back, in steps of arena.StepBytes. Pages are taken from the lowest step
// that has a free one, so that the high steps empty and can go.
const (
	stepPages = arena.StepBytes / pageBytes
	wholeStep = 1<<stepPages - 1
)

// step says of each page of a step whether it may be touched, and whether no class has it.
type step struct{ present, free uint64 }

// add lets the pool touch the pages of [off, off+n) of its memory.
func (p *pool) add(off, n int64) {
	end := min(off+n, int64(len(p.mem))/pageBytes*pageBytes-slackPages*pageBytes)
	p.pages.Lock()
	defer p.pages.Unlock()
	for i := max(off/pageBytes, 1); i < end/pageBytes; i++ { // page 0 holds Ref 0
		k := int(i / stepPages)
		for k >= len(p.pages.steps) {
			p.pages.steps = append(p.pages.steps, step{})
		}
		st, bit := &p.pages.steps[k], uint64(1)<<(i%stepPages)
		if st.present&bit != 0 {
			continue
		}
		st.present |= bit
		p.pages.count++
		p.freePageLocked(uint32(i))
	}
}

func (p *pool) freePageLocked(n uint32) {
	k := int(n / stepPages)
	st := &p.pages.steps[k]
	st.free |= 1 << (n % stepPages)
	p.pages.free++
	p.pages.low = min(p.pages.low, k)
	if st.free == wholeStep {
		p.pages.whole.Add(1)
	}
}

func (p *pool) takePageLocked(k int, bit uint64) {
	st := &p.pages.steps[k]
	if st.free == wholeStep {
		p.pages.whole.Add(-1)
	}
	st.free &^= bit
	p.pages.free--
}

// takePage gives the lowest free page to a class, or 0.
func (p *pool) takePage() uint32 {
	p.pages.Lock()
	defer p.pages.Unlock()
	for ; p.pages.low < len(p.pages.steps); p.pages.low++ {
		free := p.pages.steps[p.pages.low].free
		if free == 0 {
			continue
		}
		p.takePageLocked(p.pages.low, free&-free)
		n := uint32(p.pages.low*stepPages + bits.TrailingZeros64(free))
		p.pages.limit.Store(max(p.pages.limit.Load(), n+1))
		return n
	}
	return 0
}

func (p *pool) putPage(n uint32) {
	p.pages.Lock()
	p.freePageLocked(n)
	p.pages.Unlock()
}

// takeStep takes the highest step without a record away from the pool, if keep free pages are left then. With lastOnly
// it takes no step below one that stays.
func (p *pool) takeStep(keep int, lastOnly bool) (off int64, ok bool) {
	p.pages.Lock()
	defer p.pages.Unlock()
	if p.pages.whole.Load() == 0 || p.pages.free-stepPages < keep {
		return 0, false
	}
	for k := len(p.pages.steps) - 1; k >= 0; k-- {
		if p.pages.steps[k].free == wholeStep {
			p.pages.steps[k] = step{}
			p.pages.free -= stepPages
			p.pages.count -= stepPages
			p.pages.whole.Add(-1)
			p.lowerLimitLocked()
			return int64(k) * arena.StepBytes, true
		}
		if lastOnly && p.pages.steps[k].present != 0 {
			break
		}
	}
	return 0, false
}

// lowerLimitLocked spares scans the steps at the end that hold nothing.
func (p *pool) lowerLimitLocked() {
	k := len(p.pages.steps)
	for k > 0 && p.pages.steps[k-1].present == p.pages.steps[k-1].free {
		k--
	}
	p.pages.limit.Store(max(1, min(p.pages.limit.Load(), uint32(k*stepPages))))
}

// trim gives the pages back to the pool that a class has kept without a record in them.
func (p *pool) trim() {
	for c := range p.classes {
		for i := range p.classes[c] {
			for _, n := range p.trimList(&p.classes[c][i]) {
				p.putPage(n)
			}
		}
	}
}

// maxTrim bounds how many pages of a list are looked at under its lock.
const maxTrim = 64

func (p *pool) trimList(list *classList) (empty []uint32) {
	list.Lock()
	defer list.Unlock()
	next := uint32(0)
	for n, i := list.head, 0; n != 0 && i < maxTrim; n, i = next, i+1 {
		pg := p.page(n)
		if next = pg.next; pg.used == 0 {
			p.dropPage(list, n, pg)
			pg.magic = 0
			empty = append(empty, n)
		}
	}
	return empty
}

// room reports the pages that could still be taken and the pages that are usable at all.
func (p *pool) room() (free, usable uint32) {
	p.pages.Lock()
	defer p.pages.Unlock()
	return uint32(p.pages.free), uint32(p.pages.count)
}

// used is the bytes of the pages that hold records.
func (p *pool) used() int64 {
	p.pages.Lock()
	defer p.pages.Unlock()
	return int64(p.pages.count-p.pages.free) * pageBytes
}

// limit is one more than the last page that may hold records.
func (p *pool) limit() uint32 { return p.pages.limit.Load() }

// present yields the pages that may be touched. Only for Restore: none may come or go.
func (p *pool) present() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for k, st := range p.pages.steps {
			for set := st.present; set != 0; set &= set - 1 {
				if !yield(uint32(k*stepPages + bits.TrailingZeros64(set))) {
					return
				}
			}
		}
	}
}

// has reports whether a page may be touched. Only for Restore.
func (p *pool) has(n uint32) bool {
	k := int(n / stepPages)
	return k < len(p.pages.steps) && p.pages.steps[k].present&(1<<(n%stepPages)) != 0
}

// GrowRecords lets records use the first n bytes of Options.Records.
func (m *Master) GrowRecords(n int64) { m.pool.add(0, n) }

// AddRecords lets records use [off, off+n) of Options.Records too.
func (m *Master) AddRecords(off, n int64) { m.pool.add(off, n) }

// TakeRecords takes a step of arena.StepBytes without a record from Options.Records, if there is one and keep bytes are
// free without it; lastOnly says that none below one in use will do. Nothing uses it any more, except for lock-free
// looks at records that were there: it may be given back to the machine if reading it stays harmless, as zeros.
func (m *Master) TakeRecords(keep int64, lastOnly bool) (off int64, ok bool) {
	return m.pool.takeStep(int(keep/pageBytes), lastOnly)
}

// IdleRecords reports how many steps TakeRecords could give.
func (m *Master) IdleRecords() int { return int(m.pool.pages.whole.Load()) }

// TrimRecords makes steps idle that only have pages which a size class keeps for records to come.
func (m *Master) TrimRecords() { m.pool.trim() }

// RecordRoom reports how many bytes of records can still be made, and how many are usable in all.
func (m *Master) RecordRoom() (free, usable int64) {
	f, u := m.pool.room()
	return int64(f) * pageBytes, int64(u) * pageBytes
}
