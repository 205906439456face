package policy

type entry struct {
	Candidate
	order uint64 // a smaller one leaves first
}

// before says whether e leaves before o. It takes pointers because entries are long and millions of them are compared.
func (e *entry) before(o *entry) bool {
	if e.order != o.order {
		return e.order < o.order
	}
	if e.Key != o.Key {
		return e.Key < o.Key
	}
	return e.Ref < o.Ref
}

func compareEntries(a, b entry) int {
	switch {
	case a.before(&b):
		return -1
	case b.before(&a):
		return 1
	}
	return 0
}

// shortlist keeps the first of the entries added that free bytesWanted together, at most mostEntries. An entry that is once not
// among them never will be: what lies before it can only become more.
type shortlist struct {
	heap        []entry // the last to leave on top
	bytes       int64   // freed by them
	bytesWanted int64
	mostEntries int
}

func (l *shortlist) reset(bytesWanted int64, mostEntries int) {
	*l = shortlist{heap: l.heap[:0], bytesWanted: bytesWanted, mostEntries: mostEntries}
}

// add takes e unless it cannot be among the first. Entries behind it may then be surplus, for pop.
func (l *shortlist) add(e entry) bool {
	if l.bytesWanted <= 0 {
		return false
	}
	full := l.bytes >= l.bytesWanted || len(l.heap) >= l.mostEntries
	if full && l.heap[0].before(&e) {
		return false
	}
	l.heap = append(l.heap, e)
	l.bytes += e.Size
	l.up(len(l.heap) - 1)
	return true
}

// pop removes the last to leave if those before it are enough.
func (l *shortlist) pop() (entry, bool) {
	if len(l.heap) == 0 {
		return entry{}, false
	}
	top := l.heap[0]
	if l.bytes-top.Size < l.bytesWanted && len(l.heap) <= l.mostEntries {
		return entry{}, false
	}
	last := len(l.heap) - 1
	l.heap[0] = l.heap[last]
	l.heap = l.heap[:last]
	l.bytes -= top.Size
	l.down(0)
	return top, true
}

// up moves the entry at i to where its parent leaves after it.
func (l *shortlist) up(i int) {
	e := l.heap[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !l.heap[parent].before(&e) {
			break
		}
		l.heap[i] = l.heap[parent]
		i = parent
	}
	l.heap[i] = e
}

// down moves the entry at i to where its children leave before it.
func (l *shortlist) down(i int) {
	if i >= len(l.heap) {
		return
	}
	e := l.heap[i]
	for {
		child := 2*i + 1
		if child >= len(l.heap) {
			break
		}
		if right := child + 1; right < len(l.heap) && l.heap[child].before(&l.heap[right]) {
			child = right
		}
		if !e.before(&l.heap[child]) {
			break
		}
		l.heap[i] = l.heap[child]
		i = child
	}
	l.heap[i] = e
}
