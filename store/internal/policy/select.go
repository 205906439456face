package policy

import "slices"

// Types is the number of object types that can have a quota or a priority; higher ones have neither. Numbers are upstream's.
const Types = 16

const typeKVCache = 1

// DefaultMaxVictims bounds a selection whose Need does not.
const DefaultMaxVictims = 1 << 16

// Candidate is an object that may leave: its caller has found it Evictable.
type Candidate struct {
	Ref     uint32 // the caller's, unique among the candidates of a selection
	LastUse uint32 // by a coarse clock: larger is newer
	Size    int64  // bytes freed; a candidate that frees none is ignored
	Key     uint64 // hash of its key, which decides between equals
	Depth   uint16 // its position in a chain of prefixes: of those used last at the same time the deepest leaves first
	Type    uint8
	Soft    bool // soft-pinned: leaves after all that are not
}

// Need is what a selection is to free.
type Need struct {
	Bytes      int64
	MaxVictims int // Default: DefaultMaxVictims.
	// SoftBytes ends the taking of soft-pinned objects once victims free this much. Default: Bytes.
	SoftBytes int64
	// Used is what all objects of each type hold now, candidates or not. Only read where Config has a quota.
	Used [Types]int64
}

// Config makes the order of victims aware of types. The zero value ignores them: the victims are the same as if all objects had
// one type. Otherwise these leave in turn, in each group the lowest priority first and then the oldest; soft-pinned objects after all of
// them, regardless of quotas.
//
//  1. KVCACHE, unless it has a priority. With one it is like other types.
//  2. Of types above their quota as much as they are above it.
//  3. The rest.
type Config struct {
	Quota    [Types]int64 // bytes; 0 is none
	Priority [Types]uint8 // lower leaves first
}

// Selector finds the victims among any number of candidates offered one after the other. It keeps only those that may still be
// victims: MaxVictims, and as many for each type above its quota. The order of offers does not matter.
type Selector struct {
	need   Need
	config Config
	typed  bool
	over   [Types]shortlist // the oldest of a type, up to what it has above its quota
	rest   shortlist

	sorted  []entry // memory of Victims
	victims []Candidate
}

// NewSelector returns a Selector for need.
func NewSelector(need Need, config Config) *Selector {
	s := &Selector{config: config, typed: config != Config{}}
	s.Reset(need)
	return s
}

// Reset starts a new selection in the memory of the last, whose victims are no longer valid.
func (s *Selector) Reset(need Need) {
	if need.MaxVictims <= 0 {
		need.MaxVictims = DefaultMaxVictims
	}
	if need.SoftBytes <= 0 {
		need.SoftBytes = need.Bytes
	}
	s.need = need
	s.rest.reset(need.Bytes, need.MaxVictims)
	for t := range s.over {
		var excess int64
		if s.config.Quota[t] > 0 {
			excess = need.Used[t] - s.config.Quota[t]
		}
		s.over[t].reset(min(excess, need.Bytes), need.MaxVictims)
	}
}

// Offer adds a candidate.
func (s *Selector) Offer(c Candidate) {
	if c.Size <= 0 {
		return
	}
	if !s.mayBeOver(c) {
		s.addRest(s.entry(c, s.class(c)))
		return
	}
	list := &s.over[c.Type]
	if !list.add(s.entry(c, classOver)) {
		s.addRest(s.entry(c, classRest))
		return
	}
	for surplus, ok := list.pop(); ok; surplus, ok = list.pop() {
		s.addRest(s.entry(surplus.Candidate, classRest))
	}
}

func (s *Selector) addRest(e entry) {
	if !s.rest.add(e) {
		return
	}
	for ok := true; ok; {
		_, ok = s.rest.pop()
	}
}

// Victims returns those offered so far that are to leave, in the order in which they are to. They free Need.Bytes unless there are too
// few candidates, too many soft-pinned ones among them, or MaxVictims of them free less. They are valid until Reset.
func (s *Selector) Victims() []Candidate {
	all := s.sorted[:0]
	for i := range s.over {
		all = append(all, s.over[i].heap...)
	}
	all = append(all, s.rest.heap...)
	slices.SortFunc(all, compareEntries)
	s.sorted, s.victims = all, s.victims[:0]
	var freed int64
	for _, e := range all {
		enough := s.need.Bytes
		if e.Soft {
			enough = min(enough, s.need.SoftBytes)
		}
		if freed >= enough || len(s.victims) == s.need.MaxVictims {
			break
		}
		s.victims = append(s.victims, e.Candidate)
		freed += e.Size
	}
	return s.victims
}

// The classes of Config, in order. They take two bits.
const (
	classFirst = iota
	classOver
	classRest
)

// mayBeOver says whether c could be part of what its type has above its quota.
func (s *Selector) mayBeOver(c Candidate) bool {
	return c.Type < Types && s.over[c.Type].bytesWanted > 0 && !c.Soft && s.class(c) != classFirst
}

// class returns the class of c as far as it does not depend on other candidates.
func (s *Selector) class(c Candidate) uint64 {
	if s.typed && (c.Type != typeKVCache || s.config.Priority[typeKVCache] != 0) {
		return classRest
	}
	return classFirst
}

// entry packs the order of victims into one word: soft pin, class, priority, last use, depth.
func (s *Selector) entry(c Candidate, class uint64) entry {
	order := class<<56 | uint64(c.LastUse)<<16 | uint64(^c.Depth)
	if c.Soft {
		order |= 1 << 58
	}
	if c.Type < Types {
		order |= uint64(s.config.Priority[c.Type]) << 48
	}
	return entry{Candidate: c, order: order}
}
