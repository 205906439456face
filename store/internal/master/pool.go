package master

import (
	"sync"
	"sync/atomic"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
)

// Records are cut from pages, one size class a page. A page starts with a header that names the class, so that
// Restore can walk the records of a memory that survived a crash; free lists are per page and rebuilt then. A page
// whose records are all free goes back to the pool and may serve another class.
const (
	pageBytes     = 32 << 10
	pageHeader    = 64
	pageMagic     = 0x4d475031 // "MGP1"
	maxRecord     = (pageBytes - pageHeader) / refUnit * refUnit
	refsPerPage   = pageBytes / refUnit
	classStep     = 16
	linearClasses = 64 // steps of 16 bytes up to 1 KiB, then steps of an eighth
	poolStripes   = 4
)

// page is the header of a page. All of it but magic and class is volatile.
type page struct {
	magic uint32
	class uint16
	used  uint16 // records in use
	free  Ref    // first free record, linked through the first word of each
	bump  uint32 // records never used yet start at this index
	next  uint32 // list of pages of the class with room, page numbers; 0 ends it
	prev  uint32
	strip uint16
	inUse uint16 // on the list of pages with room
}

// freeRecord overlays a record on a page's free list: its word says Free, so the link is behind it.
type freeRecord struct {
	_    uint64
	next Ref
}

// classSizes holds the record size of each class.
var classSizes = func() []int64 {
	var sizes []int64
	for s := int64(classStep); s <= linearClasses*classStep; s += classStep {
		sizes = append(sizes, s)
	}
	for s := int64(linearClasses * classStep); s < maxRecord; {
		s = min((s+s/8)/classStep*classStep, maxRecord)
		sizes = append(sizes, s)
	}
	return sizes
}()

func classOf(size int64) int {
	if size <= linearClasses*classStep {
		return int((size+classStep-1)/classStep) - 1
	}
	for c := linearClasses; c < len(classSizes); c++ {
		if classSizes[c] >= size {
			return c
		}
	}
	return -1
}

// pool hands out records.
type pool struct {
	mem memory

	pages struct {
		sync.Mutex
		steps []step
		low   int           // no step below has a free page
		count int           // pages that may be touched
		free  int           // of these, pages that no class has
		whole atomic.Int64  // steps whose pages are all free
		limit atomic.Uint32 // see pool.limit
	}
	classes [][poolStripes]classList
}

type classList struct {
	sync.Mutex
	head uint32 // first page with room
	_    [40]byte
}

func newPool(mem memory) *pool {
	p := &pool{mem: mem, classes: make([][poolStripes]classList, len(classSizes))}
	p.pages.limit.Store(1)
	return p
}

func (p *pool) page(n uint32) *page { return arena.At[page](p.mem, int64(n)*pageBytes) }

func pageOf(r Ref) uint32 { return r / refsPerPage }

// slackPages at the end of the memory are never used, so that the key of a record that is being freed under a scan
// can be read, whatever length it claims.
const slackPages = 3

// alloc gives a record of at least size bytes, zeroed up to its header, or 0 when the pool needs to grow.
func (p *pool) alloc(size int64, stripe uint32) Ref {
	class := classOf(size)
	list := &p.classes[class][stripe%poolStripes]
	list.Lock()
	defer list.Unlock()
	if list.head == 0 {
		n := p.takePage()
		if n == 0 {
			return 0
		}
		pg := p.page(n)
		*pg = page{magic: pageMagic, class: uint16(class), strip: uint16(stripe % poolStripes)}
		p.pushPage(list, n, pg)
	}
	n := list.head
	pg := p.page(n)
	r := pg.free
	if r != 0 {
		pg.free = arena.At[freeRecord](p.mem, int64(r)*refUnit).next
	} else {
		r = recordRef(n, int64(pg.bump), classSizes[class])
		pg.bump++
	}
	pg.used++
	if pg.free == 0 && int64(pg.bump) == recordsIn(class) {
		p.dropPage(list, n, pg)
	}
	clear(p.mem[int64(r)*refUnit : int64(r)*refUnit+recordBytes])
	return r
}

// release gives a record back. Its word must say Free by then.
func (p *pool) release(r Ref) {
	n := pageOf(r)
	pg := p.page(n)
	list := &p.classes[pg.class][pg.strip]
	list.Lock()
	arena.At[freeRecord](p.mem, int64(r)*refUnit).next = pg.free
	pg.free = r
	pg.used--
	if pg.inUse == 0 {
		p.pushPage(list, n, pg)
	}
	empty := pg.used == 0 && (list.head != n || pg.next != 0) // keep one page a class
	if empty {
		p.dropPage(list, n, pg)
		pg.magic = 0
	}
	list.Unlock()
	if empty {
		p.putPage(n)
	}
}

func (p *pool) pushPage(list *classList, n uint32, pg *page) {
	pg.next, pg.prev, pg.inUse = list.head, 0, 1
	if list.head != 0 {
		p.page(list.head).prev = n
	}
	list.head = n
}

func (p *pool) dropPage(list *classList, n uint32, pg *page) {
	if pg.prev != 0 {
		p.page(pg.prev).next = pg.next
	} else {
		list.head = pg.next
	}
	if pg.next != 0 {
		p.page(pg.next).prev = pg.prev
	}
	pg.next, pg.prev, pg.inUse = 0, 0, 0
}

func recordsIn(class int) int64 { return (pageBytes - pageHeader) / classSizes[class] }

func recordRef(n uint32, i, size int64) Ref {
	return Ref((int64(n)*pageBytes + pageHeader + i*size) / refUnit)
}

// glance copies the header of a page that others may be changing; see memory.glance.
//
//go:norace
func (p *pool) glance(n uint32) page { return *p.page(n) }

// records is the number of records that a page has, in use or not; 0 for a page that serves no class.
func (pg *page) records() uint32 {
	if pg.magic != pageMagic || int(pg.class) >= len(classSizes) {
		return 0
	}
	return min(pg.bump, uint32(recordsIn(int(pg.class))))
}

// isRecord reports whether r is where a record of its page starts. Only for Restore: the page must not change.
func (p *pool) isRecord(r Ref) bool {
	n := pageOf(r)
	if !p.has(n) {
		return false
	}
	pg := p.page(n)
	count := int64(pg.records())
	if count == 0 {
		return false
	}
	size := classSizes[pg.class]
	off := int64(r)*refUnit - int64(n)*pageBytes - pageHeader
	return off >= 0 && off%size == 0 && off/size < count
}

// each calls fn for every record of a page, in use or not. Only for Restore: the page must not change.
func (p *pool) each(n uint32, fn func(Ref, *record)) {
	pg := p.page(n)
	for i := range int64(pg.records()) {
		r := recordRef(n, i, classSizes[pg.class])
		fn(r, p.mem.at(r))
	}
}
