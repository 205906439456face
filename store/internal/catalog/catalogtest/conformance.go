package catalogtest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/pkg/errors"
	"github.com/stretchr/testify/require"
)

// Conformance checks what the contract of catalog.Catalog promises. open returns a catalogue on the same, at first
// empty directory each time it is called; the one before has been closed.
func Conformance(t *testing.T, open func(t *testing.T) func() (catalog.Catalog, error)) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, func() catalog.Catalog)
	}{
		{"RoundTrip", roundTrip},
		{"Generations", generations},
		{"Limits", limits},
		{"Order", order},
		{"Meta", meta},
		{"ScanEnds", scanEnds},
		{"Closed", closed},
		{"Concurrent", concurrent},
		{"Model", model},
	} {
		t.Run(c.name, func(t *testing.T) {
			again := open(t)
			c.run(t, func() catalog.Catalog {
				cat, err := again()
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, cat.Close()) })
				return cat
			})
		})
	}
}

// ID names one record.
type ID struct {
	Tenant, Key string
	Gen         uint64
}

// All returns all records of c, with strings of their own. No ID may come twice.
func All(t testing.TB, c catalog.Catalog) map[ID]catalog.Record {
	all := map[ID]catalog.Record{}
	require.NoError(t, c.Scan(context.Background(), func(r *catalog.Record) error {
		own := Clone(r)
		id := ID{own.Tenant, own.Key, own.Gen}
		if _, twice := all[id]; twice {
			return errors.Errorf("Scan gave %+v twice", id)
		}
		all[id] = own
		return nil
	}))
	return all
}

// Clone copies a record that a Scan lent.
func Clone(r *catalog.Record) catalog.Record {
	own := *r
	own.Tenant, own.Key = strings.Clone(r.Tenant), strings.Clone(r.Key)
	own.Group, own.Target = strings.Clone(r.Group), strings.Clone(r.Target)
	return own
}

// Random makes a record whose fields take all shapes, under the given name.
func Random(rng *rand.Rand, id ID) catalog.Record {
	wide := func() uint64 { return rng.Uint64() >> rng.IntN(64) }
	r := catalog.Record{
		Tenant: id.Tenant, Key: id.Key, Gen: id.Gen,
		Size:      int64(wide() >> 1),
		Type:      uint8(rng.Uint32()),
		Flags:     catalog.Flags(rng.Uint32()),
		SoftUntil: int64(wide()),
		Digest:    rng.Uint64(),
		Loc:       catalog.Loc{File: rng.Uint32(), Off: rng.Uint32(), Own: rng.Uint32()},
		OwnMtime:  int64(wide()),
	}
	if rng.IntN(2) == 0 {
		r.Group = strings.Repeat("g", rng.IntN(300))
	}
	if rng.IntN(2) == 0 {
		r.Target = strings.Repeat("t", rng.IntN(300))
	}
	return r
}

func roundTrip(t *testing.T, open func() catalog.Catalog) {
	c := open()
	long := func(n int) string { return strings.Repeat("\xff", n) }
	want := []catalog.Record{
		{},
		{Key: "k"},
		{Tenant: "k"},
		{Tenant: "t", Key: "a\x00b", Group: "g"},
		{Key: "link", Flags: catalog.FlagLink, Target: "k"},
		{Key: "link", Gen: 1, Flags: catalog.FlagLink, Group: "g", Target: "a\x00b"},
		{
			Tenant: long(catalog.MaxTenantBytes), Key: long(catalog.MaxKeyBytes), Group: long(catalog.MaxGroupBytes),
			Target: long(catalog.MaxKeyBytes),
			Gen:    math.MaxUint64, Size: math.MaxInt64, Type: 255, Flags: 0xFFFF, SoftUntil: math.MinInt64,
			Digest: math.MaxUint64, Loc: catalog.Loc{File: 1, Off: 2, Own: math.MaxUint32}, OwnMtime: math.MaxInt64,
		},
	}
	var b catalog.Batch
	for i := range want {
		b.Put(&want[i])
	}
	require.Equal(t, len(want), b.Len())
	require.NoError(t, c.Apply(&b, true))
	b.Reset()
	require.NoError(t, c.Apply(&b, true), "an empty batch")
	require.NoError(t, c.Apply(&b, false), "an empty batch")

	check := func(c catalog.Catalog, want []catalog.Record) {
		t.Helper()
		require.Len(t, All(t, c), len(want))
		for _, w := range want {
			got, ok, err := c.Get(w.Tenant, w.Key, w.Gen)
			require.NoError(t, err)
			require.True(t, ok, "Get(%.20q, %.20q, %d) found nothing", w.Tenant, w.Key, w.Gen)
			require.Equal(t, w, *got)
			require.Equal(t, w, All(t, c)[ID{w.Tenant, w.Key, w.Gen}])
		}
	}
	check(c, want)

	b.Delete("", "k", 0)
	b.Delete("", "never there", 0)
	want[3].Size, want[4].Target = 7, "another"
	b.Put(&want[1])
	b.Delete("", "k", 0) // the last change of a record wins
	b.Put(&want[3])
	b.Put(&want[4])
	require.NoError(t, c.Apply(&b, false))
	want = append(want[:1], want[2:]...)
	check(c, want)
	_, ok, err := c.Get("", "k", 0)
	require.NoError(t, err)
	require.False(t, ok)

	require.NoError(t, c.Close())
	check(open(), want)
}

// generations checks that a generation comes and goes without the others of its key, in any order.
func generations(t *testing.T, open func() catalog.Catalog) {
	c := open()
	var b catalog.Batch
	put := func(gen uint64) func(key string) {
		return func(key string) { b.Put(&catalog.Record{Tenant: "t", Key: key, Gen: gen, Size: int64(gen % 1000)}) }
	}
	forget := func(gen uint64) func(key string) { return func(key string) { b.Delete("t", key, gen) } }
	never := uint64(3)
	want := map[ID]catalog.Record{}
	for i, changes := range [][]func(key string){
		{put(1), put(2), forget(1)},
		{put(1), forget(1), put(2)},
		{put(2), put(1), forget(1)},
		{forget(1), put(2)},
		{put(2), forget(never), forget(0), forget(math.MaxUint64)},
	} {
		for _, apart := range []bool{false, true} {
			key := fmt.Sprintf("%d %t", i, apart)
			for _, change := range changes {
				if change(key); apart {
					require.NoError(t, c.Apply(&b, false))
					b.Reset()
				}
			}
			require.NoError(t, c.Apply(&b, false))
			b.Reset()
			want[ID{"t", key, 2}] = catalog.Record{Tenant: "t", Key: key, Gen: 2, Size: 2}
		}
	}
	// Generations that look alike in one byte order, and a key that ends as the stored key of another does.
	for key, gens := range map[string][]uint64{
		"all":                                 {0, 1, 255, 256, 1 << 56, math.MaxUint64 - 1, math.MaxUint64},
		"all\x00\x00\x00\x00\x00\x00\x00\x00": {0, 1},
	} {
		for _, gen := range gens {
			put(gen)(key)
			want[ID{"t", key, gen}] = catalog.Record{Tenant: "t", Key: key, Gen: gen, Size: int64(gen % 1000)}
		}
	}
	require.NoError(t, c.Apply(&b, true))

	check := func(c catalog.Catalog) {
		t.Helper()
		require.Equal(t, want, All(t, c))
		for id, w := range want {
			got, ok, err := c.Get(id.Tenant, id.Key, id.Gen)
			require.NoError(t, err)
			require.True(t, ok, "Get%+v found nothing", id)
			require.Equal(t, w, *got)
			_, ok, err = c.Get(id.Tenant, id.Key, never)
			require.NoError(t, err)
			require.False(t, ok, "Get(%q, %q, %d) found a generation that was never put", id.Tenant, id.Key, never)
		}
	}
	check(c)
	require.NoError(t, c.Close())
	check(open())
}

func limits(t *testing.T, open func() catalog.Catalog) {
	c := open()
	over := func(n int) string { return strings.Repeat("x", n+1) }
	for name, add := range map[string]func(b *catalog.Batch){
		"tenant":     func(b *catalog.Batch) { b.Put(&catalog.Record{Tenant: over(catalog.MaxTenantBytes)}) },
		"key":        func(b *catalog.Batch) { b.Put(&catalog.Record{Key: over(catalog.MaxKeyBytes)}) },
		"group":      func(b *catalog.Batch) { b.Put(&catalog.Record{Group: over(catalog.MaxGroupBytes)}) },
		"target":     func(b *catalog.Batch) { b.Put(&catalog.Record{Target: over(catalog.MaxKeyBytes)}) },
		"size":       func(b *catalog.Batch) { b.Put(&catalog.Record{Size: -1}) },
		"delete":     func(b *catalog.Batch) { b.Delete("", over(catalog.MaxKeyBytes), 0) },
		"meta name":  func(b *catalog.Batch) { b.SetMeta(over(catalog.MaxMetaNameBytes), nil) },
		"meta value": func(b *catalog.Batch) { b.SetMeta("m", make([]byte, catalog.MaxMetaBytes+1)) },
		"reserved":   func(b *catalog.Batch) { b.SetMeta("format", nil) },
		"batch": func(b *catalog.Batch) {
			for b.Bytes() <= catalog.MaxBatchBytes {
				b.SetMeta("m", make([]byte, catalog.MaxMetaBytes))
			}
		},
	} {
		var b catalog.Batch
		b.Put(&catalog.Record{Key: "good"})
		add(&b)
		b.Put(&catalog.Record{Key: "good too"})
		require.ErrorIs(t, c.Apply(&b, true), catalog.ErrLimit, name)
		require.Empty(t, All(t, c), "%s: a refused batch is refused whole", name)
		b.Reset()
		require.NoError(t, b.Err(), name)
	}
	for _, id := range []ID{{Tenant: over(catalog.MaxTenantBytes)}, {Key: over(catalog.MaxKeyBytes)}} {
		_, ok, err := c.Get(id.Tenant, id.Key, id.Gen)
		require.NoError(t, err)
		require.False(t, ok)
	}
}

// order lists records as Scan must: a generation counts as eight more bytes of the key.
func order(t *testing.T, open func() catalog.Catalog) {
	c := open()
	want := []ID{
		{"", "", 0}, {"", "", 1}, {"", "", 256}, {"", "", 'a' << 56},
		{"", "b", 0}, {"", "b", 1}, {"", "ba", 0}, {"", "ba", 7}, {"", "b", 'b' << 56}, {"", "b", math.MaxUint64},
		{"", "", math.MaxUint64},
		{"b", "", 0}, {"b", "a", 0}, {"b", "\xff", 0}, {"b", "", math.MaxUint64},
		{"aa", "a", 0},
	}
	var b catalog.Batch
	for i := range want {
		w := want[len(want)-1-i]
		b.Put(&catalog.Record{Tenant: w.Tenant, Key: w.Key, Gen: w.Gen})
	}
	b.SetMeta("a", nil)
	b.SetMeta("z", nil)
	require.NoError(t, c.Apply(&b, false))
	var got []ID
	require.NoError(t, c.Scan(t.Context(), func(r *catalog.Record) error {
		own := Clone(r)
		got = append(got, ID{own.Tenant, own.Key, own.Gen})
		return nil
	}))
	require.Equal(t, want, got)
}

func meta(t *testing.T, open func() catalog.Catalog) {
	c := open()
	_, ok, err := c.Meta("next file")
	require.NoError(t, err)
	require.False(t, ok)
	var b catalog.Batch
	b.SetMeta("next file", []byte("1"))
	b.SetMeta("next file", []byte("2"))
	b.SetMeta("empty", nil)
	b.SetMeta("", make([]byte, catalog.MaxMetaBytes))
	require.NoError(t, c.Apply(&b, true))
	require.NoError(t, c.Close())
	c = open()
	for name, want := range map[string]string{"next file": "2", "empty": "", "": string(make([]byte, catalog.MaxMetaBytes))} {
		got, ok, err := c.Meta(name)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, want, string(got))
	}
}

func scanEnds(t *testing.T, open func() catalog.Catalog) {
	c := open()
	put(t, c, 3000, false)
	boom := errors.New("boom")
	n := 0
	require.Equal(t, boom, c.Scan(t.Context(), func(*catalog.Record) error {
		if n++; n == 1500 {
			return boom
		}
		return nil
	}))
	require.Equal(t, 1500, n)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.Scan(ctx, func(*catalog.Record) error { return nil }), context.Canceled)

	// A scan sees the state as of its call, and its function may use the catalogue.
	n = 0
	require.NoError(t, c.Scan(t.Context(), func(r *catalog.Record) error {
		n++
		var b catalog.Batch
		b.Delete(r.Tenant, r.Key, r.Gen)
		b.Put(&catalog.Record{Tenant: r.Tenant, Key: r.Key, Gen: r.Gen + 3000})
		return c.Apply(&b, false)
	}))
	require.Equal(t, 3000, n)
	require.Len(t, All(t, c), 3000)
}

func put(t *testing.T, c catalog.Catalog, n int, sync bool) {
	t.Helper()
	var b catalog.Batch
	for i := range n {
		b.Put(&catalog.Record{Key: fmt.Sprintf("key %06d", i), Gen: uint64(i)})
	}
	require.NoError(t, c.Apply(&b, sync))
}

func closed(t *testing.T, open func() catalog.Catalog) {
	c := open()
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	var b catalog.Batch
	require.ErrorIs(t, c.Apply(&b, true), catalog.ErrClosed)
	require.ErrorIs(t, c.Scan(t.Context(), nil), catalog.ErrClosed)
	_, _, err := c.Get("", "", 0)
	require.ErrorIs(t, err, catalog.ErrClosed)
	_, _, err = c.Meta("")
	require.ErrorIs(t, err, catalog.ErrClosed)
}

// concurrent runs every method while Close comes in between: each call does its work or says ErrClosed.
func concurrent(t *testing.T, open func() catalog.Catalog) {
	c := open()
	put(t, c, 1000, false)
	var wg sync.WaitGroup
	run := func(f func() error) {
		wg.Go(func() {
			for range 200 {
				if err := f(); err != nil {
					if !errors.Is(err, catalog.ErrClosed) {
						t.Errorf("concurrent call: %v", err)
					}
					return
				}
			}
		})
	}
	for i := range 2 {
		run(func() error {
			var b catalog.Batch
			b.Put(&catalog.Record{Tenant: fmt.Sprint(i), Key: "k"})
			return c.Apply(&b, i == 0)
		})
		run(func() error { return c.Scan(t.Context(), func(*catalog.Record) error { return nil }) })
		run(func() error { _, _, err := c.Get("", "key 000001", 1); return err })
		run(func() error { _, _, err := c.Meta("m"); return err })
	}
	for range 50 {
		_, _, err := c.Meta("m")
		require.NoError(t, err)
	}
	require.NoError(t, c.Close())
	wg.Wait()
}

// model compares with a map through random batches and reopenings.
func model(t *testing.T, open func() catalog.Catalog) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	c := open()
	want := map[ID]catalog.Record{}
	gens := []uint64{0, 1, 1 << 8, 1 << 56, math.MaxUint64}
	for range 60 {
		var b catalog.Batch
		for range rng.IntN(200) {
			id := ID{fmt.Sprint(rng.IntN(3)), fmt.Sprint(rng.IntN(60)), gens[rng.IntN(len(gens))]}
			if rng.IntN(3) == 0 {
				b.Delete(id.Tenant, id.Key, id.Gen)
				delete(want, id)
			} else {
				r := Random(rng, id)
				b.Put(&r)
				want[id] = r
			}
		}
		require.NoError(t, c.Apply(&b, rng.IntN(4) == 0))
		if rng.IntN(10) == 0 {
			require.NoError(t, c.Close())
			c = open()
		}
		if rng.IntN(5) == 0 {
			require.Equal(t, want, All(t, c), "seed %d", seed)
		}
	}
	require.Equal(t, want, All(t, c), "seed %d", seed)
}
