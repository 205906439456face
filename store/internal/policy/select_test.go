package policy

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	unknown uint8 = iota
	kvCache
	tensor
	weight
	sample
)

func seeded(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// naiveVictims is the order of the Config's comment, by sorting everything.
func naiveVictims(need Need, config Config, all []Candidate) []Candidate {
	if need.MaxVictims <= 0 {
		need.MaxVictims = DefaultMaxVictims
	}
	if need.SoftBytes <= 0 {
		need.SoftBytes = need.Bytes
	}
	priority := func(c Candidate) uint8 {
		if c.Type < Types {
			return config.Priority[c.Type]
		}
		return 0
	}
	all = slices.DeleteFunc(slices.Clone(all), func(c Candidate) bool { return c.Size <= 0 })
	slices.SortFunc(all, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(a.LastUse, b.LastUse), -cmp.Compare(a.Depth, b.Depth), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Ref, b.Ref))
	})
	class := map[uint32]int{}
	var used = need.Used
	for _, c := range all {
		switch {
		case config == Config{}, c.Type == kvCache && config.Priority[kvCache] == 0:
			class[c.Ref] = 0
		case !c.Soft && c.Type < Types && config.Quota[c.Type] > 0 && used[c.Type] > config.Quota[c.Type]:
			used[c.Type] -= c.Size
			class[c.Ref] = 1
		default:
			class[c.Ref] = 2
		}
		if c.Soft {
			class[c.Ref] += 3
		}
	}
	slices.SortStableFunc(all, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(class[a.Ref], class[b.Ref]), cmp.Compare(priority(a), priority(b)))
	})
	var victims []Candidate
	var freed int64
	for _, c := range all {
		if freed >= need.Bytes || len(victims) == need.MaxVictims || c.Soft && freed >= need.SoftBytes {
			break
		}
		victims = append(victims, c)
		freed += c.Size
	}
	return victims
}

func randomCandidates(r *rand.Rand, n int) []Candidate {
	all := make([]Candidate, n)
	for i := range all {
		all[i] = Candidate{
			Ref:     uint32(i),
			LastUse: uint32(r.IntN(1 + n/4)),
			Size:    int64(r.IntN(1000)) * int64(r.IntN(2)*1000+1),
			Key:     uint64(r.IntN(n)),
			Depth:   uint16(r.IntN(4)),
			Type:    uint8(r.IntN(10)),
			Soft:    r.IntN(8) == 0,
		}
		if r.IntN(50) == 0 {
			all[i].Type = uint8(r.IntN(256))
		}
	}
	return all
}

func randomConfig(r *rand.Rand, need *Need) (config Config) {
	for t := range config.Quota {
		need.Used[t] = r.Int64N(1e6)
		if r.IntN(3) == 0 {
			config.Quota[t] = r.Int64N(1e6)
		}
		if r.IntN(3) == 0 {
			config.Priority[t] = uint8(r.IntN(3))
		}
	}
	return config
}

func selectAll(s *Selector, all []Candidate) []Candidate {
	for _, c := range all {
		s.Offer(c)
	}
	return s.Victims()
}

func requireSame(t *testing.T, want, got []Candidate) {
	t.Helper()
	if !slices.Equal(want, got) {
		require.Equal(t, want, got)
	}
}

func TestVictimsMatchTheModel(t *testing.T) {
	r := seeded(t)
	reused := NewSelector(Need{}, Config{})
	for range 2000 {
		all := randomCandidates(r, 1+r.IntN(200))
		need := Need{Bytes: r.Int64N(1 << r.IntN(30)), MaxVictims: r.IntN(100), SoftBytes: r.Int64N(1 << r.IntN(30))}
		reused.Reset(need)
		requireSame(t, naiveVictims(need, Config{}, all), selectAll(reused, all))
		config := randomConfig(r, &need)
		requireSame(t, naiveVictims(need, config, all), selectAll(NewSelector(need, config), all))
	}
}

func TestOrderOfOffersDoesNotMatter(t *testing.T) {
	r := seeded(t)
	all := randomCandidates(r, 500)
	need := Need{Bytes: 3e6}
	config := randomConfig(r, &need)
	for _, config := range []Config{{}, config} {
		want := slices.Clone(selectAll(NewSelector(need, config), all))
		for range 100 {
			r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			require.Equal(t, want, selectAll(NewSelector(need, config), all))
		}
	}
}

func TestZeroConfigIgnoresTypes(t *testing.T) {
	r := seeded(t)
	all := randomCandidates(r, 500)
	need := Need{Bytes: 3e6}
	for i := range need.Used {
		need.Used[i] = 1 << 40
	}
	refs := func(victims []Candidate) (refs []uint32) {
		for _, v := range victims {
			refs = append(refs, v.Ref)
		}
		return refs
	}
	want := refs(selectAll(NewSelector(need, Config{}), all))
	require.NotEmpty(t, want)
	for i := range all {
		all[i].Type = 0
	}
	require.Equal(t, want, refs(selectAll(NewSelector(need, Config{}), all)))
}

// TestPressureOrder lets the need grow and sees the classes leave one after the other.
func TestPressureOrder(t *testing.T) {
	config := Config{}
	config.Quota[sample] = 50
	config.Quota[tensor] = 100
	config.Priority[tensor] = 1
	all := []Candidate{
		{Ref: 1, Type: kvCache, Size: 10, LastUse: 90},
		{Ref: 2, Type: kvCache, Size: 10, LastUse: 91, Depth: 1},
		{Ref: 3, Type: kvCache, Size: 10, LastUse: 91, Depth: 7},
		{Ref: 4, Type: sample, Size: 10, LastUse: 2},
		{Ref: 5, Type: sample, Size: 10, LastUse: 20},
		{Ref: 6, Type: tensor, Size: 10, LastUse: 1},
		{Ref: 7, Type: weight, Size: 10, LastUse: 0},
		{Ref: 8, Type: kvCache, Size: 10, LastUse: 0, Soft: true},
	}
	need := Need{}
	need.Used[sample] = 55
	need.Used[tensor] = 101
	order := []uint32{1, 3, 2, 4, 6, 7, 5, 8}
	for n := range order {
		need.Bytes = int64(n*10 + 5)
		victims := selectAll(NewSelector(need, config), all)
		require.Len(t, victims, n+1)
		for i, v := range victims {
			require.Equal(t, order[i], v.Ref, "victim %d of %d", i, len(victims))
		}
	}
	need.Bytes = 1000
	require.Len(t, selectAll(NewSelector(need, config), all), len(all), "what there is, if it does not cover the need")
}

func TestSelectorIsBounded(t *testing.T) {
	r := seeded(t)
	config := Config{}
	need := Need{Bytes: 1 << 40, MaxVictims: 100}
	for i := range config.Quota {
		config.Quota[i], need.Used[i] = 1, 1<<50
	}
	s := NewSelector(need, config)
	for i := range 100000 {
		s.Offer(Candidate{Ref: uint32(i), Type: uint8(i % 20), Size: 1, LastUse: r.Uint32()})
	}
	require.Len(t, s.Victims(), 100)
	require.LessOrEqual(t, len(s.rest.heap), 100)
	for i := range s.over {
		require.LessOrEqual(t, len(s.over[i].heap), 100)
	}
}

func TestNothingNeeded(t *testing.T) {
	c := Candidate{Size: 1}
	require.Empty(t, selectAll(NewSelector(Need{}, Config{}), []Candidate{c}))
	require.Empty(t, selectAll(NewSelector(Need{Bytes: -1}, Config{}), []Candidate{c}))
	require.Empty(t, selectAll(NewSelector(Need{Bytes: 1}, Config{}), []Candidate{{Size: 0}, {Size: -5}}))
	require.Empty(t, NewSelector(Need{Bytes: 1}, Config{}).Victims())
}

func BenchmarkOffer(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	const n = 1 << 20
	all := make([]Candidate, n)
	for i := range all {
		all[i] = Candidate{Ref: uint32(i), LastUse: r.Uint32(), Size: 1 << 16, Key: r.Uint64()}
	}
	s := NewSelector(Need{}, Config{})
	b.ReportAllocs()
	for b.Loop() {
		s.Reset(Need{Bytes: n << 16 / 20, MaxVictims: n})
		for _, c := range all {
			s.Offer(c)
		}
		s.Victims()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/candidate")
}
